//! Uploads and downloads: atomic, checked, resumed after whatever breaks them off, in flat memory.

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

/// Bytes that do not repeat soon.
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
    let answer = transfer_client(daemon)
        .await
        .upload(tokio_stream::iter(messages.collect::<Vec<_>>()))
        .await;
    answer.map(tonic::Response::into_inner)
}

pub(crate) async fn upload_failing(daemon: &Daemon, parts: Vec<Part>, reason: &str) -> Refusal {
    let refusal = Refusal::from_status(&upload(daemon, parts).await.unwrap_err());
    assert_eq!(refusal.reason, reason, "{refusal:?}");
    refusal
}

/// An upload whose messages the test sends one by one. Dropping both breaks it off.
pub(super) type ManualUpload =
    (mpsc::Sender<UploadRequest>, JoinHandle<Result<UploadResponse, Status>>);

pub(crate) async fn start_manual_upload(daemon: &Daemon, parts: Vec<Part>) -> ManualUpload {
    let (sender, receiver) = mpsc::channel(16);
    let mut transfers = transfer_client(daemon).await;
    let call = tokio::spawn(async move {
        let answer = transfers.upload(ReceiverStream::new(receiver)).await;
        answer.map(tonic::Response::into_inner)
    });
    for part in parts {
        sender.send(UploadRequest { part: Some(part) }).await.unwrap();
    }
    (sender, call)
}

pub(crate) async fn upload_offset(daemon: &Daemon, id: &str) -> Option<u64> {
    let request = GetUploadRequest { upload_id: id.to_owned() };
    match transfer_client(daemon).await.get_upload(request).await {
        Ok(answer) => Some(answer.into_inner().offset),
        Err(status) => {
            assert_eq!(Refusal::from_status(&status).reason, "UPLOAD_NOT_FOUND");
            None
        }
    }
}

pub(crate) async fn await_upload_offset(daemon: &Daemon, id: &str, bytes: u64) {
    eventually("the bytes come", async || upload_offset(daemon, id).await == Some(bytes)).await;
}

pub(crate) fn create_read_write(path: &Path) -> File {
    File::options().read(true).write(true).create_new(true).open(path).unwrap()
}

fn count_partial_files(directory: &Path) -> usize {
    let entries = fs::read_dir(directory).unwrap().map(Result::unwrap);
    entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(".jig-")).count()
}

