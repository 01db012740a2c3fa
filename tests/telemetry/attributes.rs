//! The attributes of spans: the documented ones, and no others.

use std::{collections::BTreeSet, net::TcpListener};

use jig::api::v1::{LowerLimits, RunRequest};
use opentelemetry_proto::tonic::trace::v1::{Span, span::SpanKind};
use rustix::process::Signal;
use serde_json::json;

use crate::{
    approvals::{decide, decide_request, spawn_write, wait_for_pending_approval, write_request},
    invoke::{call, invoke},
    support::{
        Collector, Daemon, TestNetwork, argv, promptly, run_in_network_of, shell,
        start_http_server, start_request, with_metadata,
    },
};

const PAGE: &str = include_str!("../../docs/telemetry.md");
/// The host that commands may connect to.
const HOST: (&str, &str) = ("packages.jig.test", "203.0.113.10");

/// A policy that asks for writes, and limits of runs.
const LIMITS: &str = "[policy]\nsafe_write = \"ask\"\n[limits]\nconcurrent_processes = 1\ncpu_sec = 60\noutput_bytes = 1000000";

/// The documented attributes, each with its span: `RPC`, `tool`, `process` or `egress`.
fn documented_attributes() -> BTreeSet<(String, String)> {
    let (_, rest) = PAGE.split_once("\n| attribute | span | content |\n|---|---|---|\n").unwrap();
    let (rows, _) = rest.split_once("\n\n").unwrap();
    let pairs = rows.lines().flat_map(|row| {
        let cells: Vec<_> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let names: Vec<_> = cells[0].split('`').skip(1).step_by(2).collect();
        let spans: Vec<_> = cells[1].split(", ").collect();
        assert!(!names.is_empty() && cells.len() == 3, "{row}");
        let pairs = spans.into_iter().flat_map(move |span| {
            names.clone().into_iter().map(move |name| (span.to_owned(), name.to_owned()))
        });
        pairs.collect::<Vec<_>>()
    });
    pairs.collect()
}

/// The attributes of spans, each with its span.
fn emitted_attributes(spans: &[Span]) -> BTreeSet<(String, String)> {
    let pairs = spans.iter().flat_map(|span| {
        let kind = match span.kind() {
            SpanKind::Server => "RPC",
            SpanKind::Internal => "tool",
            _ if span.name == "egress" => "egress",
            _ => "process",
        };
        span.attributes.iter().map(move |attribute| (kind.to_owned(), attribute.key.clone()))
    });
    pairs.collect()
}

/// Makes calls of each kind, so that each attribute has a value.
async fn make_calls(daemon: &Daemon) {
    daemon.run(with_metadata("jig-request-id", "one", shell("true"))).await;
    daemon.run(argv(&["curl", "-sS", "http://packages.jig.test/a"])).await;
    daemon.run(argv(&["curl", "-sS", "http://other.jig.test/b"])).await;
    daemon.run(argv(&["sh", "-c", "kill -TERM $$"])).await;
    let limits = Some(LowerLimits { output_bytes: Some(1024), ..LowerLimits::default() });
    daemon.run(RunRequest { limits, ..shell("head -c 100000 /dev/zero") }).await;
    let timeout = RunRequest { timeout_sec: Some(1), ..shell("sleep 100") };
    daemon.run(timeout).await;
    invoke(daemon, call("claude", "Bash", json!({"command": "true"}))).await;

    for is_allowed in [true, false] {
        let write = spawn_write(daemon, write_request("f", "text"));
        let approval = wait_for_pending_approval(daemon).await;
        let decision =
            if is_allowed { jig::api::v1::Decision::Allow } else { jig::api::v1::Decision::Deny };
        decide(daemon, decide_request(&approval, decision)).await.unwrap();
        assert_eq!(write.await.unwrap().is_ok(), is_allowed);
    }

    let sleep = || start_request(argv(&["sleep", "1000"]));
    let first = daemon.processes().start(sleep()).await.unwrap();
    daemon.processes().start(sleep()).await.unwrap_err();
    drop(first);
}

/// Calls an unknown method of the daemon, over TCP.
fn call_unknown_method(daemon: &Daemon) {
    let url = format!("http://127.0.0.1:{}/jig.v1.ToolService/NoSuchMethod", daemon.port());
    run_in_network_of(daemon, move || {
        let arguments = ["-sS", "--http2-prior-knowledge", "-X", "POST"];
        let mut curl = std::process::Command::new("curl");
        curl.args(arguments).args(["-H", "content-type: application/grpc", &url]);
        assert!(curl.status().unwrap().success());
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn every_documented_attribute_is_emitted_and_no_other() {
    let network = TestNetwork::with_hosts(&[HOST]);
    let table = format!(
        "[sandbox]\nnetwork = \"proxy\"\n[proxy]\nallow_hosts = [{:?}]\nallow_addresses = [{:?}]\n{LIMITS}",
        HOST.0, HOST.1
    );
    let setup = network
        .setup()
        .workspace_table(&table)
        .listen_tcp()
        .arguments(&["--capture-content", "truncated"])
        .environment("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317");
    let mut daemon = setup.start().await;
    let listener = run_in_network_of(&daemon, || TcpListener::bind("127.0.0.1:4317").unwrap());
    let collector = Collector::serve(listener);
    start_http_server(&daemon, HOST.1, 80, None);

    make_calls(&daemon).await;
    call_unknown_method(&daemon);
    daemon.signal(Signal::TERM);
    assert!(promptly("the daemon ends", daemon.wait_for_exit()).await.success());

    let (documented, emitted) = (documented_attributes(), emitted_attributes(&collector.spans()));
    let missing: Vec<_> = documented.difference(&emitted).collect();
    let undocumented: Vec<_> = emitted.difference(&documented).collect();
    assert!(missing.is_empty(), "documented, but not emitted: {missing:?}");
    assert!(undocumented.is_empty(), "emitted, but not documented: {undocumented:?}");

    let names: BTreeSet<_> = emitted.iter().map(|(_, name)| name).collect();
    for name in names.iter().filter(|name| !name.starts_with("jig.")) {
        let known = ["error.", "gen_ai.", "http.", "network.", "process.", "rpc.", "server."];
        assert!(known.iter().any(|namespace| name.starts_with(namespace)), "{name}");
    }
}
