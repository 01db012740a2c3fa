//! How much memory and time transfers take. `JIG_FULL=1` makes them as large as was promised.

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
use crate::support::{Refusal, Setup, eventually};

#[tokio::test]
async fn memory_stays_flat_for_any_transfer_size() {
    let full = std::env::var_os("JIG_FULL").is_some_and(|value| value == "1");
    let (real, sparse) = if full { (2 << 30, 10 << 30) } else { (48 * MIB, 256 * MIB) };
    let daemon = Setup::new().exclusive().start().await;
    let client = connect_client(&daemon.socket()).await;
    let local = daemon.sibling_path("local");
    let mut file = create_read_write(&local);
    let some = pseudo_random_bytes(1 << 20);
    for _ in 0..real / MIB {
        file.write_all(&some).unwrap();
    }
    let holes = File::create_new(daemon.file("holes")).unwrap();
    holes.set_len(sparse).unwrap();
    holes.write_all_at(b"end", sparse - 3).unwrap();
    let mut sum = Sha256::new();
    (0..real / MIB).for_each(|_| sum.update(&some));
    let sum: String = sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect();

    let before = daemon.resident_bytes();
    let start = UploadStart {
        path: "real".into(),
        size_bytes: real,
        sha256: sum.clone(),
        ..UploadStart::default()
    };
    client.send_file(&file, start, |_| {}).await.unwrap();
    let mut back = create_read_write(&daemon.sibling_path("back"));
    let whole = client.receive_file("real", &mut back, |_, _| {}).await.unwrap();
    assert_eq!((whole.sha256, whole.size_bytes), (sum, real));
    // A hole stays a hole, on both sides.
    let mut copy = create_read_write(&daemon.sibling_path("copy"));
    let whole = client.receive_file("holes", &mut copy, |_, _| {}).await.unwrap();
    assert_eq!(whole.size_bytes, sparse);
    let start = UploadStart {
        path: "holes again".into(),
        size_bytes: sparse,
        sha256: whole.sha256,
        ..UploadStart::default()
    };
    client.send_file(&copy, start, |_| {}).await.unwrap();
    for data in [copy.metadata().unwrap(), daemon.file("holes again").metadata().unwrap()] {
        assert_eq!(data.len(), sparse);
        assert!(data.blocks() * 512 < 4 * MIB, "{} blocks", data.blocks());
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
    let mut waiting = Vec::new();
    for _ in 0..32 {
        waiting.push(transfer_client(&daemon).await.download(request()).await.unwrap());
    }
    let status = transfer_client(&daemon).await.download(request()).await.unwrap_err();
    assert_eq!(Refusal::from_status(&status).reason, "RESOURCE_EXHAUSTED");
    let grown = daemon.resident_bytes().saturating_sub(before);
    assert!(grown < 128 * MIB, "grew by {grown} bytes");
    drop(waiting);
    eventually("their places are free again", async || {
        transfer_client(&daemon).await.download(request()).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn late_reader_gets_a_timeout_instead_of_an_end() {
    let daemon = Setup::new().exclusive().start().await;
    let large = File::create_new(daemon.file("large")).unwrap();
    large.set_len(1 << 30).unwrap();
    let time = Duration::from_secs(1);
    let mut request =
        tonic::Request::new(DownloadRequest { path: "large".into(), ..DownloadRequest::default() });
    request.set_timeout(time);
    let began = Instant::now();
    let mut parts = transfer_client(&daemon).await.download(request).await.unwrap().into_inner();
    eventually("the deadline passes", async || began.elapsed() > time).await;
    let status = loop {
        match parts.message().await {
            Ok(Some(part)) => assert_eq!(part.sha256, None),
            Ok(None) => panic!("it ends as if that were all"),
            Err(status) => break status,
        }
    };
    assert_eq!(Refusal::from_status(&status).reason, "TIMEOUT");
}
