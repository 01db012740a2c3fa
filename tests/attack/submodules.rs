//! Repositories that commands make within a repository: what docs/isolation.md says of them, with the real git.
//! `@git` does not cover them, and the remedies that it names do what it says.

use std::{fs, path::Path};

use super::{operator::git, repository::repository};
use crate::support::{Daemon, shell};

/// Records a directory with a repository of its own as a submodule. That one has a monitor, a hook,
/// a filter and a program for a remote, each of which leaves a file in the workspace.
const RECORD: &str = "
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@l GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@l
git init -q sub && cd sub
echo '* filter=x' > .gitattributes; echo 1 > file; git add -A; git commit -qm x
printf '#!/bin/sh\ntouch ../PWNED\n' > .git/hooks/post-index-change; chmod 755 .git/hooks/post-index-change
git config core.fsmonitor 'touch ../PWNED; false'
git config filter.x.clean 'touch ../PWNED; cat'
git config remote.origin.url .; git config remote.origin.uploadpack 'touch ../../PWNED; false'
cd .. && git add sub 2>/dev/null && git ls-files -s sub && git commit -qm sub";

/// Has `.gitmodules` say that submodules are looked into, and fetched.
const INSIST: &str = "
printf '[submodule \"s\"]\n path = sub\n url = ./sub\n ignore = none\n fetchRecurseSubmodules = true\n' > .gitmodules && git add .gitmodules && git -c user.name=a -c user.email=a@l commit -qm s";

/// What looks into submodules, unless it is told otherwise.
const LOOKING: [&[&str]; 4] = [&["status"], &["diff"], &["stash"], &["checkout", "main"]];
/// What looks into them whatever the configuration says.
const ALWAYS_LOOKING: [&[&str]; 2] = [&["add", "-u"], &["describe", "--always", "--dirty"]];

/// A repository with a commit, and settings against submodules. A command has recorded one.
async fn start(arguments: &[&str]) -> Daemon {
    let setup = repository().user(12345).arguments(arguments);
    let daemon = setup.start().await;
    let root = daemon.workspace();
    git(&root, &["commit", "-qm", "x", "--allow-empty"]);
    for (name, value) in [
        ("diff.ignoreSubmodules", "dirty"),
        ("fetch.recurseSubmodules", "false"),
        ("remote.origin.url", "."),
    ] {
        git(&root, &["config", name, value]);
    }
    daemon
}

/// Whether git runs what the command chose when the operator calls it.
fn is_fooled(daemon: &Daemon, directory: &Path, arguments: &[&str]) -> bool {
    // A file that has changed is filtered.
    let file = daemon.file("sub/file");
    if let Ok(content) = fs::read(&file) {
        fs::write(&file, content).unwrap();
    }
    git(directory, arguments);
    fs::remove_file(daemon.file("PWNED")).is_ok()
}

#[tokio::test]
async fn submodules_of_a_command_fool_git_whatever_its_settings() {
    let daemon = start(&["--protect", "@git"]).await;
    let root = daemon.workspace();
    let recorded = daemon.output(shell(RECORD)).await;
    assert!(recorded.starts_with("160000 "), "{recorded}");
    for arguments in LOOKING {
        assert!(!is_fooled(&daemon, &root, arguments), "{arguments:?}");
    }
    for arguments in ALWAYS_LOOKING {
        assert!(is_fooled(&daemon, &root, arguments), "{arguments:?}");
    }

    daemon.output(shell(INSIST)).await;
    for arguments in LOOKING.iter().chain(&ALWAYS_LOOKING) {
        assert!(is_fooled(&daemon, &root, arguments), "{arguments:?}");
    }
    // A setting that `.gitmodules` does not override.
    assert!(!is_fooled(&daemon, &root, &["fetch"]));
    git(&root, &["config", "--unset", "fetch.recurseSubmodules"]);
    assert!(is_fooled(&daemon, &root, &["fetch"]));
    // These reach the submodule, and leave its filters.
    let settings = ["-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "status"];
    assert!(is_fooled(&daemon, &root, &settings));
}

#[tokio::test]
async fn a_protected_gitmodules_leaves_little_open() {
    let daemon = start(&["--protect", "@git", "--protect", ".gitmodules"]).await;
    let root = daemon.workspace();
    daemon.output(shell(RECORD)).await;
    let insisted = daemon.run(shell(INSIST)).await;
    assert_ne!(insisted.exit_code, Some(0), "{insisted:?}");
    for arguments in LOOKING {
        assert!(!is_fooled(&daemon, &root, arguments), "{arguments:?}");
    }
    for arguments in ALWAYS_LOOKING {
        assert!(is_fooled(&daemon, &root, arguments), "{arguments:?}");
    }
}

#[tokio::test]
async fn a_clone_has_no_submodules_that_fool_git() {
    let daemon = start(&[]).await;
    let root = daemon.workspace();
    daemon.output(shell(RECORD)).await;
    daemon.output(shell(INSIST)).await;

    // It is found without git looking into it.
    assert!(!is_fooled(&daemon, &root, &["ls-files", "-s"]));
    let listed = git(&root, &["ls-files", "-s"]);
    assert!(listed.contains("160000 "), "{listed}");

    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(folder.path(), Some(12345), Some(12345)).unwrap();
    let clone = folder.path().join("clone");
    let (from, to) = (root.to_str().unwrap(), clone.to_str().unwrap());
    assert!(!is_fooled(&daemon, folder.path(), &["clone", "-q", "--no-local", from, to]));
    assert!(clone.join(".gitmodules").exists(), "it was cloned");
    for arguments in LOOKING.iter().chain(&ALWAYS_LOOKING) {
        assert!(!is_fooled(&daemon, &clone, arguments), "{arguments:?}");
    }
    assert!(!is_fooled(&daemon, &clone, &["pull"]));
}

#[tokio::test]
async fn a_protected_dot_git_records_no_submodule() {
    let daemon = start(&["--protect", ".git"]).await;
    let recorded = daemon.run(shell(RECORD)).await;
    assert_ne!(recorded.stdout.get(..6), Some("160000"), "{recorded:?}");
    for arguments in LOOKING.iter().chain(&ALWAYS_LOOKING) {
        assert!(!is_fooled(&daemon, &daemon.workspace(), arguments), "{arguments:?}");
    }
}

#[tokio::test]
async fn git_refuses_a_bare_repository_in_place_of_a_damaged_one() {
    let daemon = repository().start().await;
    let root = daemon.workspace();
    let script = "
mv .git/HEAD . && mkdir objects refs
git config -f config core.repositoryformatversion 0; git config -f config core.bare false
git config -f config core.worktree .; git config -f config core.fsmonitor 'touch PWNED; false'";
    daemon.output(shell(script)).await;
    assert!(is_fooled(&daemon, &root, &["status"]));
    let settings = ["-c", "safe.bareRepository=explicit", "status"];
    assert!(!is_fooled(&daemon, &root, &settings));
}
