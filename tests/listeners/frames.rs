//! Frames of HTTP/2 (RFC 9113) as a hostile client writes them.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

use crate::support::wait_timeout;

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
pub(super) const WINDOW_UPDATE: u8 = 8;
pub(super) const CONTINUATION: u8 = 9;
pub(super) const ACK: u8 = 1;
pub(super) const END_STREAM: u8 = 1;
pub(super) const END_HEADERS: u8 = 4;
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// One frame.
pub(super) fn frame(kind: u8, flags: u8, stream: u32, content: &[u8]) -> Vec<u8> {
    let length = u32::try_from(content.len()).unwrap().to_be_bytes();
    let stream = stream.to_be_bytes();
    [&length[1..], &[kind, flags], &stream, content].concat()
}

/// The headers of a gRPC call, without compression (RFC 7541, section 6.2.2).
pub(super) fn call_headers(path: &str) -> Vec<u8> {
    let headers = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    headers.into_iter().flat_map(|(name, value)| literal(name, value)).collect()
}

/// A header field that no table keeps.
pub(super) fn literal(name: &str, value: &str) -> Vec<u8> {
    let length = |text: &str| u8::try_from(text.len()).unwrap();
    let mut field = vec![0, length(name)];
    field.extend_from_slice(name.as_bytes());
    field.push(length(value));
    field.extend_from_slice(value.as_bytes());
    field
}

/// The preface and empty settings of a client.
pub(super) fn greeting() -> Vec<u8> {
    [PREFACE, &frame(SETTINGS, 0, 0, b"")].concat()
}

/// A gRPC call on a stream, with its whole message.
pub(super) fn call(stream: u32, path: &str, message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap().to_be_bytes();
    let data = [&[0], &length[..], message].concat();
    let headers = frame(HEADERS, END_HEADERS, stream, &call_headers(path));
    [headers, frame(DATA, END_STREAM, stream, &data)].concat()
}

/// Whether complete frames contain one of `kind` on a stream.
pub(super) fn has_frame(mut frames: &[u8], kind: u8, stream: u32) -> bool {
    while let Some(([a, b, c, found, _, id @ ..], rest)) = frames.split_first_chunk::<9>() {
        let length = usize::try_from(u32::from_be_bytes([0, *a, *b, *c])).unwrap();
        if *found == kind && u32::from_be_bytes(*id) == stream && rest.len() >= length {
            return true;
        }
        frames = rest.get(length..).unwrap_or_default();
    }
    false
}

/// Connects to the TCP port of the daemon.
pub(super) fn connect(daemon_port: u16, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", daemon_port)).unwrap();
    stream.set_read_timeout(Some(wait_timeout())).unwrap();
    stream.set_write_timeout(Some(wait_timeout())).unwrap();
    // The daemon may have closed the connection already.
    let _closed = stream.write_all(bytes);
    stream
}

/// Connects, and sends the preface with empty settings.
pub(super) fn connect_http2(daemon_port: u16) -> TcpStream {
    connect(daemon_port, &greeting())
}

/// Reads frames until one of `kind`, and returns its content. `None` if the connection ends first.
pub(super) fn wait_for_frame(stream: &mut TcpStream, kind: u8) -> Option<Vec<u8>> {
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).ok()?;
        let [a, b, c, found, ..] = head;
        let mut content = vec![0; usize::try_from(u32::from_be_bytes([0, a, b, c])).unwrap()];
        stream.read_exact(&mut content).ok()?;
        if found == kind {
            return Some(content);
        }
    }
}

/// Writes the same frames with odd stream ids until `count` were written or the daemon closes.
pub(super) fn flood(
    stream: &mut TcpStream,
    count: u32,
    frames: impl Fn(u32) -> Vec<u8>,
) -> Option<Vec<u8>> {
    let mut reader = stream.try_clone().unwrap();
    let goaway = std::thread::spawn(move || wait_for_frame(&mut reader, GOAWAY));
    for first in (0..count).step_by(64) {
        let batch: Vec<u8> =
            (first..(first + 64).min(count)).flat_map(|index| frames(2 * index + 1)).collect();
        if stream.write_all(&batch).is_err() {
            break;
        }
    }
    // The end of the connection ends the reader too.
    let _closed = stream.shutdown(std::net::Shutdown::Write);
    goaway.join().unwrap()
}
