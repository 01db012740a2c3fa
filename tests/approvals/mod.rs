//! Policy and approvals: which calls the daemon allows, denies or suspends until an approver decides.

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
    Action, Approval, ApprovalState, CreateRuleRequest, DecideApprovalRequest,
    DecideApprovalResponse, Decision, ListApprovalsRequest, WriteFileRequest,
    approval_service_client::ApprovalServiceClient,
};
use rusqlite::Connection;
use serde_json::Value;
use tokio::task::JoinHandle;
use tonic::{IntoRequest, Status, transport::Channel};

use crate::support::{Daemon, Setup, eventually};

/// A policy under which all writes and dangerous calls need approval.
pub(crate) const ASK_POLICY: &str = "[policy]\nsafe_write = \"ask\"\ndangerous = \"ask\"";

/// Starts a daemon with `config` in its configuration file.
async fn start_with_policy(config: &str) -> Daemon {
    Setup::new().workspace_table(config).start().await
}

fn approval_client(daemon: &Daemon) -> ApprovalServiceClient<Channel> {
    ApprovalServiceClient::new(daemon.channel())
}

pub(crate) async fn pending_approvals(daemon: &Daemon) -> Vec<Approval> {
    let mut client = approval_client(daemon);
    let listed = client.list_approvals(ListApprovalsRequest::default()).await;
    listed.unwrap().into_inner().approvals
}

/// Waits until `count` calls are pending approval.
async fn wait_for_pending_approvals(daemon: &Daemon, count: usize) -> Vec<Approval> {
    let mut approvals = Vec::new();
    eventually("the calls are pending approval", async || {
        approvals = pending_approvals(daemon).await;
        approvals.len() == count
    })
    .await;
    approvals
}

/// Waits until exactly one call is pending approval.
pub(crate) async fn wait_for_pending_approval(daemon: &Daemon) -> Approval {
    wait_for_pending_approvals(daemon, 1).await.remove(0)
}

/// The approval with this id, pending or decided.
async fn find_approval(daemon: &Daemon, id: &str) -> Approval {
    let request = ListApprovalsRequest { decided: true, ..ListApprovalsRequest::default() };
    let listed = approval_client(daemon).list_approvals(request).await.unwrap();
    let mut listed = listed.into_inner().approvals.into_iter();
    listed.find(|approval| approval.approval_id == id).unwrap()
}

/// Waits until the approval is no longer pending.
async fn wait_for_decision(daemon: &Daemon, id: &str) -> Approval {
    let mut decided = None;
    eventually("the approval is decided", async || {
        let approval = find_approval(daemon, id).await;
        let is_decided = approval.state() != ApprovalState::Pending;
        decided = Some(approval);
        is_decided
    })
    .await;
    decided.unwrap()
}

pub(crate) fn decide_request(approval: &Approval, decision: Decision) -> DecideApprovalRequest {
    DecideApprovalRequest {
        approval_id: approval.approval_id.clone(),
        decision: decision.into(),
        ..DecideApprovalRequest::default()
    }
}

pub(crate) async fn decide(
    daemon: &Daemon,
    request: impl IntoRequest<DecideApprovalRequest>,
) -> Result<DecideApprovalResponse, Status> {
    let decided = approval_client(daemon).decide_approval(request).await;
    decided.map(tonic::Response::into_inner)
}

pub(crate) fn write_request(path: &str, content: &str) -> WriteFileRequest {
    WriteFileRequest {
        path: path.to_owned(),
        content: content.to_owned(),
        ..WriteFileRequest::default()
    }
}

/// Writes a file in a task of its own.
pub(crate) fn spawn_write(
    daemon: &Daemon,
    request: impl IntoRequest<WriteFileRequest>,
) -> JoinHandle<Result<(), Status>> {
    let mut tools = daemon.tools();
    let request = request.into_request();
    tokio::spawn(async move { tools.write_file(request).await.map(drop) })
}

fn rule_request(tool: &str, pattern: &str, action: Action) -> CreateRuleRequest {
    CreateRuleRequest {
        tool: tool.to_owned(),
        pattern: Some(pattern.to_owned()),
        action: action.into(),
        ..CreateRuleRequest::default()
    }
}

/// The records of a session.
fn session_records(directory: &Path) -> Vec<Value> {
    let text = fs::read_to_string(directory.join("events.jsonl")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The records of the default session with this type.
fn records_of_type(daemon: &Daemon, record_type: &str) -> Vec<Value> {
    let records = session_records(&daemon.state_dir().join("sessions/default"));
    records.into_iter().filter(|record| record["event"] == record_type).collect()
}

/// Checks that the approval was decided exactly once, in the records of the session and in the
/// database. Returns the record.
fn assert_decided_once(daemon: &Daemon, id: &str) -> Value {
    let requested = records_of_type(daemon, "approval_requested");
    let of_approval = |records: Vec<Value>| {
        let matching = records.into_iter().filter(|record| record["approval_id"] == id);
        matching.collect::<Vec<_>>()
    };
    assert_eq!(of_approval(requested).len(), 1);

    let mut decided = of_approval(records_of_type(daemon, "approval_decided"));
    assert_eq!(decided.len(), 1, "{decided:?}");

    let decided = decided.remove(0);
    let database = Connection::open(daemon.state_dir().join("jig.db")).unwrap();
    let state: String = database
        .query_row("SELECT state FROM approval WHERE id = ?1", [id], |row| row.get(0))
        .unwrap();
    assert_eq!(decided["state"], state.as_str());
    decided
}
