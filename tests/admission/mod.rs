//! When calls may begin: rates, places, queues, whose turn it is, and what becomes of calls for which
//! there is no room.

mod descriptors;
mod fairness;
mod file_operations;
mod queues;
mod rates;
mod request_bodies;
mod sandboxes;
mod sharing;

use std::sync::Arc;

use jig::api::v1::{RunRequest, RunResponse};
use tokio::task::JoinHandle;
use tonic::{Request, Status};

use crate::support::{Daemon, KeyFile, Refusal, Setup, eventually, promptly, shell};

/// A daemon with keys and with limits.
async fn start_limited(limits: &str, keys: &Arc<KeyFile>) -> Daemon {
    let path = keys.path().display().to_string();
    let kept = Arc::clone(keys);
    Setup::new()
        .workspace_table(&format!("[limits]\n{limits}"))
        .arguments(&["--keys", &path])
        .with_resource(kept)
        .start()
        .await
}

/// A daemon without keys.
async fn start_without_keys(limits: &str) -> Daemon {
    let setup = Setup::new().workspace_table(&format!("[limits]\n{limits}"));
    setup.start().await
}

/// A command that goes on until there is a file.
fn run_until(file: &str) -> RunRequest {
    shell(&format!("until [ -e {file} ]; do sleep 0.01; done"))
}

/// How many calls go on, and how many wait.
async fn call_counts(daemon: &Daemon, key: Option<&str>) -> (u32, u32) {
    let mut client =
        jig::api::v1::daemon_service_client::DaemonServiceClient::new(daemon.channel());
    let mut request = Request::new(jig::api::v1::GetInfoRequest {});
    if let Some(key) = key {
        let key = key.parse().unwrap();
        request.metadata_mut().insert("x-api-key", key);
    }
    let counts = client.get_info(request).await.unwrap().into_inner().counts;
    let counts = counts.unwrap();
    (counts.calls_running, counts.calls_queued)
}

/// Waits until so many calls go on, and so many wait.
async fn wait_for_call_counts(daemon: &Daemon, key: Option<&str>, expected: (u32, u32)) {
    eventually(&format!("{expected:?} go on and wait"), async || {
        call_counts(daemon, key).await == expected
    })
    .await;
}

/// What a call is told whose deadline comes before its turn. Our own client may be the first to see that: then
/// the call is made again.
async fn deadline_refusal(daemon: &Daemon, request: impl Fn() -> Request<RunRequest>) -> Refusal {
    let refused = async {
        loop {
            let refused = daemon.try_run(request()).await.unwrap_err();
            if !refused.details().is_empty() {
                return Refusal::from_status(&refused);
            }
        }
    };
    promptly("it is refused", refused).await
}

type PendingRun = JoinHandle<Result<RunResponse, Status>>;
