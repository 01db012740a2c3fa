//! Ways in over HTTP beside gRPC: the Connect protocol, and probes.

mod connect;
pub(crate) mod openapi;
mod rest;
mod session_events;

use std::{
    fmt::Write as _,
    io::{Read as _, Write as _},
    net::TcpStream,
    process::Command,
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};

use crate::support::{Daemon, KeyFile, Setup, curl};

#[tokio::test]
async fn probes_follow_health() {
    let daemon = Daemon::start().await;
    for path in ["/healthz", "/readyz"] {
        let response = curl(&daemon, &[], path);
        assert_eq!((response.status, &*response.body), (200, "ok\n"), "{path}");
    }

    // Without sandboxes no command can run, but a restart would not help.
    let daemon = Setup::new().without_namespaces().start().await;
    assert_eq!(curl(&daemon, &[], "/healthz").status, 200);
    assert_eq!(curl(&daemon, &[], "/readyz").status, 503);
}

#[tokio::test]
async fn http_1_is_no_grpc() {
    let daemon = Daemon::start().await;
    let arguments = ["-H", "content-type: application/grpc", "--data-binary", "x"];
    let response = curl(&daemon, &arguments, "/jig.v1.ToolService/Run");
    assert_eq!(response.status, 505);
    assert!(response.body.contains("gRPC needs HTTP/2"), "{response:?}");
}

