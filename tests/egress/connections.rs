//! A run's connections are the run's: nobody else uses its listener, all end with it, and each is
//! recorded.

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

async fn start_with_proxy(world: &TestNetwork) -> Daemon {
    world.proxy_setup(&[ALLOWED.0, "*.sub.jig.test:8080"], &[ALLOWED.1]).start().await
}

/// Opens a tunnel, says so in the workspace, and waits, or ends and leaves it open.
const TUNNEL_SCRIPT: &str = "
import os, socket, sys, time
end = socket.create_connection(('127.0.0.1', 3128))
end.sendall(b'CONNECT packages.jig.test:80 HTTP/1.1\\r\\n\\r\\n')
assert b'200' in end.recv(1000)
end.sendall(b'from the run')
assert end.recv(1000) == b'from the server'
open('open', 'w').close()
if sys.argv[1] == 'stay':
    time.sleep(1000)
";

/// Takes connections to the allowed host.
fn listen_on_allowed_host(daemon: &Daemon) -> TcpListener {
    run_in_network_of(daemon, || TcpListener::bind((ALLOWED.1, 80)).unwrap())
}

/// Takes the tunnel of a run, and answers what it says.
fn accept_tunnel(listener: &TcpListener) -> TcpStream {
    let (mut server, _) = listener.accept().unwrap();
    let mut received = [0; 12];
    server.read_exact(&mut received).unwrap();
    assert_eq!(&received, b"from the run");
    server.write_all(b"from the server").unwrap();
    server
}

