//! `tools/call`: results, failures, progress, cancellation and repetition.

use std::fs;

use serde_json::{Value, json};
use tempfile::tempdir;

use super::{LEGACY, McpClient, REVISIONS, Revision, text_of};
use crate::support::{Daemon, Mark, eventually};

/// Parameters of `tools/call` for a command.
fn command_params(command: &str) -> Value {
    json!({"name": "run", "arguments": {"command": command}, "_meta": {}})
}

#[tokio::test]
async fn result_has_text_and_structured_content() {
    let daemon = Daemon::start().await;
    for revision in REVISIONS {
        let mut client = McpClient::start(&daemon, revision).await;

        let result = client.call("run", json!({"command": "echo out; exit 3"})).await;
        // A command that ran is a result.
        assert_eq!(result["isError"], false, "{result}");
        assert_eq!(result["structuredContent"]["exit_code"], 3, "{result}");
        let text: Value = serde_json::from_str(text_of(&result)).unwrap();
        assert_eq!(text["stdout"], "out\n");

        for (tool, arguments, problem) in [
            ("read_file", json!({"path": "none"}), "none"),
            ("read_file", json!({"path": 7, "no_such": 1}), "no_such"),
            ("read_file", json!({}), "path"),
        ] {
            let result = client.call(tool, arguments).await;
            assert_eq!(result["isError"], true, "{result}");
            assert!(text_of(&result).contains(problem), "{result}");
            assert!(result["_meta"]["jig-error"]["type"].is_string(), "{result}");
        }

        let params = json!({"name": "no_such_tool", "arguments": {}});
        assert_eq!(client.error_code("tools/call", params).await, -32602);
    }
}

#[tokio::test]
async fn progress_follows_the_output() {
    let daemon = Daemon::start().await;
    for revision in REVISIONS {
        let mut client = McpClient::start(&daemon, revision).await;
        fs::remove_file(daemon.file("go")).ok();
        let mut params =
            command_params("echo first; until [ -e go ]; do sleep 0.05; done; echo second >&2");
        params["_meta"]["progressToken"] = "token".into();
        let id = client.send("tools/call", params);

        let message = client.next_message().await;
        assert_eq!(message["method"], "notifications/progress", "{message}");
        assert_eq!(message["params"]["message"], "first");
        assert_eq!(message["params"]["progressToken"], "token");
        let first = message["params"]["progress"].as_f64().unwrap();

        fs::write(daemon.file("go"), "").unwrap();
        let mut last = client.next_message().await;
        if last["method"] == "notifications/progress" {
            assert!(last["params"]["progress"].as_f64().unwrap() > first, "{last}");
            last = client.response_to(id).await;
        }
        assert_eq!(last["result"]["isError"], false, "{last}");

        // Without a token, no progress.
        let id = client.send("tools/call", command_params("echo text"));
        assert_eq!(client.next_message().await["id"], id);
    }
}

#[tokio::test]
async fn cancelled_call_leaves_no_process() {
    let daemon = Daemon::start().await;
    for revision in REVISIONS {
        let mut client = McpClient::start(&daemon, revision).await;
        let mark = Mark::new();
        let command = format!("export {}; sleep 1000 & (sleep 1000) & sleep 1000", mark.variable());
        let id = client.send("tools/call", command_params(&command));
        mark.wait_for_processes(3).await;

        let params = json!({"requestId": id, "reason": "test"});
        client.notify("notifications/cancelled", params);
        mark.wait_until_gone().await;

        let result = client.call("run", json!({"command": "echo alive"})).await;
        assert_eq!(result["structuredContent"]["stdout"], "alive\n");
    }
}

#[tokio::test]
async fn lost_client_leaves_no_process() {
    let daemon = Daemon::start().await;
    for revision in [Revision::Stateless, LEGACY] {
        let mut client = McpClient::start(&daemon, revision).await;
        let mark = Mark::new();
        let command = format!("export {}; sleep 1000 & sleep 1000", mark.variable());
        client.send("tools/call", command_params(&command));
        mark.wait_for_processes(2).await;

        client.close().await;
        mark.wait_until_gone().await;
    }
}

#[tokio::test]
async fn repeated_request_id_runs_once() {
    let daemon = Daemon::start().await;
    for (index, revision) in REVISIONS.into_iter().enumerate() {
        let file = format!("once-{index}");
        let mut params = command_params(&format!("echo x >> {file}; cat {file}"));
        params["_meta"]["jig-request-id"] = format!("id-{index}").into();

        for _ in 0..3 {
            // A client that has lost its server starts another one.
            let mut client = McpClient::start(&daemon, revision).await;
            let result = client.result("tools/call", params.clone()).await;
            assert_eq!(result["structuredContent"]["stdout"], "x\n", "{result}");
        }
        assert_eq!(fs::read_to_string(daemon.file(&file)).unwrap(), "x\n");

        let mut client = McpClient::start(&daemon, revision).await;
        params["arguments"]["command"] = "true".into();
        assert_eq!(client.error_code("tools/call", params.clone()).await, -32602);
        params["_meta"]["jig-request-id"] = 7.into();
        assert_eq!(client.error_code("tools/call", params).await, -32602);
    }
}

#[tokio::test]
async fn embedded_daemon_serves_the_current_directory() {
    let directory = tempdir().unwrap();
    fs::write(directory.path().join("a.txt"), "text").unwrap();
    for revision in [Revision::Stateless, LEGACY] {
        let mut client = McpClient::start_in(directory.path(), revision).await;
        let result = client.call("read_file", json!({"path": "a.txt"})).await;
        assert_eq!(result["structuredContent"]["content"], "text", "{result}");
        client.close().await;
    }
}

#[tokio::test]
async fn calls_run_concurrently() {
    let daemon = Daemon::start().await;
    let mut client = McpClient::start(&daemon, Revision::Stateless).await;
    let waiting = client.send("tools/call", command_params("until [ -e go ]; do sleep 0.05; done"));
    let other = client.send("tools/call", command_params("touch go"));

    let ids = [client.next_message().await, client.next_message().await]
        .map(|message| message["id"].clone());
    assert!(ids.contains(&waiting.into()) && ids.contains(&other.into()), "{ids:?}");
    eventually("the file exists", async || daemon.file("go").exists()).await;
}