/// A POST request with JSON for the daemon's port, as a web page makes a browser send it.
fn post(daemon: &Daemon, headers: &[&str]) -> (u16, String) {
    let url = format!("http://127.0.0.1:{}/jig.v1.ToolService/Run", daemon.port());
    let mut command = Command::new("curl");
    command.args(["-sS", "--include", "-H", "content-type: application/json"]);
    for header in headers {
        command.args(["-H", header]);
    }
    let output = command.args(["-d", r#"{"command": "touch ran"}"#, &url]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    (text.split(' ').nth(1).unwrap().parse().unwrap(), text)
}

#[tokio::test]
async fn page_of_another_site_cannot_call() {
    let daemon = Setup::new().arguments(&["--listen", "127.0.0.1:0"]).start().await;
    for headers in [
        &["origin: https://evil.example"][..],
        &["origin: null"],
        &["origin: http://127.0.0.1"],
        &["origin: http://localhost:7", "host: localhost:8"],
        &["origin: http://evil.example:7", "host: evil.example:7"],
        // DNS rebinding: the page's own name resolves to the loopback address.
        &["host: evil.example"],
        &["host: evil.example:50051"],
        &["host: 127.0.0.1.evil.example"],
        &["host: 192.0.2.1"],
        // A form, a script or an image of another site.
        &["sec-fetch-site: cross-site"],
        &["sec-fetch-site: same-site"],
    ] {
        let (status, text) = post(&daemon, headers);
        assert_eq!(status, 403, "{headers:?}: {text}");
        assert!(text.contains("http.allowed_"), "{text}");
        assert!(!text.contains("access-control"), "{text}");
    }
    for headers in [
        &["host: a b"][..],
        &["host:"],
        &["host: evil@localhost"],
        &["origin: null", "origin: http://localhost:7", "host: localhost:7"],
    ] {
        let (status, text) = post(&daemon, headers);
        assert_eq!(status, 400, "{headers:?}: {text}");
    }
    assert!(!daemon.file("ran").exists());

    for headers in [
        &[][..],
        &["host: localhost"],
        &["host: LocalHost.:1"],
        &["host: a.localhost"],
        &["host: [::1]:5"],
        &["origin: http://localhost:7", "host: localhost:7"],
        // The address line of a browser.
        &["sec-fetch-site: none"],
        &["sec-fetch-site: same-origin"],
    ] {
        let (status, text) = post(&daemon, headers);
        assert_eq!(status, 200, "{headers:?}: {text}");
        assert!(text.contains("x-content-type-options: nosniff"), "{text}");
        assert!(text.contains("cross-origin-resource-policy: same-origin"), "{text}");
    }

    let absolute = ["--request-target", "http://evil.example/healthz"];
    assert_eq!(curl(&daemon, &absolute, "/").status, 400);
}

#[tokio::test]
async fn request_names_its_host_once() {
    let daemon = Setup::new().arguments(&["--listen", "127.0.0.1:0"]).start().await;
    for (hosts, expected) in [
        ("", "400"),
        ("host: localhost\r\n", "200"),
        // A proxy could follow the one, and the daemon the other.
        ("host: localhost\r\nhost: localhost\r\n", "400"),
        ("host: localhost\r\nhost: evil.example\r\n", "400"),
    ] {
        let mut connection = TcpStream::connect(("127.0.0.1", daemon.port())).unwrap();
        let request = format!("GET /healthz HTTP/1.1\r\n{hosts}connection: close\r\n\r\n");
        connection.write_all(request.as_bytes()).unwrap();
        let mut response = String::new();
        connection.read_to_string(&mut response).unwrap();
        assert_eq!(response.split(' ').nth(1), Some(expected), "{hosts:?}: {response}");
    }
}

#[tokio::test]
async fn probes_reach_the_daemon_by_any_name() {
    let setup = Setup::new().workspace_table("[http]\nallowed_hosts = [\"jig.internal\"]");
    let daemon = setup.arguments(&["--listen", "127.0.0.1:0"]).start().await;
    assert_eq!(post(&daemon, &["host: 10.0.0.5:50051"]).0, 403);
    for path in ["healthz", "readyz"] {
        let url = format!("http://127.0.0.1:{}/{path}", daemon.port());
        let mut command = Command::new("curl");
        command.args(["-sS", "--include", "-H", "host: 10.0.0.5:50051", &url]);
        let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
        assert!(text.starts_with("HTTP/1.1 200"), "{path}: {text}");
    }
}

#[tokio::test]
async fn missing_key_is_asked_for() {
    let keys = KeyFile::new();
    keys.add_key("agent", "invoke", &[]);
    let path = keys.path();
    let daemon = Setup::new().arguments(&["--keys", path.to_str().unwrap()]).start().await;
    for (arguments, path) in [
        (&[][..], "/v1/agent-tools"),
        (&["--json", "{}"], "/jig.v1.ToolService/Run"),
        (&["--json", "{}"], "/mcp"),
    ] {
        let response = curl(&daemon, arguments, path);
        assert_eq!(response.status, 401, "{path}");
        assert_eq!(response.headers["www-authenticate"], "Bearer", "{path}");
    }
}

#[tokio::test]
async fn answer_reaches_a_client_that_still_sends() {
    let keys = KeyFile::new();
    keys.add_key("agent", "invoke", &[]);
    let path = keys.path();
    let setup = Setup::new().arguments(&["--keys", path.to_str().unwrap()]);
    let daemon = setup.arguments(&["--listen", "127.0.0.1:0"]).start().await;
    let answer_beside = |length: usize| {
        let mut connection = TcpStream::connect(("127.0.0.1", daemon.port())).unwrap();
        let mut head = String::from("POST /jig.v1.ToolService/Run HTTP/1.1\r\nhost: localhost\r\n");
        write!(head, "content-type: application/json\r\ncontent-length: {length}\r\n\r\n").unwrap();
        connection.write_all(head.as_bytes()).unwrap();
        let mut start = [0; 12];
        connection.read_exact(&mut start).unwrap();
        assert_eq!(&start, b"HTTP/1.1 401");

        let mut rest = vec![b' '; length];
        rest.extend(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        let sent = connection.write_all(&rest);
        let mut answers = String::new();
        sent.and_then(|()| connection.read_to_string(&mut answers)).map(|_| answers)
    };
    let answers = answer_beside(1 << 20).unwrap();
    assert!(answers.contains("HTTP/1.1 200"), "the connection is kept: {answers}");
    let closed = answer_beside(64 << 20).map_or(true, |answers| !answers.contains("HTTP/1.1 200"));
    assert!(closed, "what is read after an answer is bounded");
}

#[tokio::test]
async fn key_of_a_subprotocol_is_for_web_sockets() {
    let keys = KeyFile::new();
    let key = keys.add_key("agent", "invoke", &[]);
    let path = keys.path();
    let daemon = Setup::new().arguments(&["--keys", path.to_str().unwrap()]).start().await;
    let protocol = format!("sec-websocket-protocol: jig.key.{}", URL_SAFE_NO_PAD.encode(key));
    assert_eq!(curl(&daemon, &["-H", &protocol], "/v1/agent-tools").status, 401);
}

#[tokio::test]
async fn page_of_an_allowed_origin_can_call() {
    let table =
        "[http]\nallowed_hosts = [\"jig.internal\"]\nallowed_origins = [\"https://app.example\"]";
    let setup = Setup::new().arguments(&["--listen", "127.0.0.1:0"]);
    let daemon = setup.workspace_table(table).start().await;

    let (status, text) = post(&daemon, &["origin: https://app.example", "host: jig.internal"]);
    assert_eq!(status, 200, "{text}");
    assert!(text.contains("access-control-allow-origin: https://app.example"), "{text}");
    assert!(!text.contains("access-control-allow-credentials"), "{text}");
    assert_eq!(post(&daemon, &["origin: https://other.example"]).0, 403);
    assert_eq!(post(&daemon, &["host: other.internal"]).0, 403);

    let preflight = [
        "-X",
        "OPTIONS",
        "-H",
        "origin: https://app.example",
        "-H",
        "access-control-request-method: POST",
        "-H",
        "access-control-request-headers: content-type,x-api-key",
    ];
    let response = curl(&daemon, &preflight, "/jig.v1.ToolService/Run");
    assert_eq!(response.status, 200, "{response:?}");
    assert_eq!(response.headers["access-control-allow-headers"], "content-type,x-api-key");
}