/// Reads until the other side has closed or cut the connection.
fn read_until_closed(mut server: TcpStream) -> Vec<u8> {
    server.set_read_timeout(Some(wait_timeout())).unwrap();
    let mut bytes = Vec::new();
    // One that is cut has an end too.
    let mut piece = [0; 4096];
    loop {
        match server.read(&mut piece) {
            Ok(0) => return bytes,
            Ok(length) => bytes.extend(&piece[..length]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return bytes,
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test]
async fn connections_close_when_their_run_ends() {
    let world = TestNetwork::with_hosts(&[ALLOWED]);
    let daemon = start_with_proxy(&world).await;
    let listener = listen_on_allowed_host(&daemon);
    for ends in ["leave", "stay"] {
        let run = daemon.spawn_run(argv(&["python3", "-c", TUNNEL_SCRIPT, ends]));
        let accepting = listener.try_clone().unwrap();
        let server = tokio::task::spawn_blocking(move || accept_tunnel(&accepting));
        let server = promptly("it connects", server).await.unwrap();
        eventually("it is connected", async || daemon.file("open").exists()).await;
        std::fs::remove_file(daemon.file("open")).unwrap();
        if ends == "stay" {
            run.abort();
        } else {
            let response = promptly("it ends", run).await.unwrap().unwrap();
            assert_eq!(response.exit_code, Some(0), "{response:?}");
            assert_eq!(daemon.info().await.egress.unwrap().connections_active, 0);
        }
        let remaining_bytes = tokio::task::spawn_blocking(move || read_until_closed(server));
        assert_eq!(remaining_bytes.await.unwrap(), b"");
        eventually("nothing is left of it", async || {
            daemon.info().await.egress.unwrap().connections_active == 0
        })
        .await;
    }
}

#[tokio::test]
async fn next_run_inherits_no_connections() {
    let world = TestNetwork::with_hosts(&[ALLOWED]);
    let daemon = start_with_proxy(&world).await;
    let requests = start_http_server(&daemon, ALLOWED.1, 80, None);
    // Connections that nobody has accepted yet when their run ends, with a request in each.
    let hasty = "
import socket
for number in range(40):
    end = socket.create_connection(('127.0.0.1', 3128))
    end.sendall(b'GET http://packages.jig.test/hasty HTTP/1.1\\r\\nHost: packages.jig.test\\r\\n\\r\\n')
";
    for _ in 0..5 {
        daemon.output(argv(&["python3", "-c", hasty])).await;
        let before = requests.heads().len();
        let records = egress_records(&daemon).len();
        // Enough for every slot to have its turn.
        for _ in 0..4 {
            assert_eq!(daemon.output(shell("cat /proc/net/tcp | wc -l")).await, "2\n");
        }
        assert_eq!(requests.heads().len(), before, "nothing of it goes on");
        assert_eq!(egress_records(&daemon).len(), records);
    }
}

#[tokio::test]
async fn each_run_has_its_own_listener() {
    let world = TestNetwork::with_hosts(&[ALLOWED]);
    let daemon = start_with_proxy(&world).await;
    let listener = listen_on_allowed_host(&daemon);
    let mark = Mark::new();
    let one = daemon.spawn_run(mark.on(argv(&["python3", "-c", TUNNEL_SCRIPT, "stay"])));
    let accepting = listener.try_clone().unwrap();
    let server = tokio::task::spawn_blocking(move || accept_tunnel(&accepting));
    eventually("one is connected", async || daemon.file("open").exists()).await;
    // The other sees its own listener, and no connection.
    let other = daemon.output(shell("cat /proc/net/tcp")).await;
    let lines: Vec<&str> = other.lines().skip(1).collect();
    assert_eq!(lines.len(), 1, "{other}");
    assert!(lines[0].contains("0100007F:0C38 00000000:0000 0A"), "{other}");
    let first = daemon.output(shell("readlink /proc/self/ns/net")).await;
    let of_one = std::fs::read_link(format!("/proc/{}/ns/net", mark.processes()[0])).unwrap();
    assert_ne!(first.trim(), of_one.to_str().unwrap());
    // Nobody in it can take the port.
    let response = daemon
        .run(argv(&[
            "python3",
            "-c",
            "import socket\nend = socket.socket()\nfor option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):\n    end.setsockopt(socket.SOL_SOCKET, option, 1)\nend.bind(('127.0.0.1', 3128))\nend.listen()",
        ]))
        .await;
    assert!(response.stderr.contains("in use"), "{response:?}");
    one.abort();
    drop(server.await.unwrap());
    mark.wait_until_gone().await;
}

#[tokio::test]
async fn daemon_records_connections_up_to_a_limit() {
    let world = TestNetwork::with_hosts(&[ALLOWED, OTHER, ("a.sub.jig.test", "10.1.2.3")]);
    let daemon = start_with_proxy(&world).await;
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
    let started = records[0]["call_id"].as_str().unwrap();
    for (record, (method, host, port, decision, reason, address)) in records.iter().zip(expected) {
        assert_eq!(record["event"], "egress", "{record}");
        assert_eq!(record["method"], method, "{record}");
        assert_eq!(record["host"], host, "{record}");
        assert_eq!(record["port"], port, "{record}");
        assert_eq!(record["decision"], decision, "{record}");
        assert_eq!(record["reason"].as_str(), reason, "{record}");
        assert_eq!(record["address"].as_str(), address, "{record}");
        assert_eq!(record["call_id"], started, "{record}");
        assert_eq!(record["tool"], "run", "{record}");
        assert_eq!(record["step"], 1, "{record}");
        assert!(record["duration_sec"].as_f64().unwrap() >= 0.0, "{record}");
        let moved =
            record["sent_bytes"].as_u64().unwrap() + record["received_bytes"].as_u64().unwrap();
        assert_eq!(moved > 0, decision == "allowed", "{record}");
    }
    // All denied ones were said in the log too.
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

#[tokio::test(flavor = "multi_thread")]
async fn each_connection_has_a_span_below_its_process() {
    let world = TestNetwork::with_hosts(&[ALLOWED, OTHER]);
    let mut daemon = world
        .proxy_setup(&[ALLOWED.0], &[ALLOWED.1])
        .environment("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4317")
        .start()
        .await;
    let collecting = run_in_network_of(&daemon, || TcpListener::bind("127.0.0.1:4317").unwrap());
    let collector = Collector::serve(collecting);
    start_http_server(&daemon, ALLOWED.1, 80, None);
    let id = "c".repeat(32);
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
    daemon.signal(Signal::TERM);
    assert!(daemon.wait_for_exit().await.success());
    let spans = collector.spans_of_trace(&id);
    let process = spans.iter().find(|span| span.name == "curl").unwrap();
    for (name, value) in
        [("jig.sandbox.network", "proxy"), ("jig.egress.attempts", "2"), ("jig.egress.denied", "1")]
    {
        let found = attribute_text(&process.attributes, name);
        assert_eq!(found.as_deref(), Some(value), "{name}");
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
