//! Calls that wait for an approval or a permit while their key is revoked or the policy changes.

use std::{fs, sync::Arc};

use jig::api::v1::{
    DecideApprovalRequest, Decision, GetInfoRequest, ListApprovalsRequest, WatchEventsRequest,
    approval_service_client::ApprovalServiceClient, daemon_service_client::DaemonServiceClient,
    event_service_client::EventServiceClient,
};
use serde_json::Value;

use super::start_daemon_with_keys;
use crate::support::{Daemon, KeyFile, Refusal, Setup, eventually, promptly, shell, with_key};

/// Limits under which one call runs at a time.
const ONE_CALL_LIMIT: &str = "[limits]\nconcurrent_calls = 1\n";

/// Numbers of running and of queued calls, as an administrator sees them.
async fn call_counts(daemon: &Daemon, key: &str) -> (u32, u32) {
    let mut info = DaemonServiceClient::new(daemon.channel());
    let response = info.get_info(with_key(key, GetInfoRequest {})).await;
    let counts = response.unwrap().into_inner().counts.unwrap();
    (counts.calls_running, counts.calls_queued)
}

/// The recorded reasons of denied calls of the default session.
fn recorded_denials(daemon: &Daemon) -> Vec<String> {
    let path = daemon.state_dir().join("sessions/default/events.jsonl");
    let text = fs::read_to_string(path).unwrap_or_default();
    let records = text.lines().map(|line| serde_json::from_str(line).unwrap());
    let denied = records.filter(|record: &Value| record["event"] == "tool_call_denied");
    denied.map(|record| record["denied_by"].as_str().unwrap().to_owned()).collect()
}

/// Replaces the secret of a key.
fn replace_key(keys: &KeyFile, name: &str, role: &str) -> String {
    assert!(keys.run_jig_key(&["revoke", name]).status.success());
    keys.add_key(name, role, &[])
}

#[tokio::test]
async fn replaced_key_ends_its_streams_and_pending_calls() {
    let keys = Arc::new(KeyFile::new());
    let [old_key, admin] =
        [("agent", "invoke"), ("admin", "admin")].map(|(name, role)| keys.add_key(name, role, &[]));
    let setup = Setup::new().workspace_table("[policy]\ndangerous = \"ask\"");
    let daemon = start_daemon_with_keys(setup, &keys).await;
    let mut events = EventServiceClient::new(daemon.channel());
    let request = with_key(&old_key, WatchEventsRequest::default());
    let mut events = events.watch_events(request).await.unwrap().into_inner();
    let call = daemon.spawn_run(with_key(&old_key, shell("touch ran")));

    let mut approvals = ApprovalServiceClient::new(daemon.channel());
    let mut pending = Vec::new();
    eventually("the call waits for an approval", async || {
        let request = with_key(&admin, ListApprovalsRequest::default());
        let response = approvals.list_approvals(request).await.unwrap();
        pending = response.into_inner().approvals;
        pending.len() == 1
    })
    .await;

    let new_key = replace_key(&keys, "agent", "invoke");
    daemon.reload_config(Daemon::RELOADED).await;
    let end = promptly("the stream ends", async {
        loop {
            match events.message().await {
                Ok(event) => drop(event.expect("the stream ended without an error")),
                Err(status) => return status,
            }
        }
    });
    assert_eq!(Refusal::from_status(&end.await).reason, "UNAUTHENTICATED");

    let decision = DecideApprovalRequest {
        approval_id: pending.remove(0).approval_id,
        decision: Decision::Allow.into(),
        ..DecideApprovalRequest::default()
    };
    let response = approvals.decide_approval(with_key(&admin, decision)).await;
    response.unwrap();
    let response = promptly("the call fails", call).await.unwrap();

    assert_eq!(Refusal::from_status(&response.unwrap_err()).reason, "UNAUTHENTICATED");
    assert!(!daemon.file("ran").exists());
    assert_eq!(recorded_denials(&daemon), ["key:revoked"]);

    let mut info = DaemonServiceClient::new(daemon.channel());
    let response = info.get_info(with_key(&new_key, GetInfoRequest {})).await;
    assert_eq!(response.unwrap().into_inner().caller.unwrap().name, "key:agent");
}

