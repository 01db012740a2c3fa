//! The Connect protocol, with curl.

use std::{io::Write as _, sync::Arc};

use jig::api::v1::{RunRequest, RunResponse};
use prost::Message as _;
use serde_json::{Value as Json, json};
use tempfile::NamedTempFile;

use crate::{
    callers::start_daemon_with_keys,
    support::{Daemon, KeyFile, Setup, curl, curl_command},
};

const RUN: &str = "/jig.v1.ToolService/Run";
const INFO: &str = "/jig.v1.DaemonService/GetInfo";
const JSON: &str = "content-type: application/json";

/// The arguments with which curl sends a body of a type, and the file that holds it.
fn body_arguments(content_type: &str, body: &[u8]) -> (Vec<String>, NamedTempFile) {
    let mut file = NamedTempFile::new().unwrap();
    file.write_all(body).unwrap();
    let header = format!("content-type: {content_type}");
    let data = format!("@{}", file.path().display());
    (vec!["-H".to_owned(), header, "--data-binary".to_owned(), data], file)
}

/// Sends a body and returns the bytes of the response.
fn send(daemon: &Daemon, content_type: &str, body: &[u8], path: &str) -> Vec<u8> {
    let (arguments, _file) = body_arguments(content_type, body);
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let output = curl_command(daemon, &arguments, path).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    output.stdout
}

/// A message with its prefix.
fn enveloped(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[0][..], &length, message].concat()
}

/// The messages of a stream: their flags and contents.
fn messages(mut stream: &[u8]) -> Vec<(u8, Json)> {
    let mut messages = Vec::new();
    while let Some(([flags, length @ ..], rest)) = stream.split_first_chunk::<5>() {
        let length = u32::from_be_bytes(*length) as usize;
        messages.push((*flags, serde_json::from_slice(&rest[..length]).unwrap()));
        stream = &rest[length..];
    }
    assert!(stream.is_empty(), "{stream:?}");
    messages
}

#[tokio::test]
async fn unary_call_in_json_responds_in_json() {
    let daemon = Daemon::start().await;
    let body = r#"{"command": "echo $A; exit 3", "env": {"A": "ü"}, "timeoutSec": 5}"#;
    let response = curl(&daemon, &["-H", JSON, "-H", "jig-session: s1", "-d", body], RUN);

    assert_eq!(response.status, 200, "{response:?}");
    assert_eq!(response.headers["content-type"], "application/json");
    assert_eq!(response.headers["jig-call-id"].len(), 26);
    let json = response.json();
    assert_eq!((&json["exitCode"], &json["stdout"]), (&json!(3), &json!("ü\n")));
    assert_eq!(json["stdoutBytes"], "3", "64-bit integers are strings");
    assert!(daemon.state_dir().join("sessions/s1/events.jsonl").exists());
}

#[tokio::test]
async fn unary_call_in_protobuf_responds_in_protobuf() {
    let daemon = Daemon::start().await;
    let request = RunRequest { command: Some("echo hi".to_owned()), ..RunRequest::default() };
    let response = send(&daemon, "application/proto", &request.encode_to_vec(), RUN);
    assert_eq!(RunResponse::decode(&*response).unwrap().stdout, "hi\n");
}

