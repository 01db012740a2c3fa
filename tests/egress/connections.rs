//! Connections of a run: no other run can use its listener, all connections end with the run, and
//! each is recorded.

use std::{
    io::{Read as _, Write as _},
    net::{TcpListener, TcpStream},
};

use opentelemetry_proto::tonic::trace::v1::Span;
use rustix::process::Signal;

use super::{ALLOWED, OTHER, egress_records, proxy_request};
use crate::support::{
    Collector, Daemon, Mark, TestNetwork, argv, attribute_text, eventually, promptly,
    run_in_network_of, shell, start_http_server, wait_timeout,
};

/// A daemon whose commands may connect to [`ALLOWED`], and to subdomains of sub.jig.test on port
/// 8080.
async fn start_with_wildcard_proxy(network: &TestNetwork) -> Daemon {
    network.proxy_setup(&[ALLOWED.0, "*.sub.jig.test:8080"], &[ALLOWED.1]).start().await
}

/// Opens a tunnel, creates the file `open`, and then waits or ends without closing the tunnel.
const TUNNEL_SCRIPT: &str = "
import os, socket, sys, time
connection = socket.create_connection(('127.0.0.1', 3128))
connection.sendall(b'CONNECT packages.jig.test:80 HTTP/1.1\\r\\n\\r\\n')
assert b'200' in connection.recv(1000)
connection.sendall(b'from the run')
assert connection.recv(1000) == b'from the server'
open('open', 'w').close()
if sys.argv[1] == 'stay':
    time.sleep(1000)
";

/// Listens on the allowed host's address.
fn listen_on_allowed_host(daemon: &Daemon) -> TcpListener {
    run_in_network_of(daemon, || TcpListener::bind((ALLOWED.1, 80)).unwrap())
}

/// Accepts the tunnel of a run and answers its message.
fn accept_tunnel(listener: &TcpListener) -> TcpStream {
    let (mut server, _) = listener.accept().unwrap();
    let mut received = [0; 12];
    server.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"from the run");
    server.write_all(b"from the server").unwrap();
    server
}

