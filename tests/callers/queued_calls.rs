//! Calls that wait, to be approved or for a place, while their keys are taken away or the policy is changed.

use std::{fs, sync::Arc};

use jig::api::v1::{
    DecideApprovalRequest, Decision, GetInfoRequest, ListApprovalsRequest, WatchEventsRequest,
    approval_service_client::ApprovalServiceClient, daemon_service_client::DaemonServiceClient,
    event_service_client::EventServiceClient,
};
use serde_json::Value;

use super::start_daemon_with_keys;
use crate::support::{Daemon, KeyFile, Refusal, Setup, eventually, promptly, shell, with_key};

/// How many calls go on, and how many wait, for an administrator.
async fn call_counts(daemon: &Daemon, key: &str) -> (u32, u32) {
    let mut info = DaemonServiceClient::new(daemon.channel());
    let response = info.get_info(with_key(key, GetInfoRequest {})).await;
    let counts = response.unwrap().into_inner().counts.unwrap();
    (counts.calls_running, counts.calls_queued)
}

/// What denied calls of the default session.
fn recorded_denials(daemon: &Daemon) -> Vec<String> {
    let path = daemon.state_dir().join("sessions/default/events.jsonl");
    let text = fs::read_to_string(path).unwrap_or_default();
    let records = text.lines().map(|line| serde_json::from_str(line).unwrap());
    let denied = records.filter(|record: &Value| record["event"] == "tool_call_denied");
    denied.map(|record| record["denied_by"].as_str().unwrap().to_owned()).collect()
}

/// Gives the key of this name another secret.
fn replace_key(keys: &KeyFile, name: &str, role: &str) -> String {
    assert!(keys.run_jig_key(&["revoke", name]).status.success());
    keys.add_key(name, role, &[])
}

#[tokio::test]
async fn replaced_key_ends_its_streams_and_pending_calls() {
    let keys = Arc::new(KeyFile::new());
    let [leaked, admin] =
        [("agent", "invoke"), ("admin", "admin")].map(|(name, role)| keys.add_key(name, role, &[]));
    let setup = Setup::new().workspace_table("[policy]\ndangerous = \"ask\"");
    let daemon = start_daemon_with_keys(setup, &keys).await;
    let mut events = EventServiceClient::new(daemon.channel());
    let request = with_key(&leaked, WatchEventsRequest::default());
    let mut watched = events.watch_events(request).await.unwrap().into_inner();
    let waiting = daemon.spawn_run(with_key(&leaked, shell("touch ran")));
    let mut approvals = ApprovalServiceClient::new(daemon.channel());
    let mut found = Vec::new();
    eventually("it waits to be approved", async || {
        let request = with_key(&admin, ListApprovalsRequest::default());
        let listed = approvals.list_approvals(request).await.unwrap();
        found = listed.into_inner().approvals;
        found.len() == 1
    })
    .await;

    let fresh = replace_key(&keys, "agent", "invoke");
    daemon.reload_config(Daemon::RELOADED).await;
    let ended = promptly("the stream ends", async {
        loop {
            match watched.message().await {
                Ok(told) => drop(told.expect("it does not end as if all was told")),
                Err(status) => return status,
            }
        }
    });
    assert_eq!(Refusal::from_status(&ended.await).reason, "UNAUTHENTICATED");
    let decided = DecideApprovalRequest {
        approval_id: found.remove(0).approval_id,
        decision: Decision::Allow.into(),
        ..DecideApprovalRequest::default()
    };
    let decided = approvals.decide_approval(with_key(&admin, decided)).await;
    decided.unwrap();
    let refused = promptly("it is answered", waiting).await.unwrap();
    assert_eq!(Refusal::from_status(&refused.unwrap_err()).reason, "UNAUTHENTICATED");
    assert!(!daemon.file("ran").exists());
    assert_eq!(recorded_denials(&daemon), ["key:revoked"]);
    let mut info = DaemonServiceClient::new(daemon.channel());
    let response = info.get_info(with_key(&fresh, GetInfoRequest {})).await;
    assert_eq!(response.unwrap().into_inner().caller.unwrap().name, "key:agent");
}

