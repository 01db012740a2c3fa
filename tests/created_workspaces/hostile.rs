//! Hostile names and trees, and deletion beside calls.

use std::{
    fs,
    os::unix::{fs::symlink, net::UnixListener},
    path::{Path, PathBuf},
    sync::Arc,
};

use jig::api::v1::CreateWorkspaceRequest;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tonic::Request;

use super::{Creating, in_workspace, named};
use crate::support::{Mark, Setup, argv, shell, start_request};

/// A file that is not in any workspace.
const SECRET: &str = "secret-of-the-host";

fn clone(of: &str, name: &str) -> CreateWorkspaceRequest {
    CreateWorkspaceRequest { clone_of: Some(of.to_owned()), ..named(name) }
}

/// All paths below a directory. Follows no symbolic link.
fn paths_below(directory: &Path) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    let mut pending = vec![directory.to_owned()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                pending.push(entry.path());
            }
            paths.push(entry.path());
        }
    }
    paths
}

#[tokio::test]
async fn hostile_names_name_nothing() {
    let creating = Creating::start(Setup::new(), "").await;
    creating.create(named("w")).await;
    for name in [
        "../w",
        "w/..",
        "./w",
        "W",
        "w ",
        " w",
        "w\n",
        "w\0",
        "w\u{202e}",
        "ｗ",
        "*",
        "w*",
        "%77",
        "-",
        "--",
        ".probe-1",
        "w.persistent",
        "\u{fe0f}",
        &"w".repeat(64),
    ] {
        let refused = creating.try_create(named(name)).await.unwrap_err();
        assert_eq!(refused.reason, "INVALID_PARAMS", "{name:?}");
        assert_eq!(refused.invalid_fields(), ["name"], "{name:?}");
        let refused = creating.try_create(clone(name, "copy")).await.unwrap_err();
        assert!(["UNKNOWN_WORKSPACE", "INVALID_PARAMS"].contains(&&*refused.reason), "{refused:?}");
        let refused = creating.delete(name).await.unwrap_err();
        assert!(["UNKNOWN_WORKSPACE", "INVALID_PARAMS"].contains(&&*refused.reason), "{refused:?}");
        if let Ok(header) = tonic::metadata::MetadataValue::try_from(name) {
            let mut run = Request::new(shell("true"));
            run.metadata_mut().insert("jig-workspace", header);
            let run = creating.daemon.try_run(run).await;
            // Blanks at the ends of a header mean nothing.
            assert!(run.is_err() || name.trim() == "w", "{name:?}");
        }
    }
    assert_eq!(creating.names().await, ["w", "workspace"]);
    assert_eq!(creating.directories().len(), 1);
}

#[tokio::test]
async fn a_clone_of_a_hostile_tree_has_its_files_only() {
    let creating = Creating::start(Setup::new(), "").await;
    let outside = TempDir::with_prefix("jig-test-outside-").unwrap();
    fs::write(outside.path().join(SECRET), "secret").unwrap();
    let source = creating.daemon.workspace();
    let at = |name: &str| source.join(name);
    let node = |name: &str, kind| mknodat(CWD, at(name), kind, Mode::RWXU, makedev(1, 3));
    node("fifo", FileType::Fifo).unwrap();
    node("device", FileType::CharacterDevice).unwrap();
    let _listener = UnixListener::bind(at("socket")).unwrap();
    fs::write(at("file"), "text").unwrap();
    fs::hard_link(at("file"), at("hard")).unwrap();
    fs::hard_link(at("fifo"), at("hard-fifo")).unwrap();
    symlink(outside.path(), at("link")).unwrap();
    symlink("link", at("chain")).unwrap();
    symlink("loop", at("loop")).unwrap();
    symlink("/proc/self/root", at("root")).unwrap();
    fs::create_dir(at("d")).unwrap();
    fs::write(at("d/\u{202e}\n"), "odd").unwrap();

    creating.create(clone("workspace", "copy")).await;
    let [copy] = creating.directories().try_into().unwrap();
    let mut found: Vec<_> = paths_below(&copy)
        .into_iter()
        .map(|path| path.strip_prefix(&copy).unwrap().display().to_string())
        .collect();
    found.sort();
    let mut expected =
        ["file", "hard", "link", "chain", "loop", "root", "d", "d/\u{202e}\n"].map(str::to_owned);
    expected.sort();
    assert_eq!(found, expected);
    // A copy of a hard link is a file of its own.
    creating.output_in("copy", "echo changed > file").await;
    assert_eq!(fs::read_to_string(copy.join("hard")).unwrap(), "text");
    assert_eq!(fs::read_to_string(at("file")).unwrap(), "text");
    creating.delete("copy").await.unwrap();

    let deep: PathBuf = std::iter::repeat_n("d", 300).collect();
    fs::create_dir_all(at("d").join(deep)).unwrap();
    let refused = creating.try_create(clone("workspace", "copy")).await.unwrap_err();
    assert_eq!(refused.reason, "INVALID_PARAMS", "{refused:?}");
    assert!(creating.directories().is_empty(), "nothing of it is left");
    assert_eq!(creating.names().await, ["workspace"]);
    assert!(outside.path().join(SECRET).exists());
}

