//! Files that belong to others than the daemon's user and the workspace's owner.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown},
};

use super::tools::Tool;
use crate::support::{Daemon, Refusal, Setup, USER, shell};

/// Somebody else, whom a user namespace that has only its own user does not know.
const OTHER: u32 = 4321;

/// Daemons that can give nothing to others: of an ordinary user, and of one in a user namespace that
/// knows nobody else.
fn powerless() -> [Setup; 2] {
    [Setup::new().user(USER), Setup::new().without_namespaces()]
}

async fn refused(daemon: &Daemon, tool: Tool, path: &str) -> Refusal {
    match tool.call(daemon, path).await {
        Ok(answer) => panic!("{tool:?} {path} answers {answer}"),
        Err(status) => Refusal::of(&status),
    }
}

#[tokio::test]
async fn a_file_that_could_not_stay_anothers_is_not_changed_and_it_is_said_what_to_do() {
    for setup in powerless() {
        let daemon = setup.start().await;
        for (path, user, group) in [("others", OTHER, OTHER), ("groups", USER, OTHER)] {
            let file = daemon.file(path);
            fs::write(&file, "written\n").unwrap();
            chown(&file, Some(user), Some(group)).unwrap();
            // Whoever it belongs to, the daemon's user may write to it.
            fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
            for tool in [Tool::Write, Tool::Edit, Tool::Patch, Tool::Upload] {
                let refusal = refused(&daemon, tool, path).await;
                let told = format!("{tool:?} {path}: {refusal:?}");
                assert_eq!(refusal.reason, "PERMISSION_DENIED", "{told}");
                for part in ["belongs to", "a command", "chown"] {
                    assert!(refusal.message.contains(part), "{told}");
                }
            }
            assert_eq!(fs::read_to_string(&file).unwrap(), "written\n");
            let stat = file.metadata().unwrap();
            assert_eq!((stat.uid(), stat.gid()), (user, group), "{path}");
        }
        let names = fs::read_dir(daemon.workspace()).unwrap().count();
        assert_eq!(names, 2, "no halves are left");
        // Neither is in the way of what needs no new owner.
        Tool::MoveFrom.call(&daemon, "others").await.unwrap();
        Tool::Delete.call(&daemon, "groups").await.unwrap();
    }
}

#[tokio::test]
async fn what_is_new_in_anothers_workspace_belongs_to_who_made_it() {
    for setup in powerless() {
        let daemon = setup.workspace_owner(OTHER).start().await;
        let open = fs::Permissions::from_mode(0o777);
        fs::set_permissions(daemon.workspace(), open).unwrap();
        for (tool, path) in [
            (Tool::Write, "written"),
            (Tool::Upload, "uploaded"),
            (Tool::CreateDirectory, "directory"),
            (Tool::Write, "directory/in/it"),
        ] {
            let called = tool.call(&daemon, path).await;
            called.unwrap_or_else(|status| panic!("{tool:?} {path}: {status:?}"));
            assert_eq!(daemon.file(path).metadata().unwrap().uid(), USER, "{path}");
        }
        Tool::Edit.call(&daemon, "written").await.unwrap();
    }
    let daemon = Setup::new().user(USER).workspace_owner(OTHER).start().await;
    let open = fs::Permissions::from_mode(0o777);
    fs::set_permissions(daemon.workspace(), open).unwrap();
    // As with commands.
    daemon.output(shell("touch command")).await;
    let made = daemon.file("command").metadata().unwrap();
    assert_eq!(made.uid(), USER);
}
