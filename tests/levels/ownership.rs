//! Workspaces of root's that are given to the user of commands.

use std::{fs, os::unix::fs::MetadataExt as _};

use jig::api::v1::WriteFileRequest;

use crate::support::{Daemon, Setup, jigd, shell};

async fn write_file(daemon: &Daemon, path: &str) {
    let request = WriteFileRequest {
        path: path.to_owned(),
        content: "tool\n".into(),
        ..WriteFileRequest::default()
    };
    daemon.tools().write_file(request).await.unwrap();
}

#[tokio::test]
async fn a_workspace_of_roots_is_given_to_its_commands_where_the_operator_says_so() {
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("secret");
    fs::write(&secret, "roots\n").unwrap();
    let setup = Setup::new().workspace_file("folder/file", "of root\n").root_of_a_container();
    let daemon = setup.start().await;
    let log = daemon.log();
    for part in ["\"changed\":3", "\"owner\":61000", "\"left\":0"] {
        assert!(log.contains(part), "{log}");
    }
    let owner = |path: &str| {
        let found = fs::symlink_metadata(daemon.file(path)).unwrap();
        (found.uid(), found.gid())
    };
    for path in ["", "folder", "folder/file"] {
        assert_eq!(owner(path), (61_000, 61_000), "{path}");
    }
    // Commands change what tools write, and the other way round.
    write_file(&daemon, "by-tool").await;
    assert_eq!(owner("by-tool"), (61_000, 61_000));
    let line = "echo command >> by-tool; echo more >> folder/file; umask 077; mkdir own; echo own > own/file";
    assert_eq!(daemon.run(shell(line)).await.exit_code, Some(0));
    assert_eq!(daemon.read_file("by-tool").await.unwrap(), "tool\ncommand\n");
    assert_eq!(daemon.read_file("own/file").await.unwrap(), "own\n");
    write_file(&daemon, "own/file").await;
    assert_eq!(daemon.output(shell("cat own/file")).await, "tool\n");

    // What belongs to root again changes hands at the next start, and nothing that is elsewhere.
    fs::write(daemon.file("new"), "").unwrap();
    fs::hard_link(&secret, daemon.file("linked")).unwrap();
    std::os::unix::fs::symlink(&secret, daemon.file("link")).unwrap();
    let daemon = daemon.restart().await;
    let log = daemon.log();
    assert!(log.contains("\"changed\":2"), "{log}");
    assert!(log.contains("\"left\":1"), "{log}");
    assert_eq!(fs::metadata(&secret).unwrap().uid(), 0);
    assert_eq!(fs::metadata(daemon.file("new")).unwrap().uid(), 61_000);
    // The same again finds nothing to do.
    let check = daemon.check();
    assert!(check.status.success(), "{check:?}");
}

#[tokio::test]
async fn directories_of_the_system_do_not_change_hands() {
    for path in ["/etc", "/usr", "/usr/lib", "/var", "/home", "/opt"] {
        let output = jigd(&["--check", "--chown-workspace", "--workspace", path]);
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(78), "{path}: {told}");
        assert!(told.contains("is a system directory"), "{path}: {told}");
    }
}

#[tokio::test]
async fn a_check_gives_nothing_away() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let output = jigd(&["--check", "--chown-workspace", "--workspace", path]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(fs::metadata(path).unwrap().uid(), 0);
}

#[tokio::test]
async fn a_workspace_that_commands_cannot_enter_is_said_to_be_closed() {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o700))
        .unwrap();
    let inner = folder.path().join("inner");
    fs::create_dir(&inner).unwrap();
    let table = format!("[[workspaces]]\nname = \"inner\"\npath = {inner:?}");
    let daemon = Setup::new().workspace_table(&table).root_of_a_container().start().await;
    // What is reported of all is what is true of the weakest.
    let isolation = daemon.info().await.isolation.unwrap();
    assert_eq!(isolation.level, "L0");
    let last = isolation.refused.last().unwrap();
    assert_eq!((last.level.as_str(), last.stage.as_str()), ("L1", "no_namespaces"));
    assert!(last.message.contains("is closed to user 61001"), "{last:?}");
}
