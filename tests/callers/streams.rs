//! The end of streams whose callers lose their permission.

use std::{sync::Arc, time::SystemTime};

use jig::api::v1::{
    StartRequest, StartResponse, WatchEventsRequest, WatchEventsResponse,
    event_service_client::EventServiceClient, process_service_client::ProcessServiceClient,
};
use tonic::{Status, Streaming};

use super::start_daemon_with_keys;
use crate::support::{Daemon, KeyFile, Refusal, Setup, promptly, shell, start_request, with_key};

async fn watch_events(daemon: &Daemon, key: &str) -> Streaming<WatchEventsResponse> {
    let mut events = EventServiceClient::new(daemon.channel());
    let request = with_key(key, WatchEventsRequest::default());
    events.watch_events(request).await.unwrap().into_inner()
}

async fn start_process(daemon: &Daemon, key: &str) -> Streaming<StartResponse> {
    let mut processes = ProcessServiceClient::new(daemon.channel());
    let request = with_key::<StartRequest>(key, start_request(shell("sleep 1000; true")));
    processes.start(request).await.unwrap().into_inner()
}

/// Reads a stream to its error.
async fn read_to_error<T>(mut stream: Streaming<T>) -> Status {
    promptly("the stream ends", async {
        loop {
            match stream.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the stream ended without an error"),
                Err(status) => return status,
            }
        }
    })
    .await
}

#[tokio::test]
async fn revoked_key_ends_its_streams_but_not_unary_calls() {
    let keys = Arc::new(KeyFile::new());
    let [revoked, demoted, unchanged] =
        ["gone", "lowered", "stays"].map(|name| keys.add_key(name, "invoke", &[]));
    let daemon = start_daemon_with_keys(Setup::new(), &keys).await;
    let ending_streams =
        [watch_events(&daemon, &revoked).await, watch_events(&daemon, &demoted).await];
    let process = start_process(&daemon, &revoked).await;
    let mut remaining_stream = watch_events(&daemon, &unchanged).await;
    let command = shell("touch begun; until [ -e go ]; do sleep 0.01; done; echo done");

    let running = daemon.spawn_run(with_key(&revoked, command));
    crate::support::eventually("the command runs", async || daemon.file("begun").exists()).await;

    assert!(keys.run_jig_key(&["revoke", "gone"]).status.success());

    let file = std::fs::read_to_string(keys.path()).unwrap();
    let (before, after) = file.split_once("name = \"lowered\"").unwrap();
    let after = after.replacen("invoke", "read", 1);
    std::fs::write(keys.path(), format!("{before}name = \"lowered\"{after}")).unwrap();
    daemon.reload_config(Daemon::RELOADED).await;

    for stream in ending_streams {
        assert_eq!(Refusal::from_status(&read_to_error(stream).await).reason, "UNAUTHENTICATED");
    }
    assert_eq!(Refusal::from_status(&read_to_error(process).await).reason, "UNAUTHENTICATED");

    std::fs::write(daemon.file("go"), "").unwrap();
    assert_eq!(running.await.unwrap().unwrap().stdout, "done\n");

    // The stream of the unchanged key continues.
    let finished = promptly("the remaining stream reports the end of the call", async {
        loop {
            let message = remaining_stream.message().await.unwrap().unwrap();
            let text = format!("{message:?}");
            if text.contains("tool_call_finished") {
                return text;
            }
        }
    });

    finished.await;
}

#[tokio::test]
async fn expired_key_ends_its_stream() {
    let keys = Arc::new(KeyFile::new());
    let expiry = SystemTime::now() + std::time::Duration::from_secs(8);
    let expiry = prost_types::Timestamp::from(expiry).to_string();
    let key = keys.add_key("short", "invoke", &["--expires", &expiry]);
    let daemon = start_daemon_with_keys(Setup::new(), &keys).await;
    let stream = watch_events(&daemon, &key).await;
    assert_eq!(Refusal::from_status(&read_to_error(stream).await).reason, "UNAUTHENTICATED");
}