/// Reads until the peer has closed or reset the connection.
fn read_until_closed(mut server: TcpStream) -> Vec<u8> {
    server.set_read_timeout(Some(wait_timeout())).unwrap();
    let mut bytes = Vec::new();

    // A reset counts as an end.
    let mut buffer = [0; 4096];
    loop {
        match server.read(&mut buffer) {
            Ok(0) => return bytes,
            Ok(length) => bytes.extend(&buffer[..length]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return bytes,
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test]
async fn connections_close_when_their_run_ends() {
    let network = TestNetwork::with_hosts(&[ALLOWED]);
    let daemon = start_with_wildcard_proxy(&network).await;
    let listener = listen_on_allowed_host(&daemon);
    for mode in ["leave", "stay"] {
        let run = daemon.spawn_run(argv(&["python3", "-c", TUNNEL_SCRIPT, mode]));
        let run_listener = listener.try_clone().unwrap();
        let server = tokio::task::spawn_blocking(move || accept_tunnel(&run_listener));
        let server = promptly("the run connects", server).await.unwrap();
        eventually("the tunnel is open", async || daemon.file("open").exists()).await;
        std::fs::remove_file(daemon.file("open")).unwrap();

        if mode == "stay" {
            run.abort();
        } else {
            let response = promptly("the run ends", run).await.unwrap().unwrap();
            assert_eq!(response.exit_code, Some(0), "{response:?}");
            assert_eq!(daemon.info().await.egress.unwrap().connections_active, 0);
        }

        let remaining_bytes = tokio::task::spawn_blocking(move || read_until_closed(server));
        assert_eq!(remaining_bytes.await.unwrap(), b"");

        eventually("the run's connections have ended", async || {
            daemon.info().await.egress.unwrap().connections_active == 0
        })
        .await;
    }
}

#[tokio::test]
async fn next_run_inherits_no_connections() {
    let network = TestNetwork::with_hosts(&[ALLOWED]);
    let daemon = start_with_wildcard_proxy(&network).await;
    let requests = start_http_server(&daemon, ALLOWED.1, 80, None);

    // Connections that the proxy has not accepted when their run ends, with a request on each.
    let script = "
import socket
for number in range(40):
    connection = socket.create_connection(('127.0.0.1', 3128))
    connection.sendall(b'GET http://packages.jig.test/hasty HTTP/1.1\\r\\nHost: packages.jig.test\\r\\n\\r\\n')
";

    for _ in 0..5 {
        daemon.output(argv(&["python3", "-c", script])).await;
        let before = requests.heads().len();
        let records = egress_records(&daemon).len();
        // Enough runs to use every slot.
        for _ in 0..4 {
            assert_eq!(daemon.output(shell("cat /proc/net/tcp | wc -l")).await, "2\n");
        }
        assert_eq!(requests.heads().len(), before, "a request of the ended run was forwarded");
        assert_eq!(egress_records(&daemon).len(), records);
    }
}

#[tokio::test]
async fn each_run_has_its_own_listener() {
    let network = TestNetwork::with_hosts(&[ALLOWED]);
    let daemon = start_with_wildcard_proxy(&network).await;
    let listener = listen_on_allowed_host(&daemon);
    let mark = Mark::new();
    let first_run = daemon.spawn_run(mark.on(argv(&["python3", "-c", TUNNEL_SCRIPT, "stay"])));
    let run_listener = listener.try_clone().unwrap();
    let server = tokio::task::spawn_blocking(move || accept_tunnel(&run_listener));
    eventually("the first run is connected", async || daemon.file("open").exists()).await;

    // The second run sees its own listener, and no connection.
    let tcp_table = daemon.output(shell("cat /proc/net/tcp")).await;
    let lines: Vec<&str> = tcp_table.lines().skip(1).collect();
    assert_eq!(lines.len(), 1, "{tcp_table}");
    assert!(lines[0].contains("0100007F:0C38 00000000:0000 0A"), "{tcp_table}");

    let second_namespace = daemon.output(shell("readlink /proc/self/ns/net")).await;
    let first_namespace =
        std::fs::read_link(format!("/proc/{}/ns/net", mark.processes()[0])).unwrap();
    assert_ne!(second_namespace.trim(), first_namespace.to_str().unwrap());

    // A command of the run cannot bind the port.
    let response = daemon
        .run(argv(&[
            "python3",
            "-c",
            "import socket\nend = socket.socket()\nfor option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):\n    end.setsockopt(socket.SOL_SOCKET, option, 1)\nend.bind(('127.0.0.1', 3128))\nend.listen()",
        ]))
        .await;
    assert!(response.stderr.contains("in use"), "{response:?}");

    first_run.abort();
    drop(server.await.unwrap());
    mark.wait_until_gone().await;
}

#[tokio::test]
async fn daemon_records_connections_up_to_a_limit() {
    let network = TestNetwork::with_hosts(&[ALLOWED, OTHER, ("a.sub.jig.test", "10.1.2.3")]);
    let daemon = start_with_wildcard_proxy(&network).await;
    start_http_server(&daemon, ALLOWED.1, 80, None);
    daemon
        .run(shell(
            "curl -sS http://packages.jig.test/a http://other.jig.test/b http://packages.jig.test:8081/c http://a.sub.jig.test:8080/d; curl -sS https://packages.jig.test/",
        ))
        .await;
    let records = egress_records(&daemon);

    let expected = [
        ("GET", "packages.jig.test", 80, "allowed", None, Some(ALLOWED.1)),
        ("GET", "other.jig.test", 80, "denied", Some("host_not_allowed"), None),
        ("GET", "packages.jig.test", 8081, "denied", Some("port_not_allowed"), None),
        ("GET", "a.sub.jig.test", 8080, "denied", Some("address_not_allowed"), Some("10.1.2.3")),
        ("CONNECT", "packages.jig.test", 443, "failed", Some("connect_failed"), Some(ALLOWED.1)),
    ];
    assert_eq!(records.len(), expected.len(), "{records:#?}");

    let call_id = records[0]["call_id"].as_str().unwrap();
    for (record, (method, host, port, decision, reason, address)) in records.iter().zip(expected) {
        assert_eq!(record["event"], "egress", "{record}");
        assert_eq!(record["method"], method, "{record}");
        assert_eq!(record["host"], host, "{record}");
        assert_eq!(record["port"], port, "{record}");
        assert_eq!(record["decision"], decision, "{record}");
        assert_eq!(record["reason"].as_str(), reason, "{record}");
        assert_eq!(record["address"].as_str(), address, "{record}");
        assert_eq!(record["call_id"], call_id, "{record}");
        assert_eq!(record["tool"], "run", "{record}");
        assert_eq!(record["step"], 1, "{record}");
        assert!(record["duration_sec"].as_f64().unwrap() >= 0.0, "{record}");

        let bytes =
            record["sent_bytes"].as_u64().unwrap() + record["received_bytes"].as_u64().unwrap();
        assert_eq!(bytes > 0, decision == "allowed", "{record}");
    }

    // The log has each denied connection.
    assert_eq!(daemon.log().matches("connection was refused").count(), 3);

    let request = "GET http://other.jig.test/ HTTP/1.1\r\nHost: other.jig.test\r\n\r\n";
    let last =
        "GET http://other.jig.test/ HTTP/1.1\r\nHost: other.jig.test\r\nConnection: close\r\n\r\n";
    daemon.run(proxy_request(&(request.repeat(149) + last))).await;
    let records = egress_records(&daemon);
    let records = &records[expected.len()..];
    assert_eq!(records.len(), 101);

    let summary = records.last().unwrap();
    assert_eq!(summary["event"], "egress_summary");
    assert_eq!(summary["attempts"], 150);
    assert_eq!(summary["denied"], 150);
    assert_eq!(summary["not_recorded"], 50);
    assert_eq!(summary["step"], 2);
}

/// Runs curl with a request to each host, in a trace.
async fn run_two_requests_in_trace(daemon: &Daemon, id: &str) {
    let mut request = tonic::Request::new(argv(&[
        "curl",
        "-sS",
        "http://packages.jig.test/a",
        "http://other.jig.test/b",
    ]));
    let parent = format!("00-{id}-00f067aa0ba902b7-01");
    let metadata = request.metadata_mut();
    metadata.insert("traceparent", parent.parse().unwrap());
    daemon.run(request).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_connection_has_a_span_below_its_process() {
    let network = TestNetwork::with_hosts(&[ALLOWED, OTHER]);
    let mut daemon = network
        .proxy_setup(&[ALLOWED.0], &[ALLOWED.1])
        .environment("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317")
        .start()
        .await;
    let otlp_listener = run_in_network_of(&daemon, || TcpListener::bind("127.0.0.1:4317").unwrap());
    let collector = Collector::serve(otlp_listener);
    start_http_server(&daemon, ALLOWED.1, 80, None);

    let id = "c".repeat(32);
    run_two_requests_in_trace(&daemon, &id).await;
    daemon.signal(Signal::TERM);
    assert!(daemon.wait_for_exit().await.success());

    let spans = collector.spans_of_trace(&id);
    let process = spans.iter().find(|span| span.name == "curl").unwrap();
    for (name, value) in
        [("jig.sandbox.network", "proxy"), ("jig.egress.attempts", "2"), ("jig.egress.denied", "1")]
    {
        let actual = attribute_text(&process.attributes, name);
        assert_eq!(actual.as_deref(), Some(value), "{name}");
    }

    let egress: Vec<_> = spans.iter().filter(|span| span.name == "egress").collect();
    assert_eq!(egress.len(), 2, "{spans:#?}");

    for (host, expected) in [
        (
            ALLOWED.0,
            [
                ("jig.egress.decision", Some("allowed")),
                ("network.peer.address", Some(ALLOWED.1)),
                ("network.peer.port", Some("80")),
                ("error.type", None),
            ],
        ),
        (
            OTHER.0,
            [
                ("jig.egress.decision", Some("denied")),
                ("network.peer.address", None),
                ("jig.egress.received_bytes", Some("0")),
                ("error.type", Some("host_not_allowed")),
            ],
        ),
    ] {
        let of_host = |span: &&&Span| {
            attribute_text(&span.attributes, "server.address").as_deref() == Some(host)
        };
        let span = egress.iter().find(of_host).unwrap();
        assert_eq!(span.parent_span_id, process.span_id);
        assert_eq!(attribute_text(&span.attributes, "server.port").as_deref(), Some("80"));
        assert_eq!(attribute_text(&span.attributes, "http.request.method").as_deref(), Some("GET"));

        for (name, value) in expected {
            assert_eq!(attribute_text(&span.attributes, name).as_deref(), value, "{host}: {name}");
        }
    }
}
