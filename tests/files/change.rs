//! `write_file`, `create_directory`, `move_path` and `delete_path` on files that commands change
//! too.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use jig::api::v1::{
    ApplyPatchRequest, CreateDirectoryRequest, DeletePathRequest, Encoding, MovePathRequest,
    ReadFileRequest, WriteFileRequest, WriteMode,
};
use rustix::{
    fs::{XattrFlags, setxattr},
    io::Errno,
};
use tonic::Status;

use crate::support::{Daemon, Refusal, Setup, build_access_list, shell};

fn write_request(path: &str, content: &str) -> WriteFileRequest {
    WriteFileRequest {
        path: path.to_owned(),
        content: content.to_owned(),
        ..WriteFileRequest::default()
    }
}

pub(super) async fn write(daemon: &Daemon, path: &str, content: &str) -> Result<(), Status> {
    daemon.tools().write_file(write_request(path, content)).await.map(drop)
}

async fn delete_path(daemon: &Daemon, path: &str) -> Result<u32, Status> {
    let request = DeletePathRequest { path: path.to_owned(), recursive: Some(true) };
    let response = daemon.tools().delete_path(request).await?;
    Ok(response.into_inner().deleted_count)
}

async fn move_path(daemon: &Daemon, source: &str, destination: &str) -> Result<(), Status> {
    let request = MovePathRequest {
        source: source.to_owned(),
        destination: destination.to_owned(),
        overwrite: None,
    };
    daemon.tools().move_path(request).await.map(drop)
}

async fn create_directory(daemon: &Daemon, path: &str) -> Result<Vec<String>, Status> {
    let request = CreateDirectoryRequest { path: path.to_owned() };
    let response = daemon.tools().create_directory(request).await?;
    Ok(response.into_inner().created)
}

fn reason<T: std::fmt::Debug>(result: Result<T, Status>) -> String {
    Refusal::from_status(&result.unwrap_err()).reason
}

#[tokio::test]
async fn commands_and_tools_change_each_others_files() {
    for setup in [Setup::new(), Setup::new().workspace_owner(12345), Setup::new().user(12345)] {
        let owner = setup.workspace_uid();
        let daemon = setup.start().await;
        write(&daemon, "a/b/tool", "by the tool\n").await.unwrap();

        for path in ["a", "a/b", "a/b/tool"] {
            let metadata = fs::metadata(daemon.file(path)).unwrap();
            assert_eq!((metadata.uid(), metadata.gid()), (owner, owner), "{path}");
        }

        let script = "echo more >> a/b/tool && mkdir a/c && echo own > a/c/command && chmod 640 a/c/command && cat a/b/tool";
        let output = daemon.output(shell(script)).await;
        assert_eq!(output, "by the tool\nmore\n");

        write(&daemon, "a/c/command", "by the tool\n").await.unwrap();
        let metadata = fs::metadata(daemon.file("a/c/command")).unwrap();
        assert_eq!((metadata.uid(), metadata.mode() & 0o7777), (owner, 0o640));

        move_path(&daemon, "a/c/command", "a/b/moved").await.unwrap();
        assert_eq!(create_directory(&daemon, "new/dir").await.unwrap(), ["new", "new/dir"]);

        let script = "cat a/b/moved; touch new/dir/x; ls -A a/b new/dir; rm -r new a/b/tool";
        let output = daemon.output(shell(script)).await;
        assert_eq!(output, "by the tool\na/b:\nmoved\ntool\n\nnew/dir:\nx\n");
        assert_eq!(delete_path(&daemon, "a").await.unwrap(), 4);
        assert_eq!(fs::read_dir(daemon.workspace()).unwrap().count(), 0);
    }
}

