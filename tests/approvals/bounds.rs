//! How many calls may wait, and that those which do take nothing from others.

use std::{fs, sync::Arc};

use jig::api::v1::{ApprovalState, ListApprovalsRequest};

use super::{approvals, with_policy};
use crate::support::{KeyFile, Refusal, Setup, eventually, full_size, shell, with_key};

/// Asks about commands only, with this limit.
fn asking(pending: usize, more: &str) -> String {
    format!(
        "[policy]\ndangerous = \"ask\"\n[approvals]\nmax_pending = {pending}\n[limits]\nconcurrent_calls = 4\n{more}"
    )
}

#[tokio::test]
async fn many_may_wait_and_no_more_and_others_are_served() {
    let all = full_size(1000, 300);
    // The rest is for others.
    let most = all / 4 * 3;
    let daemon = with_policy(&asking(all, "")).await;
    fs::write(daemon.file("f"), "x").unwrap();
    let calls: Vec<_> = (0..most).map(|_| daemon.begin(shell("touch ran"))).collect();
    let count = async || {
        let request = ListApprovalsRequest { page_size: Some(1000), ..Default::default() };
        let listed = approvals(&daemon).list_approvals(request).await;
        listed.unwrap().into_inner().approvals.len()
    };
    eventually("all wait", async || count().await == most).await;
    for _ in 0..3 {
        let refusal = daemon.refuses(shell("true"), "RESOURCE_EXHAUSTED").await;
        assert_eq!(refusal.metadata["limit"], all.to_string());
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
    let ended = approvals(&daemon).list_approvals(request).await.unwrap().into_inner().approvals;
    assert_eq!(ended.len(), most);
    assert!(ended.iter().all(|approval| approval.state() == ApprovalState::Withdrawn));
    assert!(!daemon.file("ran").exists());
    // There is room again.
    let run = daemon.begin(shell("true"));
    eventually("it waits", async || count().await == 1).await;
    run.abort();
}

#[tokio::test]
async fn each_workspace_has_its_own_bound() {
    let folder = tempfile::tempdir().unwrap();
    let keys = Arc::new(KeyFile::new());
    let [one, other] =
        ["workspace", "other"].map(|name| keys.add(name, "admin", &["--for-workspace", name]));
    let path = keys.path().display().to_string();
    let table = format!("[[workspaces]]\nname = \"other\"\npath = {:?}", folder.path());
    let setup =
        Setup::new().workspace_table(&format!("name = \"workspace\"\n{}", asking(4, &table)));
    let daemon = setup.arguments(&["--keys", &path]).keeping(keys).start().await;
    let count = async |key: &str| {
        let request = with_key(key, ListApprovalsRequest::default());
        let listed = approvals(&daemon).list_approvals(request).await;
        listed.unwrap().into_inner().approvals.len()
    };
    let flood: Vec<_> = (0..3).map(|_| daemon.begin(with_key(&one, shell("true")))).collect();
    eventually("three wait", async || count(&one).await == 3).await;
    let refused = daemon.try_run(with_key(&one, shell("true"))).await.unwrap_err();
    assert_eq!(Refusal::of(&refused).reason, "RESOURCE_EXHAUSTED");
    let run = daemon.begin(with_key(&other, shell("true")));
    eventually("the other's waits", async || count(&other).await == 1).await;
    for call in flood.into_iter().chain([run]) {
        call.abort();
    }
}
