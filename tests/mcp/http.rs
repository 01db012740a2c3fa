//! MCP over Streamable HTTP, in both generations, by curl.

use std::{
    fs::File,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::net::UnixStream,
    process::{Child, Stdio},
};

use serde_json::{Value, json};

use crate::{
    approvals::ASK_POLICY,
    support::{
        CurlResponse, Daemon, KeyFile, Mark, Setup, curl, curl_command, eventually, kill_and_reap,
    },
};

const JSON: &str = "Content-Type: application/json";
const ACCEPT: &str = "Accept: application/json, text/event-stream";

/// A request of revision 2026-07-28.
fn request(method: &str, params: Value) -> String {
    request_of(json!({}), method, params)
}

/// A request of revision 2026-07-28, of a client with capabilities.
pub(super) fn request_of(capabilities: Value, method: &str, mut params: Value) -> String {
    params["_meta"]["io.modelcontextprotocol/protocolVersion"] = "2026-07-28".into();
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = capabilities;
    json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string()
}

/// The first request of a session, of revision 2025-11-25.
fn initialize(capabilities: Value) -> String {
    let params = json!({
        "protocolVersion": "2025-11-25",
        "capabilities": capabilities,
        "clientInfo": {"name": "test", "version": "1"},
    });
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).to_string()
}

/// Headers of a request of revision 2026-07-28.
pub(super) fn headers(method: &str, name: &str) -> Vec<String> {
    let mut headers = vec![
        JSON.to_owned(),
        ACCEPT.to_owned(),
        "MCP-Protocol-Version: 2026-07-28".to_owned(),
        format!("Mcp-Method: {method}"),
    ];
    if !name.is_empty() {
        headers.push(format!("Mcp-Name: {name}"));
    }
    headers
}

pub(super) fn post(daemon: &Daemon, path: &str, headers: &[String], body: &str) -> CurlResponse {
    curl(daemon, &post_arguments(headers, body), path)
}

fn post_arguments<'a>(headers: &'a [String], body: &'a str) -> Vec<&'a str> {
    let headers = headers.iter().flat_map(|header| ["--header", header]);
    ["--data", body].into_iter().chain(headers).collect()
}

/// The last message of a response: its body, or the last event of its stream.
pub(super) fn message(response: &CurlResponse) -> Value {
    let mut events = response.body.lines().filter_map(|line| line.strip_prefix("data:"));
    let last = events.rfind(|data| !data.trim().is_empty());
    serde_json::from_str(last.unwrap_or(&response.body))
        .unwrap_or_else(|error| panic!("{error}: {response:?}"))
}

/// Calls a tool in revision 2026-07-28.
fn call(daemon: &Daemon, path: &str, tool: &str, arguments: Value) -> Value {
    let body = request("tools/call", json!({"name": tool, "arguments": arguments}));
    let response = post(daemon, path, &headers("tools/call", tool), &body);
    assert_eq!(response.status, 200, "{response:?}");
    message(&response)["result"].take()
}

#[tokio::test]
async fn stateless_requests_list_and_call() {
    let daemon = Daemon::start().await;
    let body = request("server/discover", json!({}));
    let response = post(&daemon, "/mcp", &headers("server/discover", ""), &body);
    let found = message(&response);
    assert!(found["result"]["supportedVersions"].to_string().contains("2026-07-28"), "{found}");
    assert!(!response.headers.contains_key("mcp-session-id"), "{response:?}");

    let body = request("tools/list", json!({}));
    let listed = message(&post(&daemon, "/mcp", &headers("tools/list", ""), &body));
    assert_eq!(listed["result"]["tools"][0]["name"], "apply_patch", "{listed}");
    let listed = message(&post(&daemon, "/mcp/claude", &headers("tools/list", ""), &body));
    assert!(listed.to_string().contains("\"Bash\""), "{listed}");

    let result = call(&daemon, "/mcp", "run", json!({"command": "echo out; exit 3"}));
    assert_eq!(result["structuredContent"]["exit_code"], 3, "{result}");
    let result = call(&daemon, "/mcp/claude", "Bash", json!({"command": "echo out"}));
    assert_eq!(result["isError"], false, "{result}");
}