#[tokio::test]
async fn revoked_key_denies_its_queued_calls() {
    let keys = Arc::new(KeyFile::new());
    let agent = keys.add_key("agent", "invoke", &["--concurrent-calls", "1"]);
    let admin = keys.add_key("admin", "admin", &[]);
    let daemon = start_daemon_with_keys(Setup::new(), &keys).await;
    let running = daemon.spawn_run(with_key(&agent, shell("until [ -e go ]; do sleep 0.01; done")));
    eventually("the first call runs", async || call_counts(&daemon, &admin).await == (1, 0)).await;
    let queued = daemon.spawn_run(with_key(&agent, shell("touch ran")));
    eventually("the second call is queued", async || call_counts(&daemon, &admin).await == (1, 1))
        .await;
    assert!(keys.run_jig_key(&["revoke", "agent"]).status.success());

    daemon.reload_config(Daemon::RELOADED).await;
    fs::write(daemon.file("go"), "").unwrap();

    // The running call completes.
    assert_eq!(running.await.unwrap().unwrap().exit_code, Some(0));

    let response = promptly("the queued call fails", queued).await.unwrap();
    assert_eq!(Refusal::from_status(&response.unwrap_err()).reason, "UNAUTHENTICATED");
    assert!(!daemon.file("ran").exists());
    assert_eq!(recorded_denials(&daemon), ["key:revoked"]);
}

/// A policy rule named `x` that denies calls of a tool.
fn deny_rule(tool: &str, pattern: &str) -> String {
    format!(
        "[[policy.rules]]\nname = \"x\"\ntool = {tool:?}\npattern = {pattern:?}\naction = \"deny\"\n"
    )
}

/// Writes the daemon's configuration with [`ONE_CALL_LIMIT`] and a policy.
fn write_config(daemon: &Daemon, policy: &str) {
    let workspace = daemon.workspace();
    let text = format!("[[workspaces]]\npath = {workspace:?}\n{ONE_CALL_LIMIT}{policy}");
    fs::write(daemon.sibling_path("jig.toml"), text).unwrap();
}

#[tokio::test]
async fn queued_call_is_authorized_by_the_policy_at_its_start() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add_key("admin", "admin", &[]);
    let daemon = start_daemon_with_keys(Setup::new().workspace_table(ONE_CALL_LIMIT), &keys).await;

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
        // At first no rule depends on the call's parameters; then one does.
        (String::new(), deny_rule("run", "other"), None),
        (String::new(), deny_rule("run", "touch"), Some(("POLICY_DENIED", "rule:file:x"))),
        (String::new(), deny_rule("stat", "touch"), None),
        (deny_rule("run", "other"), deny_rule("run", "yet another"), None),
        (
            deny_rule("run", "other"),
            deny_rule("run", "touch"),
            Some(("POLICY_DENIED", "rule:file:x")),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        write_config(&daemon, &before);
        daemon.reload_config(Daemon::RELOADED).await;
        let command = format!("until [ -e go{number} ]; do sleep 0.01; done");
        let running = daemon.spawn_run(with_key(&key, shell(&command)));
        eventually("the first call runs", async || call_counts(&daemon, &key).await == (1, 0))
            .await;
        let queued = daemon.spawn_run(with_key(&key, shell(&format!("touch ran{number}"))));
        eventually("the second call is queued", async || {
            call_counts(&daemon, &key).await == (1, 1)
        })
        .await;
        write_config(&daemon, &after);
        daemon.reload_config(Daemon::RELOADED).await;
        fs::write(daemon.file(&format!("go{number}")), "").unwrap();
        assert_eq!(running.await.unwrap().unwrap().exit_code, Some(0));

        let response = promptly("the queued call ends", queued).await.unwrap();
        let reason = response.err().map(|status| Refusal::from_status(&status).reason);
        let (expected, by) = expected.unzip();
        assert_eq!(reason.as_deref(), expected, "{before}{after}");

        let ran = daemon.file(&format!("ran{number}")).exists();
        assert_eq!(ran, expected.is_none(), "{before}{after}");

        denied_by.extend(by);
    }

    assert_eq!(recorded_denials(&daemon), denied_by);
}
