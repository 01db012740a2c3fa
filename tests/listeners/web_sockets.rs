//! WebSockets on which clients send without end.

use std::{
    io::{ErrorKind, Read as _, Write as _},
    net::TcpStream,
};

use super::{frames::connect, serve_during, start_tcp_daemon};
use crate::support::full_size;

/// Frames of a client: the mask is 0.
const PING: &[u8] = &[0x89, 0x80, 0, 0, 0, 0];
const TEXT_BEGIN: &[u8] = &[0x01, 0x81, 0, 0, 0, 0, b'x'];
const CONTINUATION: &[u8] = &[0x00, 0x81, 0, 0, 0, 0, b'x'];
const EMPTY_CONTINUATION: &[u8] = &[0x00, 0x80, 0, 0, 0, 0];
/// More than the daemon reads.
const FRAMES: usize = 100_000;

/// Opens a WebSocket, and reads the response.
fn open(port: u16) -> TcpStream {
    let request = "GET /v1/sessions/default/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\
                   Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    let mut stream = connect(port, request.as_bytes());
    let mut response = Vec::new();
    while !response.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        response.extend(byte);
    }
    assert!(response.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&response));
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn web_socket_frames_without_end_close_it() {
    let daemon = start_tcp_daemon(&[]).await;
    for (name, first, next) in [
        ("WebSocket pings", PING, PING),
        ("a WebSocket message", TEXT_BEGIN, CONTINUATION),
        // The daemon closes a client from which it hears nothing, which takes a minute.
        ("empty frames of a WebSocket message", TEXT_BEGIN, EMPTY_CONTINUATION),
    ]
    .into_iter()
    .take(full_size(3, 2))
    {
        let port = daemon.port();
        let end = serve_during(&daemon, name, move || {
            let mut stream = open(port);
            // The daemon may close the connection before it has read all.
            let _written = stream.write_all(&[first, &next.repeat(FRAMES)].concat());
            stream.read_to_end(&mut Vec::new())
        });
        let is_closed = match end.await {
            Ok(_) => true,
            Err(error) => {
                matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
            }
        };
        assert!(is_closed, "{name}");
    }
}
