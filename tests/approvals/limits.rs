//! How many calls may wait, and that those which do take nothing from others.

use std::{fs, sync::Arc};

use jig::api::v1::{ApprovalState, ListApprovalsRequest};

use super::{approval_client, start_with_policy};
use crate::support::{KeyFile, Refusal, Setup, eventually, full_size, shell, with_key};

/// Asks about commands only, with this limit.
fn policy_with_max_pending(pending: usize, more: &str) -> String {
    format!(
        "[policy]\ndangerous = \"ask\"\n[approvals]\nmax_pending = {pending}\n[limits]\nconcurrent_calls = 4\n{more}"
    )
}

#[tokio::test]
async fn pending_calls_are_limited_and_hold_no_permits() {
    let max_pending = full_size(1000, 300);
    // The rest is for others.
    let call_count = max_pending / 4 * 3;
    let daemon = start_with_policy(&policy_with_max_pending(max_pending, "")).await;
    fs::write(daemon.file("f"), "x").unwrap();
    let calls: Vec<_> = (0..call_count).map(|_| daemon.spawn_run(shell("touch ran"))).collect();
    let count = async || {
        let request = ListApprovalsRequest { page_size: Some(1000), ..Default::default() };
        let listed = approval_client(&daemon).list_approvals(request).await;
        listed.unwrap().into_inner().approvals.len()
    };
    eventually("all wait", async || count().await == call_count).await;
    for _ in 0..3 {
        let refusal = daemon.run_failing(shell("true"), "RESOURCE_EXHAUSTED").await;
        assert_eq!(refusal.metadata["limit"], max_pending.to_string());
        assert!(refusal.message.contains("approvals.max_pending"), "{refusal:?}");
    }
    // They hold none of the four places of calls, nor a thread.
    for _ in 0..8 {
        assert_eq!(daemon.read_file("f").await.unwrap(), "x");
    }
    let threads = fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap().count();
    assert!(threads < 60, "{threads}");
    for call in calls {
        call.abort();
    }
    eventually("none waits", async || count().await == 0).await;
    let request =
        ListApprovalsRequest { decided: true, page_size: Some(1000), ..Default::default() };
    let ended =
        approval_client(&daemon).list_approvals(request).await.unwrap().into_inner().approvals;
    assert_eq!(ended.len(), call_count);
    assert!(ended.iter().all(|approval| approval.state() == ApprovalState::Withdrawn));
    assert!(!daemon.file("ran").exists());
    // There is room again.
    let run = daemon.spawn_run(shell("true"));
    eventually("it waits", async || count().await == 1).await;
    run.abort();
}

#[tokio::test]
async fn each_workspace_has_its_own_pending_limit() {
    let folder = tempfile::tempdir().unwrap();
    let keys = Arc::new(KeyFile::new());
    let [one, other] =
        ["workspace", "other"].map(|name| keys.add_key(name, "admin", &["--for-workspace", name]));
    let path = keys.path().display().to_string();
    let table = format!("[[workspaces]]\nname = \"other\"\npath = {:?}", folder.path());
    let setup = Setup::new()
        .workspace_table(&format!("name = \"workspace\"\n{}", policy_with_max_pending(4, &table)));
    let daemon = setup.arguments(&["--keys", &path]).with_resource(keys).start().await;
    let count = async |key: &str| {
        let request = with_key(key, ListApprovalsRequest::default());
        let listed = approval_client(&daemon).list_approvals(request).await;
        listed.unwrap().into_inner().approvals.len()
    };
    let flood: Vec<_> = (0..3).map(|_| daemon.spawn_run(with_key(&one, shell("true")))).collect();
    eventually("three wait", async || count(&one).await == 3).await;
    let refused = daemon.try_run(with_key(&one, shell("true"))).await.unwrap_err();
    assert_eq!(Refusal::from_status(&refused).reason, "RESOURCE_EXHAUSTED");
    let run = daemon.spawn_run(with_key(&other, shell("true")));
    eventually("the other's waits", async || count(&other).await == 1).await;
    for call in flood.into_iter().chain([run]) {
        call.abort();
    }
}
