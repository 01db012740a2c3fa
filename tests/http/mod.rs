//! Ways in over HTTP beside gRPC: the Connect protocol, and probes.

mod connect;
mod openapi;
mod session_events;

use std::process::Command;

use crate::support::{Daemon, Setup, curl};

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
    assert_eq!(curl(&daemon, &arguments, "/jig.v1.ToolService/Run").status, 505);
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
    ] {
        let (status, text) = post(&daemon, headers);
        assert_eq!(status, 403, "{headers:?}: {text}");
        assert!(text.contains("http.allowed_"), "{text}");
        assert!(!text.contains("access-control"), "{text}");
    }
    assert_eq!(post(&daemon, &["host: a b"]).0, 400);
    assert!(!daemon.file("ran").exists());

    for headers in [
        &[][..],
        &["host: localhost"],
        &["host: LocalHost.:1"],
        &["host: a.localhost"],
        &["host: [::1]:5"],
        &["origin: http://localhost:7", "host: localhost:7"],
    ] {
        let (status, text) = post(&daemon, headers);
        assert_eq!(status, 200, "{headers:?}: {text}");
    }
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
