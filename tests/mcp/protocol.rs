//! The protocol itself: opening a connection, versions, unknown methods and malformed input.

use std::process::{Command, Stdio};

use serde_json::json;

use super::{LEGACY, McpClient, REVISIONS, Revision};
use crate::support::Daemon;

#[tokio::test]
async fn discover_describes_the_server_and_its_versions() {
    let daemon = Daemon::start().await;
    let mut client = McpClient::start(&daemon, Revision::Stateless).await;

    let found = client.result("server/discover", json!({})).await;
    let versions = found["supportedVersions"].as_array().unwrap();
    for version in ["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26"] {
        assert!(versions.contains(&version.into()), "{found}");
    }
    assert_eq!(found["_meta"]["io.modelcontextprotocol/serverInfo"]["name"], "jig");
    let capabilities = &found["capabilities"];
    for name in ["tools", "resources", "extensions"] {
        assert!(capabilities[name].is_object(), "{found}");
    }
    for name in ["prompts", "logging", "completions"] {
        assert!(capabilities.get(name).is_none(), "{found}");
    }
    assert_eq!(
        (&found["cacheScope"], &found["resultType"]),
        (&"private".into(), &"complete".into())
    );
}

#[tokio::test]
async fn invalid_requests_are_rejected_and_the_server_continues() {
    let daemon = Daemon::start().await;
    for revision in REVISIONS {
        let mut client = McpClient::start(&daemon, revision).await;
        assert_eq!(client.error_code("no/such/method", json!({})).await, -32601);
        assert_eq!(client.error_code("prompts/list", json!({})).await, -32601);
        assert_eq!(client.error_code("tasks/get", json!({"taskId": "x"})).await, -32021);
        client.send_line("this is no JSON");
        client.send_line("{\"jsonrpc\": \"2.0\"}");
        client.send_line(&"x".repeat(17 << 20));

        let id = client.send("tools/list", json!({}));
        let mut message = client.next_message().await;
        while message["id"] != id {
            assert!(message.get("result").is_none(), "{message}");
            message = client.next_message().await;
        }
        assert!(message["result"]["tools"].is_array(), "{message}");
    }
}

#[tokio::test]
async fn unknown_version_is_rejected_with_the_known_ones() {
    let daemon = Daemon::start().await;
    let mut client = McpClient::start(&daemon, Revision::Stateless).await;
    let meta = json!({
        "io.modelcontextprotocol/protocolVersion": "2099-01-01",
        "io.modelcontextprotocol/clientCapabilities": {},
    });
    let message =
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}});
    client.send_line(&message.to_string());
    let response = client.next_message().await;
    assert_eq!(response["error"]["code"], -32022, "{response}");
    assert!(response["error"]["data"].to_string().contains("2026-07-28"), "{response}");

    // A client with `initialize` gets a version that the server has.
    let mut client = McpClient::start(&daemon, LEGACY).await;
    client.close().await;
}

#[tokio::test]
async fn unknown_dialect_and_missing_key_end_at_the_start() {
    let daemon = Daemon::start().await;
    let output = Command::new(env!("CARGO_BIN_EXE_jig"))
        .args(["mcp", "--dialect", "klingon"])
        .env("JIG_ADDRESS", format!("unix:{}", daemon.socket().display()))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(!output.status.success());
    assert!(output.stdout.is_empty());
    assert!(String::from_utf8_lossy(&output.stderr).contains("klingon"), "{output:?}");
}

#[tokio::test]
async fn termination_signal_ends_the_server() {
    use rustix::process::{Pid, Signal, kill_process};

    let daemon = Daemon::start().await;
    let mut client = McpClient::start(&daemon, LEGACY).await;
    kill_process(Pid::from_child(&client.child), Signal::TERM).unwrap();
    // Standard input stays open.
    while crate::support::promptly("the server ends", client.messages.recv()).await.is_some() {}
    client.child.wait().unwrap();
}
