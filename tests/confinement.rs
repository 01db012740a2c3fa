//! What the daemon itself may touch: its own files, whatever it holds open.
//!
//! No path of a caller's leads out of a workspace, so the wall behind that is looked at from where
//! no path is needed: a directory that the daemon has open is moved out of the workspace, as only
//! somebody on the host can.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, chown},
    path::{Path, PathBuf},
};

use jig::api::v1::DeletePathRequest;
use tonic::Status;

use crate::support::{Daemon, HostProgram, Refusal, Setup, eventually};

/// Deletes a directory that is moved to `elsewhere` while that goes on. Answers what the call
/// answers, and how many entries the daemon has left there.
async fn delete_while_moved(
    daemon: &Daemon,
    elsewhere: &Path,
    make: impl Fn(PathBuf),
) -> (Result<u32, Status>, usize) {
    let tree = daemon.file("tree");
    let moved = elsewhere.join("tree");
    let count = |folder: &Path| fs::read_dir(folder).unwrap().count();
    let mut entries = 10_000;
    loop {
        fs::create_dir(&tree).unwrap();
        let owner = daemon.workspace().metadata().unwrap();
        chown(&tree, Some(owner.uid()), Some(owner.gid())).unwrap();
        for entry in 0..entries {
            make(tree.join(entry.to_string()));
        }
        let modified = || fs::metadata(&tree).ok().and_then(|tree| tree.modified().ok());
        let before = modified();
        let mut tools = daemon.tools();
        let call = tokio::spawn(async move {
            let request = DeletePathRequest { path: "tree".to_owned(), recursive: Some(true) };
            let answer = tools.delete_path(request).await?;
            Ok(answer.into_inner().deleted_count)
        });
        eventually("something is deleted", async || modified() != before).await;
        let is_moved = fs::rename(&tree, &moved).is_ok();
        let goes_on = is_moved && count(&moved) > entries / 10;
        let answer = call.await.unwrap();
        if goes_on {
            return (answer, count(&moved));
        }
        // It was over too soon.
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
    // That the tests above look at Landlock and at nothing else.
    let elsewhere = tempfile::tempdir().unwrap();
    let (answer, remaining) = delete_while_moved(&daemon, elsewhere.path(), create_file).await;
    answer.unwrap();
    assert_eq!(remaining, 0);
}