#[tokio::test]
async fn daemon_rejects_invalid_write_requests() {
    let daemon = Daemon::start().await;
    let write_error = |request: WriteFileRequest| {
        let mut tools = daemon.tools();
        async move { Refusal::from_status(&tools.write_file(request).await.unwrap_err()) }
    };

    let refusal = write_error(WriteFileRequest {
        path: String::new(),
        mode: Some(WriteMode::CreateNew.into()),
        expected_sha256: Some("abc".to_owned()),
        file_mode: Some(0o1000),
        encoding: Some(7),
        ..write_request("", "x")
    })
    .await;
    assert_eq!(refusal.reason, "INVALID_PARAMS");

    let mut fields = refusal.invalid_fields();
    fields.sort_unstable();
    assert_eq!(fields, ["encoding", "expected_sha256", "file_mode", "path"]);

    let refusal = write_error(WriteFileRequest {
        encoding: Some(jig::api::v1::Encoding::Base64.into()),
        ..write_request("f", "no base64!")
    })
    .await;
    assert_eq!(refusal.invalid_fields(), ["content"]);
    assert_eq!(fs::read_dir(daemon.workspace()).unwrap().count(), 0);
}

#[tokio::test]
async fn tools_follow_links_inside_the_workspace_if_configured() {
    let table = "symlinks = \"within\"\nprotected = [\"safe\"]";
    let daemon = Setup::new().workspace_table(table).start().await;

    daemon
        .output(shell(
            "mkdir d; echo x > d/f; ln -s d link; ln -s /etc out; ln -s ../.. up; ln -s safe unsafe",
        ))
        .await;
    write(&daemon, "link/f", "new").await.unwrap();

    // A write through a link changes its target and keeps the link.
    daemon.output(shell("ln -s d/f file; ln -s nowhere dangling")).await;
    write(&daemon, "file", "through").await.unwrap();
    assert_eq!(fs::read_to_string(daemon.file("d/f")).unwrap(), "through");
    assert!(daemon.file("file").is_symlink());

    let diff = "--- a/file\n+++ b/file\n@@ -1 +1 @@\n-through\n\\ No newline at end of file\n+new\n\\ No newline at end of file\n";
    let change =
        ApplyPatchRequest { unified_diff: diff.to_owned(), ..ApplyPatchRequest::default() };
    daemon.tools().apply_patch(change).await.unwrap();
    let delete = ApplyPatchRequest {
        unified_diff:
            "--- a/file\n+++ /dev/null\n@@ -1 +0,0 @@\n-new\n\\ No newline at end of file\n"
                .to_owned(),
        ..ApplyPatchRequest::default()
    };
    let result = daemon.tools().apply_patch(delete).await;
    assert_eq!(reason(result), "SYMLINK_BLOCKED");

    for path in ["dangling", "link/../dangling"] {
        assert_eq!(reason(write(&daemon, path, "x").await), "SYMLINK_BLOCKED");
    }

    write(&daemon, "link/deep/er/f", "new").await.unwrap();
    assert_eq!(fs::read_to_string(daemon.file("d/f")).unwrap(), "new");
    assert!(daemon.file("d/deep/er/f").is_file());
    assert_eq!(daemon.read_file("link/f").await.unwrap(), "new");
    assert_eq!(reason(write(&daemon, "out/x", "x").await), "PATH_ESCAPE");
    assert_eq!(reason(write(&daemon, "up/x", "x").await), "PATH_ESCAPE");
    assert_eq!(reason(write(&daemon, "unsafe/x", "x").await), "POLICY_DENIED");
}

#[tokio::test]
async fn patch_rename_keeps_owner_and_attributes() {
    let daemon = Daemon::start().await;
    fs::write(daemon.file("a"), "1\n").unwrap();
    std::os::unix::fs::chown(daemon.file("a"), Some(1234), Some(1235)).unwrap();
    rustix::fs::setxattr(daemon.file("a"), "user.note", b"kept", rustix::fs::XattrFlags::empty())
        .unwrap();
    let request = ApplyPatchRequest {
        unified_diff: "diff --git a/a b/b/c\nrename from a\nrename to b/c\n".to_owned(),
        ..ApplyPatchRequest::default()
    };

    daemon.tools().apply_patch(request).await.unwrap();
    let metadata = fs::metadata(daemon.file("b/c")).unwrap();
    assert_eq!((metadata.uid(), metadata.gid()), (1234, 1235));

    let mut value = [0; 9];
    let length = rustix::fs::getxattr(daemon.file("b/c"), "user.note", &mut value[..]).unwrap();
    assert_eq!(&value[..length], b"kept");
}