#[tokio::test]
async fn headers_must_match_the_body() {
    let daemon = Daemon::start().await;
    let body = request("tools/list", json!({}));
    let mut unknown = request("tools/list", json!({}));
    unknown = unknown.replace("2026-07-28", "2099-01-01");
    let without_method = headers("", "")[..3].to_vec();
    let mut of_unknown = headers("tools/list", "");
    of_unknown[2] = "MCP-Protocol-Version: 2099-01-01".to_owned();
    for (headers, body, status, code) in [
        (headers("tools/call", ""), &body, 400, -32020),
        (without_method, &body, 400, -32020),
        (of_unknown, &unknown, 400, -32022),
        (headers("no/such", ""), &request("no/such", json!({})), 404, -32601),
    ] {
        let response = post(&daemon, "/mcp", &headers, body);
        let error = message(&response);
        assert_eq!((response.status, &error["error"]["code"]), (status, &code.into()), "{error}");
    }

    for method in ["GET", "DELETE", "PUT"] {
        let version = "MCP-Protocol-Version: 2026-07-28";
        let arguments = ["--request", method, "--header", version, "--header", ACCEPT];
        let status = curl(&daemon, &arguments, "/mcp").status;
        assert!([400, 404, 405].contains(&status), "{method}: {status}");
    }
    assert_eq!(curl(&daemon, &[], "/mcp/klingon").status, 404);
}

#[tokio::test]
async fn web_pages_are_rejected() {
    let daemon = Daemon::start().await;
    let body = request("tools/list", json!({}));
    for origin in ["https://evil.example", "null", "http://localhost:5173", "http://127.0.0.1"] {
        let mut headers = headers("tools/list", "");
        headers.push(format!("Origin: {origin}"));
        assert_eq!(post(&daemon, "/mcp", &headers, &body).status, 403, "{origin}");
    }
    // A page can send text without asking first.
    let mut headers = headers("tools/list", "");
    headers[0] = "Content-Type: text/plain".to_owned();
    assert_eq!(post(&daemon, "/mcp", &headers, &body).status, 415);
}

#[tokio::test]
async fn page_of_an_allowed_origin_can_use_the_tools() {
    let table = "[http]\nallowed_origins = [\"https://app.example\"]";
    let daemon = Setup::new().workspace_table(table).start().await;
    let with_origin = |headers: Vec<String>, origin: &str| {
        let mut headers = headers;
        headers.push(format!("Origin: {origin}"));
        headers
    };

    let body = request("tools/list", json!({}));
    let stateless = with_origin(headers("tools/list", ""), "https://app.example");
    let response = post(&daemon, "/mcp", &stateless, &body);
    assert_eq!(response.status, 200, "{response:?}");
    assert_eq!(response.headers["access-control-allow-origin"], "https://app.example");
    for origin in [
        "null",
        "http://app.example",
        "https://app.example:8443",
        "https://app.example.evil.example",
        "https://other.example",
    ] {
        let headers = with_origin(headers("tools/list", ""), origin);
        let response = post(&daemon, "/mcp", &headers, &body);
        assert_eq!(response.status, 403, "{origin}: {response:?}");
    }

    // A page can read the id of its session, and end the session.
    let json_headers = vec![JSON.to_owned(), ACCEPT.to_owned()];
    let page = with_origin(json_headers, "https://app.example");
    let opened = post(&daemon, "/mcp", &page, &initialize(json!({})));
    assert_eq!(opened.status, 200, "{opened:?}");
    assert!(opened.headers["access-control-expose-headers"].contains("mcp-session-id"));
    let session = format!("Mcp-Session-Id: {}", opened.headers["mcp-session-id"]);
    let origin = "Origin: https://app.example";
    let preflight = ["--request", "OPTIONS", "--header", origin];
    let asked = ["--header", "Access-Control-Request-Method: DELETE"];
    let response = curl(&daemon, &[&preflight[..], &asked].concat(), "/mcp");
    assert!(response.headers["access-control-allow-methods"].contains("DELETE"), "{response:?}");
    let delete = ["--request", "DELETE", "--header", origin, "--header", &session];
    assert!(curl(&daemon, &delete, "/mcp").status < 300);
}

