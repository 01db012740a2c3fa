//! Events of a session as server-sent events and over a WebSocket: row C15 of tests/seeds/README.md.

use std::{
    fs,
    io::{BufRead as _, BufReader, Lines},
    process::{Child, ChildStdout, Stdio},
    sync::Arc,
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use futures_util::{SinkExt as _, StreamExt as _};
use jig::api::v1::{InvokeRequest, RunRequest, invoke_service_client::InvokeServiceClient};
use rustix::process::Signal;
use serde_json::{Value as Json, json};
use tokio::net::TcpStream;
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{
        Bytes, Error, Message, client::IntoClientRequest as _, handshake::client::Request,
        protocol::frame::coding::CloseCode,
    },
};

use crate::{
    callers::start_daemon_with_keys,
    invoke::{call, invoke},
    support::{Daemon, KeyFile, Setup, curl, curl_command, with_key},
};

const EVENTS: &str = "/v1/sessions/default/events";

fn listening() -> Setup {
    Setup::new().arguments(&["--listen", "127.0.0.1:0"])
}

async fn connect(
    daemon: &Daemon,
    path: &str,
    change: impl FnOnce(&mut Request),
) -> Result<WebSocketStream<TcpStream>, Error> {
    let address = format!("127.0.0.1:{}", daemon.port());
    let mut request = format!("ws://{address}{path}").into_client_request().unwrap();
    change(&mut request);
    let stream = TcpStream::connect(address).await.unwrap();
    Ok(client_async(request, stream).await?.0)
}

/// The status of a rejected WebSocket.
async fn rejected_status(daemon: &Daemon, path: &str, change: impl FnOnce(&mut Request)) -> u16 {
    match connect(daemon, path, change).await {
        Err(Error::Http(response)) => response.status().as_u16(),
        other => panic!("{other:?}"),
    }
}

/// The code with which the daemon closes the socket.
async fn close_code(socket: &mut WebSocketStream<TcpStream>) -> CloseCode {
    loop {
        if let Message::Close(frame) = socket.next().await.unwrap().unwrap() {
            return frame.unwrap().code;
        }
    }
}

async fn next_of_type(socket: &mut WebSocketStream<TcpStream>, name: &str) -> Json {
    loop {
        let message = socket.next().await.unwrap().unwrap();
        if let Message::Text(text) = message {
            let event: Json = serde_json::from_str(&text).unwrap();
            if event["type"] == name {
                return event;
            }
        }
    }
}

/// The call of the document, with the path below the workspace.
fn document_call() -> InvokeRequest {
    let params = json!({"path": "projects/app/src/index.ts"});
    InvokeRequest { request_id: "tool_use_123".to_owned(), ..call("claude", "Read", params) }
}

fn write_document_file(daemon: &Daemon) {
    fs::create_dir_all(daemon.file("projects/app/src")).unwrap();
    fs::write(daemon.file("projects/app/src/index.ts"), "// File contents...").unwrap();
}

#[tokio::test]
async fn c15_web_socket_sends_the_payloads_of_the_document() {
    let daemon = listening().start().await;
    write_document_file(&daemon);

    let mut socket = connect(&daemon, EVENTS, |_| ()).await.unwrap();
    invoke(&daemon, document_call()).await;
    let event = next_of_type(&mut socket, "agent:tool_use").await;
    assert_eq!(
        event,
        json!({
            "type": "agent:tool_use",
            "payload": {
                "id": "tool_use_123",
                "name": "Read",
                "input": { "path": "projects/app/src/index.ts" },
            },
            "sequence": 1,
        })
    );
    let mut event = next_of_type(&mut socket, "agent:tool_result").await;
    // The content is the text for the model: for `Read`, the document's result as JSON.
    let content: Json =
        serde_json::from_str(event["payload"]["content"].take().as_str().unwrap()).unwrap();
    assert_eq!(content["content"], "// File contents...");
    assert_eq!(
        event,
        json!({
            "type": "agent:tool_result",
            "payload": {
                "tool_use_id": "tool_use_123",
                "content": null,
                "is_error": false,
            },
        })
    );

    invoke(&daemon, call("claude", "Read", json!({"path": "missing"}))).await;
    let event = next_of_type(&mut socket, "agent:tool_result").await;
    assert_eq!(event["payload"]["is_error"], true);

    socket.close(None).await.unwrap();
    while let Some(message) = socket.next().await {
        assert!(matches!(message, Ok(Message::Close(_))), "{message:?}");
    }
}

