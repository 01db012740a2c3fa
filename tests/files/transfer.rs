//! Uploads and downloads: atomic, verified by checksum, and resumed after an interruption.

use std::{
    fs::{self, File},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use jig::{
    api::v1::{
        DownloadRequest, GetUploadRequest, UploadChunk, UploadRequest, UploadResponse, UploadStart,
        WriteMode, transfer_service_client::TransferServiceClient, upload_request::Part,
    },
    client::{CallError, Client, Options, TransferError},
};
use sha2::{Digest as _, Sha256};
use tokio::{sync::mpsc, task::JoinHandle};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, transport::Channel};

use crate::support::{ConnectionProxy, Daemon, Refusal, Setup, eventually};

pub(super) const MIB: u64 = 1 << 20;

pub(crate) fn sha256_hex(bytes: &[u8]) -> String {
    let sum = Sha256::digest(bytes);
    sum.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes with a very long period (xorshift).
pub(crate) fn pseudo_random_bytes(length: usize) -> Vec<u8> {
    let mut state = 88_172_645_463_325_252_u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }

    bytes.truncate(length);
    bytes
}

pub(crate) fn upload_start(path: &str, bytes: &[u8]) -> UploadStart {
    UploadStart {
        path: path.to_owned(),
        size_bytes: bytes.len() as u64,
        sha256: sha256_hex(bytes),
        ..UploadStart::default()
    }
}

pub(crate) fn resumable_start(path: &str, bytes: &[u8], id: &str) -> UploadStart {
    UploadStart { upload_id: Some(id.to_owned()), ..upload_start(path, bytes) }
}

pub(crate) fn chunk(offset: usize, data: &[u8]) -> Part {
    Part::Chunk(UploadChunk { offset: offset as u64, data: data.to_vec().into() })
}

pub(crate) async fn transfer_client(daemon: &Daemon) -> TransferServiceClient<Channel> {
    TransferServiceClient::connect(format!("unix:{}", daemon.socket().display())).await.unwrap()
}

pub(crate) async fn connect_client(socket: &Path) -> Client {
    Client::connect(&format!("unix:{}", socket.display()), Options::default()).await.unwrap()
}

pub(crate) async fn upload(daemon: &Daemon, parts: Vec<Part>) -> Result<UploadResponse, Status> {
    let messages = parts.into_iter().map(|part| UploadRequest { part: Some(part) });
    let response = transfer_client(daemon)
        .await
        .upload(tokio_stream::iter(messages.collect::<Vec<_>>()))
        .await;
    response.map(tonic::Response::into_inner)
}

pub(crate) async fn upload_failing(daemon: &Daemon, parts: Vec<Part>, reason: &str) -> Refusal {
    let refusal = Refusal::from_status(&upload(daemon, parts).await.unwrap_err());
    assert_eq!(refusal.reason, reason, "{refusal:?}");
    refusal
}

/// An upload whose messages the test sends one by one. Dropping both parts interrupts it.
pub(super) type ManualUpload =
    (mpsc::Sender<UploadRequest>, JoinHandle<Result<UploadResponse, Status>>);

pub(crate) async fn start_manual_upload(daemon: &Daemon, parts: Vec<Part>) -> ManualUpload {
    let (sender, receiver) = mpsc::channel(16);
    let mut transfers = transfer_client(daemon).await;
    let call = tokio::spawn(async move {
        let response = transfers.upload(ReceiverStream::new(receiver)).await;
        response.map(tonic::Response::into_inner)
    });
    for part in parts {
        sender.send(UploadRequest { part: Some(part) }).await.unwrap();
    }

    (sender, call)
}

pub(crate) async fn upload_offset(daemon: &Daemon, id: &str) -> Option<u64> {
    let request = GetUploadRequest { upload_id: id.to_owned() };
    match transfer_client(daemon).await.get_upload(request).await {
        Ok(response) => Some(response.into_inner().offset),
        Err(status) => {
            assert_eq!(Refusal::from_status(&status).reason, "UPLOAD_NOT_FOUND");
            None
        }
    }
}

pub(crate) async fn wait_for_upload_offset(daemon: &Daemon, id: &str, bytes: u64) {
    eventually("the daemon receives the bytes", async || {
        upload_offset(daemon, id).await == Some(bytes)
    })
    .await;
}

pub(crate) fn create_read_write(path: &Path) -> File {
    File::options().read(true).write(true).create_new(true).open(path).unwrap()
}

/// Names of the daemon's own files in a directory.
pub(crate) fn partial_files(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap().map(Result::unwrap);
    entries
        .map(|entry| entry.file_name().into_string().unwrap())
        .filter(|name| name.starts_with(".jig-"))
        .collect()
}

