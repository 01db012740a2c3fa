//! How often a key may call.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use jig::api::v1::{
    DownloadRequest, StatPathRequest, transfer_service_client::TransferServiceClient,
};
use tonic::{Request, Status};

use super::{counts, limited};
use crate::support::{Daemon, KeyFile, Refusal, shell, started, with_key};

async fn stat(daemon: &Daemon, key: &str) -> Result<(), Status> {
    let path = ".".to_owned();
    let request = with_key(key, StatPathRequest { path });
    daemon.tools().stat_path(request).await.map(drop)
}

/// Calls until it is refused; answers how often it was not, and the refusal.
async fn all_at_once(daemon: &Daemon, key: &str) -> (u32, Refusal) {
    let mut passed = 0;
    loop {
        match stat(daemon, key).await {
            Ok(()) => passed += 1,
            Err(status) => return (passed, Refusal::of(&status)),
        }
    }
}

#[tokio::test]
async fn a_burst_passes_and_the_next_call_is_told_when_to_come() {
    let keys = Arc::new(KeyFile::new());
    let flags = ["--calls-per-second", "1", "--burst", "5"];
    let key = keys.add("slow", "invoke", &flags);
    let other = keys.add("other", "invoke", &flags);
    let daemon = limited("", &keys).await;
    let begun = Instant::now();
    let (passed, refusal) = all_at_once(&daemon, &key).await;
    let more = u32::try_from(begun.elapsed().as_secs()).unwrap() + 1;
    assert!((5..=5 + more).contains(&passed), "{passed}");
    assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED");
    assert_eq!(refusal.metadata["limit"], "1");
    assert!(refusal.message.contains("key:slow"), "{refusal:?}");
    // It is the caller's, and nobody else's.
    stat(&daemon, &other).await.unwrap();
    // What only looks at the daemon is not counted.
    for _ in 0..10 {
        counts(&daemon, Some(&key)).await;
    }
    for _ in 0..3 {
        let (_, refusal) = all_at_once(&daemon, &key).await;
        let wait = refusal.retry_after.unwrap();
        assert!(wait <= Duration::from_secs(1), "{wait:?}");
        // The time that was told, and not more: that is what is looked at.
        tokio::time::sleep(wait).await;
        stat(&daemon, &key).await.unwrap();
    }
}

#[tokio::test]
async fn what_is_wrong_in_itself_does_not_count_and_all_that_does_something_does() {
    let keys = Arc::new(KeyFile::new());
    let flags = ["--calls-per-second", "1", "--burst", "1"];
    let key = keys.add("slow", "invoke", &flags);
    let daemon = limited("", &keys).await;
    let invalid = async || {
        let refused = daemon.try_run(with_key(&key, shell(""))).await;
        assert_eq!(Refusal::of(&refused.unwrap_err()).reason, "INVALID_PARAMS");
    };
    for _ in 0..5 {
        invalid().await;
    }
    let (passed, _) = all_at_once(&daemon, &key).await;
    assert!(passed > 0);
    invalid().await;
    let refused = |status: Status| {
        let refusal = Refusal::of(&status);
        assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED");
        assert!(refusal.message.contains("per second"), "{refusal:?}");
    };
    all_at_once(&daemon, &key).await;
    refused(
        daemon
            .try_run(with_key(&key, shell("true")))
            .await
            .unwrap_err(),
    );
    all_at_once(&daemon, &key).await;
    let start: Request<_> = with_key(&key, started(shell("true")));
    refused(daemon.try_watch(start).await.unwrap_err());
    all_at_once(&daemon, &key).await;
    let path = "file".to_owned();
    let request = DownloadRequest {
        path,
        ..DownloadRequest::default()
    };
    let mut transfers = TransferServiceClient::new(daemon.channel());
    refused(
        transfers
            .download(with_key(&key, request))
            .await
            .unwrap_err(),
    );
}