#[tokio::test]
async fn error_has_code_message_and_details() {
    let daemon = Daemon::start().await;
    for (body, fields) in [
        (r#"{"argv": ["echo", 1], "foo": 2}"#, &["argv[1]", "foo"][..]),
        (r#"{"command": "a", "argv": ["b"]}"#, &["command", "argv"]),
        (r#"{"command": "true", "timeout_sec": 0.5}"#, &["timeout_sec"]),
    ] {
        let response = curl(&daemon, &["-H", JSON, "-d", body], RUN);
        assert_eq!(response.status, 400, "{response:?}");
        assert_eq!(response.headers["content-type"], "application/json");
        let json = response.json();
        assert_eq!(json["code"], "invalid_argument");

        let details = json["details"].as_array().unwrap();
        let info = details.iter().find(|detail| detail["type"] == "google.rpc.ErrorInfo").unwrap();
        assert_eq!(info["debug"]["reason"], "INVALID_PARAMS");
        assert!(!info["value"].as_str().unwrap().contains('='));
        let bad = details.iter().find(|detail| detail["type"] == "google.rpc.BadRequest").unwrap();
        let violations = bad["debug"]["fieldViolations"].as_array().unwrap();
        let named: Vec<_> =
            violations.iter().map(|violation| violation["field"].as_str().unwrap()).collect();
        assert_eq!(named, fields, "{body}");
    }

    for body in ["", "[]", "{", "null"] {
        let response = curl(&daemon, &["-H", JSON, "-d", body], RUN);
        assert_eq!((response.status, &response.json()["code"]), (400, &json!("invalid_argument")));
    }
}

#[tokio::test]
async fn codes_have_their_http_status() {
    let file = Arc::new(KeyFile::new());
    let reader = format!("authorization: Bearer {}", file.add_key("reader", "read", &[]));
    let admin = format!("x-api-key: {}", file.add_key("admin", "admin", &[]));
    let daemon = start_daemon_with_keys(Setup::new(), &file).await;

    for (path, body, header, status, code) in [
        ("ReadFile", r#"{"path": "f"}"#, "accept: */*", 401, "unauthenticated"),
        ("ReadFile", r#"{"path": "f"}"#, &admin, 404, "not_found"),
        ("ReadFile", r#"{"path": "../f"}"#, &admin, 403, "permission_denied"),
        ("Run", r#"{"command": "touch ran"}"#, &reader, 403, "permission_denied"),
    ] {
        let path = format!("/jig.v1.ToolService/{path}");
        let response = curl(&daemon, &["-H", JSON, "-H", header, "-d", body], &path);
        assert_eq!((response.status, &response.json()["code"]), (status, &json!(code)), "{path}");
    }
    assert!(!daemon.file("ran").exists());
}

#[tokio::test]
async fn timeout_header_is_the_deadline() {
    let daemon = Daemon::start().await;
    let body = r#"{"command": "sleep 60"}"#;
    let header = "connect-timeout-ms: 300";
    let response = curl(&daemon, &["-H", JSON, "-H", header, "-d", body], RUN);
    assert_eq!((response.status, &response.json()["code"]), (504, &json!("deadline_exceeded")));

    for header in [
        "connect-timeout-ms: soon",
        "connect-timeout-ms: 12345678901",
        "connect-protocol-version: 2",
    ] {
        let response = curl(&daemon, &["-H", JSON, "-H", header, "-d", body], RUN);
        assert_eq!(response.status, 400, "{header}: {response:?}");
        let (name, _) = header.split_once(':').unwrap();
        assert!(response.body.contains(name), "{response:?}");
    }
    let usual =
        ["-H", JSON, "-H", "connect-protocol-version: 1", "-H", "connect-timeout-ms: 9999999999"];
    let response = curl(&daemon, &[&usual[..], &["-d", r#"{"command": "true"}"#]].concat(), RUN);
    assert_eq!(response.status, 200, "{response:?}");
}

#[tokio::test]
async fn compressed_request_is_rejected() {
    let daemon = Daemon::start().await;
    let arguments = ["-H", JSON, "-H", "content-encoding: gzip", "-d", "x"];
    let response = curl(&daemon, &arguments, RUN);
    assert_eq!((response.status, &response.json()["code"]), (501, &json!("unimplemented")));
}

#[tokio::test]
async fn other_content_types_and_methods_are_named() {
    let daemon = Daemon::start().await;
    let response = curl(&daemon, &["-H", "content-type: text/plain", "-d", "{}"], RUN);
    assert_eq!(response.status, 415);
    assert!(response.headers["accept-post"].contains("application/json"), "{response:?}");
    assert!(response.body.contains("content-type"), "{response:?}");

    let response = curl(&daemon, &["-X", "PUT", "-H", JSON, "-d", "{}"], RUN);
    assert_eq!((response.status, &*response.headers["allow"]), (405, "POST"));
    let response = curl(&daemon, &[], "/jig.v1.ToolService/Run?encoding=json&message=%7B%7D");
    assert_eq!((response.status, &*response.headers["allow"]), (405, "POST"));
}

#[tokio::test]
async fn method_without_side_effects_takes_get() {
    let daemon = Daemon::start().await;
    // {} in Base64.
    for query in ["encoding=json&message=%7B%7D", "connect=v1&encoding=json&base64=1&message=e30"] {
        let response = curl(&daemon, &[], &format!("{INFO}?{query}"));
        assert_eq!(response.status, 200, "{query}: {response:?}");
        assert!(response.json()["version"].is_string(), "{response:?}");
    }
    for (query, field) in [
        ("", "message"),
        ("encoding=yaml&message=x", "encoding"),
        ("encoding=json&message=%7B%7D&compression=gzip", "compression"),
        ("encoding=json&base64=1&message=*", "message"),
    ] {
        let response = curl(&daemon, &[], &format!("{INFO}?{query}"));
        assert_eq!(response.status, 400, "{query}: {response:?}");
        assert!(response.body.contains(field), "{response:?}");
    }
}

#[tokio::test]
async fn streaming_call_ends_with_its_error_or_trailers() {
    let daemon = Daemon::start().await;
    let path = "/jig.v1.ProcessService/Start";
    let request = enveloped(br#"{"command": "echo a; echo b >&2; exit 7"}"#);
    let stream = messages(&send(&daemon, "application/connect+json", &request, path));
    let (flags, end) = stream.last().unwrap();
    assert_eq!((*flags, end.get("error")), (2, None), "{stream:?}");
    assert!(
        stream
            .iter()
            .any(|(flags, message)| *flags == 0 && message.to_string().contains("\"exitCode\":7"))
    );

    for (request, code) in [
        (enveloped(br#"{"command": 1}"#), "invalid_argument"),
        (enveloped(b"{"), "invalid_argument"),
        (vec![1, 0, 0, 0, 1, b'x'], "invalid_argument"),
        (b"\0\0\0".to_vec(), "invalid_argument"),
        (enveloped(br#"{"command": "true", "cwd": "../x"}"#), "permission_denied"),
    ] {
        let stream = messages(&send(&daemon, "application/connect+json", &request, path));
        let [(2, end)] = &stream[..] else {
            panic!("{stream:?}");
        };
        assert_eq!(end["error"]["code"], code, "{end}");
    }
}

#[tokio::test]
async fn client_stream_uploads_a_file() {
    let daemon = Daemon::start().await;
    let start = json!({ "start": {
        "path": "d/f",
        "sizeBytes": "6",
        // sha256 of "abcdef"
        "sha256": "bef57ec7f53a6d40beb640a780a639c83bc29ac8a9816f1fc6c5c6dcd93c4721",
    } });
    let parts = [
        start.to_string(),
        r#"{"chunk": {"data": "YWJj"}}"#.into(),
        r#"{"chunk": {"offset": 3, "data": "ZGVm"}}"#.into(),
    ];
    let request: Vec<_> = parts.iter().flat_map(|part| enveloped(part.as_bytes())).collect();
    let path = "/jig.v1.TransferService/Upload";
    let stream = messages(&send(&daemon, "application/connect+json", &request, path));
    assert_eq!(stream[0].1["created"], true, "{stream:?}");
    assert_eq!(std::fs::read(daemon.file("d/f")).unwrap(), b"abcdef");

    let cut = &request[..request.len() - 1];
    let stream = messages(&send(&daemon, "application/connect+json", cut, path));
    assert!(stream[0].1["error"].is_object(), "{stream:?}");
}

#[tokio::test]
async fn large_bodies_are_translated_or_rejected() {
    let daemon = Daemon::start().await;
    let content = "\"x\\\n".repeat(500_000);
    let body = json!({ "path": "f", "content": content }).to_string();
    let written =
        send(&daemon, "application/json", body.as_bytes(), "/jig.v1.ToolService/WriteFile");
    let written: Json = serde_json::from_slice(&written).unwrap();
    assert_eq!(std::fs::read_to_string(daemon.file("f")).unwrap(), content, "{written}");

    let read = send(
        &daemon,
        "application/json",
        br#"{"path": "f", "endLine": 2}"#,
        "/jig.v1.ToolService/ReadFile",
    );
    let read: Json = serde_json::from_slice(&read).unwrap();
    assert!(
        read["content"].as_str().unwrap().starts_with("\"x\\\n\"x"),
        "{:.300}",
        read.to_string()
    );

    let huge = format!(r#"{{"command": "{}"}}"#, "x".repeat(40 << 20));
    let rejected = send(&daemon, "application/json", huge.as_bytes(), RUN);
    let rejected: Json = serde_json::from_slice(&rejected).unwrap();
    assert_eq!(rejected["code"], "resource_exhausted", "{rejected}");

    // A request can hold millions of values.
    let values = format!(r#"{{"command": "true", "argv": [{}1]}}"#, "1,".repeat(4_000_000));
    let rejected = send(&daemon, "application/json", values.as_bytes(), RUN);
    let rejected: Json = serde_json::from_slice(&rejected).unwrap();
    assert!(rejected["code"].is_string(), "{rejected}");
}

#[tokio::test]
async fn rejection_names_the_methods_of_http() {
    let daemon = Daemon::start().await;
    for (path, allowed) in
        [("/jig.v1.DaemonService/GetInfo", "GET, POST"), ("/jig.v1.ToolService/Run", "POST")]
    {
        let response = curl(&daemon, &["--request", "PUT"], path);
        assert_eq!((response.status, &*response.headers["allow"]), (405, allowed), "{path}");
    }
}

#[tokio::test]
async fn texts_of_errors_name_what_the_client_sent() {
    let daemon = Daemon::start().await;
    let run = |body: &str, timeout: &str| {
        let timeout = format!("connect-timeout-ms: {timeout}");
        let json = "content-type: application/json";
        let arguments = ["-H", json, "-H", &timeout, "-d", body];
        curl(&daemon, &arguments, "/jig.v1.ToolService/Run")
    };
    for (body, timeout, text) in [
        (r#"{"command": "true"}"#, "0", "connect-timeout-ms"),
        (r#"{"command": "cat", "stdin": "!!"}"#, "60000", "is no valid base64"),
        (
            r#"{"command": "true", "maxOutputBytes": "99999999999999999999"}"#,
            "60000",
            "; it must be a whole number from 0 to ",
        ),
    ] {
        let response = run(body, timeout);
        assert!(response.status >= 400 && response.body.contains(text), "{text}: {response:?}");
    }
}
