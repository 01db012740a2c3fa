//! Paths that the operator protects. Tools and commands cannot change, move or replace them or
//! their parent directories.

use std::fs;

use tonic::Status;

use crate::{
    files::tools::{Tool, WRITE_TOOLS},
    support::{Daemon, Refusal, Setup, shell},
};

#[tokio::test]
async fn case_49_tools_and_commands_cannot_change_protected_paths() {
    for setup in [Setup::new(), Setup::new().workspace_owner(12345), Setup::new().user(12345)] {
        let table = "protected = [\".git/hooks\", \"missing/deep\", \"conf/settings\"]";

        // The daemon creates missing protected paths as directories.
        let setup = setup.workspace_file("conf/settings", "original\n");
        let daemon = setup.workspace_table(table).start().await;
        assert!(
            daemon.file(".git/hooks").is_dir() && daemon.file("missing/deep").is_dir(),
            "the daemon creates missing paths, so that no command can"
        );

        check_tools_are_denied(&daemon).await;
        check_commands_fail(&daemon).await;
        check_other_paths_are_writable(&daemon).await;
    }
}

fn assert_denied<T: std::fmt::Debug>(what: &str, result: Result<T, Status>) {
    match result {
        Ok(response) => panic!("{what} returned {response:?}"),
        Err(status) => assert_eq!(Refusal::from_status(&status).reason, "POLICY_DENIED", "{what}"),
    }
}

fn assert_protected_paths_unchanged(daemon: &Daemon, attempt: &str) {
    let path_of = |name: &str| daemon.file(name);
    for directory in [".git/hooks", "missing/deep"] {
        let kind = fs::symlink_metadata(path_of(directory)).unwrap().file_type();
        assert!(kind.is_dir(), "{directory} after {attempt}");
        assert_eq!(fs::read_dir(path_of(directory)).unwrap().count(), 0, "{attempt}");
    }

    let settings = fs::symlink_metadata(path_of("conf/settings")).unwrap();
    assert!(settings.is_file(), "{attempt}");

    let content = fs::read_to_string(path_of("conf/settings")).unwrap();
    assert_eq!(content, "original\n", "{attempt}");
}

async fn check_tools_are_denied(daemon: &Daemon) {
    for path in [
        ".git/hooks",
        ".git/hooks/pre-commit",
        "missing/deep",
        "missing/deep/er",
        "conf/settings",
        "conf/settings/x",
        "./conf//settings",
        "conf/../conf/settings",
        "/workspace/conf/settings",
    ] {
        let other_tools = [Tool::MoveFrom, Tool::MoveTo, Tool::Delete];
        for tool in WRITE_TOOLS.iter().chain(&other_tools) {
            assert_denied(&format!("{tool:?} {path}"), tool.call(daemon, path).await);
        }
    }

    // Their parent directories.
    for path in [".git", "missing", "conf"] {
        for tool in [Tool::MoveFrom, Tool::MoveTo, Tool::Delete, Tool::Write] {
            assert_denied(&format!("{tool:?} {path}"), tool.call(daemon, path).await);
        }
    }

    assert_protected_paths_unchanged(daemon, "the tools");
}

async fn check_commands_fail(daemon: &Daemon) {
    for command in [
        "echo x > .git/hooks/pre-commit",
        "mkdir .git/hooks/x",
        "mv .git git",
        "mv .git/hooks hooks",
        "rmdir .git/hooks",
        "rm -rf .git",
        "chmod 777 .git/hooks",
        "ln -s /tmp missing/deep/x",
        "rm -r missing && mkdir -p missing/deep",
        "mv missing other && mkdir missing && ln -s /tmp missing/deep",
        "echo x > conf/settings",
        "echo x >> conf/settings",
        "truncate -s 0 conf/settings",
        "echo x > new && mv new conf/settings",
        "cp /etc/passwd conf/settings",
        "cp --remove-destination /etc/passwd conf/settings",
        "ln conf/settings linked",
        "ln -sf /etc/passwd conf/settings",
        "rm -f conf/settings",
        "mv conf/settings other",
        "mv conf other",
        "rm -rf conf",
        "chmod 777 conf/settings",
        "touch -d 2001-01-01 conf/settings",
    ] {
        let response = daemon.run(shell(command)).await;
        assert_ne!(response.exit_code, Some(0), "{command}: {response:?}");
        assert_protected_paths_unchanged(daemon, command);
    }
}

async fn check_other_paths_are_writable(daemon: &Daemon) {
    for path in [".git/config", "conf/settings.new", "conf/setting"] {
        Tool::Write.call(daemon, path).await.unwrap();
        let append = format!("echo more >> {path} && cat {path}");
        assert_eq!(daemon.output(shell(&append)).await, "written\nmore\n");
    }

    daemon.output(shell("touch missing/x && cat conf/settings")).await;
    assert_eq!(daemon.read_file("conf/settings").await.unwrap(), "original\n");
}
