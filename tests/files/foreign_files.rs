//! Files that belong neither to the daemon's user nor to the workspace's owner.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown},
};

use super::tools::Tool;
use crate::support::{DAEMON_UID, Daemon, Refusal, Setup, shell};

/// Another user, which a user namespace with a single user does not map.
const OTHER_UID: u32 = 4321;

/// Daemons that cannot change the owner of a file: one of an ordinary user, and one in a user
/// namespace that maps no other user.
fn setups_without_chown() -> [Setup; 2] {
    [Setup::new().user(DAEMON_UID), Setup::new().without_namespaces()]
}

async fn call_failing(daemon: &Daemon, tool: Tool, path: &str) -> Refusal {
    match tool.call(daemon, path).await {
        Ok(response) => panic!("{tool:?} {path} succeeded: {response}"),
        Err(status) => Refusal::from_status(&status),
    }
}

#[tokio::test]
async fn tools_reject_changes_that_would_lose_the_owner() {
    for setup in setups_without_chown() {
        let daemon = setup.start().await;
        for (path, user, group) in
            [("others", OTHER_UID, OTHER_UID), ("groups", DAEMON_UID, OTHER_UID)]
        {
            let file = daemon.file(path);
            fs::write(&file, "written\n").unwrap();
            chown(&file, Some(user), Some(group)).unwrap();

            // The daemon's user may write to the file.
            fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();

            for tool in [Tool::Write, Tool::Edit, Tool::Patch, Tool::Upload] {
                let refusal = call_failing(&daemon, tool, path).await;
                let context = format!("{tool:?} {path}: {refusal:?}");
                assert_eq!(refusal.reason, "PERMISSION_DENIED", "{context}");
                for part in ["belongs to", "a command", "chown"] {
                    assert!(refusal.message.contains(part), "{context}");
                }
            }

            assert_eq!(fs::read_to_string(&file).unwrap(), "written\n");

            let metadata = file.metadata().unwrap();
            assert_eq!((metadata.uid(), metadata.gid()), (user, group), "{path}");
        }

        let entry_count = fs::read_dir(daemon.workspace()).unwrap().count();
        assert_eq!(entry_count, 2, "no partial files are left");

        // Moving and deleting need no new owner, so they succeed.
        Tool::MoveFrom.call(&daemon, "others").await.unwrap();
        Tool::Delete.call(&daemon, "groups").await.unwrap();
    }
}

#[tokio::test]
async fn new_files_in_foreign_workspaces_belong_to_the_daemon_user() {
    for setup in setups_without_chown() {
        let daemon = setup.workspace_owner(OTHER_UID).start().await;
        let all_access = fs::Permissions::from_mode(0o777);
        fs::set_permissions(daemon.workspace(), all_access).unwrap();

        for (tool, path) in [
            (Tool::Write, "written"),
            (Tool::Upload, "uploaded"),
            (Tool::CreateDirectory, "directory"),
            (Tool::Write, "directory/in/it"),
        ] {
            let result = tool.call(&daemon, path).await;
            result.unwrap_or_else(|status| panic!("{tool:?} {path}: {status:?}"));
            assert_eq!(daemon.file(path).metadata().unwrap().uid(), DAEMON_UID, "{path}");
        }

        Tool::Edit.call(&daemon, "written").await.unwrap();
    }

    let daemon = Setup::new().user(DAEMON_UID).workspace_owner(OTHER_UID).start().await;
    let all_access = fs::Permissions::from_mode(0o777);
    fs::set_permissions(daemon.workspace(), all_access).unwrap();

    // Files of commands belong to the same user.
    daemon.output(shell("touch command")).await;
    let metadata = daemon.file("command").metadata().unwrap();
    assert_eq!(metadata.uid(), DAEMON_UID);
}
