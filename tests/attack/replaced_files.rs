//! Protected files that the operator replaces while the daemon runs. Git does so when it changes
//! its configuration, and the kernel removes the mounts of a replaced file in every namespace.

use std::fs;

use super::{operator_git::run_git, repository::setup_with_repository};
use crate::support::{Daemon, Mark, argv, shell};

/// Commands that change protected files.
const CHANGE_COMMANDS: [&str; 5] = [
    "git config core.fsmonitor x",
    "echo >> .git/config",
    "mv .git/config .git/c",
    "touch .git/hooks/pre-commit",
    "echo x > .git/info/attributes",
];

async fn check_commands_fail(daemon: &Daemon, after: &str) {
    for command in CHANGE_COMMANDS {
        let response = daemon.run(shell(command)).await;
        assert_ne!(response.exit_code, Some(0), "{command} after {after}");
    }
}

#[tokio::test]
async fn daemon_protects_replaced_files_from_the_next_command() {
    for setup in [setup_with_repository(), setup_with_repository().user(12345)] {
        let daemon = setup.start().await;
        let root = daemon.workspace();
        check_commands_fail(&daemon, "the start").await;

        for arguments in [
            &["config", "user.name", "o"][..],
            &["remote", "add", "origin", "."],
            &["config", "user.name", "p"],
        ] {
            run_git(&root, arguments);
            check_commands_fail(&daemon, &arguments.join(" ")).await;
        }

        let config = fs::read_to_string(daemon.file(".git/config")).unwrap();
        assert!(config.contains("name = p") && config.contains("origin"), "{config}");

        // The same holds for directories and removed files.
        fs::rename(daemon.file(".git/hooks"), daemon.file("hooks")).unwrap();
        fs::rename(daemon.file("hooks"), daemon.file(".git/hooks")).unwrap();
        check_commands_fail(&daemon, "a move").await;

        fs::remove_file(daemon.file(".git/info/attributes")).unwrap();
        check_commands_fail(&daemon, "a removal").await;
        assert!(daemon.file(".git/info/attributes").exists(), "the daemon creates it again");

        let output = daemon.output(shell("git config user.name")).await;
        assert_eq!(output, "p\n");
    }
}

#[tokio::test]
async fn daemon_warns_about_files_replaced_during_a_command() {
    let daemon = setup_with_repository().start().await;
    let mark = Mark::new();
    let run = daemon.spawn_run(mark.on(argv(&["sleep", "1000"])));
    mark.wait_for_processes(1).await;

    check_commands_fail(&daemon, "the start").await;
    assert!(!daemon.log().contains("was replaced"), "{}", daemon.log());

    run_git(&daemon.workspace(), &["config", "user.name", "o"]);
    check_commands_fail(&daemon, "git config").await;

    let log = daemon.log();
    assert_eq!(log.matches("was replaced while commands ran").count(), 1, "{log}");

    run.abort();
    mark.wait_until_gone().await;
}