#[tokio::test]
async fn tools_do_not_change_files_that_commands_cannot_change() {
    for setup in [Setup::new(), Setup::new().user(12345)] {
        let owner = setup.workspace_uid();
        let daemon = setup.start().await;
        for (path, user, mode) in [("readonly", owner, 0o444), ("others", 4321, 0o664)] {
            fs::write(daemon.file(path), "1\n").unwrap();
            std::os::unix::fs::chown(daemon.file(path), Some(user), Some(user)).unwrap();
            fs::set_permissions(daemon.file(path), fs::Permissions::from_mode(mode)).unwrap();
        }

        assert_eq!(reason(write(&daemon, "readonly", "2").await), "PERMISSION_DENIED");

        // Root may write to another user's file, which keeps its owner.
        match write(&daemon, "others", "2").await {
            Ok(()) => assert_eq!(owner, 0),
            result => assert_eq!((reason(result).as_str(), owner), ("PERMISSION_DENIED", 12345)),
        }

        let metadata = fs::metadata(daemon.file("others")).unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (4321, 4321));

        for path in ["readonly", "others"] {
            let request = ApplyPatchRequest {
                unified_diff: format!("--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-1\n+2\n"),
                dry_run: Some(true),
                ..ApplyPatchRequest::default()
            };
            let result = daemon.tools().apply_patch(request).await;
            if path == "readonly" {
                assert_eq!(reason(result), "PERMISSION_DENIED");
            }
        }
    }
}

#[tokio::test]
async fn setgid_directory_passes_its_group_to_new_files() {
    let daemon = Daemon::start().await;
    fs::create_dir(daemon.file("d")).unwrap();
    std::os::unix::fs::chown(daemon.file("d"), None, Some(1600)).unwrap();
    fs::set_permissions(daemon.file("d"), fs::Permissions::from_mode(0o2775)).unwrap();

    write(&daemon, "d/e/f", "1").await.unwrap();

    for path in ["d/e", "d/e/f"] {
        let metadata = fs::metadata(daemon.file(path)).unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (0, 1600), "{path}");
    }

    assert_eq!(fs::metadata(daemon.file("d/e")).unwrap().mode() & 0o7000, 0o2000);
}

#[tokio::test]
async fn changes_succeed_with_fsync() {
    let daemon = Setup::new().workspace_table("\n[files]\nfsync = true").start().await;
    write(&daemon, "a/b/c", "1\n").await.unwrap();
    create_directory(&daemon, "d/e").await.unwrap();
    move_path(&daemon, "a/b/c", "d/e/f").await.unwrap();
    let request = ApplyPatchRequest {
        unified_diff: "diff --git a/d/e/f b/d/e/g/h\nrename from d/e/f\nrename to d/e/g/h\n"
            .to_owned(),
        ..ApplyPatchRequest::default()
    };
    daemon.tools().apply_patch(request).await.unwrap();
    assert_eq!(daemon.read_file("d/e/g/h").await.unwrap(), "1\n");
    assert_eq!(delete_path(&daemon, "a").await.unwrap(), 2);
}