/// A command exchanges a directory and a symbolic link out of the workspace while it is copied.
#[tokio::test]
async fn a_clone_follows_no_link_that_appears_meanwhile() {
    let creating = Creating::start(Setup::new(), "").await;
    let outside = TempDir::with_prefix("jig-test-outside-").unwrap();
    fs::write(outside.path().join(SECRET), "secret").unwrap();
    creating.create(named("source")).await;
    let mark = Mark::new();
    let script = format!(
        "for n in 1 2 3 4 5 6 7 8; do mkdir -p d$n/e; echo 1 > d$n/e/f; echo 1 > f$n; \
           ln -s {outside} l$n; ln -s {outside}/{SECRET} m$n; done; echo ready; \
         while :; do for n in 1 2 3 4 5 6 7 8; do mv d$n t; mv l$n d$n; mv t l$n; \
           mv f$n t; mv m$n f$n; mv t m$n; done; done",
        outside = outside.path().display()
    );
    let start = in_workspace("source", mark.on_start(start_request(shell(&script))));
    let mut racing = creating.daemon.start_process(start).await;
    racing.read_until("ready\n").await;

    for number in 0..20 {
        let name = format!("copy-{number}");
        creating.create(clone("source", &name)).await;
        for path in creating.directories().iter().flat_map(|directory| paths_below(directory)) {
            assert!(!path.ends_with(SECRET), "{path:?}");
            let is_file = path.symlink_metadata().is_ok_and(|found| found.is_file());
            assert!(
                !is_file || fs::read_to_string(&path).unwrap_or_default() != "secret",
                "{path:?}"
            );
        }
        creating.delete(&name).await.unwrap();
    }
    creating.delete("source").await.unwrap();
    mark.assert_gone();
    assert!(creating.directories().is_empty());
}

/// Calls of all kinds begin while their workspace is deleted, again and again.
#[tokio::test]
async fn deletion_beside_calls_leaves_nothing() {
    let creating = Arc::new(Creating::start(Setup::new(), "tmp = \"persistent\"\n").await);
    let mark = Arc::new(Mark::new());
    for round in 0..6 {
        creating.create(named("w")).await;
        let mut calls = JoinSet::new();
        for call in 0..6 {
            let (creating, mark) = (Arc::clone(&creating), Arc::clone(&mark));
            calls.spawn(async move {
                let script = "trap '' TERM; touch f /tmp/f; (setsid sleep 1000 &); sleep 1000";
                match call % 3 {
                    0 => {
                        let run = in_workspace("w", mark.on(shell(script)));
                        drop(creating.daemon.try_run(run).await);
                    }
                    1 => {
                        let name = format!("copy-{round}-{call}");
                        if creating.try_create(clone("w", &name)).await.is_ok() {
                            creating.delete(&name).await.unwrap();
                        }
                    }
                    _ => {
                        let run = in_workspace("w", mark.on(argv(&["sh", "-c", "ls > g"])));
                        drop(creating.daemon.try_run(run).await);
                    }
                }
            });
        }
        let deletions = [(); 2].map(|()| {
            let creating = Arc::clone(&creating);
            tokio::spawn(async move { creating.delete("w").await })
        });
        let mut deleted = 0;
        for deletion in deletions {
            match deletion.await.unwrap() {
                Ok(()) => deleted += 1,
                Err(refused) => assert_eq!(refused.reason, "UNKNOWN_WORKSPACE", "{refused:?}"),
            }
        }
        assert_eq!(deleted, 1, "one of two deletions has deleted it");
        mark.assert_gone();
        calls.join_all().await;
        mark.assert_gone();
        assert!(creating.directories().is_empty(), "round {round}: {:?}", creating.directories());
    }
}
