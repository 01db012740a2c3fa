//! Calls that need approval: the client's user decides, or an administrator elsewhere.

use std::fs;

use jig::api::v1::Decision;
use serde_json::{Value, json};

use super::{LEGACY, McpClient, REVISIONS, Revision, text_of};
use crate::{
    approvals::{ASK_POLICY, decide, decide_request, wait_for_pending_approval},
    support::{Daemon, KeyFile, Setup},
};

async fn start_asking_daemon() -> Daemon {
    Setup::new().workspace_table(ASK_POLICY).start().await
}

fn write_params(content: &str) -> Value {
    json!({"name": "write_file", "arguments": {"path": "a.txt", "content": content}})
}

fn with_elicitation() -> Value {
    json!({"elicitation": {}})
}

/// Adds the user's answer and the state to a call.
fn repeated(mut params: Value, state: &Value, action: &str) -> Value {
    params["requestState"] = state.clone();
    params["inputResponses"] = json!({"approval": {"action": action, "content": {}}});
    params
}

#[tokio::test]
async fn user_answers_a_question_in_the_result() {
    let daemon = start_asking_daemon().await;
    let revision = Revision::Stateless;
    let mut client = McpClient::start_with(&daemon, revision, &[], with_elicitation()).await;

    let asked = client.result("tools/call", write_params("text")).await;
    assert_eq!(asked["resultType"], "input_required", "{asked}");
    let question = &asked["inputRequests"]["approval"];
    assert_eq!(question["method"], "elicitation/create", "{asked}");
    let message = question["params"]["message"].as_str().unwrap();
    assert!(message.contains("write_file") && message.contains("a.txt"), "{message}");
    let state = &asked["requestState"];
    assert!(!daemon.file("a.txt").exists());

    let declined = repeated(write_params("text"), state, "decline");
    let result = client.result("tools/call", declined).await;
    assert_eq!(result["isError"], true, "{result}");
    assert_eq!(result["_meta"]["jig-error"]["type"], "approval_denied", "{result}");
    assert!(!daemon.file("a.txt").exists());

    let accepted = repeated(write_params("text"), state, "accept");
    let result = client.result("tools/call", accepted).await;
    assert_eq!(result["isError"], false, "{result}");
    assert_eq!(fs::read_to_string(daemon.file("a.txt")).unwrap(), "text");
}

#[tokio::test]
async fn state_is_valid_for_its_call_alone() {
    let daemon = start_asking_daemon().await;
    let revision = Revision::Stateless;
    let mut client = McpClient::start_with(&daemon, revision, &[], with_elicitation()).await;
    let asked = client.result("tools/call", write_params("text")).await;
    let state = asked["requestState"].clone();

    let mut other_tool = write_params("text");
    other_tool["name"] = "read_file".into();
    let mut forged = state.as_str().unwrap().to_owned();
    forged.pop();
    for (params, state) in [
        (write_params("other"), state.clone()),
        (other_tool, state.clone()),
        (write_params("text"), forged.into()),
        (write_params("text"), "rs1.x.y".into()),
    ] {
        let params = repeated(params, &state, "accept");
        assert_eq!(client.error_code("tools/call", params).await, -32602);
    }

    // Neither another session nor another server accepts it.
    for arguments in [&["--session", "other"][..], &[]] {
        let mut other =
            McpClient::start_with(&daemon, revision, arguments, with_elicitation()).await;
        let params = repeated(write_params("text"), &state, "accept");
        assert_eq!(other.error_code("tools/call", params).await, -32602);
    }
    assert!(!daemon.file("a.txt").exists());
}

#[tokio::test]
async fn user_answers_during_the_call_in_older_revisions() {
    let daemon = start_asking_daemon().await;
    for version in ["2025-11-25", "2025-06-18"] {
        let revision = Revision::WithInitialize(version);
        let mut client = McpClient::start_with(&daemon, revision, &[], with_elicitation()).await;
        for (action, is_error) in [("decline", true), ("cancel", true), ("accept", false)] {
            let id = client.send("tools/call", write_params(version));
            let question = client.next_message().await;
            assert_eq!(question["method"], "elicitation/create", "{question}");
            client.answer(&question, json!({"action": action, "content": {}}));
            let response = client.response_to(id).await;
            assert_eq!(response["result"]["isError"], is_error, "{response}");
        }
        assert_eq!(fs::read_to_string(daemon.file("a.txt")).unwrap(), version);
    }
}

#[tokio::test]
async fn call_waits_for_an_administrator_if_the_client_cannot_ask() {
    let daemon = start_asking_daemon().await;
    for revision in REVISIONS {
        let mut client = McpClient::start(&daemon, revision).await;
        for (decision, is_error) in [(Decision::Deny, true), (Decision::Allow, false)] {
            let mut params = write_params("text");
            params["_meta"] = json!({"progressToken": 1});
            let id = client.send("tools/call", params);
            let notice = client.next_message().await;
            assert_eq!(notice["method"], "notifications/progress", "{notice}");
            let text = notice["params"]["message"].as_str().unwrap();
            assert!(text.contains("jig approvals"), "{notice}");

            let approval = wait_for_pending_approval(&daemon).await;
            decide(&daemon, decide_request(&approval, decision)).await.unwrap();
            let response = client.response_to(id).await;
            assert_eq!(response["result"]["isError"], is_error, "{response}");
        }
    }
}

#[tokio::test]
async fn caller_without_the_role_cannot_decide() {
    let keys = KeyFile::new();
    let key = keys.add_key("agent", "invoke", &[]);
    let path = keys.path();
    let setup = Setup::new().arguments(&["--keys", path.to_str().unwrap()]);
    let daemon = setup.workspace_table(ASK_POLICY).start().await;

    let revision = Revision::Stateless;
    let arguments = ["--key", &key];
    let mut client = McpClient::start_with(&daemon, revision, &arguments, with_elicitation()).await;
    let mut params = write_params("text");
    params["_meta"] = json!({"progressToken": 1});
    client.send("tools/call", params);
    let notice = client.next_message().await;
    assert_eq!(notice["method"], "notifications/progress", "{notice}");
    assert!(!daemon.file("a.txt").exists());
}

#[tokio::test]
async fn approval_that_nobody_decides_ends_with_the_reason() {
    let policy = format!("{ASK_POLICY}\n[approvals]\ntimeout = \"1s\"");
    let daemon = Setup::new().workspace_table(&policy).start().await;
    let mut client = McpClient::start(&daemon, LEGACY).await;
    let result = client.result("tools/call", write_params("text")).await;
    assert_eq!(result["isError"], true, "{result}");
    assert!(text_of(&result).contains("jig approvals"), "{result}");
}
