//! `delete_path`: a tree that a command changes at the same time, and mount points.

use std::{fs, os::unix::fs::symlink};

use jig::api::v1::DeletePathRequest;

use crate::{
    files::tools::Tool,
    support::{
        Daemon, Refusal, Setup, argv, compile_in_workspace, describe_status, full_size, promptly,
    },
};

#[tokio::test(flavor = "multi_thread")]
async fn delete_path_removes_a_tree_that_a_command_changes() {
    let rounds = full_size(10_000, 100);
    let daemon = Daemon::start().await;
    let outside = daemon.sibling_path("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("f"), "kept").unwrap();
    let program = compile_in_workspace(&daemon, "meddle");
    let command = daemon.spawn_run(argv(&[&program]));

    for round in 0..rounds {
        // The command changes only `tree`, so it sees the complete tree.
        let staging = daemon.file("made");
        for directory in ["d/a/b", "d/a/c", "e/b"] {
            fs::create_dir_all(staging.join(directory)).unwrap();
            fs::write(staging.join(directory).join("f"), "").unwrap();
        }

        fs::write(staging.join("d/f"), "").unwrap();
        symlink(&outside, staging.join("link")).unwrap();
        fs::rename(staging, daemon.file("tree")).unwrap();
        let request = DeletePathRequest { path: "tree".to_owned(), recursive: Some(true) };
        let deleted = daemon.tools().delete_path(request).await;
        let deleted =
            deleted.unwrap_or_else(|status| panic!("{round}: {}", describe_status(&status)));
        assert!(deleted.into_inner().deleted_count > 0);
        assert!(!daemon.file("tree").exists(), "round {round}");
    }

    fs::write(daemon.file("stop"), "").unwrap();
    promptly("the command ends", command).await.unwrap().unwrap();
    assert_eq!(fs::read_to_string(outside.join("f")).unwrap(), "kept");
}

#[tokio::test]
async fn tools_do_not_delete_or_move_mount_points() {
    let script = "at=$(echo \"$@\" | sed 's/.*--workspace \\([^ ]*\\).*/\\1/') && \
                   mkdir \"$at/mounted\" && mount -t tmpfs none \"$at/mounted\" && exec \"$0\" \"$@\"";
    let setup = Setup::new().wrapped_by(["unshare", "--mount", "sh", "-c", script]);
    let daemon = setup.start().await;
    for tool in [Tool::Delete, Tool::MoveFrom] {
        let status = tool.call(&daemon, "mounted").await.unwrap_err();
        let refusal = Refusal::from_status(&status);
        assert_eq!(refusal.reason, "PERMISSION_DENIED", "{refusal:?}");
        assert!(refusal.message.contains("mount point"), "{refusal:?}");
    }
}