#[tokio::test]
async fn web_socket_takes_no_messages() {
    let daemon = listening().start().await;
    let mut socket = connect(&daemon, EVENTS, |_| ()).await.unwrap();
    socket.send(Message::text("hello")).await.unwrap();
    assert_eq!(close_code(&mut socket).await, CloseCode::Policy);

    // A large frame of a client is not collected.
    let mut socket = connect(&daemon, EVENTS, |_| ()).await.unwrap();
    socket.send(Message::binary(vec![0; 100_000])).await.unwrap();
    assert_eq!(close_code(&mut socket).await, CloseCode::Size);

    let mut socket = connect(&daemon, EVENTS, |_| ()).await.unwrap();
    for _ in 0..40 {
        socket.feed(Message::Ping(Bytes::new())).await.unwrap();
    }
    socket.flush().await.unwrap();
    assert_eq!(close_code(&mut socket).await, CloseCode::Policy);

    let short_key = |request: &mut Request| {
        request.headers_mut().insert("sec-websocket-key", "short".parse().unwrap());
    };
    assert_eq!(rejected_status(&daemon, EVENTS, short_key).await, 400);
}

#[tokio::test]
async fn web_socket_closes_with_the_reason() {
    let file = Arc::new(KeyFile::new());
    let key = file.add_key("reader", "read", &[]);
    let other = file.add_key("other", "read", &[]);
    let daemon = start_daemon_with_keys(listening(), &file).await;
    let with_key = |key: &str| {
        let bearer = format!("Bearer {key}").parse().unwrap();
        move |request: &mut Request| {
            request.headers_mut().insert("authorization", bearer);
        }
    };

    let mut socket = connect(&daemon, EVENTS, with_key(&key)).await.unwrap();
    assert!(file.run_jig_key(&["revoke", "reader"]).status.success());
    daemon.reload_config(Daemon::RELOADED).await;
    assert_eq!(close_code(&mut socket).await, CloseCode::Policy);

    let mut socket = connect(&daemon, EVENTS, with_key(&other)).await.unwrap();
    daemon.signal(Signal::TERM);
    // The daemon does not wait for the close to be sent: it may exit first.
    while let Some(Ok(message)) = socket.next().await {
        if let Message::Close(frame) = message {
            assert_eq!(frame.unwrap().code, CloseCode::Away);
        }
    }
}

#[tokio::test]
async fn web_socket_needs_a_key_and_an_allowed_origin() {
    let file = Arc::new(KeyFile::new());
    let key = file.add_key("reader", "read", &[]);
    let daemon = start_daemon_with_keys(listening(), &file).await;

    assert_eq!(rejected_status(&daemon, EVENTS, |_| ()).await, 401);
    let origin = |request: &mut Request| {
        request.headers_mut().insert("origin", "https://evil.example".parse().unwrap());
    };
    assert_eq!(rejected_status(&daemon, EVENTS, origin).await, 403);

    let offer = |key: &str| {
        let protocols = format!("jig.events, jig.key.{}", URL_SAFE_NO_PAD.encode(key));
        move |request: &mut Request| {
            let headers = request.headers_mut();
            headers.insert("sec-websocket-protocol", protocols.parse().unwrap());
        }
    };
    assert_eq!(rejected_status(&daemon, EVENTS, offer("wrong")).await, 401);
    connect(&daemon, EVENTS, offer(&key)).await.unwrap();
    let unknown = format!("{EVENTS}?types=nonsense");
    assert_eq!(rejected_status(&daemon, &unknown, offer(&key)).await, 400);
    assert!(!daemon.log().contains(&key));
}

