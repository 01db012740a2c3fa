//! Request ids of calls by name.

use jig::api::v1::{
    InvokeRequest, InvokeStatus, Outcome, invoke_service_client::InvokeServiceClient,
};
use serde_json::{Value, json};

use super::{call, invoke, json_of, try_invoke};
use crate::support::{Daemon, Mark, eventually, shell, with};

fn identified(id: &str, request: InvokeRequest) -> tonic::Request<InvokeRequest> {
    with("jig-request-id", id, request)
}

fn append() -> Value {
    json!({"command": "echo x >> a.txt; cat a.txt"})
}

#[tokio::test]
async fn what_is_repeated_is_done_once_and_answered_alike() {
    let daemon = Daemon::start().await;
    for (dialect, tool) in [("", "run"), ("claude", "Bash"), ("agentbench", "run")] {
        let id = format!("{dialect}-{tool}");
        let made =
            || InvokeRequest { request_id: "same".to_owned(), ..call(dialect, tool, append()) };
        let before = std::fs::read_to_string(daemon.file("a.txt")).unwrap_or_default();
        let mut calls = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let mut client = InvokeServiceClient::new(daemon.new_connection());
            let request = identified(&id, made());
            calls.spawn(async move { client.invoke(request).await.unwrap().into_inner() });
        }
        let first = calls.join_next().await.unwrap().unwrap();
        assert_eq!(first.status(), InvokeStatus::Success, "{first:?}");
        while let Some(answer) = calls.join_next().await {
            assert_eq!(answer.unwrap(), first);
        }
        let after = std::fs::read_to_string(daemon.file("a.txt")).unwrap();
        assert_eq!(after, format!("{before}x\n"));
    }
    let daemon = daemon.restart().await;
    let again = invoke(
        &daemon,
        identified(
            "claude-Bash",
            InvokeRequest { request_id: "same".to_owned(), ..call("claude", "Bash", append()) },
        ),
    );
    assert_eq!(json_of(&again.await.data.unwrap())["stdout"], "x\nx\n");
    let other = try_invoke(&daemon, identified("claude-Bash", call("claude", "Bash", append())));
    assert_eq!(other.await.unwrap_err().reason, "REQUEST_ID_REUSED");
}

#[tokio::test]
async fn what_was_not_begun_may_be_tried_again_and_what_failed_is_told_again() {
    let daemon = Daemon::start().await;
    // Refused as it stands: the id is free again.
    let wrong = || identified("a", call("cli_agent", "create_file", json!({"path": "a"})));
    for _ in 0..2 {
        let response = invoke(&daemon, wrong()).await;
        assert_eq!(response.error.unwrap().error_type, "invalid_params");
    }
    let made =
        || identified("b", call("cli_agent", "create_file", json!({"path": "b", "content": "x"})));
    let first = invoke(&daemon, made()).await;
    assert_eq!(first.status(), InvokeStatus::Success, "{first:?}");
    // Not that it is there already.
    assert_eq!(invoke(&daemon, made()).await, first);
    let failed =
        || identified("c", call("cli_agent", "create_file", json!({"path": "b", "content": "x"})));
    let first = invoke(&daemon, failed()).await;
    assert_eq!(first.error.as_ref().unwrap().error_type, "file_exists");
    std::fs::remove_file(daemon.file("b")).unwrap();
    assert_eq!(invoke(&daemon, failed()).await, first);
    assert!(!daemon.file("b").exists());
}

#[tokio::test]
async fn without_an_id_the_work_ends_with_its_caller() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    let env = mark.on(shell("")).env;
    let params = json!({"command": "sleep 1000; true", "env": env});
    let channel = daemon.channel();
    let caller = tokio::spawn(async move {
        let mut client = InvokeServiceClient::new(channel);
        let _answer = client.invoke(call("agentbench", "run", params)).await;
    });
    mark.appears(1).await;
    caller.abort();
    mark.vanishes().await;
}

#[tokio::test]
async fn what_died_with_the_daemon_is_lost_and_not_repeated() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    let env = mark.on(shell("")).env;
    let calls = [("", "run"), ("agentbench", "run"), ("claude", "Bash")].map(|(dialect, tool)| {
        let command = "echo x >> a.txt; sleep 1000; true";
        let params = match dialect {
            "claude" => json!({ "command": command }),
            _ => json!({"command": command, "env": env}),
        };
        let id = format!("{dialect}-{tool}");
        move || identified(&id, call(dialect, tool, params.clone()))
    });
    let begun = || std::fs::read_to_string(daemon.file("a.txt")).unwrap_or_default();
    for (number, made) in (1..).zip(&calls) {
        let (channel, request) = (daemon.channel(), made());
        tokio::spawn(async move { InvokeServiceClient::new(channel).invoke(request).await });
        eventually("it runs", async || begun().lines().count() == number).await;
    }
    let daemon = daemon.restart().await;
    for _ in 0..2 {
        let [run, agentbench, claude] = calls.each_ref().map(|made| made());
        let lost = invoke(&daemon, run).await;
        assert_eq!(lost.outcome(), Outcome::DaemonLost, "{lost:?}");
        assert_eq!((lost.status(), lost.exit_code), (InvokeStatus::Success, None));
        for made in [agentbench, claude] {
            let lost = invoke(&daemon, made).await;
            assert_eq!(lost.error.unwrap().error_type, "daemon_lost");
        }
    }
    mark.vanishes().await;
    let begun = std::fs::read_to_string(daemon.file("a.txt")).unwrap();
    assert_eq!(begun.lines().count(), 3);
}