#[tokio::test]
async fn revoked_key_denies_its_queued_calls() {
    let keys = Arc::new(KeyFile::new());
    let agent = keys.add_key("agent", "invoke", &["--concurrent-calls", "1"]);
    let admin = keys.add_key("admin", "admin", &[]);
    let daemon = start_daemon_with_keys(Setup::new(), &keys).await;
    let going = daemon.spawn_run(with_key(&agent, shell("until [ -e go ]; do sleep 0.01; done")));
    eventually("it runs", async || call_counts(&daemon, &admin).await == (1, 0)).await;
    let waiting = daemon.spawn_run(with_key(&agent, shell("touch ran")));
    eventually("it waits", async || call_counts(&daemon, &admin).await == (1, 1)).await;
    assert!(keys.run_jig_key(&["revoke", "agent"]).status.success());
    daemon.reload_config(Daemon::RELOADED).await;
    fs::write(daemon.file("go"), "").unwrap();
    // What goes on does so.
    assert_eq!(going.await.unwrap().unwrap().exit_code, Some(0));
    let refused = promptly("it is answered", waiting).await.unwrap();
    assert_eq!(Refusal::from_status(&refused.unwrap_err()).reason, "UNAUTHENTICATED");
    assert!(!daemon.file("ran").exists());
    assert_eq!(recorded_denials(&daemon), ["key:revoked"]);
}

#[tokio::test]
async fn queued_call_is_authorized_by_the_policy_at_its_start() {
    let rule = |name: &str, tool: &str, pattern: &str| {
        format!(
            "[[policy.rules]]\nname = {name:?}\ntool = {tool:?}\npattern = {pattern:?}\naction = \"deny\"\n"
        )
    };
    let of_run = |pattern: &str| rule("x", "run", pattern);
    let keys = Arc::new(KeyFile::new());
    let key = keys.add_key("admin", "admin", &[]);
    let limits = "[limits]\nconcurrent_calls = 1\n";
    let daemon = start_daemon_with_keys(Setup::new().workspace_table(limits), &keys).await;
    let rewrite = |policy: &str| {
        let workspace = daemon.workspace();
        let text = format!("[[workspaces]]\npath = {workspace:?}\n{limits}{policy}");
        fs::write(daemon.sibling_path("jig.toml"), text).unwrap();
    };
    let mut denied_by = Vec::new();
    for (number, (before, after, expected)) in [
        (
            String::new(),
            "[policy]\ndeny_tools = [\"run\"]\n".to_owned(),
            Some(("TOOL_DISABLED", "policy:tool_disabled")),
        ),
        (
            String::new(),
            "[policy]\ndangerous = \"ask\"\n".to_owned(),
            Some(("POLICY_DENIED", "policy:changed")),
        ),
        // Nobody had to know what the call is with, and now somebody does.
        (String::new(), of_run("other"), None),
        (String::new(), of_run("touch"), Some(("POLICY_DENIED", "rule:file:x"))),
        (String::new(), rule("x", "stat", "touch"), None),
        (of_run("other"), of_run("yet another"), None),
        (of_run("other"), of_run("touch"), Some(("POLICY_DENIED", "rule:file:x"))),
    ]
    .into_iter()
    .enumerate()
    {
        rewrite(&before);
        daemon.reload_config(Daemon::RELOADED).await;
        let command = format!("until [ -e go{number} ]; do sleep 0.01; done");
        let going = daemon.spawn_run(with_key(&key, shell(&command)));
        eventually("it runs", async || call_counts(&daemon, &key).await == (1, 0)).await;
        let waiting = daemon.spawn_run(with_key(&key, shell(&format!("touch ran{number}"))));
        eventually("it waits", async || call_counts(&daemon, &key).await == (1, 1)).await;
        rewrite(&after);
        daemon.reload_config(Daemon::RELOADED).await;
        fs::write(daemon.file(&format!("go{number}")), "").unwrap();
        assert_eq!(going.await.unwrap().unwrap().exit_code, Some(0));
        let answered = promptly("it is answered", waiting).await.unwrap();
        let reason = answered.err().map(|refused| Refusal::from_status(&refused).reason);
        let (expected, by) = expected.unzip();
        assert_eq!(reason.as_deref(), expected, "{before}{after}");
        let ran = daemon.file(&format!("ran{number}")).exists();
        assert_eq!(ran, expected.is_none(), "{before}{after}");
        denied_by.extend(by);
    }
    assert_eq!(recorded_denials(&daemon), denied_by);
}
