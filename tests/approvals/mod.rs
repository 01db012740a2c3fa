//! What the operator lets in: by policy, and by who is asked.

mod cli;
mod limits;
mod outcomes;
mod padded_calls;
mod patch_rules;
mod pending_calls;
mod policy;
mod reload;
mod replaced_directories;
mod rule_matching;
mod rules;
mod secrets;
mod watch;

use std::{fs, path::Path};

use jig::api::v1::{
    Approval, ApprovalState, DecideApprovalRequest, DecideApprovalResponse, Decision,
    ListApprovalsRequest, WriteFileRequest, approval_service_client::ApprovalServiceClient,
};
use rusqlite::Connection;
use serde_json::Value;
use tokio::task::JoinHandle;
use tonic::{IntoRequest, Status, transport::Channel};

use crate::support::{Daemon, Setup, eventually};

/// Asks about everything that can do harm.
pub(crate) const ASK_POLICY: &str = "[policy]\nsafe_write = \"ask\"\ndangerous = \"ask\"";

/// A daemon with these lines in its configuration file.
async fn start_with_policy(lines: &str) -> Daemon {
    Setup::new().workspace_table(lines).start().await
}

/// A client of the approvals.
fn approval_client(daemon: &Daemon) -> ApprovalServiceClient<Channel> {
    ApprovalServiceClient::new(daemon.channel())
}

/// Those that wait.
pub(crate) async fn pending_approvals(daemon: &Daemon) -> Vec<Approval> {
    let mut client = approval_client(daemon);
    let listed = client.list_approvals(ListApprovalsRequest::default()).await;
    listed.unwrap().into_inner().approvals
}

/// Waits until so many wait.
async fn await_pending(daemon: &Daemon, count: usize) -> Vec<Approval> {
    let mut found = Vec::new();
    eventually("calls wait to be approved", async || {
        found = pending_approvals(daemon).await;
        found.len() == count
    })
    .await;
    found
}

/// Waits for the one that waits.
pub(crate) async fn await_pending_approval(daemon: &Daemon) -> Approval {
    await_pending(daemon, 1).await.remove(0)
}

/// One of them, also when it has ended.
async fn find_approval(daemon: &Daemon, id: &str) -> Approval {
    let request = ListApprovalsRequest { decided: true, ..ListApprovalsRequest::default() };
    let listed = approval_client(daemon).list_approvals(request).await.unwrap();
    let mut listed = listed.into_inner().approvals.into_iter();
    listed.find(|found| found.approval_id == id).unwrap()
}

/// Waits until it has ended.
async fn await_decided(daemon: &Daemon, id: &str) -> Approval {
    let mut found = None;
    eventually("an approval ends", async || {
        let approval = find_approval(daemon, id).await;
        let has_ended = approval.state() != ApprovalState::Pending;
        found = Some(approval);
        has_ended
    })
    .await;
    found.unwrap()
}

pub(crate) fn decide_request(approval: &Approval, decision: Decision) -> DecideApprovalRequest {
    DecideApprovalRequest {
        approval_id: approval.approval_id.clone(),
        decision: decision.into(),
        ..DecideApprovalRequest::default()
    }
}

/// Decides.
pub(crate) async fn decide(
    daemon: &Daemon,
    request: impl IntoRequest<DecideApprovalRequest>,
) -> Result<DecideApprovalResponse, Status> {
    let decided = approval_client(daemon).decide_approval(request).await;
    decided.map(tonic::Response::into_inner)
}

/// What is to be written.
pub(crate) fn write_request(path: &str, content: &str) -> WriteFileRequest {
    WriteFileRequest {
        path: path.to_owned(),
        content: content.to_owned(),
        ..WriteFileRequest::default()
    }
}

/// Begins to write a file, and lets the test go on.
pub(crate) fn spawn_write(
    daemon: &Daemon,
    request: impl IntoRequest<WriteFileRequest>,
) -> JoinHandle<Result<(), Status>> {
    let mut tools = daemon.tools();
    let request = request.into_request();
    tokio::spawn(async move { tools.write_file(request).await.map(drop) })
}

/// The records of a session.
fn session_records(folder: &Path) -> Vec<Value> {
    let text = fs::read_to_string(folder.join("events.jsonl")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The records of the default session with this name.
fn events_named(daemon: &Daemon, name: &str) -> Vec<Value> {
    let records = session_records(&daemon.state_dir().join("sessions/default"));
    records.into_iter().filter(|record| record["event"] == name).collect()
}

/// That an approval has exactly one end, in the records as in the database, and which.
fn assert_decided_once(daemon: &Daemon, id: &str) -> Value {
    let requested = events_named(daemon, "approval_requested");
    let of = |records: Vec<Value>| {
        let found = records.into_iter().filter(|record| record["approval_id"] == id);
        found.collect::<Vec<_>>()
    };
    assert_eq!(of(requested).len(), 1);
    let mut decided = of(events_named(daemon, "approval_decided"));
    assert_eq!(decided.len(), 1, "{decided:?}");
    let decided = decided.remove(0);
    let database = Connection::open(daemon.state_dir().join("jig.db")).unwrap();
    let state: String = database
        .query_row("SELECT state FROM approval WHERE id = ?1", [id], |row| row.get(0))
        .unwrap();
    assert_eq!(decided["state"], state.as_str());
    decided
}
