//! Limits on pending calls, which hold no permits and no threads.

use std::{fs, sync::Arc};

use jig::api::v1::{ApprovalState, ListApprovalsRequest};

use super::{approval_client, start_with_policy};
use crate::support::{KeyFile, Refusal, Setup, eventually, full_size, shell, with_key};

/// A policy under which only commands need approval, with a limit of pending calls.
fn policy_with_max_pending(max_pending: usize, tables: &str) -> String {
    format!(
        "[policy]\ndangerous = \"ask\"\n[approvals]\nmax_pending = {max_pending}\n[limits]\nconcurrent_calls = 4\n{tables}"
    )
}

#[tokio::test]
async fn pending_calls_are_limited_and_hold_no_permits() {
    let max_pending = full_size(1000, 300);

    // A quarter of the limit is headroom for other callers.
    let call_count = max_pending / 4 * 3;
    let daemon = start_with_policy(&policy_with_max_pending(max_pending, "")).await;
    fs::write(daemon.file("f"), "x").unwrap();
    let calls: Vec<_> = (0..call_count).map(|_| daemon.spawn_run(shell("touch ran"))).collect();
    let count_pending = async || {
        let request = ListApprovalsRequest { page_size: Some(1000), ..Default::default() };
        let listed = approval_client(&daemon).list_approvals(request).await;
        listed.unwrap().into_inner().approvals.len()
    };
    eventually("all calls are pending", async || count_pending().await == call_count).await;

    for _ in 0..3 {
        let refusal = daemon.run_failing(shell("true"), "RESOURCE_EXHAUSTED").await;
        assert_eq!(refusal.metadata["limit"], max_pending.to_string());
        assert!(refusal.message.contains("approvals.max_pending"), "{refusal:?}");
    }

    // Pending calls hold none of the four permits, and no thread.
    for _ in 0..8 {
        assert_eq!(daemon.read_file("f").await.unwrap(), "x");
    }

    let threads = fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap().count();
    assert!(threads < 60, "{threads}");

    for call in calls {
        call.abort();
    }

    eventually("no call is pending", async || count_pending().await == 0).await;
    let request =
        ListApprovalsRequest { decided: true, page_size: Some(1000), ..Default::default() };
    let decided =
        approval_client(&daemon).list_approvals(request).await.unwrap().into_inner().approvals;
    assert_eq!(decided.len(), call_count);
    assert!(decided.iter().all(|approval| approval.state() == ApprovalState::Withdrawn));
    assert!(!daemon.file("ran").exists());

    // The limit admits new calls again.
    let run = daemon.spawn_run(shell("true"));
    eventually("the call is pending", async || count_pending().await == 1).await;
    run.abort();
}

#[tokio::test]
async fn each_workspace_has_its_own_pending_limit() {
    let directory = tempfile::tempdir().unwrap();
    let keys = Arc::new(KeyFile::new());
    let [key, other_key] =
        ["workspace", "other"].map(|name| keys.add_key(name, "admin", &["--for-workspace", name]));
    let path = keys.path().display().to_string();
    let table = format!("[[workspaces]]\nname = \"other\"\npath = {:?}", directory.path());
    let setup = Setup::new()
        .workspace_table(&format!("name = \"workspace\"\n{}", policy_with_max_pending(4, &table)));
    let daemon = setup.arguments(&["--keys", &path]).with_resource(keys).start().await;
    let count_pending = async |key: &str| {
        let request = with_key(key, ListApprovalsRequest::default());
        let listed = approval_client(&daemon).list_approvals(request).await;
        listed.unwrap().into_inner().approvals.len()
    };
    let flood: Vec<_> = (0..3).map(|_| daemon.spawn_run(with_key(&key, shell("true")))).collect();
    eventually("three calls are pending", async || count_pending(&key).await == 3).await;
    let status = daemon.try_run(with_key(&key, shell("true"))).await.unwrap_err();
    assert_eq!(Refusal::from_status(&status).reason, "RESOURCE_EXHAUSTED");

    let run = daemon.spawn_run(with_key(&other_key, shell("true")));
    eventually("the call of the other workspace is pending", async || {
        count_pending(&other_key).await == 1
    })
    .await;
    for call in flood.into_iter().chain([run]) {
        call.abort();
    }
}
