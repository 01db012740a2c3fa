//! `tools/list` and `resources/*`.

use serde_json::{Value, json};

use super::{LEGACY, McpClient, REVISIONS, Revision, text_of};
use crate::support::{Daemon, KeyFile, Setup};

fn names(result: &Value) -> Vec<&str> {
    result["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn tools_are_the_same_in_every_revision() {
    let daemon = Daemon::start().await;

    let mut lists = Vec::new();
    for revision in REVISIONS {
        let mut client = McpClient::start(&daemon, revision).await;
        let listed = client.result("tools/list", json!({})).await;
        assert_eq!(listed, client.result("tools/list", json!({})).await);
        assert_eq!(listed["cacheScope"], "private");
        assert!(listed["ttlMs"].as_u64().unwrap() > 0);
        let is_complete = revision == Revision::Stateless;
        assert_eq!(listed["resultType"] == "complete", is_complete, "{revision:?}");
        lists.push(listed["tools"].clone());
    }
    assert!(lists.windows(2).all(|pair| pair[0] == pair[1]));

    for tool in lists[0].as_array().unwrap() {
        for hint in ["readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"] {
            assert!(tool["annotations"][hint].is_boolean(), "{hint} of {tool}");
        }
        for schema in ["inputSchema", "outputSchema"] {
            assert_eq!(tool[schema]["type"], "object", "{schema} of {tool}");
        }
    }
}

#[tokio::test]
async fn dialects_have_their_own_tools() {
    let daemon = Daemon::start().await;
    let arguments = ["--dialect", "claude"];
    let mut client = McpClient::start_with(&daemon, LEGACY, &arguments, json!({})).await;

    let listed = client.result("tools/list", json!({})).await;
    for name in ["Bash", "Read", "Write", "Edit", "Glob", "Grep"] {
        assert!(names(&listed).contains(&name), "{listed}");
    }

    let result = client.call("Bash", json!({"command": "echo hi"})).await;
    assert!(text_of(&result).contains("hi"), "{result}");
    // The model reads the text; there is no schema of another form.
    assert!(result.get("structuredContent").is_none(), "{result}");
}

#[tokio::test]
async fn key_sees_and_calls_its_tools_alone() {
    let keys = KeyFile::new();
    let key = keys.add_key("reader", "invoke", &["--for-tool", "read_file"]);
    let path = keys.path();
    let setup = Setup::new().arguments(&["--keys", path.to_str().unwrap()]);
    let daemon = setup.workspace_file("a.txt", "text").start().await;

    for revision in REVISIONS {
        let arguments = ["--key", &key];
        let mut client = McpClient::start_with(&daemon, revision, &arguments, json!({})).await;
        let listed = client.result("tools/list", json!({})).await;
        assert_eq!(names(&listed), ["read_file"]);
        let result = client.call("read_file", json!({"path": "a.txt"})).await;
        assert_eq!(result["structuredContent"]["content"], "text", "{result}");
        let params = json!({"name": "run", "arguments": {"command": "true"}});
        assert_eq!(client.error_code("tools/call", params).await, -32600);
    }
}

#[tokio::test]
async fn artifacts_of_the_session_are_resources() {
    let daemon = Daemon::start().await;
    for revision in REVISIONS {
        let session = format!("{revision:?}").replace(['(', ')', '"'], ".");
        let arguments = ["--session", &session];
        let mut client = McpClient::start_with(&daemon, revision, &arguments, json!({})).await;
        client.call("run", json!({"command": "printf text; printf '\\377' >&2"})).await;

        let listed = client.result("resources/list", json!({})).await;
        let resources = listed["resources"].as_array().unwrap();
        assert_eq!(resources.len(), 2, "{listed}");
        assert_eq!(
            (&resources[1]["size"], &resources[1]["mimeType"]),
            (&4.into(), &"text/plain".into())
        );

        let uri = &resources[1]["uri"];
        let read = client.result("resources/read", json!({ "uri": uri })).await;
        assert_eq!(read["contents"][0]["text"], "text", "{read}");
        let uri = &resources[0]["uri"];
        let read = client.result("resources/read", json!({ "uri": uri })).await;
        assert_eq!(read["contents"][0]["blob"], "/w==", "{read}");

        for uri in ["file:///etc/passwd", "jig-artifact:///", "jig-artifact:///logs/none.txt"] {
            let code = client.error_code("resources/read", json!({ "uri": uri })).await;
            let expected = if revision == Revision::Stateless { -32602 } else { -32002 };
            assert_eq!(code, expected, "{uri}");
        }
        let escape = json!({"uri": "jig-artifact:///../events.jsonl"});
        assert!(client.error_code("resources/read", escape).await < 0);
    }
}

#[tokio::test]
async fn large_resource_is_rejected_with_the_way_to_read_it() {
    let daemon = Daemon::start().await;
    let mut client = McpClient::start(&daemon, LEGACY).await;
    client.call("run", json!({"command": "head -c 5000000 /dev/zero | tr '\\0' x"})).await;

    let listed = client.result("resources/list", json!({})).await;
    let uri = &listed["resources"][0]["uri"];
    let id = client.send("resources/read", json!({ "uri": uri }));
    let response = client.response_to(id).await;
    assert_eq!(response["error"]["code"], -32602, "{response}");
    let message = response["error"]["message"].as_str().unwrap();
    assert!(message.contains("5000000 bytes") && message.contains("a tool that reads files"));
}
