//! Uploads that commands, links or repeated ids could alter.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, symlink},
};

use jig::api::v1::{UploadRequest, UploadStart, WriteMode, upload_request::Part};

use super::{
    RESERVED_NAME,
    tools::{Tool, WRITE_TOOLS},
    transfer::{
        chunk, pseudo_random_bytes, resumable_start, start_manual_upload, upload, upload_failing,
        upload_offset, wait_for_upload_offset,
    },
};
use crate::support::{Daemon, Refusal, Setup, shell};

#[tokio::test]
async fn commands_cannot_alter_an_upload_in_progress() {
    for (setup, is_private) in [
        (Setup::new(), true),
        (Setup::new().workspace_owner(12345), true),
        // Commands run as the daemon's user.
        (Setup::new().user(12345), false),
    ] {
        let daemon = setup.start().await;
        let parts = vec![Part::Start(resumable_start("file", b"evil", "id")), chunk(0, b"ev")];
        let (sender, call) = start_manual_upload(&daemon, parts).await;
        wait_for_upload_offset(&daemon, "id", 2).await;
        let script =
            "for f in .jig-*.tmp; do cat $f; printf XX | dd of=$f conv=notrunc; done 2>&1; true";
        let output = daemon.output(shell(script)).await;
        assert_eq!(output.contains("denied"), is_private, "{output}");

        let rest = Some(chunk(2, b"il"));
        sender.send(UploadRequest { part: rest }).await.unwrap();
        drop(sender);
        let result = call.await.unwrap();

        if is_private {
            result.unwrap();
            assert_eq!(fs::read(daemon.file("file")).unwrap(), b"evil");
        } else {
            assert_eq!(Refusal::from_status(&result.unwrap_err()).reason, "STALE_FILE");
            assert!(!daemon.file("file").exists());
        }
    }
}

#[tokio::test]
async fn uploads_do_not_reach_protected_directories_through_links() {
    let table = "symlinks = \"within\"\nprotected = [\"hooks\"]";
    let daemon = Setup::new().workspace_table(table).start().await;
    fs::create_dir_all(daemon.file("hooks")).unwrap();
    symlink("hooks", daemon.file("link")).unwrap();

    for create_directories in [true, false] {
        let start = UploadStart {
            create_directories: Some(create_directories),
            ..resumable_start("link/x", b"evil", "id")
        };
        upload_failing(&daemon, vec![Part::Start(start), chunk(0, b"evil")], "POLICY_DENIED").await;
        assert_eq!(upload_offset(&daemon, "id").await.unwrap_or_default(), 0);
        assert_eq!(fs::read_dir(daemon.file("hooks")).unwrap().count(), 0);
    }
}

#[tokio::test]
async fn completed_upload_id_rejects_different_options() {
    let daemon = Setup::new().start().await;
    let start = || resumable_start("file", b"text", "id");
    let all_parts = |start| vec![Part::Start(start), chunk(0, b"text")];
    upload(&daemon, all_parts(start())).await.unwrap();
    let repeated = upload(&daemon, all_parts(start())).await.unwrap();
    assert_eq!(repeated.received_bytes, 0);

    for changed in [
        UploadStart { mode: Some(WriteMode::CreateNew.into()), ..start() },
        UploadStart { file_mode: Some(0o600), ..start() },
        UploadStart { expected_sha256: Some("0".repeat(64)), ..start() },
    ] {
        let refusal = upload_failing(&daemon, all_parts(changed), "INVALID_PARAMS").await;
        assert!(refusal.message.contains("another id"), "{refusal:?}");
    }
}

#[tokio::test]
async fn second_call_takes_over_and_daemon_drops_tampered_uploads() {
    let daemon = Daemon::start().await;
    let bytes = pseudo_random_bytes(1000);
    let begin = || Part::Start(resumable_start("file", &bytes, "id"));
    let (_sender, first) =
        start_manual_upload(&daemon, vec![begin(), chunk(0, &bytes[..10])]).await;
    wait_for_upload_offset(&daemon, "id", 10).await;
    let (sender, _second) =
        start_manual_upload(&daemon, vec![begin(), chunk(10, &bytes[10..20])]).await;
    let status = first.await.unwrap().unwrap_err();
    assert_eq!(Refusal::from_status(&status).invalid_fields(), ["start.upload_id"]);

    wait_for_upload_offset(&daemon, "id", 20).await;
    drop(sender);

    let partial_file = fs::read_dir(daemon.workspace()).unwrap().next().unwrap().unwrap().path();
    assert_eq!(partial_file.metadata().unwrap().mode(), 0o100_600);

    fs::rename(&partial_file, daemon.file("stolen")).unwrap();
    symlink("stolen", &partial_file).unwrap();
    let rest = vec![begin(), chunk(20, &bytes[20..])];
    upload_failing(&daemon, rest, "STALE_FILE").await;
    assert!(!daemon.file("file").exists());
    assert!(partial_file.is_symlink(), "the daemon leaves a link that it did not create");
}

#[tokio::test]
async fn tools_reject_names_reserved_for_the_daemon() {
    for table in ["", "symlinks = \"within\"\nprotected = [\"safe\"]"] {
        let daemon = Setup::new().workspace_table(table).start().await;
        let paths = [
            RESERVED_NAME.to_owned(),
            format!("{RESERVED_NAME}~"),
            format!("/workspace/d/{RESERVED_NAME}"),
            format!("{RESERVED_NAME}/file"),
        ];

        for path in &paths {
            for tool in WRITE_TOOLS.iter().copied().chain([Tool::MoveTo]) {
                let status = tool.call(&daemon, path).await.unwrap_err();
                let refusal = Refusal::from_status(&status);
                assert_eq!(refusal.reason, "POLICY_DENIED", "{tool:?} {path}");
                assert!(refusal.message.contains("choose another"), "{refusal:?}");
            }
        }

        assert_eq!(daemon.list_files().await, [""; 0], "{table}");

        // Tools can remove such a file that a command has left.
        for tool in [Tool::Delete, Tool::MoveFrom] {
            fs::create_dir(daemon.file("d")).unwrap();
            fs::write(daemon.file(&format!("d/{RESERVED_NAME}")), "").unwrap();
            tool.call(&daemon, &format!("d/{RESERVED_NAME}")).await.unwrap();
            fs::remove_dir(daemon.file("d")).unwrap();
        }
    }
}
