//! Repositories that commands create within a repository: checks docs/isolation.md with the real
//! git. `@git` does not cover them, and the remedies in that page work as it describes.

use std::{fs, path::Path};

use super::{operator_git::run_git, repository::setup_with_repository};
use crate::support::{Daemon, shell};

/// Records a directory with its own repository as a submodule. The submodule has a monitor, a hook,
/// a filter and a program for a remote, each of which creates a file in the workspace.
const RECORD_SUBMODULE_SCRIPT: &str = "
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@l GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@l
git init -q sub && cd sub
echo '* filter=x' > .gitattributes; echo 1 > file; git add -A; git commit -qm x
printf '#!/bin/sh\ntouch ../PWNED\n' > .git/hooks/post-index-change; chmod 755 .git/hooks/post-index-change
git config core.fsmonitor 'touch ../PWNED; false'
git config filter.x.clean 'touch ../PWNED; cat'
git config remote.origin.url .; git config remote.origin.uploadpack 'touch ../../PWNED; false'
cd .. && git add sub 2>/dev/null && git ls-files -s sub && git commit -qm sub";

/// Makes `.gitmodules` request that git inspects and fetches submodules.
const OVERRIDE_SETTINGS_SCRIPT: &str = "
printf '[submodule \"s\"]\n path = sub\n url = ./sub\n ignore = none\n fetchRecurseSubmodules = true\n' > .gitmodules && git add .gitmodules && git -c user.name=a -c user.email=a@l commit -qm s";

/// Git commands that inspect submodules, unless the configuration forbids it.
const CONFIGURABLE_COMMANDS: [&[&str]; 4] =
    [&["status"], &["diff"], &["stash"], &["checkout", "main"]];
/// Git commands that inspect submodules whatever the configuration is.
const UNCONDITIONAL_COMMANDS: [&[&str]; 2] = [&["add", "-u"], &["describe", "--always", "--dirty"]];

/// Starts a daemon on a repository with a commit and settings against submodules.
async fn start_with_repository(arguments: &[&str]) -> Daemon {
    let setup = setup_with_repository().user(12345).arguments(arguments);
    let daemon = setup.start().await;
    let root = daemon.workspace();
    run_git(&root, &["commit", "-qm", "x", "--allow-empty"]);

    for (name, value) in [
        ("diff.ignoreSubmodules", "dirty"),
        ("fetch.recurseSubmodules", "false"),
        ("remote.origin.url", "."),
    ] {
        run_git(&root, &["config", name, value]);
    }

    daemon
}

/// Whether an operator's git command runs the program that a command planted.
fn git_runs_planted_program(daemon: &Daemon, directory: &Path, arguments: &[&str]) -> bool {
    // Git filters a changed file.
    let file = daemon.file("sub/file");
    if let Ok(content) = fs::read(&file) {
        fs::write(&file, content).unwrap();
    }

    run_git(directory, arguments);
    fs::remove_file(daemon.file("PWNED")).is_ok()
}

