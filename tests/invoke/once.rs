//! Request ids of calls by name.

use jig::api::v1::{
    InvokeRequest, InvokeStatus, Outcome, invoke_service_client::InvokeServiceClient,
};
use serde_json::{Value, json};

use super::{call, invoke, json_of, try_invoke};
use crate::{
    requests::with_request_id,
    support::{Daemon, Mark, eventually, shell},
};

fn append_params() -> Value {
    json!({"command": "echo x >> a.txt; cat a.txt"})
}

#[tokio::test]
async fn repeated_call_runs_once_with_one_answer() {
    let daemon = Daemon::start().await;

    for (dialect, tool) in [("", "run"), ("claude", "Bash"), ("agentbench", "run")] {
        let id = format!("{dialect}-{tool}");
        let invoke_request = || InvokeRequest {
            request_id: "same".to_owned(),
            ..call(dialect, tool, append_params())
        };
        let before = std::fs::read_to_string(daemon.file("a.txt")).unwrap_or_default();
        let mut calls = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let mut client = InvokeServiceClient::new(daemon.new_connection());
            let request = with_request_id(&id, invoke_request());
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
    let repeated = invoke(
        &daemon,
        with_request_id(
            "claude-Bash",
            InvokeRequest {
                request_id: "same".to_owned(),
                ..call("claude", "Bash", append_params())
            },
        ),
    );
    assert_eq!(json_of(&repeated.await.data.unwrap())["stdout"], "x\nx\n");

    let other = try_invoke(
        &daemon,
        with_request_id("claude-Bash", call("claude", "Bash", append_params())),
    );
    assert_eq!(other.await.unwrap_err().reason, "REQUEST_ID_REUSED");
}

#[tokio::test]
async fn rejected_call_frees_its_id() {
    let daemon = Daemon::start().await;
    let invalid = || with_request_id("a", call("cli_agent", "create_file", json!({"path": "a"})));
    for _ in 0..2 {
        let response = invoke(&daemon, invalid()).await;
        assert_eq!(response.error.unwrap().error_type, "invalid_params");
    }
}

#[tokio::test]
async fn ended_call_keeps_its_id_even_if_it_failed() {
    let daemon = Daemon::start().await;
    let create = || {
        with_request_id("b", call("cli_agent", "create_file", json!({"path": "b", "content": "x"})))
    };
    let first = invoke(&daemon, create()).await;
    assert_eq!(first.status(), InvokeStatus::Success, "{first:?}");

    // The first answer, not an error because the file exists.
    assert_eq!(invoke(&daemon, create()).await, first);

    let create_again = || {
        with_request_id("c", call("cli_agent", "create_file", json!({"path": "b", "content": "x"})))
    };
    let first = invoke(&daemon, create_again()).await;
    assert_eq!(first.error.as_ref().unwrap().error_type, "file_exists");

    std::fs::remove_file(daemon.file("b")).unwrap();
    assert_eq!(invoke(&daemon, create_again()).await, first);
    assert!(!daemon.file("b").exists());
}

#[tokio::test]
async fn work_without_request_id_ends_with_its_caller() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();

    let env = mark.on(shell("")).env;
    let params = json!({"command": "sleep 1000; true", "env": env});
    let channel = daemon.channel();
    let caller = tokio::spawn(async move {
        let mut client = InvokeServiceClient::new(channel);
        let _answer = client.invoke(call("agentbench", "run", params)).await;
    });
    mark.wait_for_processes(1).await;

    caller.abort();
    mark.wait_until_gone().await;
}

#[tokio::test]
async fn call_killed_with_daemon_is_lost_and_not_repeated() {
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
        move || with_request_id(&id, call(dialect, tool, params.clone()))
    });
    let begun = || std::fs::read_to_string(daemon.file("a.txt")).unwrap_or_default();

    for (number, call) in (1..).zip(&calls) {
        let (channel, request) = (daemon.channel(), call());
        tokio::spawn(async move { InvokeServiceClient::new(channel).invoke(request).await });
        eventually("the command runs", async || begun().lines().count() == number).await;
    }

    let daemon = daemon.restart().await;
    for _ in 0..2 {
        let [run, agentbench, claude] = calls.each_ref().map(|call| call());
        let lost = invoke(&daemon, run).await;
        assert_eq!(lost.outcome(), Outcome::DaemonLost, "{lost:?}");
        assert_eq!((lost.status(), lost.exit_code), (InvokeStatus::Success, None));
        for request in [agentbench, claude] {
            let lost = invoke(&daemon, request).await;
            assert_eq!(lost.error.unwrap().error_type, "daemon_lost");
        }
    }

    mark.wait_until_gone().await;
    let begun = std::fs::read_to_string(daemon.file("a.txt")).unwrap();
    assert_eq!(begun.lines().count(), 3);
}