#[tokio::test]
async fn c15_server_sent_events_resume_by_last_event_id() {
    let daemon = Daemon::start().await;
    write_document_file(&daemon);
    invoke(&daemon, document_call()).await;
    invoke(&daemon, call("claude", "Bash", json!({"command": "echo hi"}))).await;

    let all = curl(&daemon, &[], &format!("{EVENTS}?follow=false"));
    assert_eq!(all.status, 200, "{all:?}");
    assert_eq!(all.headers["content-type"], "text/event-stream");
    let ids = |body: &str| -> Vec<u64> {
        let ids = body.lines().filter_map(|line| line.strip_prefix("id: "));
        ids.map(|id| id.parse().unwrap()).collect()
    };
    assert_eq!(ids(&all.body), [1, 2, 3, 4], "{all:?}");
    assert!(all.body.starts_with("event: agent:tool_use\nid: 1\ndata: {"), "{all:?}");

    let rest = curl(&daemon, &["-H", "last-event-id: 2"], &format!("{EVENTS}?follow=false"));
    assert_eq!(ids(&rest.body), [3, 4], "{rest:?}");

    let other = "/v1/sessions/other/events?follow=false";
    assert_eq!(curl(&daemon, &[], other).body, "");
    for (arguments, path) in [
        (&["-H", "last-event-id: x"][..], EVENTS),
        (&[], "/v1/sessions/default/events?after_sequence=99&follow=false"),
        (&[], "/v1/sessions/default/events?workspace=nowhere"),
        (&[], "/v1/sessions/%00/events"),
    ] {
        let response = curl(&daemon, arguments, path);
        assert!(matches!(response.status, 400 | 404), "{path}: {response:?}");
        assert_eq!(response.json()["ok"], false, "{path}");
    }
}

#[tokio::test]
async fn web_socket_watches_calls_of_other_ways_in() {
    let file = Arc::new(KeyFile::new());
    let key = file.add_key("agent", "invoke", &[]);
    let daemon = start_daemon_with_keys(listening(), &file).await;
    let bearer = format!("Bearer {key}");
    let mut socket =
        connect(&daemon, "/v1/sessions/s1/events?types=tool_call_started", |request| {
            request.headers_mut().insert("authorization", bearer.parse().unwrap());
        })
        .await
        .unwrap();

    let mut client = InvokeServiceClient::new(daemon.channel());
    let mut request = with_key(&key, call("", "run", json!({"command": "true"})));
    request.metadata_mut().insert("jig-session", "s1".parse().unwrap());
    client.invoke(request).await.unwrap();

    let event = next_of_type(&mut socket, "agent:tool_use").await;
    assert_eq!(event["payload"]["name"], "run");
    assert_eq!(event["payload"]["input"]["command"], "true");
}