#[tokio::test]
async fn git_runs_programs_of_submodules_despite_its_settings() {
    let daemon = start_with_repository(&["--protect", "@git"]).await;
    let root = daemon.workspace();
    let index_entry = daemon.output(shell(RECORD_SUBMODULE_SCRIPT)).await;
    assert!(index_entry.starts_with("160000 "), "{index_entry}");

    for arguments in CONFIGURABLE_COMMANDS {
        assert!(!git_runs_planted_program(&daemon, &root, arguments), "{arguments:?}");
    }
    for arguments in UNCONDITIONAL_COMMANDS {
        assert!(git_runs_planted_program(&daemon, &root, arguments), "{arguments:?}");
    }

    daemon.output(shell(OVERRIDE_SETTINGS_SCRIPT)).await;
    for arguments in CONFIGURABLE_COMMANDS.iter().chain(&UNCONDITIONAL_COMMANDS) {
        assert!(git_runs_planted_program(&daemon, &root, arguments), "{arguments:?}");
    }

    // `.gitmodules` does not override this setting.
    assert!(!git_runs_planted_program(&daemon, &root, &["fetch"]));

    run_git(&root, &["config", "--unset", "fetch.recurseSubmodules"]);
    assert!(git_runs_planted_program(&daemon, &root, &["fetch"]));

    // These settings disable the monitor and the hooks of a submodule, but not its filters.
    let settings = ["-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "status"];
    assert!(git_runs_planted_program(&daemon, &root, &settings));
}

#[tokio::test]
async fn protected_gitmodules_preserves_git_settings() {
    let daemon = start_with_repository(&["--protect", "@git", "--protect", ".gitmodules"]).await;
    let root = daemon.workspace();
    daemon.output(shell(RECORD_SUBMODULE_SCRIPT)).await;
    let response = daemon.run(shell(OVERRIDE_SETTINGS_SCRIPT)).await;
    assert_ne!(response.exit_code, Some(0), "{response:?}");

    for arguments in CONFIGURABLE_COMMANDS {
        assert!(!git_runs_planted_program(&daemon, &root, arguments), "{arguments:?}");
    }
    for arguments in UNCONDITIONAL_COMMANDS {
        assert!(git_runs_planted_program(&daemon, &root, arguments), "{arguments:?}");
    }
}

#[tokio::test]
async fn clone_runs_no_programs_of_submodules() {
    let daemon = start_with_repository(&[]).await;
    let root = daemon.workspace();
    daemon.output(shell(RECORD_SUBMODULE_SCRIPT)).await;
    daemon.output(shell(OVERRIDE_SETTINGS_SCRIPT)).await;

    // Listing the index finds the submodule without inspecting it.
    assert!(!git_runs_planted_program(&daemon, &root, &["ls-files", "-s"]));

    let listed = run_git(&root, &["ls-files", "-s"]);
    assert!(listed.contains("160000 "), "{listed}");

    let directory = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(directory.path(), Some(12345), Some(12345)).unwrap();
    let clone = directory.path().join("clone");
    let (source, target) = (root.to_str().unwrap(), clone.to_str().unwrap());
    assert!(!git_runs_planted_program(
        &daemon,
        directory.path(),
        &["clone", "-q", "--no-local", source, target]
    ));
    assert!(clone.join(".gitmodules").exists(), "git cloned the repository");

    for arguments in CONFIGURABLE_COMMANDS.iter().chain(&UNCONDITIONAL_COMMANDS) {
        assert!(!git_runs_planted_program(&daemon, &clone, arguments), "{arguments:?}");
    }
    assert!(!git_runs_planted_program(&daemon, &clone, &["pull"]));
}

#[tokio::test]
async fn protected_dot_git_prevents_recording_submodules() {
    let daemon = start_with_repository(&["--protect", ".git"]).await;
    let response = daemon.run(shell(RECORD_SUBMODULE_SCRIPT)).await;
    assert_ne!(response.stdout.get(..6), Some("160000"), "{response:?}");

    for arguments in CONFIGURABLE_COMMANDS.iter().chain(&UNCONDITIONAL_COMMANDS) {
        assert!(
            !git_runs_planted_program(&daemon, &daemon.workspace(), arguments),
            "{arguments:?}"
        );
    }
}

#[tokio::test]
async fn git_setting_rejects_a_planted_bare_repository() {
    let daemon = setup_with_repository().start().await;
    let root = daemon.workspace();
    let script = "
mv .git/HEAD . && mkdir objects refs
git config -f config core.repositoryformatversion 0; git config -f config core.bare false
git config -f config core.worktree .; git config -f config core.fsmonitor 'touch PWNED; false'";
    daemon.output(shell(script)).await;
    assert!(git_runs_planted_program(&daemon, &root, &["status"]));

    let settings = ["-c", "safe.bareRepository=explicit", "status"];
    assert!(!git_runs_planted_program(&daemon, &root, &settings));
}