#[tokio::test]
async fn uploaded_file_downloads_unchanged() {
    let daemon = Setup::new().workspace_owner(1234).start().await;
    let bytes = pseudo_random_bytes(700_000);
    let parts = |start: UploadStart| {
        vec![Part::Start(start), chunk(0, &bytes[..300_000]), chunk(300_000, &bytes[300_000..])]
    };
    let answer = upload(&daemon, parts(upload_start("new/deep/file", &bytes))).await.unwrap();
    assert!(answer.created);
    assert_eq!(answer.size_bytes, 700_000);
    assert_eq!(answer.received_bytes, 700_000);
    assert_eq!(answer.sha256, sha256_hex(&bytes));
    let path = daemon.file("new/deep/file");
    assert_eq!(fs::read(&path).unwrap(), bytes);
    for (path, mode) in [
        (&path, 0o100_644),
        (&daemon.file("new"), 0o040_755),
        (&daemon.file("new/deep"), 0o040_755),
    ] {
        let data = path.metadata().unwrap();
        assert_eq!((data.uid(), data.gid(), data.mode()), (1234, 1234, mode), "{path:?}");
    }

    // A file that is there keeps its owner and mode, unless one is asked for.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4750)).unwrap();
    std::os::unix::fs::chown(&path, Some(77), Some(78)).unwrap();
    let answer =
        upload(&daemon, parts(upload_start("/workspace/new/deep/file", &bytes))).await.unwrap();
    assert!(!answer.created);
    let data = path.metadata().unwrap();
    assert_eq!((data.uid(), data.gid(), data.mode()), (77, 78, 0o100_750));
    let with_mode = UploadStart { file_mode: Some(0o755), ..upload_start("new/deep/file", &bytes) };
    upload(&daemon, parts(with_mode)).await.unwrap();
    assert_eq!(path.metadata().unwrap().mode(), 0o100_755);

    let empty = upload(&daemon, vec![Part::Start(upload_start("empty", b""))]).await;
    assert!(empty.unwrap().created);
    assert_eq!(fs::read(daemon.file("empty")).unwrap(), b"");

    let client = connect_client(&daemon.socket()).await;
    for (path, offset, limit, expected) in [
        ("new/deep/file", 0, None, &bytes[..]),
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
    assert_eq!(count_partial_files(&daemon.workspace()), 0);
    let events =
        fs::read_to_string(daemon.state_dir().join("sessions/default/events.jsonl")).unwrap();
    assert_eq!(events.matches(r#""event":"tool_call_finished""#).count(), 4, "{events}");
    assert!(events.contains(r#""tool":"upload""#), "{events}");
}

#[tokio::test]
async fn failed_transfers_change_nothing() {
    let daemon = Daemon::start().await;
    fs::write(daemon.file("old"), "old").unwrap();
    fs::create_dir(daemon.file("directory")).unwrap();
    symlink("old", daemon.file("link")).unwrap();
    let with = |change: fn(&mut UploadStart)| {
        let mut start = upload_start("old", b"new");
        change(&mut start);
        vec![Part::Start(start), chunk(0, b"new")]
    };
    let begun = || Part::Start(upload_start("old", b"new"));
    for (parts, reason, field) in [
        (with(|s| s.sha256 = sha256_hex(b"other")), "CHECKSUM_MISMATCH", ""),
        (with(|s| s.mode = Some(WriteMode::CreateNew.into())), "FILE_EXISTS", ""),
        (with(|s| s.expected_sha256 = Some(sha256_hex(b"x"))), "STALE_FILE", ""),
        (
            with(|s| {
                s.path = "none".into();
                s.expected_sha256 = Some(sha256_hex(b"x"));
            }),
            "FILE_NOT_FOUND",
            "",
        ),
        (
            with(|s| {
                s.mode = Some(WriteMode::CreateNew.into());
                s.expected_sha256 = Some(sha256_hex(b"x"));
            }),
            "INVALID_PARAMS",
            "start.expected_sha256",
        ),
        (with(|s| s.path = "link".into()), "SYMLINK_BLOCKED", ""),
        (with(|s| s.path = "directory".into()), "NOT_A_FILE", ""),
        (with(|s| s.path = ".".into()), "NOT_A_FILE", ""),
        (
            // As `write_file` answers it.
            with(|s| {
                s.path = "directory".into();
                s.mode = Some(WriteMode::CreateNew.into());
            }),
            "NOT_A_FILE",
            "",
        ),
        (with(|s| s.path = "../x".into()), "PATH_ESCAPE", ""),
        (with(|s| s.path = "old/x".into()), "NOT_A_DIRECTORY", ""),
        (
            with(|s| {
                s.path = "none/x".into();
                s.create_directories = Some(false);
            }),
            "DIRECTORY_NOT_FOUND",
            "",
        ),
        (with(|s| s.path = String::new()), "INVALID_PARAMS", "start.path"),
        (with(|s| s.sha256 = "abc".into()), "INVALID_PARAMS", "start.sha256"),
        (with(|s| s.upload_id = Some("a/b".into())), "INVALID_PARAMS", "start.upload_id"),
        (
            // More than is kept.
            with(|s| {
                s.upload_id = Some("id".into());
                s.size_bytes = (64 << 30) + 1;
            }),
            "INVALID_PARAMS",
            "start.size_bytes",
        ),
        (with(|s| s.mode = Some(WriteMode::Append.into())), "INVALID_PARAMS", "start.mode"),
        (with(|s| s.file_mode = Some(0o4755)), "INVALID_PARAMS", "start.file_mode"),
        (vec![], "INVALID_PARAMS", "start"),
        (vec![chunk(0, b"new")], "INVALID_PARAMS", "start"),
        (vec![begun(), begun()], "INVALID_PARAMS", "chunk"),
        (vec![begun(), chunk(1, b"ew")], "INVALID_PARAMS", "chunk.offset"),
        (vec![begun(), chunk(0, b"newer")], "INVALID_PARAMS", "chunk.data"),
        (vec![begun(), chunk(0, b"new"), chunk(3, b"x")], "INVALID_PARAMS", "chunk.data"),
        (vec![begun(), chunk(0, b"ne")], "INVALID_PARAMS", "chunk"),
    ] {
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
    // The compare-and-swap that fits.
    let mut fits = upload_start("old", b"new");
    fits.expected_sha256 = Some(sha256_hex(b"old").to_uppercase());
    upload(&daemon, vec![Part::Start(fits), chunk(0, b"new")]).await.unwrap();
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
    await_upload_offset(&daemon, "a-1", 200_000).await;
    call.abort();
    drop(sender);
    assert_eq!(fs::read(daemon.file("file")).unwrap(), b"old");

    // A second call goes on; some of the bytes come again.
    let parts = vec![begin(), chunk(100_000, &bytes[100_000..500_000])];
    let (_sender, _call) = start_manual_upload(&daemon, parts).await;
    await_upload_offset(&daemon, "a-1", 500_000).await;
    // And one that cannot be resumed.
    let lost = vec![Part::Start(upload_start("lost", &bytes)), chunk(0, &bytes[..9])];
    let (_lost_sender, _lost) = start_manual_upload(&daemon, lost).await;
    eventually("both have drafts", async || count_partial_files(&daemon.workspace()) == 2).await;

    daemon = daemon.restart().await;
    assert_eq!(upload_offset(&daemon, "a-1").await, Some(500_000));
    assert_eq!(count_partial_files(&daemon.workspace()), 1, "what is of no use is swept");
    let other = vec![Part::Start(resumable_start("other", &bytes, "a-1"))];
    upload_failing(&daemon, other, "INVALID_PARAMS").await;
    let rest = || vec![begin(), chunk(500_000, &bytes[500_000..])];
    let answer = upload(&daemon, rest()).await.unwrap();
    assert_eq!((answer.created, answer.received_bytes), (false, 400_000));
    assert!(fs::read(daemon.file("file")).unwrap() == bytes);

    // A repeat, as after an answer that was lost, also with another daemon.
    fs::write(daemon.file("file"), "newer").unwrap();
    for _ in 0..2 {
        let answer = upload(&daemon, rest()).await.unwrap();
        assert_eq!((answer.created, answer.received_bytes), (false, 0));
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
    let local = daemon.sibling_path("local");
    fs::write(&local, &bytes).unwrap();
    // Cut once in each third.
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
    let file = File::open(&local).unwrap();
    let answer = client
        .send_file(&file, resumable_start("file", &bytes, "cut"), cut_at.clone())
        .await
        .unwrap();
    assert!(cuts.iter().all(|cut| cut.load(Ordering::Relaxed)));
    assert!(answer.received_bytes < answer.size_bytes, "{answer:?}");
    assert!(fs::read(daemon.file("file")).unwrap() == bytes);

    cuts.iter().for_each(|cut| cut.store(false, Ordering::Relaxed));
    let mut back = create_read_write(&daemon.sibling_path("back"));
    let whole = client.receive_file("file", &mut back, |bytes, _| cut_at(bytes)).await.unwrap();
    assert_eq!(whole.sha256, sha256_hex(&bytes));
    assert!(fs::read(daemon.sibling_path("back")).unwrap() == bytes);
    let error = client.receive_file("none", &mut back, |_, _| {}).await;
    let Err(TransferError::Call(CallError { reason, .. })) = error else {
        panic!("{error:?}");
    };
    assert_eq!(reason.as_deref(), Some("FILE_NOT_FOUND"));
}
