//! Clients that do not complete a handshake.

use std::time::{Duration, Instant};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use super::start_tls_daemon;
use crate::support::{promptly, shell, tool_client};

/// The handshake timeout of the daemon.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Half-open handshakes at one time.
const HALF_OPEN_HANDSHAKES: usize = 100;

/// Sends `bytes` and reads until the daemon closes the connection. Returns the answer and the time.
async fn exchange(port: u16, bytes: &[u8]) -> (Vec<u8>, Duration) {
    let start = Instant::now();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    // A connection that is closed with unread data is reset.
    let _reset = stream.read_to_end(&mut answer).await;
    (answer, start.elapsed())
}

#[tokio::test(flavor = "multi_thread")]
async fn half_open_handshakes_end_while_neighbours_are_served() {
    let tls = start_tls_daemon().await;
    let port = tls.daemon.port();
    // Nothing, and the start of a record with a ClientHello.
    let half_open: Vec<_> = (0..HALF_OPEN_HANDSHAKES)
        .map(|index| {
            let bytes: &[u8] = if index % 2 == 0 { b"" } else { &[22, 3, 1, 2, 0, 1] };
            tokio::spawn(exchange(port, bytes))
        })
        .collect();

    let mut slowest = Duration::ZERO;
    for _ in 0..20 {
        let start = Instant::now();
        let mut neighbour = tool_client(tls.ca.channel(port, None));
        promptly("a neighbour is served", neighbour.run(shell("true"))).await.unwrap();
        slowest = slowest.max(start.elapsed());
    }
    assert!(slowest < HANDSHAKE_TIMEOUT / 2, "{slowest:?}");

    for handshake in half_open {
        let (answer, time) = promptly("the handshake ends", handshake).await.unwrap();
        assert_eq!(answer, b"");
        let expected = HANDSHAKE_TIMEOUT - Duration::from_secs(1)..HANDSHAKE_TIMEOUT * 3 / 2;
        assert!(expected.contains(&time), "{time:?}");
    }
}

#[tokio::test]
async fn plaintext_on_a_tls_port_is_answered() {
    let tls = start_tls_daemon().await;
    for request in ["GET / HTTP/1.1\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] {
        let (answer, time) = exchange(tls.daemon.port(), request.as_bytes()).await;
        let answer = String::from_utf8(answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 400 "), "{answer}");
        assert!(head.contains(&format!("content-length: {}", body.len())), "{answer}");
        assert!(body.contains("https://"), "{answer}");
        assert!(time < HANDSHAKE_TIMEOUT / 2, "{time:?}");
    }
}
