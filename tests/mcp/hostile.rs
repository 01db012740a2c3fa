//! Clients that break the protocol, or use what belongs to others.

use serde_json::{Value, json};

use super::{
    McpClient, REVISIONS, Revision,
    http::{headers, message, post, request_of},
    tasks::with_tasks,
    text_of,
};
use crate::{
    approvals::ASK_POLICY,
    support::{Daemon, KeyFile, Setup},
};

#[tokio::test]
async fn malformed_body_gets_an_error_of_the_protocol() {
    let daemon = Daemon::start().await;
    let listing = |id: Value| {
        let request = request_of(json!({}), "tools/list", json!({}));
        let mut request: Value = serde_json::from_str(&request).unwrap();
        request["id"] = id;
        request
    };
    let deep = "[".repeat(100_000);
    for (body, code) in [
        (String::new(), -32700),
        ("{".to_owned(), -32700),
        (deep, -32700),
        ("null".to_owned(), -32600),
        (listing(Value::Null).to_string(), -32600),
        (listing(json!(1.5)).to_string(), -32600),
        (listing(json!({})).to_string(), -32600),
        (json!([listing(1.into()), listing(2.into())]).to_string(), -32600),
        (json!({"jsonrpc": "1.0", "id": 1, "method": "tools/list"}).to_string(), -32600),
        (json!({"jsonrpc": "2.0", "id": 1, "method": "x", "params": "x"}).to_string(), -32600),
    ] {
        let response = post(&daemon, "/mcp", &headers("tools/list", ""), &body);
        let error = message(&response);
        assert_eq!((response.status, &error["error"]["code"]), (400, &code.into()), "{response:?}");
        assert_eq!(response.headers["content-type"], "application/json");
    }
}

#[tokio::test]
async fn malformed_parameters_are_named() {
    let daemon = Daemon::start().await;
    for revision in REVISIONS {
        let mut client = McpClient::start_with(&daemon, revision, &[], with_tasks()).await;
        for (method, params, field) in [
            ("tools/call", json!({}), "params.name"),
            ("tools/call", json!({"name": 7}), "params.name"),
            ("tools/call", json!({"name": "run", "arguments": "x"}), "params.arguments"),
            ("tools/call", json!({"name": "run", "arguments": []}), "params.arguments"),
            ("resources/read", json!({"uri": {}}), "params.uri"),
            ("tasks/get", json!({"taskId": 7}), "params.taskId"),
            ("tasks/cancel", json!({}), "params.taskId"),
            ("tasks/update", json!({"taskId": "x"}), "params.inputResponses"),
        ] {
            let id = client.send(method, params);
            let error = client.response_to(id).await["error"].take();
            assert_eq!(error["code"], -32602, "{method}: {error}");
            assert!(error["message"].as_str().unwrap().starts_with(field), "{method}: {error}");
            assert_eq!(error["data"]["fields"][0]["field"], field, "{method}: {error}");
        }
    }
}

#[tokio::test]
async fn wrong_arguments_are_a_result_for_clients_with_tasks_too() {
    let daemon = Daemon::start().await;
    let revision = Revision::Stateless;
    let mut texts = Vec::new();
    for capabilities in [json!({}), with_tasks()] {
        let mut client = McpClient::start_with(&daemon, revision, &[], capabilities).await;
        let result = client.call("run", json!({"comand": "echo text"})).await;
        assert_eq!(result["isError"], true, "{result}");
        texts.push(text_of(&result).to_owned());
    }
    assert!(texts[0].contains("comand") && texts[0] == texts[1], "{texts:?}");
}

/// A daemon with two keys, and the headers of requests with each of them.
async fn start_with_two_keys() -> (Daemon, KeyFile, [String; 2]) {
    let keys = KeyFile::new();
    let headers = ["mine", "other"].map(|name| {
        let key = keys.add_key(name, "admin", &[]);
        format!("Authorization: Bearer {key}")
    });
    let path = keys.path();
    let setup = Setup::new().arguments(&["--keys", path.to_str().unwrap()]);
    let daemon = setup.workspace_table(ASK_POLICY).start().await;
    (daemon, keys, headers)
}

