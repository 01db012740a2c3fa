//! `--chown-workspace`: a workspace of root becomes the property of the user of its commands.

use std::{fs, os::unix::fs::MetadataExt as _};

use jig::api::v1::WriteFileRequest;

use crate::support::{Daemon, Setup, run_jigd, shell};

async fn write_file(daemon: &Daemon, path: &str) {
    let request = WriteFileRequest {
        path: path.to_owned(),
        content: "tool\n".into(),
        ..WriteFileRequest::default()
    };
    daemon.tools().write_file(request).await.unwrap();
}

#[tokio::test]
async fn chown_workspace_gives_root_owned_files_to_commands() {
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("secret");
    fs::write(&secret, "roots\n").unwrap();
    let setup = Setup::new().workspace_file("directory/file", "of root\n").with_container_root();
    let daemon = setup.start().await;
    let log = daemon.log();
    for field in ["\"changed\":3", "\"owner\":61000", "\"left\":0"] {
        assert!(log.contains(field), "{log}");
    }

    let owner = |path: &str| {
        let metadata = fs::symlink_metadata(daemon.file(path)).unwrap();
        (metadata.uid(), metadata.gid())
    };
    for path in ["", "directory", "directory/file"] {
        assert_eq!(owner(path), (61_000, 61_000), "{path}");
    }

    // Commands change files that tools write, and vice versa.
    write_file(&daemon, "by-tool").await;
    assert_eq!(owner("by-tool"), (61_000, 61_000));

    let script = "echo command >> by-tool; echo more >> directory/file; umask 077; mkdir own; echo own > own/file";
    assert_eq!(daemon.run(shell(script)).await.exit_code, Some(0));
    assert_eq!(daemon.read_file("by-tool").await.unwrap(), "tool\ncommand\n");
    assert_eq!(daemon.read_file("own/file").await.unwrap(), "own\n");

    write_file(&daemon, "own/file").await;
    assert_eq!(daemon.output(shell("cat own/file")).await, "tool\n");

    // The next start changes the owner of root's new files, but of no file outside.
    fs::write(daemon.file("new"), "").unwrap();
    fs::hard_link(&secret, daemon.file("linked")).unwrap();
    std::os::unix::fs::symlink(&secret, daemon.file("link")).unwrap();
    let daemon = daemon.restart().await;
    let log = daemon.log();
    assert!(log.contains("\"changed\":2"), "{log}");
    assert!(log.contains("\"left\":1"), "{log}");
    assert_eq!(fs::metadata(&secret).unwrap().uid(), 0);
    assert_eq!(fs::metadata(daemon.file("new")).unwrap().uid(), 61_000);

    // A repetition has nothing to do.
    let check = daemon.run_check();
    assert!(check.status.success(), "{check:?}");
}

#[tokio::test]
async fn chown_workspace_rejects_system_directories() {
    for path in ["/etc", "/usr", "/usr/lib", "/var", "/home", "/opt"] {
        let output = run_jigd(&["--check", "--chown-workspace", "--workspace", path]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(78), "{path}: {stderr}");
        assert!(stderr.contains("is a system directory"), "{path}: {stderr}");
    }
}

#[tokio::test]
async fn check_does_not_chown_the_workspace() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let output = run_jigd(&["--check", "--chown-workspace", "--workspace", path]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(fs::metadata(path).unwrap().uid(), 0);
}

#[tokio::test]
async fn inaccessible_workspace_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o700))
        .unwrap();
    let inner = directory.path().join("inner");
    fs::create_dir(&inner).unwrap();
    let table = format!("[[workspaces]]\nname = \"inner\"\npath = {inner:?}");
    let daemon = Setup::new().workspace_table(&table).with_container_root().start().await;

    // The reported isolation is that of the weakest workspace.
    let isolation = daemon.info().await.isolation.unwrap();
    assert_eq!(isolation.level, "L0");

    let last = isolation.failed_levels.last().unwrap();
    assert_eq!((last.level.as_str(), last.stage.as_str()), ("L1", "no_namespaces"));
    assert!(last.message.contains("is closed to user 61001"), "{last:?}");
}
