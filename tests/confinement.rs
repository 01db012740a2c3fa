//! Confinement of the daemon itself: it may touch only its own files, even through open
//! descriptors.
//!
//! No path of a caller leads out of a workspace. So these tests reach the second boundary without a
//! path: they move a directory that the daemon has open out of the workspace, which only a process
//! on the host can do.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, chown},
    path::{Path, PathBuf},
};

use jig::api::v1::DeletePathRequest;
use tonic::Status;

use crate::support::{Daemon, HostProgram, Refusal, Setup, eventually};

/// Moves a directory to `elsewhere` while the daemon deletes it. Returns the result of the call and
/// the number of remaining entries.
async fn delete_while_moved(
    daemon: &Daemon,
    elsewhere: &Path,
    create_entry: impl Fn(PathBuf),
) -> (Result<u32, Status>, usize) {
    let tree = daemon.file("tree");
    let moved = elsewhere.join("tree");
    let count = |directory: &Path| fs::read_dir(directory).unwrap().count();
    let mut entries = 10_000;

    loop {
        fs::create_dir(&tree).unwrap();
        let owner = daemon.workspace().metadata().unwrap();
        chown(&tree, Some(owner.uid()), Some(owner.gid())).unwrap();

        for entry in 0..entries {
            create_entry(tree.join(entry.to_string()));
        }

        let modified = || fs::metadata(&tree).ok().and_then(|tree| tree.modified().ok());
        let before = modified();
        let mut tools = daemon.tools();
        let call = tokio::spawn(async move {
            let request = DeletePathRequest { path: "tree".to_owned(), recursive: Some(true) };
            let answer = tools.delete_path(request).await?;
            Ok(answer.into_inner().deleted_count)
        });
        eventually("the daemon deletes entries", async || modified() != before).await;

        let is_moved = fs::rename(&tree, &moved).is_ok();
        let is_deleting = is_moved && count(&moved) > entries / 10;
        let answer = call.await.unwrap();

        if is_deleting {
            return (answer, count(&moved));
        }

        // The deletion ended before the move.
        if is_moved {
            fs::remove_dir_all(&moved).unwrap();
        }

        entries *= 2;
    }
}

fn create_file(path: PathBuf) {
    fs::write(path, "").unwrap();
}

fn create_directory(path: PathBuf) {
    fs::create_dir(path).unwrap();
}

#[tokio::test]
async fn daemon_cannot_reach_tree_moved_out_of_workspace() {
    for setup in [Setup::new(), Setup::new().user(12345)] {
        let daemon = setup.start().await;
        let elsewhere = tempfile::tempdir().unwrap();
        let (answer, remaining) = delete_while_moved(&daemon, elsewhere.path(), create_file).await;
        let refusal = Refusal::from_status(&answer.unwrap_err());
        assert_eq!(refusal.reason, "PERMISSION_DENIED", "{refusal:?}");
        assert!(remaining > 0);
        assert!(!daemon.log().contains("WARN"), "{}", daemon.log());
    }
}

#[tokio::test]
async fn daemon_cannot_delete_directories_beside_its_socket() {
    let daemon = Daemon::start().await;
    let beside = daemon.sibling_path("moved");
    fs::create_dir(&beside).unwrap();
    let (answer, remaining) = delete_while_moved(&daemon, &beside, create_directory).await;
    let refusal = Refusal::from_status(&answer.unwrap_err());
    assert_eq!(refusal.reason, "PERMISSION_DENIED", "{refusal:?}");
    assert!(remaining > 0);
}

#[tokio::test]
async fn daemon_without_landlock_logs_a_warning() {
    let kernel = HostProgram::compile("without_landlock");
    let daemon = Setup::new().wrapped_by([&kernel.path]).start().await;
    let log = daemon.log();
    let warnings: Vec<&str> = log.lines().filter(|line| line.contains("WARN")).collect();
    let [warning] = warnings.as_slice() else {
        panic!("{log}");
    };
    assert!(warning.contains("Landlock") && warning.contains("lsm="), "{warning}");

    // Shows that the tests above depend on Landlock alone.
    let elsewhere = tempfile::tempdir().unwrap();
    let (answer, remaining) = delete_while_moved(&daemon, elsewhere.path(), create_file).await;
    answer.unwrap();
    assert_eq!(remaining, 0);
}
