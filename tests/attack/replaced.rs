//! Protected files that the operator replaces while the daemon runs. Git does so whenever it changes
//! its configuration, and the kernel lifts the mount of a replaced file in every namespace.

use std::fs;

use super::{operator::git, repository::repository};
use crate::support::{Daemon, Mark, argv, shell};

/// Commands that change protected files.
const CHANGES: [&str; 5] = [
    "git config core.fsmonitor x",
    "echo >> .git/config",
    "mv .git/config .git/c",
    "touch .git/hooks/pre-commit",
    "echo x > .git/info/attributes",
];

async fn commands_change_nothing(daemon: &Daemon, after: &str) {
    for command in CHANGES {
        let response = daemon.run(shell(command)).await;
        assert_ne!(response.exit_code, Some(0), "{command} after {after}");
    }
}

#[tokio::test]
async fn replaced_files_are_protected_from_the_next_command_on() {
    for setup in [repository(), repository().user(12345)] {
        let daemon = setup.start().await;
        let root = daemon.workspace();
        commands_change_nothing(&daemon, "the start").await;
        for arguments in [
            &["config", "user.name", "o"][..],
            &["remote", "add", "origin", "."],
            &["config", "user.name", "p"],
        ] {
            git(&root, arguments);
            commands_change_nothing(&daemon, &arguments.join(" ")).await;
        }
        let config = fs::read_to_string(daemon.file(".git/config")).unwrap();
        assert!(config.contains("name = p") && config.contains("origin"), "{config}");

        // So are directories, and what was removed.
        fs::rename(daemon.file(".git/hooks"), daemon.file("hooks")).unwrap();
        fs::rename(daemon.file("hooks"), daemon.file(".git/hooks")).unwrap();
        commands_change_nothing(&daemon, "a move").await;
        fs::remove_file(daemon.file(".git/info/attributes")).unwrap();
        commands_change_nothing(&daemon, "a removal").await;
        assert!(daemon.file(".git/info/attributes").exists(), "it is made again");
        let output = daemon.output(shell("git config user.name")).await;
        assert_eq!(output, "p\n");
    }
}

#[tokio::test]
async fn commands_that_run_meanwhile_are_warned_of() {
    let daemon = repository().start().await;
    let mark = Mark::new();
    let running = daemon.begin(mark.on(argv(&["sleep", "1000"])));
    mark.appears(1).await;
    commands_change_nothing(&daemon, "the start").await;
    assert!(!daemon.log().contains("was replaced"), "{}", daemon.log());
    git(&daemon.workspace(), &["config", "user.name", "o"]);
    commands_change_nothing(&daemon, "git config").await;
    let log = daemon.log();
    assert_eq!(log.matches("was replaced while commands ran").count(), 1, "{log}");
    running.abort();
    mark.vanishes().await;
}
