//! HTTP semantics of the proxy. It rejects ambiguous requests, drops hop-by-hop headers, and a
//! hostile command affects only its own run.

use std::net::UdpSocket;

use jig::api::v1::RunRequest;
use tonic_health::pb::health_check_response::ServingStatus;

use super::{ALLOWED, OTHER, proxy_request, start_with_proxy};
use crate::support::{
    TestNetwork, argv, eventually, full_size, probe_while_waiting, promptly, run_in_network_of,
    shell, start_http_server, wait_timeout,
};

#[tokio::test]
async fn proxy_forwards_requests_without_proxy_headers() {
    let (_network, daemon) = start_with_proxy().await;
    let requests = start_http_server(&daemon, ALLOWED.1, 80, None);
    let response = daemon
        .output(proxy_request(
            "POST http://Packages.Jig.Test:80/p?q HTTP/1.1\r\nHost: packages.jig.test\r\nContent-Length: 3\r\nX-Kept: yes\r\n\
             Proxy-Authorization: Basic c2VjcmV0\r\nProxy-Connection: keep-alive\r\nConnection: close, X-Dropped\r\nX-Dropped: yes\r\n\
             TE: trailers\r\nUpgrade: websocket\r\n\r\nabc",
        ))
        .await;

    assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
    assert!(response.ends_with("3 bytes at /p\n"), "{response}");

    let heads = requests.heads();
    let [head] = heads.as_slice() else {
        panic!("{heads:?}");
    };
    let lower = head.to_lowercase();
    assert!(lower.starts_with("post /p?q http/1.1\r\n"), "{head}");

    for header in [
        "host: packages.jig.test\r\n",
        "x-kept: yes\r\n",
        "via: 1.1 jig\r\n",
        "content-length: 3\r\n",
        "connection: close\r\n",
    ] {
        assert_eq!(lower.matches(header).count(), 1, "{header} in {head}");
    }

    for text in ["proxy-", "x-dropped", "te:", "upgrade", "secret"] {
        assert!(!lower.contains(text), "{text} in {head}");
    }
}

