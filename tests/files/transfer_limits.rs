//! Memory and time of transfers. `JIG_FULL=1` uses the sizes that the documentation promises.

use std::{
    fs::File,
    io::Write as _,
    os::unix::fs::{FileExt as _, MetadataExt as _},
    time::{Duration, Instant},
};

use jig::api::v1::{DownloadRequest, UploadStart};
use sha2::{Digest as _, Sha256};

use super::transfer::{
    MIB, connect_client, create_read_write, pseudo_random_bytes, transfer_client,
};
use crate::support::{Refusal, Setup, eventually, full_size};

#[tokio::test]
async fn memory_stays_flat_for_any_transfer_size() {
    let real_bytes = MIB * full_size(2 << 10, 48) as u64;
    let sparse_bytes = MIB * full_size(10 << 10, 256) as u64;
    let daemon = Setup::new().exclusive().start().await;

    let client = connect_client(&daemon.socket()).await;
    let local_path = daemon.sibling_path("local");
    let mut file = create_read_write(&local_path);
    let block = pseudo_random_bytes(1 << 20);
    for _ in 0..real_bytes / MIB {
        file.write_all(&block).unwrap();
    }

    let sparse_file = File::create_new(daemon.file("holes")).unwrap();
    sparse_file.set_len(sparse_bytes).unwrap();
    sparse_file.write_all_at(b"end", sparse_bytes - 3).unwrap();
    let mut sha256 = Sha256::new();
    (0..real_bytes / MIB).for_each(|_| sha256.update(&block));
    let sha256: String = sha256.finalize().iter().map(|byte| format!("{byte:02x}")).collect();

    let before = daemon.resident_bytes();
    let start = UploadStart {
        path: "real".into(),
        size_bytes: real_bytes,
        sha256: sha256.clone(),
        ..UploadStart::default()
    };
    client.send_file(&file, start, |_| {}).await.unwrap();
    let mut received = create_read_write(&daemon.sibling_path("back"));
    let summary = client.receive_file("real", &mut received, |_, _| {}).await.unwrap();
    assert_eq!((summary.sha256, summary.size_bytes), (sha256, real_bytes));

    // Holes stay holes on both sides.
    let mut copy = create_read_write(&daemon.sibling_path("copy"));
    let summary = client.receive_file("holes", &mut copy, |_, _| {}).await.unwrap();
    assert_eq!(summary.size_bytes, sparse_bytes);

    let start = UploadStart {
        path: "holes again".into(),
        size_bytes: sparse_bytes,
        sha256: summary.sha256,
        ..UploadStart::default()
    };
    client.send_file(&copy, start, |_| {}).await.unwrap();

    for metadata in [copy.metadata().unwrap(), daemon.file("holes again").metadata().unwrap()] {
        assert_eq!(metadata.len(), sparse_bytes);
        assert!(metadata.blocks() * 512 < 4 * MIB, "{} blocks", metadata.blocks());
    }

    let grown = daemon.resident_bytes().saturating_sub(before);
    assert!(grown < 32 * MIB, "grew by {grown} bytes");
}

#[tokio::test]
async fn stalled_downloads_are_limited_and_release_their_permits() {
    let daemon = Setup::new().exclusive().start().await;
    let large = File::create_new(daemon.file("large")).unwrap();
    large.set_len(1 << 30).unwrap();
    let request = || DownloadRequest { path: "large".into(), ..DownloadRequest::default() };
    let before = daemon.resident_bytes();
    let mut stalled = Vec::new();
    for _ in 0..32 {
        stalled.push(transfer_client(&daemon).await.download(request()).await.unwrap());
    }

    let status = transfer_client(&daemon).await.download(request()).await.unwrap_err();
    assert_eq!(Refusal::from_status(&status).reason, "RESOURCE_EXHAUSTED");

    let grown = daemon.resident_bytes().saturating_sub(before);
    assert!(grown < 128 * MIB, "grew by {grown} bytes");

    drop(stalled);
    eventually("the daemon releases the permits", async || {
        transfer_client(&daemon).await.download(request()).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn late_reader_gets_a_timeout_instead_of_an_end() {
    let daemon = Setup::new().exclusive().start().await;
    let large = File::create_new(daemon.file("large")).unwrap();
    large.set_len(1 << 30).unwrap();
    let timeout = Duration::from_secs(1);
    let mut request =
        tonic::Request::new(DownloadRequest { path: "large".into(), ..DownloadRequest::default() });
    request.set_timeout(timeout);
    let start = Instant::now();
    let mut parts = transfer_client(&daemon).await.download(request).await.unwrap().into_inner();
    eventually("the deadline passes", async || start.elapsed() > timeout).await;

    let status = loop {
        match parts.message().await {
            Ok(Some(part)) => assert_eq!(part.sha256, None),
            Ok(None) => panic!("the stream ends as if it were complete"),
            Err(status) => break status,
        }
    };
    assert_eq!(Refusal::from_status(&status).reason, "TIMEOUT");
}
