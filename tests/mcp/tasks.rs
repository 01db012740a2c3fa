//! The extension for tasks: calls that take long are jobs.

use std::fs;

use serde_json::{Value, json};

use super::{LEGACY, McpClient, Revision};
use crate::{
    approvals::ASK_POLICY,
    support::{Daemon, Mark, Setup, eventually},
};

pub(super) fn with_tasks() -> Value {
    json!({"extensions": {"io.modelcontextprotocol/tasks": {}}})
}

async fn start_client(daemon: &Daemon) -> McpClient {
    McpClient::start_with(daemon, Revision::Stateless, &[], with_tasks()).await
}

async fn task(client: &mut McpClient, id: &Value) -> Value {
    client.result("tasks/get", json!({ "taskId": id })).await
}

#[tokio::test]
async fn long_call_becomes_a_task_with_a_result() {
    let daemon = Daemon::start().await;
    let mut client = start_client(&daemon).await;

    // A short one does not, unless the machine is busy.
    eventually("a short call returns its result", async || {
        let result = client.call("run", json!({"command": "echo short"})).await;
        result["structuredContent"]["stdout"] == "short\n"
    })
    .await;

    let command = "echo begun; until [ -e go ]; do sleep 0.05; done; echo done";
    let created = client.call("run", json!({ "command": command })).await;
    assert_eq!((&created["resultType"], &created["status"]), (&"task".into(), &"working".into()));
    assert!(created["pollIntervalMs"].is_u64() && created["ttlMs"].is_u64(), "{created}");
    let id = &created["taskId"];
    assert_eq!(task(&mut client, id).await["status"], "working");

    // Another client of the same caller, after a restart of the first one.
    let mut client = start_client(&daemon).await;
    fs::write(daemon.file("go"), "").unwrap();
    let mut ended = Value::Null;
    eventually("the task has ended", async || {
        ended = task(&mut client, id).await;
        ended["status"] != "working"
    })
    .await;
    assert_eq!(ended["status"], "completed", "{ended}");
    assert_eq!(ended["result"]["structuredContent"]["stdout"], "begun\ndone\n", "{ended}");
    assert_eq!(ended["resultType"], "complete");
}

#[tokio::test]
async fn ttl_follows_the_retention_of_jobs() {
    let daemon = Setup::new().workspace_table("[jobs]\nretention = \"90s\"").start().await;
    let mut client = start_client(&daemon).await;
    let created = client.call("run", json!({"command": "sleep 2"})).await;
    assert_eq!(created["ttlMs"], 90_000, "{created}");

    // The time counts from the creation, and the retention from the end.
    let mut ended = Value::Null;
    eventually("the task has ended", async || {
        ended = task(&mut client, &created["taskId"]).await;
        ended["status"] != "working"
    })
    .await;
    let ttl = ended["ttlMs"].as_u64().unwrap();
    assert!((92_000..150_000).contains(&ttl), "{ttl}");
}

#[tokio::test]
async fn cancelled_task_leaves_no_process() {
    let daemon = Daemon::start().await;
    let mut client = start_client(&daemon).await;
    let mark = Mark::new();
    let command = format!("export {}; sleep 1000 & sleep 1000", mark.variable());
    let created = client.call("run", json!({ "command": command })).await;
    mark.wait_for_processes(2).await;

    let id = &created["taskId"];
    // The task asks nothing: an answer has no effect.
    for name in ["x", ""] {
        let answers = json!({"taskId": id, "inputResponses": {name: {"action": "accept"}}});
        client.result("tasks/update", answers).await;
    }
    client.result("tasks/cancel", json!({ "taskId": id })).await;
    mark.assert_gone();
    assert_eq!(task(&mut client, id).await["status"], "cancelled");
    assert_eq!(client.error_code("tasks/get", json!({"taskId": "none"})).await, -32602);
}

#[tokio::test]
async fn request_cancelled_before_it_became_a_task_leaves_no_process() {
    let daemon = Daemon::start().await;
    let mut client = start_client(&daemon).await;
    eventually("a request is cancelled in time", async || {
        let mark = Mark::new();
        let command = format!("export {}; sleep 1000 & sleep 1000", mark.variable());
        let params = json!({"name": "run", "arguments": {"command": command}});
        let id = client.send("tools/call", params);
        mark.wait_for_processes(2).await;
        client.notify("notifications/cancelled", json!({ "requestId": id }));

        let listing = client.send("tools/list", json!({}));
        let message = client.next_message().await;
        // On a busy machine, the processes may need longer to start than a call to become a task.
        let task_id = &message["result"]["taskId"];
        if task_id.is_string() {
            assert_eq!(client.next_message().await["id"], listing);
            client.result("tasks/cancel", json!({ "taskId": task_id })).await;
        } else {
            assert_eq!(message["id"], listing, "{message}");
        }
        mark.wait_until_gone().await;
        !task_id.is_string()
    })
    .await;
}

#[tokio::test]
async fn client_without_the_extension_gets_no_task() {
    let daemon = Daemon::start().await;
    let mut client = McpClient::start(&daemon, LEGACY).await;
    let result = client.call("run", json!({"command": "sleep 1; echo done"})).await;
    assert_eq!(result["structuredContent"]["stdout"], "done\n", "{result}");
}

#[tokio::test]
async fn user_answers_the_question_of_a_task() {
    let daemon = Setup::new().workspace_table(ASK_POLICY).start().await;
    let mut capabilities = with_tasks();
    capabilities["elicitation"] = json!({});
    let revision = Revision::Stateless;
    let mut client = McpClient::start_with(&daemon, revision, &[], capabilities).await;

    for (action, is_error) in [("decline", true), ("accept", false)] {
        let created = client.call("run", json!({"command": "echo text"})).await;
        assert_eq!(created["resultType"], "task", "{created}");
        let id = &created["taskId"];
        let mut asking = Value::Null;
        eventually("the task asks", async || {
            asking = task(&mut client, id).await;
            asking["status"] == "input_required"
        })
        .await;
        let (name, question) = asking["inputRequests"].as_object().unwrap().iter().next().unwrap();
        assert_eq!(question["method"], "elicitation/create", "{asking}");

        let answers = json!({"taskId": id, "inputResponses": {name: {"action": action}}});
        client.result("tasks/update", answers).await;
        let mut ended = Value::Null;
        eventually("the task has ended", async || {
            ended = task(&mut client, id).await;
            !["working", "input_required"].contains(&ended["status"].as_str().unwrap())
        })
        .await;
        assert_eq!(ended["status"], "completed", "{ended}");
        assert_eq!(ended["result"]["isError"], is_error, "{ended}");
    }
}

#[tokio::test]
async fn task_waits_for_an_administrator_if_the_client_cannot_ask() {
    let daemon = Setup::new().workspace_table(ASK_POLICY).start().await;
    let mut client = start_client(&daemon).await;
    let created = client.call("run", json!({"command": "echo text"})).await;
    assert_eq!(task(&mut client, &created["taskId"]).await["status"], "working");
}