/// Requests that the proxy must reject, with the start of the expected status.
fn ambiguous_requests() -> Vec<(String, &'static str)> {
    let headers = |count: usize| -> String {
        let field = |number| format!("X-{number}: 1\r\n");
        (0..count).map(field).collect()
    };

    let host = "Host: packages.jig.test\r\nConnection: close\r\n";
    vec![
        ("nonsense\r\n\r\n".to_owned(), "400"),
        (
            format!("GET / HTTP/1.1\r\n{host}\r\n"),
            "400",
        ),
        ("GET http://packages.jig.test/\r\n\r\n".to_owned(), "400"),
        (
            format!("GET http://packages.jig.test\\@other.jig.test/ HTTP/1.1\r\n{host}\r\n"),
            "400",
        ),
        (
            format!("GET http://packages.jig.test/ HTTP/1.1\r\n{host}X: a\r\n Host: other.jig.test\r\n\r\n"),
            "400",
        ),
        (
            format!("GET http://packages.jig.test/ HTTP/1.1\r\n{host}X: a\rHost: other.jig.test\r\n\r\n"),
            "400",
        ),
        (
            format!("GET http://packages.jig.test/ HTTP/1.1\r\n{host}Transfer-Encoding : chunked\r\n\r\n"),
            "400",
        ),
        (
            format!("POST http://packages.jig.test/ HTTP/1.1\r\n{host}Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n"),
            "400",
        ),
        (
            format!("POST http://packages.jig.test/ HTTP/1.0\r\n{host}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
            "400",
        ),
        (
            format!("POST http://packages.jig.test/ HTTP/1.1\r\n{host}Content-Length: 1, 1\r\n\r\na"),
            "400",
        ),
        (
            format!("POST http://packages.jig.test/ HTTP/1.1\r\n{host}Content-Length: +1\r\n\r\na"),
            "400",
        ),
        (
            format!("CONNECT packages.jig.test:65616 HTTP/1.1\r\n{host}\r\n"),
            "400",
        ),
        (
            "GET http://packages.jig.test/ HTTP/1.1\r\nConnection: close\r\n\r\n".to_owned(),
            "400",
        ),
        (
            "GET http://packages.jig.test/ HTTP/1.1\r\nHost: other.jig.test\r\nConnection: close\r\n\r\n".to_owned(),
            "400",
        ),
        (
            format!("GET http://packages.jig.test/ HTTP/1.1\r\n{host}Host: packages.jig.test\r\n\r\n"),
            "400",
        ),
        (
            format!("GET http://packages.jig.test@other.jig.test/ HTTP/1.1\r\n{host}\r\n"),
            "400",
        ),
        (
            format!("GET https://packages.jig.test/ HTTP/1.1\r\n{host}\r\n"),
            "400",
        ),
        (
            format!("TRACE http://packages.jig.test/ HTTP/1.1\r\n{host}\r\n"),
            "405",
        ),
        (
            "CONNECT packages.jig.test HTTP/1.1\r\nConnection: close\r\n\r\n".to_owned(),
            "400",
        ),
        (
            "CONNECT packages.jig.test:443 HTTP/1.1\r\nHost: other.jig.test:443\r\nConnection: close\r\n\r\n".to_owned(),
            "400",
        ),
        (
            format!("POST http://packages.jig.test/ HTTP/1.1\r\n{host}Content-Length: 1\r\nContent-Length: 2\r\n\r\nab"),
            "400",
        ),
        (
            format!("GET http://packages.jig.test/ HTTP/1.1\r\n{host}{}\r\n", headers(10_000)),
            "431",
        ),
        (
            format!("GET http://packages.jig.test/ HTTP/1.1\r\n{host}X: {}\r\n\r\n", "x".repeat(20_000)),
            "431",
        ),
        (
            format!("GET http://packages.jig.test/{} HTTP/1.1\r\n{host}\r\n", "x".repeat(20_000)),
            "4", // 414 or 431
        ),
    ]
}

#[tokio::test]
async fn proxy_rejects_ambiguous_requests() {
    let (_network, daemon) = start_with_proxy().await;
    let requests = start_http_server(&daemon, ALLOWED.1, 80, None);
    for (request, status) in ambiguous_requests() {
        let response = daemon.run(proxy_request(&request)).await;
        let line = response.stdout.lines().next().unwrap_or_default();
        assert!(
            line.starts_with(&format!("HTTP/1.1 {status}")),
            "{request:.120?}: {response:.600?}"
        );
    }

    assert_eq!(requests.heads(), [""; 0]);

    // A body with two lengths: the server never receives its rest as another request.
    let smuggled = "POST http://packages.jig.test/ HTTP/1.1\r\nHost: packages.jig.test\r\nContent-Length: 60\r\nTransfer-Encoding: chunked\r\n\r\n\
                    0\r\n\r\nGET http://packages.jig.test/smuggled HTTP/1.1\r\nHost: other.jig.test\r\nConnection: close\r\n\r\n";
    daemon.run(proxy_request(smuggled)).await;
    let heads = requests.heads();
    assert!(heads.iter().all(|head| !head.contains("smuggled")), "{heads:?}");
    assert_eq!(daemon.health().await, ServingStatus::Serving);
}

#[tokio::test]
async fn proxy_streams_bodies_in_flat_memory() {
    let network = TestNetwork::with_hosts(&[ALLOWED, OTHER]);
    let setup = network.proxy_setup(&[&format!("{}:8080", ALLOWED.0), ALLOWED.0], &[ALLOWED.1]);
    let daemon = setup.start().await;
    start_http_server(&daemon, ALLOWED.1, 80, None);
    start_http_server(&daemon, ALLOWED.1, 8080, None);
    let bytes = full_size(1 << 30, 100 << 20);
    daemon.output(shell("curl -sS http://packages.jig.test/zeros/1000000 | wc -c")).await;
    let before = daemon.resident_bytes();

    // Once as parsed HTTP, and once through a tunnel.
    for tunnel in ["", "--proxytunnel"] {
        let command = format!(
            "curl -sS {tunnel} http://packages.jig.test{}/zeros/{bytes} | wc -c",
            if tunnel.is_empty() { "" } else { ":8080" }
        );
        let mut max_resident_bytes = 0;
        let response = probe_while_waiting(daemon.run(shell(&command)), || {
            max_resident_bytes = max_resident_bytes.max(daemon.resident_bytes());
        })
        .await;
        assert_eq!(response.stdout.trim(), bytes.to_string(), "{response:?}");

        let growth_bytes = max_resident_bytes.saturating_sub(before);
        assert!(growth_bytes < 16 << 20, "{tunnel}: {growth_bytes} bytes more");
    }

    let uploaded = daemon
        .output(shell(&format!(
            "head -c {bytes} /dev/zero > zeros; curl -sS -H Expect: -T zeros http://packages.jig.test/up"
        )))
        .await;
    assert_eq!(uploaded, format!("{bytes} bytes at /up\n"));
}

/// Opens connections until the proxy accepts no more, and sends a partial request over each. The
/// proxy rejects all but 256 with status 503; the script then creates the file `rejected`.
const SLOW_CLIENTS_SCRIPT: &str = "
import socket, time
connections = []
try:
    for number in range(600):
        connection = socket.create_connection(('127.0.0.1', 3128))
        connection.sendall(b'GET http://packages.jig.test/ HTTP/1.1\\r\\nX-A')
        connections.append(connection)
except OSError as error:
    print(error)
open_connections, rejected, closed = list(connections), 0, 0
for connection in connections:
    connection.setblocking(False)
while len(open_connections) > 256:
    time.sleep(0.01)
    for connection in list(open_connections):
        try:
            response = connection.recv(100)
        except BlockingIOError:
            continue
        except ConnectionResetError:
            response = b''
        rejected, closed = rejected + (b'503' in response), closed + (b'503' not in response)
        open_connections.remove(connection)
assert rejected == len(connections) - 256, (rejected, closed)
open('rejected', 'w').close()
time.sleep(1000)
";

#[tokio::test]
async fn connection_flood_exhausts_only_its_own_run() {
    let (_network, daemon) = start_with_proxy().await;
    start_http_server(&daemon, ALLOWED.1, 80, None);
    let slow = daemon.spawn_run(RunRequest {
        timeout_sec: Some(600),
        ..argv(&["python3", "-c", SLOW_CLIENTS_SCRIPT])
    });
    eventually("the proxy rejects the excess connections", async || {
        daemon.file("rejected").exists()
    })
    .await;

    let info = daemon.info().await.egress.unwrap();
    assert_eq!(info.connections_active, 256);
    assert_eq!(daemon.health().await, ServingStatus::Serving);

    let output = promptly(
        "another run is served",
        daemon.output(shell("curl -sS http://packages.jig.test/x")),
    )
    .await;
    assert_eq!(output, "0 bytes at /x\n");

    slow.abort();
    eventually("the run's connections have ended", async || {
        daemon.info().await.egress.unwrap().connections_active == 0
    })
    .await;
}

/// Requests more names than the proxy looks up at a time, and then creates the file `sent`.
const MANY_LOOKUPS_SCRIPT: &str = "
import socket, time
connections = []
for number in range(200):
    connection = socket.create_connection(('127.0.0.1', 3128))
    connection.sendall(b'CONNECT n%d.slow.jig.test:443 HTTP/1.1\\r\\n\\r\\n' % number)
    connections.append(connection)
open('sent', 'w').close()
time.sleep(1000)
";

#[tokio::test]
async fn stalled_name_lookups_delay_only_their_run() {
    let network = TestNetwork::with_hosts(&[ALLOWED]).with_slow_name_servers();
    let hosts = [ALLOWED.0, "*.slow.jig.test"];
    let daemon = network.proxy_setup(&hosts, &[ALLOWED.1]).start().await;
    start_http_server(&daemon, ALLOWED.1, 80, None);
    let name_server = run_in_network_of(&daemon, || UdpSocket::bind("127.0.0.1:53").unwrap());
    let slow = daemon.spawn_run(argv(&["python3", "-c", MANY_LOOKUPS_SCRIPT]));
    eventually("the command has sent its requests", async || daemon.file("sent").exists()).await;
    name_server.set_read_timeout(Some(wait_timeout())).unwrap();
    name_server.recv(&mut [0; 512]).expect("no name was looked up");

    let output = promptly(
        "another run's name is looked up",
        daemon.output(shell("curl -sS -m 15 http://packages.jig.test/x")),
    )
    .await;
    assert_eq!(output, "0 bytes at /x\n");

    slow.abort();
}