/// Sends a request with a key, and returns the response's message. Calls of `write_file` are no
/// tasks.
fn send(daemon: &Daemon, key: &str, method: &str, name: &str, params: &Value) -> Value {
    let mut capabilities = if name == "write_file" { json!({}) } else { with_tasks() };
    capabilities["elicitation"] = json!({});
    let mut headers = headers(method, name);
    headers.push(key.to_owned());
    let body = request_of(capabilities, method, params.clone());
    message(&post(daemon, "/mcp", &headers, &body))
}

#[tokio::test]
async fn task_belongs_to_its_caller() {
    let (daemon, _keys, [mine, other]) = start_with_two_keys().await;
    let call = json!({"name": "run", "arguments": {"command": "echo text"}});
    let created = send(&daemon, &mine, "tools/call", "run", &call);
    let id = created["result"]["taskId"].as_str().unwrap_or_else(|| panic!("{created}"));

    let answers = json!({"x": {"action": "accept"}});
    for (method, params) in [
        ("tasks/get", json!({"taskId": id})),
        ("tasks/update", json!({"taskId": id, "inputResponses": answers})),
        ("tasks/cancel", json!({"taskId": id})),
    ] {
        let response = send(&daemon, &other, method, id, &params);
        assert_eq!(response["error"]["code"], -32602, "{method}: {response}");
    }
    let asking = send(&daemon, &mine, "tasks/get", id, &json!({"taskId": id}));
    assert_eq!(asking["result"]["status"], "input_required", "{asking}");
    let cancelled = send(&daemon, &mine, "tasks/cancel", id, &json!({"taskId": id}));
    assert!(cancelled["result"].is_object(), "{cancelled}");
}

#[tokio::test]
async fn sessions_of_a_caller_are_limited_whatever_its_headers_say() {
    /// The limit of the daemon.
    const MAX_SESSIONS_PER_CALLER: usize = 256;

    let daemon = Daemon::start().await;
    let params = json!({
        "protocolVersion": "2026-07-28",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    });
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params});
    let opened = (0..MAX_SESSIONS_PER_CALLER + 10).filter(|_| {
        let response = post(&daemon, "/mcp", &headers("initialize", ""), &body.to_string());
        response.headers.contains_key("mcp-session-id")
    });
    assert_eq!(opened.count(), MAX_SESSIONS_PER_CALLER);

    // Requests without a session go on.
    let listing = request_of(json!({}), "tools/list", json!({}));
    let listed = post(&daemon, "/mcp", &headers("tools/list", ""), &listing);
    assert_eq!(listed.status, 200, "{listed:?}");
}

#[tokio::test]
async fn artifacts_of_other_sessions_are_no_resources() {
    let daemon = Daemon::start().await;
    let revision = Revision::Stateless;
    let mut client =
        McpClient::start_with(&daemon, revision, &["--session", "mine"], json!({})).await;
    client.call("run", json!({"command": "echo text"})).await;
    let listed = client.result("resources/list", json!({})).await;
    let uri = listed["resources"][0]["uri"].as_str().unwrap();
    client.result("resources/read", json!({"uri": uri})).await;

    let mut other =
        McpClient::start_with(&daemon, revision, &["--session", "other"], json!({})).await;
    let path = uri.strip_prefix("jig-artifact:///").unwrap();
    for uri in [
        uri.to_owned(),
        format!("jig-artifact:///../mine/{path}"),
        format!("jig-artifact:////{path}"),
        "file:///etc/passwd".to_owned(),
    ] {
        let code = other.error_code("resources/read", json!({"uri": uri})).await;
        assert!([-32600, -32602].contains(&code), "{uri}: {code}");
    }
}

#[tokio::test]
async fn state_belongs_to_its_caller() {
    let (daemon, _keys, [mine, other]) = start_with_two_keys().await;
    let mut call = json!({"name": "write_file", "arguments": {"path": "a.txt", "content": "text"}});
    let asked = send(&daemon, &mine, "tools/call", "write_file", &call);
    assert_eq!(asked["result"]["resultType"], "input_required", "{asked}");

    call["requestState"] = asked["result"]["requestState"].clone();
    call["inputResponses"] = json!({"approval": {"action": "accept"}});
    let response = send(&daemon, &other, "tools/call", "write_file", &call);
    assert_eq!(response["error"]["code"], -32602, "{response}");
    assert!(!daemon.file("a.txt").exists());
    let response = send(&daemon, &mine, "tools/call", "write_file", &call);
    assert_eq!(response["result"]["isError"], false, "{response}");
    assert!(daemon.file("a.txt").exists());
}