#[tokio::test]
async fn key_is_required_and_sets_the_principal() {
    let keys = KeyFile::new();
    let key = keys.add_key("agent", "invoke", &["--for-tool", "read_file"]);
    let path = keys.path();
    let setup = Setup::new().arguments(&["--keys", path.to_str().unwrap()]);
    let daemon = setup.workspace_file("a.txt", "text").start().await;

    let body = request("tools/list", json!({}));
    let mut headers = headers("tools/list", "");
    assert_eq!(post(&daemon, "/mcp", &headers, &body).status, 401);
    headers.push(format!("Authorization: Bearer {key}x"));
    assert_eq!(post(&daemon, "/mcp", &headers, &body).status, 401);
    headers.pop();
    headers.push(format!("Authorization: Bearer {key}"));
    let listed = message(&post(&daemon, "/mcp", &headers, &body));
    assert_eq!(listed["result"]["tools"].as_array().unwrap().len(), 1, "{listed}");
}

#[tokio::test]
async fn closed_stream_ends_the_command() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    let command = format!("export {}; echo begun; sleep 1000 & sleep 1000", mark.variable());
    let params = json!({
        "name": "run",
        "arguments": {"command": command},
        "_meta": {"progressToken": 1},
    });
    let body = request("tools/call", params);
    let mut client = open(&daemon, &headers("tools/call", "run"), &body);
    let stdout = BufReader::new(client.stdout.take().unwrap());
    let mut lines = stdout.lines().map_while(Result::ok);
    let progress = lines.find(|line| line.contains("begun"));
    assert!(progress.unwrap().contains("notifications/progress"));
    mark.wait_for_processes(2).await;

    kill_and_reap(&mut client);
    mark.wait_until_gone().await;
}

#[tokio::test]
async fn user_answers_during_a_call_of_a_session() {
    let daemon = Setup::new().workspace_table(ASK_POLICY).start().await;
    let mut headers = vec![JSON.to_owned(), ACCEPT.to_owned()];
    let opened = post(&daemon, "/mcp", &headers, &initialize(json!({"elicitation": {}})));
    headers.push(format!("Mcp-Session-Id: {}", opened.headers["mcp-session-id"]));
    headers.push("MCP-Protocol-Version: 2025-11-25".to_owned());
    let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string();
    assert_eq!(post(&daemon, "/mcp", &headers, &initialized).status, 202);

    for (action, is_error) in [("decline", true), ("accept", false)] {
        let arguments = json!({"path": "a.txt", "content": "text"});
        let params = json!({"name": "write_file", "arguments": arguments});
        let body =
            json!({"jsonrpc": "2.0", "id": action, "method": "tools/call", "params": params});
        let mut client = open(&daemon, &headers, &body.to_string());
        let stdout = BufReader::new(client.stdout.take().unwrap());
        let mut messages = stdout.lines().filter_map(|line| {
            serde_json::from_str::<Value>(line.unwrap().strip_prefix("data:")?).ok()
        });

        let question = messages.find(|message| message["method"] == "elicitation/create").unwrap();
        assert!(question["params"]["message"].to_string().contains("a.txt"), "{question}");
        assert!(!daemon.file("a.txt").exists());
        let result = json!({"action": action, "content": {}});
        let answer = json!({"jsonrpc": "2.0", "id": question["id"], "result": result}).to_string();
        assert_eq!(post(&daemon, "/mcp", &headers, &answer).status, 202);

        let response = messages.find(|message| message["id"] == action).unwrap();
        assert_eq!(response["result"]["isError"], is_error, "{response}");
        assert!(client.wait().unwrap().success());
    }
    assert_eq!(std::fs::read_to_string(daemon.file("a.txt")).unwrap(), "text");
}