#[tokio::test]
async fn random_tree_reads_and_lists_as_written() {
    let daemon = Daemon::start().await;

    // A fixed sequence (Knuth's MMIX generator).
    let mut state = 7_u64;
    let mut random = |below: u64| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };

    let mut expected = std::collections::BTreeMap::new();
    for _ in 0..200 {
        // Directory names differ from file names, so no path is both.
        let depth = random(4);
        let parent: String = (0..depth).map(|_| format!("d{}/", random(3))).collect();
        let path = format!("{parent}f{}", random(40));
        let content: Vec<u8> =
            (0..random(3000)).map(|_| u8::try_from(random(256)).unwrap()).collect();
        let request = WriteFileRequest {
            encoding: Some(Encoding::Base64.into()),
            ..write_request(&path, &BASE64_STANDARD.encode(&content))
        };
        let written = daemon.tools().write_file(request).await.unwrap().into_inner();
        let previous = expected.insert(path, content);
        assert_eq!(written.created, previous.is_none());
    }

    let mut listed = daemon.list_files().await;
    let paths: Vec<_> = expected.keys().cloned().collect();
    assert_eq!(listed, paths, "sorted by their bytes");

    for (path, content) in &expected {
        let request = ReadFileRequest {
            path: path.clone(),
            encoding: Some(Encoding::Base64.into()),
            ..ReadFileRequest::default()
        };
        let read = daemon.tools().read_file(request).await.unwrap().into_inner();
        assert_eq!(&BASE64_STANDARD.decode(read.content).unwrap(), content, "{path}");
        assert_eq!(&fs::read(daemon.file(path)).unwrap(), content);
    }

    while let Some(path) = listed.pop() {
        assert_eq!(delete_path(&daemon, &path).await.unwrap(), 1);
    }

    assert_eq!(daemon.list_files().await, Vec::<String>::new());
}

#[tokio::test]
async fn replaced_file_keeps_attributes_and_gains_no_inherited_access() {
    for setup in [Setup::new(), Setup::new().user(12345)] {
        let owner = setup.workspace_uid();
        let daemon = setup.start().await;
        let directory = daemon.file("d");
        fs::create_dir(&directory).unwrap();
        let file = directory.join("f");
        fs::write(&file, "old").unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        for path in [&directory, &file] {
            std::os::unix::fs::chown(path, Some(owner), Some(owner)).unwrap();
        }

        // The default ACL gives another user full access to new files in the directory.
        let access_list = build_access_list(7);
        let no_flags = XattrFlags::empty();
        setxattr(&directory, "system.posix_acl_default", &access_list, no_flags).unwrap();
        setxattr(&file, "user.mark", b"kept", no_flags).unwrap();
        let request = WriteFileRequest { file_mode: Some(0o444), ..write_request("d/f", "new") };
        daemon.tools().write_file(request).await.unwrap();
        let mut value = [0; 64];
        let mut read_attribute = |name: &str| {
            let length = rustix::fs::getxattr(&file, name, &mut value[..])?;
            Ok(value[..length].to_vec())
        };
        assert_eq!(read_attribute("user.mark"), Ok(b"kept".to_vec()));
        assert_eq!(read_attribute("system.posix_acl_access"), Err(Errno::NODATA));

        let mode = fs::metadata(&file).unwrap().mode();
        assert_eq!(mode & 0o7777, 0o444);
    }
}

#[tokio::test]
async fn tools_recreate_directories_that_a_patch_removes_concurrently() {
    let daemon = Daemon::start().await;
    for _ in 0..100 {
        write(&daemon, "d/x", "x\n").await.unwrap();
        let request = ApplyPatchRequest {
            unified_diff: "--- a/d/x\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n".to_owned(),
            ..ApplyPatchRequest::default()
        };
        let mut tools = daemon.tools();
        let (removed, written, created) = tokio::join!(
            tools.apply_patch(request),
            write(&daemon, "d/n/f", "new"),
            create_directory(&daemon, "d/m/o"),
        );
        removed.unwrap();
        written.unwrap();
        created.unwrap();
        assert_eq!(fs::read_to_string(daemon.file("d/n/f")).unwrap(), "new");
        assert!(daemon.file("d/m/o").is_dir());

        delete_path(&daemon, "d").await.unwrap();
    }
}
