//! Admission of calls: rates, permits, queues, fair order, and the rejection of calls beyond the
//! limits.

mod descriptors;
mod fairness;
mod file_operations;
mod queues;
mod rates;
mod request_bodies;
mod sandboxes;
mod sharing;

use std::sync::Arc;

use jig::api::v1::{
    DecideApprovalRequest, Decision, ListApprovalsRequest, RunRequest, RunResponse,
    StatPathRequest, approval_service_client::ApprovalServiceClient,
};
use tokio::task::JoinHandle;
use tonic::{Request, Status};

use crate::{
    callers::start_daemon_with_keys,
    support::{Daemon, KeyFile, Refusal, Setup, eventually, promptly, shell, with_key},
};

async fn start_limited(limits: &str, keys: &Arc<KeyFile>) -> Daemon {
    let setup = Setup::new().workspace_table(&format!("[limits]\n{limits}"));
    start_daemon_with_keys(setup, keys).await
}

async fn start_without_keys(limits: &str) -> Daemon {
    let setup = Setup::new().workspace_table(&format!("[limits]\n{limits}"));
    setup.start().await
}

/// A command that runs until a file exists.
fn run_until(file: &str) -> RunRequest {
    shell(&format!("until [ -e {file} ]; do sleep 0.01; done"))
}

/// How many calls run, and how many wait.
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

/// Waits until `expected` calls run and wait.
async fn wait_for_call_counts(daemon: &Daemon, key: Option<&str>, expected: (u32, u32)) {
    eventually(&format!("{expected:?} calls run and wait"), async || {
        call_counts(daemon, key).await == expected
    })
    .await;
}

/// The rejection of a call whose deadline passes while it waits. The local client may report the
/// deadline before the daemon does: then the call is repeated.
async fn deadline_refusal(daemon: &Daemon, request: impl Fn() -> Request<RunRequest>) -> Refusal {
    let refused = async {
        loop {
            let refused = daemon.try_run(request()).await.unwrap_err();
            if !refused.details().is_empty() {
                return Refusal::from_status(&refused);
            }
        }
    };
    promptly("the daemon rejects the call", refused).await
}

async fn stat(daemon: &Daemon, key: &str) -> Result<(), Status> {
    let path = ".".to_owned();
    let request = with_key(key, StatPathRequest { path });
    daemon.tools().stat_path(request).await.map(drop)
}

/// Waits until an approval is pending, and returns the decision that allows it.
async fn wait_for_approval_to_allow(daemon: &Daemon, key: &str) -> DecideApprovalRequest {
    let mut approvals = ApprovalServiceClient::new(daemon.channel());
    let mut approval_id = String::new();
    eventually("an approval is pending", async || {
        let request = with_key(key, ListApprovalsRequest::default());
        let response = approvals.list_approvals(request).await.unwrap().into_inner();
        let first = response.approvals.into_iter().next();
        approval_id = first.map(|first| first.approval_id).unwrap_or_default();
        !approval_id.is_empty()
    })
    .await;

    DecideApprovalRequest {
        approval_id,
        decision: Decision::Allow.into(),
        ..DecideApprovalRequest::default()
    }
}

type PendingRun = JoinHandle<Result<RunResponse, Status>>;
