//! Lists of sessions and artifacts.

use std::sync::Arc;

use jig::api::v1::{
    ArtifactInfo, ListArtifactsRequest, ListArtifactsResponse, ListSessionsRequest,
    ReadArtifactRequest, SessionInfo, artifact_service_client::ArtifactServiceClient,
    event_service_client::EventServiceClient,
};
use tonic::{IntoRequest, Status};

use super::{EventWatch, in_session, snapshot_request};
use crate::{
    callers::start_daemon_with_keys,
    support::{Daemon, KeyFile, Refusal, Setup, eventually, shell, with_key},
};

async fn list_artifacts(
    daemon: &Daemon,
    request: impl IntoRequest<ListArtifactsRequest>,
) -> Result<ListArtifactsResponse, Status> {
    let mut client = ArtifactServiceClient::new(daemon.channel());
    let answer = client.list_artifacts(request).await;
    answer.map(tonic::Response::into_inner)
}

/// All artifacts of the default session, listed in pages of `page_size`.
async fn artifacts_by_pages(
    daemon: &Daemon,
    page_size: u32,
    step: Option<u64>,
) -> Vec<ArtifactInfo> {
    let (mut found, mut page_token) = (Vec::new(), None);
    loop {
        let request = ListArtifactsRequest {
            page_size: Some(page_size),
            page_token,
            step,
            ..ListArtifactsRequest::default()
        };
        let page = list_artifacts(daemon, request).await.unwrap();
        assert!(page.artifacts.len() <= page_size as usize);
        found.extend(page.artifacts);
        if page.next_page_token.is_empty() {
            return found;
        }
        page_token = Some(page.next_page_token);
    }
}

#[tokio::test]
async fn artifacts_are_listed_page_by_page() {
    let daemon = Daemon::start().await;
    assert_eq!(artifacts_by_pages(&daemon, 10, None).await, []);
    assert!(!daemon.state_dir().join("sessions/default").exists());

    for number in 0..6 {
        let command = format!("echo {number}; [ {number} = 3 ] && echo error >&2; true");
        daemon.run(shell(&command)).await;
    }

    let all = artifacts_by_pages(&daemon, 1000, None).await;
    let paths: Vec<_> = all.iter().map(|artifact| artifact.path.clone()).collect();
    assert_eq!(paths.len(), 7);
    assert!(paths.is_sorted());

    for artifact in &all {
        let (bytes, _) = daemon.artifact(&artifact.path).await;
        assert_eq!(bytes.len() as u64, artifact.size_bytes);
        assert!(artifact.path.contains(&format!("_{:04}_", artifact.step)));
        assert!(artifact.modify_time.is_some());
    }

    for page_size in [1, 2, 3, 6, 7, 8] {
        assert_eq!(artifacts_by_pages(&daemon, page_size, None).await, all, "{page_size}");
    }

    let of_step = artifacts_by_pages(&daemon, 1, Some(4)).await;
    assert_eq!(of_step, all[3..5].to_vec());

    let request = ListArtifactsRequest { page_size: Some(1), ..ListArtifactsRequest::default() };
    let token = list_artifacts(&daemon, request.clone()).await.unwrap().next_page_token;
    for (step, page_token, page_size) in
        [(Some(4), &*token, 1), (None, "nonsense", 1), (None, "", 0)]
    {
        let request = ListArtifactsRequest {
            step,
            page_token: Some(page_token.to_owned()),
            page_size: Some(page_size),
            ..ListArtifactsRequest::default()
        };
        let refusal = Refusal::from_status(&list_artifacts(&daemon, request).await.unwrap_err());
        assert_eq!(refusal.reason, "INVALID_PARAMS");
    }

    let other = list_artifacts(&daemon, in_session("other", request)).await.unwrap();
    assert_eq!(other, ListArtifactsResponse::default());
}

