//! Rate limits of keys.

use std::{
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

use jig::api::v1::{
    DownloadRequest, ListArtifactsRequest, ListFilesRequest, ListSessionsRequest,
    ReadArtifactRequest, SubmitJobRequest, UploadRequest, WatchEventsRequest,
    approval_service_client::ApprovalServiceClient, artifact_service_client::ArtifactServiceClient,
    event_service_client::EventServiceClient, job_service_client::JobServiceClient,
    transfer_service_client::TransferServiceClient,
};
use tonic::Status;

use super::{call_counts, start_limited, stat, wait_for_approval_to_allow};
use crate::{
    callers::start_daemon_with_keys,
    support::{Daemon, KeyFile, Refusal, Setup, shell, start_request, with_key},
};

/// Calls until a call is rejected. Returns the number of accepted calls and the rejection.
async fn call_until_refused(daemon: &Daemon, key: &str) -> (u32, Refusal) {
    let mut accepted = 0;
    loop {
        match stat(daemon, key).await {
            Ok(()) => accepted += 1,
            Err(status) => return (accepted, Refusal::from_status(&status)),
        }
    }
}

#[tokio::test]
async fn burst_passes_and_next_call_gets_retry_after() {
    let keys = Arc::new(KeyFile::new());
    let flags = ["--calls-per-second", "1", "--burst", "5"];
    let key = keys.add_key("slow", "invoke", &flags);
    let other = keys.add_key("other", "invoke", &flags);
    let daemon = start_limited("", &keys).await;

    let begun = Instant::now();
    let (accepted, refusal) = call_until_refused(&daemon, &key).await;
    let more = u32::try_from(begun.elapsed().as_secs()).unwrap() + 1;
    assert!((5..=5 + more).contains(&accepted), "{accepted}");
    assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED");
    assert_eq!(refusal.metadata["limit"], "1");
    assert!(refusal.message.contains("key:slow"), "{refusal:?}");

    // Other callers have a rate of their own.
    stat(&daemon, &other).await.unwrap();

    // GetInfo is not counted.
    for _ in 0..10 {
        call_counts(&daemon, Some(&key)).await;
    }

    for _ in 0..3 {
        let (_, refusal) = call_until_refused(&daemon, &key).await;
        let wait = refusal.retry_after.unwrap();
        assert!(wait <= Duration::from_secs(1), "{wait:?}");
        // Exactly the advertised delay: a call must succeed after it.
        tokio::time::sleep(wait).await;
        stat(&daemon, &key).await.unwrap();
    }
}

/// Calls until the rate limit rejects a call. Returns the number of calls before.
async fn call_until_rate_limited(call: impl AsyncFn() -> Result<(), Status>) -> usize {
    let mut accepted = 0;
    loop {
        match call().await.map_err(|status| Refusal::from_status(&status)) {
            Err(refusal) if refusal.message.contains("per second") => {
                assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED");
                return accepted;
            }
            _ => accepted += 1,
        }
        // One token a second is refilled.
        assert!(accepted < 100, "the rate limit does not count this call");
    }
}

#[tokio::test]
async fn rate_limit_counts_every_call_whatever_its_outcome() {
    let keys = Arc::new(KeyFile::new());
    let flags = ["--calls-per-second", "1", "--burst", "5", "--for-tool", "run"];
    let flags = [&flags[..], &["--for-tool", "stat", "--for-tool", "read_file"]].concat();
    let key = keys.add_key("slow", "invoke", &flags);
    let daemon = start_limited("", &keys).await;

    fs::write(daemon.file("file"), "text").unwrap();
    exhaust_rate_with_tool_calls(&daemon, &key).await;
    exhaust_rate_with_streams(&daemon, &key).await;
    exhaust_rate_with_session_calls(&daemon, &key).await;
}

async fn exhaust_rate_with_tool_calls(daemon: &Daemon, key: &str) {
    call_until_rate_limited(async || daemon.try_run(with_key(key, shell("true"))).await.map(drop))
        .await;

    // Invalid, forbidden and misdirected calls.
    call_until_rate_limited(async || daemon.try_run(with_key(key, shell(""))).await.map(drop))
        .await;

    let forbidden = async || {
        let request = with_key(key, ListFilesRequest::default());
        daemon.tools().list_files(request).await.map(drop)
    };
    call_until_rate_limited(forbidden).await;

    let unknown_workspace = async || {
        let mut request = with_key(key, shell("true"));
        request.metadata_mut().insert("jig-workspace", "none".parse().unwrap());
        daemon.try_run(request).await.map(drop)
    };
    call_until_rate_limited(unknown_workspace).await;

    // Repeated calls.
    let repeated = async || {
        let mut request = with_key(key, shell("echo ran >> ran"));
        request.metadata_mut().insert("jig-request-id", "id".parse().unwrap());
        daemon.try_run(request).await.map(drop)
    };
    call_until_rate_limited(repeated).await;
}

async fn exhaust_rate_with_streams(daemon: &Daemon, key: &str) {
    let start =
        async || daemon.try_start_process(with_key(key, start_request(shell("")))).await.map(drop);
    call_until_rate_limited(start).await;

    let download = async || {
        let path = "file".to_owned();
        let request = DownloadRequest { path, ..DownloadRequest::default() };
        let mut transfers = TransferServiceClient::new(daemon.channel());
        transfers.download(with_key(key, request)).await.map(drop)
    };
    call_until_rate_limited(download).await;

    let upload = async || {
        let nothing = tokio_stream::iter(Vec::<UploadRequest>::new());
        let mut transfers = TransferServiceClient::new(daemon.channel());
        transfers.upload(with_key(key, nothing)).await.map(drop)
    };
    call_until_rate_limited(upload).await;
}

/// Calls about sessions, artifacts and jobs: read-only ones, and invalid ones.
async fn exhaust_rate_with_session_calls(daemon: &Daemon, key: &str) {
    let events = EventServiceClient::new(daemon.channel());
    let watch =
        WatchEventsRequest { types: vec!["nothing".to_owned()], ..WatchEventsRequest::default() };
    call_until_rate_limited(async || {
        let request = with_key(key, watch.clone());
        events.clone().watch_events(request).await.map(drop)
    })
    .await;

    let page_token = Some("of nothing".to_owned());
    let sessions =
        ListSessionsRequest { page_token: page_token.clone(), ..ListSessionsRequest::default() };
    call_until_rate_limited(async || {
        let request = with_key(key, sessions.clone());
        events.clone().list_sessions(request).await.map(drop)
    })
    .await;

    let artifacts = ArtifactServiceClient::new(daemon.channel());
    let list = ListArtifactsRequest { page_token, ..ListArtifactsRequest::default() };
    call_until_rate_limited(async || {
        let request = with_key(key, list.clone());
        artifacts.clone().list_artifacts(request).await.map(drop)
    })
    .await;
    call_until_rate_limited(async || {
        let request = with_key(key, ReadArtifactRequest::default());
        artifacts.clone().read_artifact(request).await.map(drop)
    })
    .await;

    let jobs = JobServiceClient::new(daemon.channel());
    call_until_rate_limited(async || {
        let request = with_key(key, SubmitJobRequest::default());
        jobs.clone().submit_job(request).await.map(drop)
    })
    .await;
}

#[tokio::test]
async fn approved_call_is_not_rate_limited() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add_key("slow", "invoke", &["--calls-per-second", "1", "--burst", "1"]);
    let admin = keys.add_key("admin", "admin", &[]);
    let setup = Setup::new().workspace_table("[policy]\ndangerous = \"ask\"");
    let daemon = start_daemon_with_keys(setup, &keys).await;

    let pending_run = daemon.spawn_run(with_key(&key, shell("echo done")));
    let decision = wait_for_approval_to_allow(&daemon, &admin).await;
    call_until_refused(&daemon, &key).await;
    let mut approvals = ApprovalServiceClient::new(daemon.channel());
    approvals.decide_approval(with_key(&admin, decision)).await.unwrap();

    assert_eq!(pending_run.await.unwrap().unwrap().stdout, "done\n");
}