fn count_partial_files(directory: &Path) -> usize {
    partial_files(directory).len()
}

/// Checks downloads of ranges of `new/deep/file`, which contains `bytes`, and of the file `empty`.
async fn assert_ranges_download(daemon: &Daemon, bytes: &[u8]) {
    let client = connect_client(&daemon.socket()).await;
    for (path, offset, limit, expected) in [
        ("new/deep/file", 0, None, bytes),
        ("new/deep/file", 5, Some(7), &bytes[5..12]),
        ("new/deep/file", 699_999, Some(7), &bytes[699_999..]),
        ("new/deep/file", 700_001, None, b""),
        ("new/deep/file", u64::MAX, Some(u64::MAX), b""),
        ("empty", 0, None, b""),
    ] {
        let request =
            DownloadRequest { path: path.to_owned(), offset, limit, expected_version: None };
        let mut parts = client.download(request).await.unwrap();
        let (mut received, mut last) = (Vec::new(), None);
        while let Some(part) = parts.next().await.unwrap() {
            received.extend_from_slice(&part.data);
            last = Some(part);
        }

        assert!(received == expected, "{path} {offset} {limit:?}");
        assert_eq!(last.unwrap().sha256, Some(sha256_hex(expected)));
    }
}

#[tokio::test]
async fn uploaded_file_downloads_unchanged() {
    let daemon = Setup::new().workspace_owner(1234).start().await;
    let bytes = pseudo_random_bytes(700_000);
    let parts = |start: UploadStart| {
        vec![Part::Start(start), chunk(0, &bytes[..300_000]), chunk(300_000, &bytes[300_000..])]
    };
    let response = upload(&daemon, parts(upload_start("new/deep/file", &bytes))).await.unwrap();
    assert!(response.created);
    assert_eq!(response.size_bytes, 700_000);
    assert_eq!(response.received_bytes, 700_000);
    assert_eq!(response.sha256, sha256_hex(&bytes));

    let path = daemon.file("new/deep/file");
    assert_eq!(fs::read(&path).unwrap(), bytes);

    for (path, mode) in [
        (&path, 0o100_644),
        (&daemon.file("new"), 0o040_755),
        (&daemon.file("new/deep"), 0o040_755),
    ] {
        let metadata = path.metadata().unwrap();
        assert_eq!(
            (metadata.uid(), metadata.gid(), metadata.mode()),
            (1234, 1234, mode),
            "{path:?}"
        );
    }

    // An existing file keeps its owner, and its mode unless the request sets one.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4750)).unwrap();
    std::os::unix::fs::chown(&path, Some(77), Some(78)).unwrap();
    let response =
        upload(&daemon, parts(upload_start("/workspace/new/deep/file", &bytes))).await.unwrap();
    assert!(!response.created);
    let metadata = path.metadata().unwrap();
    assert_eq!((metadata.uid(), metadata.gid(), metadata.mode()), (77, 78, 0o100_750));

    let with_mode = UploadStart { file_mode: Some(0o755), ..upload_start("new/deep/file", &bytes) };
    upload(&daemon, parts(with_mode)).await.unwrap();
    assert_eq!(path.metadata().unwrap().mode(), 0o100_755);

    let empty = upload(&daemon, vec![Part::Start(upload_start("empty", b""))]).await;
    assert!(empty.unwrap().created);
    assert_eq!(fs::read(daemon.file("empty")).unwrap(), b"");

    assert_ranges_download(&daemon, &bytes).await;
    assert_eq!(count_partial_files(&daemon.workspace()), 0);

    let events =
        fs::read_to_string(daemon.state_dir().join("sessions/default/events.jsonl")).unwrap();
    assert_eq!(events.matches(r#""event":"tool_call_finished""#).count(), 4, "{events}");
    assert!(events.contains(r#""tool":"upload""#), "{events}");
}

/// Uploads that the daemon rejects: their messages, the reason, and the invalid field.
fn rejected_uploads() -> Vec<(Vec<Part>, &'static str, &'static str)> {
    let changed = |change: fn(&mut UploadStart)| {
        let mut start = upload_start("old", b"new");
        change(&mut start);
        vec![Part::Start(start), chunk(0, b"new")]
    };
    let start_part = || Part::Start(upload_start("old", b"new"));

    vec![
        (changed(|s| s.sha256 = sha256_hex(b"other")), "CHECKSUM_MISMATCH", ""),
        (changed(|s| s.mode = Some(WriteMode::CreateNew.into())), "FILE_EXISTS", ""),
        (changed(|s| s.expected_sha256 = Some(sha256_hex(b"x"))), "STALE_FILE", ""),
        (
            changed(|s| {
                s.path = "none".into();
                s.expected_sha256 = Some(sha256_hex(b"x"));
            }),
            "FILE_NOT_FOUND",
            "",
        ),
        (
            changed(|s| {
                s.mode = Some(WriteMode::CreateNew.into());
                s.expected_sha256 = Some(sha256_hex(b"x"));
            }),
            "INVALID_PARAMS",
            "start.expected_sha256",
        ),
        (changed(|s| s.path = "link".into()), "SYMLINK_BLOCKED", ""),
        (changed(|s| s.path = "directory".into()), "NOT_A_FILE", ""),
        (changed(|s| s.path = ".".into()), "NOT_A_FILE", ""),
        (
            // The same reason as from `write_file`.
            changed(|s| {
                s.path = "directory".into();
                s.mode = Some(WriteMode::CreateNew.into());
            }),
            "NOT_A_FILE",
            "",
        ),
        (changed(|s| s.path = "../x".into()), "PATH_ESCAPE", ""),
        (changed(|s| s.path = "old/x".into()), "NOT_A_DIRECTORY", ""),
        (
            changed(|s| {
                s.path = "none/x".into();
                s.create_directories = Some(false);
            }),
            "DIRECTORY_NOT_FOUND",
            "",
        ),
        (changed(|s| s.path = String::new()), "INVALID_PARAMS", "start.path"),
        (changed(|s| s.sha256 = "abc".into()), "INVALID_PARAMS", "start.sha256"),
        (changed(|s| s.upload_id = Some("a/b".into())), "INVALID_PARAMS", "start.upload_id"),
        (
            // One byte over the limit of a resumable upload.
            changed(|s| {
                s.upload_id = Some("id".into());
                s.size_bytes = (64 << 30) + 1;
            }),
            "INVALID_PARAMS",
            "start.size_bytes",
        ),
        (changed(|s| s.mode = Some(WriteMode::Append.into())), "INVALID_PARAMS", "start.mode"),
        (changed(|s| s.file_mode = Some(0o4755)), "INVALID_PARAMS", "start.file_mode"),
        (vec![], "INVALID_PARAMS", "start"),
        (vec![chunk(0, b"new")], "INVALID_PARAMS", "start"),
        (vec![start_part(), start_part()], "INVALID_PARAMS", "chunk"),
        (vec![start_part(), chunk(1, b"ew")], "INVALID_PARAMS", "chunk.offset"),
        (vec![start_part(), chunk(0, b"newer")], "INVALID_PARAMS", "chunk.data"),
        (vec![start_part(), chunk(0, b"new"), chunk(3, b"x")], "INVALID_PARAMS", "chunk.data"),
        (vec![start_part(), chunk(0, b"ne")], "INVALID_PARAMS", "chunk"),
    ]
}

#[tokio::test]
async fn failed_transfers_change_nothing() {
    let daemon = Daemon::start().await;
    fs::write(daemon.file("old"), "old").unwrap();
    fs::create_dir(daemon.file("directory")).unwrap();
    symlink("old", daemon.file("link")).unwrap();

    for (parts, reason, field) in rejected_uploads() {
        let refusal = upload_failing(&daemon, parts, reason).await;
        if !field.is_empty() {
            assert_eq!(refusal.invalid_fields(), [field], "{refusal:?}");
        }
    }

    assert_eq!(fs::read(daemon.file("old")).unwrap(), b"old");
    assert_eq!(count_partial_files(&daemon.workspace()), 0);
    assert_eq!(fs::read_dir(daemon.workspace()).unwrap().count(), 3);

    let request = |path: &str, version: Option<&str>| DownloadRequest {
        path: path.to_owned(),
        expected_version: version.map(str::to_owned),
        ..DownloadRequest::default()
    };

    for (request, reason) in [
        (request("none", None), "FILE_NOT_FOUND"),
        (request("link", None), "SYMLINK_BLOCKED"),
        (request("directory", None), "NOT_A_FILE"),
        (request("/etc/passwd", None), "PATH_ESCAPE"),
        (request("old", Some("another")), "STALE_FILE"),
    ] {
        let status = transfer_client(&daemon).await.download(request).await.unwrap_err();
        assert_eq!(Refusal::from_status(&status).reason, reason);
    }

    // A compare-and-swap with the right checksum.
    let mut matching = upload_start("old", b"new");
    matching.expected_sha256 = Some(sha256_hex(b"old").to_uppercase());
    upload(&daemon, vec![Part::Start(matching), chunk(0, b"new")]).await.unwrap();
    assert_eq!(fs::read(daemon.file("old")).unwrap(), b"new");
}

#[tokio::test]
async fn interrupted_upload_resumes_after_a_daemon_restart() {
    let mut daemon = Daemon::start().await;
    let bytes = pseudo_random_bytes(900_000);
    fs::write(daemon.file("file"), "old").unwrap();
    let begin = || Part::Start(resumable_start("file", &bytes, "a-1"));
    assert_eq!(upload_offset(&daemon, "a-1").await, None);

    let (sender, call) =
        start_manual_upload(&daemon, vec![begin(), chunk(0, &bytes[..200_000])]).await;
    wait_for_upload_offset(&daemon, "a-1", 200_000).await;
    call.abort();
    drop(sender);
    assert_eq!(fs::read(daemon.file("file")).unwrap(), b"old");

    // A second call continues and sends some of the bytes again.
    let parts = vec![begin(), chunk(100_000, &bytes[100_000..500_000])];
    let (_sender, _call) = start_manual_upload(&daemon, parts).await;
    wait_for_upload_offset(&daemon, "a-1", 500_000).await;

    // An upload without an id cannot be resumed.
    let unresumable = vec![Part::Start(upload_start("lost", &bytes)), chunk(0, &bytes[..9])];
    let (_unresumable_sender, _unresumable_call) = start_manual_upload(&daemon, unresumable).await;
    eventually("both uploads have partial files", async || {
        count_partial_files(&daemon.workspace()) == 2
    })
    .await;

    daemon = daemon.restart().await;
    assert_eq!(upload_offset(&daemon, "a-1").await, Some(500_000));
    assert_eq!(
        count_partial_files(&daemon.workspace()),
        1,
        "the daemon deletes the partial file that cannot be resumed"
    );

    let other_path = vec![Part::Start(resumable_start("other", &bytes, "a-1"))];
    upload_failing(&daemon, other_path, "INVALID_PARAMS").await;
    let remaining = || vec![begin(), chunk(500_000, &bytes[500_000..])];
    let response = upload(&daemon, remaining()).await.unwrap();
    assert_eq!((response.created, response.received_bytes), (false, 400_000));
    assert!(fs::read(daemon.file("file")).unwrap() == bytes);

    // A repeat, as after a lost response; the second repeat reaches a new daemon.
    fs::write(daemon.file("file"), "newer").unwrap();

    for _ in 0..2 {
        let response = upload(&daemon, remaining()).await.unwrap();
        assert_eq!((response.created, response.received_bytes), (false, 0));
        assert_eq!(fs::read(daemon.file("file")).unwrap(), b"newer");
        assert_eq!(upload_offset(&daemon, "a-1").await, Some(900_000));
        daemon = daemon.restart().await;
    }

    assert_eq!(count_partial_files(&daemon.workspace()), 0);
}

#[tokio::test]
async fn client_resumes_transfers_when_its_connection_is_cut() {
    let daemon = Daemon::start().await;
    let proxy = Arc::new(ConnectionProxy::start(&daemon));
    let client = connect_client(&daemon.sibling_path("proxy.sock")).await;
    let bytes = pseudo_random_bytes(24 << 20);
    let local_path = daemon.sibling_path("local");
    fs::write(&local_path, &bytes).unwrap();

    // Cuts the connection after one third and after two thirds.
    let cuts: Arc<[AtomicBool; 2]> = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
    let cut_at = {
        let (proxy, cuts) = (Arc::clone(&proxy), Arc::clone(&cuts));
        move |bytes: u64| {
            for (cut, at) in cuts.iter().zip([8 * MIB, 16 * MIB]) {
                if bytes > at && !cut.swap(true, Ordering::Relaxed) {
                    proxy.cut();
                }
            }
        }
    };

    let file = File::open(&local_path).unwrap();
    let response = client
        .send_file(&file, resumable_start("file", &bytes, "cut"), cut_at.clone())
        .await
        .unwrap();
    assert!(cuts.iter().all(|cut| cut.load(Ordering::Relaxed)));
    assert!(response.received_bytes < response.size_bytes, "{response:?}");
    assert!(fs::read(daemon.file("file")).unwrap() == bytes);

    cuts.iter().for_each(|cut| cut.store(false, Ordering::Relaxed));
    let mut received = create_read_write(&daemon.sibling_path("back"));
    let summary =
        client.receive_file("file", &mut received, |bytes, _| cut_at(bytes)).await.unwrap();
    assert_eq!(summary.sha256, sha256_hex(&bytes));
    assert!(fs::read(daemon.sibling_path("back")).unwrap() == bytes);

    let result = client.receive_file("none", &mut received, |_, _| {}).await;
    let Err(TransferError::Call(CallError { reason, .. })) = result else {
        panic!("{result:?}");
    };
    assert_eq!(reason.as_deref(), Some("FILE_NOT_FOUND"));
}