#[tokio::test]
async fn sessions_are_listed_page_by_page() {
    let daemon = Daemon::start().await;

    for (session, runs) in [("b", 1), ("a", 2), ("c.d", 1), ("A", 3)] {
        for _ in 0..runs {
            daemon.run(in_session(session, shell("true"))).await;
        }
    }

    let daemon = daemon.restart().await;
    daemon.run(in_session("b", shell("true"))).await;
    let mut client = EventServiceClient::new(daemon.channel());
    let mut found: Vec<SessionInfo> = Vec::new();
    let mut page_token = None;
    loop {
        let request = ListSessionsRequest { page_size: Some(2), page_token };
        let page = client.list_sessions(request).await.unwrap().into_inner();
        found.extend(page.sessions);
        if page.next_page_token.is_empty() {
            break;
        }
        page_token = Some(page.next_page_token);
    }

    let numbers = found.iter().map(|session| {
        assert!(session.last_event_time.is_some());
        (&*session.session, session.last_step, session.last_sequence)
    });
    assert_eq!(numbers.collect::<Vec<_>>(), [("A", 3, 6), ("a", 2, 4), ("b", 2, 4), ("c.d", 1, 2)]);
}

#[tokio::test]
async fn read_only_calls_are_rate_limited() {
    let keys = Arc::new(KeyFile::new());

    let slow = ["--calls-per-second", "1", "--burst", "1"];
    let key = keys.add_key("looks", "read", &slow);
    let daemon = start_daemon_with_keys(Setup::new(), &keys).await;
    let mut events = EventServiceClient::new(daemon.channel());
    let mut sessions = async || {
        let request = with_key(&key, ListSessionsRequest::default());
        events.list_sessions(request).await.map(drop)
    };
    let artifacts = async || {
        let request = with_key(&key, ListArtifactsRequest::default());
        list_artifacts(&daemon, request).await.map(drop)
    };

    let watching =
        async || EventWatch::try_of(&daemon, with_key(&key, snapshot_request(0))).await.map(drop);
    eventually("listing sessions exceeds the rate", async || {
        let refusal = sessions().await.map_err(|status| Refusal::from_status(&status));
        refusal.is_err_and(|refusal| refusal.retry_after.is_some())
    })
    .await;

    eventually("listing artifacts exceeds the rate", async || {
        let refusal = artifacts().await.map_err(|status| Refusal::from_status(&status));
        refusal.is_err_and(|refusal| refusal.retry_after.is_some())
    })
    .await;
    eventually("opening a watch exceeds the rate", async || {
        let refusal = watching().await;
        refusal.is_err_and(|refusal| refusal.retry_after.is_some())
    })
    .await;
}

#[tokio::test]
async fn unread_artifact_streams_are_limited() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add_key("few", "invoke", &["--concurrent-calls", "4"]);
    let daemon = start_daemon_with_keys(Setup::new(), &keys).await;

    // More than the buffers on the way to a client that reads nothing.
    let text = with_key(&key, shell("head -c 20000000 /dev/zero"));
    let path = daemon.run(text).await.stdout_path;
    let mut reading = Vec::new();
    let refusal = loop {
        // On one connection, further streams would wait for the unread ones.
        let mut client = ArtifactServiceClient::new(daemon.new_connection());
        let request = ReadArtifactRequest { path: path.clone(), ..ReadArtifactRequest::default() };
        match client.read_artifact(with_key(&key, request)).await {
            Ok(answer) => reading.push(answer.into_inner()),
            Err(status) => break Refusal::from_status(&status),
        }
        assert!(reading.len() <= 4);
    };

    assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED");

    reading.truncate(1);
    let mut bytes = 0;
    while let Some(part) = reading[0].message().await.unwrap() {
        bytes += part.data.len();
    }
    assert_eq!(bytes, 20_000_000);

    eventually("a stream is accepted again", async || {
        let mut client = ArtifactServiceClient::new(daemon.new_connection());
        let request = ReadArtifactRequest {
            path: path.clone(),
            limit: Some(1),
            ..ReadArtifactRequest::default()
        };
        client.read_artifact(with_key(&key, request)).await.is_ok()
    })
    .await;
}