/// Starts curl for a request, to read its response while it arrives.
fn open(daemon: &Daemon, headers: &[String], body: &str) -> Child {
    curl_command(daemon, &post_arguments(headers, body), "/mcp")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

#[tokio::test]
async fn session_belongs_to_its_caller() {
    let keys = KeyFile::new();
    let [mine, other] = ["mine", "other"].map(|name| keys.add_key(name, "invoke", &[]));
    let path = keys.path();
    let daemon = Setup::new().arguments(&["--keys", path.to_str().unwrap()]).start().await;

    let with_key = |key: &str| {
        vec![JSON.to_owned(), ACCEPT.to_owned(), format!("Authorization: Bearer {key}")]
    };
    let response = post(&daemon, "/mcp", &with_key(&mine), &initialize(json!({})));
    assert_eq!(message(&response)["result"]["protocolVersion"], "2025-11-25");
    let session = format!("Mcp-Session-Id: {}", response.headers["mcp-session-id"]);

    let in_session = |key: &str| {
        let mut headers = with_key(key);
        headers.extend([session.clone(), "MCP-Protocol-Version: 2025-11-25".to_owned()]);
        headers
    };
    let initialized = json!({"jsonrpc": "2.0", "method": "notifications/initialized"}).to_string();
    assert_eq!(post(&daemon, "/mcp", &in_session(&mine), &initialized).status, 202);
    let params = json!({"name": "run", "arguments": {"command": "echo text"}});
    let body = json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params});
    let called = post(&daemon, "/mcp", &in_session(&mine), &body.to_string());
    assert_eq!(message(&called)["result"]["structuredContent"]["stdout"], "text\n");

    assert_eq!(post(&daemon, "/mcp", &in_session(&other), &body.to_string()).status, 404);
    let mut without_session = with_key(&mine);
    without_session.push("MCP-Protocol-Version: 2025-11-25".to_owned());
    let refused = post(&daemon, "/mcp", &without_session, &body.to_string());
    assert!(refused.status >= 400, "{refused:?}");

    let mut arguments = vec!["--request", "DELETE"];
    let headers = in_session(&mine);
    for header in &headers {
        arguments.extend(["--header", header]);
    }
    assert!(curl(&daemon, &arguments, "/mcp").status < 300);
    assert_eq!(post(&daemon, "/mcp", &in_session(&mine), &body.to_string()).status, 404);
}

#[tokio::test]
async fn requests_on_the_way_have_limited_memory() {
    let daemon = Daemon::start().await;
    let head = "POST /mcp HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                content-length: 16777216\r\n\r\n";
    // Together they announce all that one caller may use.
    let incomplete = [(); 4].map(|()| {
        let mut connection = UnixStream::connect(daemon.socket()).unwrap();
        connection.write_all(head.as_bytes()).unwrap();
        connection
    });

    let ping = request("ping", json!({}));
    let ping = ["-H", JSON, "-H", ACCEPT, "-H", "MCP-Protocol-Version: 2025-11-25", "-d", &ping];
    eventually("the memory is reserved", async || {
        let response = curl(&daemon, &ping, "/mcp");
        response.status == 429 && response.headers["retry-after"] == "1"
    })
    .await;
    drop(incomplete);
    eventually("the memory is free", async || curl(&daemon, &ping, "/mcp").status != 429).await;

    let large = daemon.sibling_path("large");
    File::create(&large).unwrap().set_len((16 << 20) + 1).unwrap();
    let data = format!("@{}", large.display());
    let response = curl(&daemon, &["-H", JSON, "--data-binary", &data], "/mcp");
    assert_eq!(response.status, 413, "{response:?}");
}