/// Server-sent events of a stream that stays open.
struct OpenStream {
    curl: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl OpenStream {
    fn new(daemon: &Daemon, arguments: &[&str], path: &str) -> Self {
        let arguments = [&["--include", "--max-time", "60"], arguments].concat();
        let mut command = curl_command(daemon, &arguments, path);
        let mut curl = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(curl.stdout.take().unwrap()).lines();
        // With its headers, the response has begun.
        while lines.next().unwrap().unwrap() != "" {}
        Self { curl, lines }
    }

    /// The id and the data of the next event.
    fn next(&mut self) -> (String, Json) {
        let mut id = String::new();
        loop {
            let line = self.lines.next().unwrap().unwrap();
            if let Some(value) = line.strip_prefix("id: ") {
                id = value.to_owned();
            } else if let Some(data) = line.strip_prefix("data: ") {
                return (id, serde_json::from_str(data).unwrap());
            }
        }
    }

    fn cut(mut self) {
        self.curl.kill().unwrap();
        self.curl.wait().unwrap();
    }
}

#[tokio::test]
async fn c15_results_missed_by_a_cut_stream_are_reported() {
    let daemon = Daemon::start().await;
    write_document_file(&daemon);
    invoke(&daemon, document_call()).await;

    // A client that has the records and not the result, and one that lacks the end too.
    for (id, sequences) in [("2-2", [1; 0].as_slice()), ("1", &[2])] {
        let header = format!("last-event-id: {id}");
        let response = curl(&daemon, &["-H", &header], &format!("{EVENTS}?follow=false"));
        assert_eq!(response.status, 200, "{response:?}");
        let data = response.body.lines().filter_map(|line| line.strip_prefix("data: "));
        let events: Vec<Json> = data.map(|data| serde_json::from_str(data).unwrap()).collect();
        let records = events.iter().filter_map(|event| event["sequence"].as_u64());
        assert_eq!(records.collect::<Vec<_>>(), sequences, "{id}: {response:?}");
        let result = events.last().unwrap();
        let payload = json!({
            "tool_use_id": "tool_use_123",
            "content": "",
            "is_error": false,
            "absence": "RESULT_ABSENCE_PAST",
        });
        assert_eq!(*result, json!({"type": "agent:tool_result", "payload": payload}), "{id}");
        assert!(response.body.contains("\nid: 2\n"), "{id}: {response:?}");
    }

    // A stream in progress: its ids say that the result is still to come.
    let mut stream = OpenStream::new(&daemon, &["-H", "last-event-id: 2"], EVENTS);
    invoke(&daemon, InvokeRequest { request_id: "next".to_owned(), ..document_call() }).await;
    let (ids, events): (Vec<_>, Vec<_>) = (0..3).map(|_| stream.next()).unzip();
    assert_eq!(ids, ["3", "4-4", "4"], "{events:?}");
    assert_eq!(events[2]["payload"]["tool_use_id"], "next");
    assert_ne!(events[2]["payload"]["content"], "");
    stream.cut();
}

#[tokio::test]
async fn c15_typed_calls_have_a_result_without_content() {
    let daemon = listening().start().await;
    let mut socket = connect(&daemon, EVENTS, |_| ()).await.unwrap();
    let mut tools = daemon.tools();
    let command = Some("exit 3".to_owned());
    tools.run(RunRequest { command, ..RunRequest::default() }).await.unwrap();
    let call = next_of_type(&mut socket, "agent:tool_use").await;
    let result = next_of_type(&mut socket, "agent:tool_result").await;
    let payload = json!({
        "tool_use_id": call["payload"]["id"],
        "content": "",
        "is_error": false,
        "absence": "RESULT_ABSENCE_TYPED",
    });
    assert_eq!(result["payload"], payload);
}

#[tokio::test]
async fn a11_rejected_calls_of_a_batch_have_events() {
    let daemon = Daemon::start().await;
    let body = json!({"calls": [{"call_id": "a", "name": "fake_tool", "arguments": {"x": 1}}]});
    let arguments = ["-H", "content-type: application/json", "-d", &body.to_string()];
    let response = curl(&daemon, &arguments, "/v1/agent-tools/invoke-batch").json();
    assert_eq!(response["results"][0]["error"]["code"], "UNKNOWN_TOOL");

    let body = curl(&daemon, &[], &format!("{EVENTS}?follow=false")).body;
    let data = body.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Json> = data.map(|data| serde_json::from_str(data).unwrap()).collect();
    let types: Vec<_> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["agent:tool_use", "tool_call_finished", "agent:tool_result"], "{body}");
    let call = &events[0]["payload"];
    assert_eq!((&call["id"], &call["name"]), (&json!("a"), &json!("fake_tool")));
    assert_eq!(events[1]["payload"]["error_type"], "unknown_tool");
    let result = &events[2]["payload"];
    assert_eq!((&result["tool_use_id"], &result["is_error"]), (&json!("a"), &json!(true)));
}
