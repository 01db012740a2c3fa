//! Clients that abuse HTTP/2 and HTTP/1.1. Neighbours are served meanwhile.

use std::{
    io::{Read as _, Write as _},
    net::{Shutdown, TcpStream},
};

use rustix::process::{Pid, Signal, kill_process};

use super::{
    frames::{
        CONTINUATION, DATA, END_HEADERS, GOAWAY, HEADERS, PING, RST_STREAM, SETTINGS,
        WINDOW_UPDATE, call_headers, connect, connect_http2, flood, frame, literal, wait_for_frame,
    },
    serve_during, start_tcp_daemon,
};
use crate::support::full_size;

const METHOD: &str = "/jig.v1.DaemonService/GetInfo";
const PROTOCOL_ERROR: u32 = 1;
/// The error code of a client that does too much (RFC 9113, section 7).
const ENHANCE_YOUR_CALM: u32 = 11;
/// Streams that wrong frames may end on one connection.
const MAX_PROVOKED_RESETS: u32 = 16 << 10;

/// More than the daemon accepts before it has accepted the calls, and less than a socket buffers.
const RAPID_RESETS: u32 = 300;

/// The error code of a GOAWAY frame.
fn error_code(goaway: Option<Vec<u8>>) -> Option<u32> {
    Some(u32::from_be_bytes(*goaway?.get(4..)?.first_chunk()?))
}

/// A number of frames: many with `JIG_FULL=1`.
fn flood_size() -> u32 {
    u32::try_from(full_size(400_000, 40_000)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn rapid_resets_end_the_connection() {
    let daemon = start_tcp_daemon(&[]).await;
    let port = daemon.port();
    let pid = Pid::from_raw(daemon.pid()).unwrap();
    let goaway = serve_during(&daemon, "rapid resets", move || {
        let mut stream = connect_http2(port);
        wait_for_frame(&mut stream, SETTINGS).unwrap();
        let headers = call_headers(METHOD);
        let frames: Vec<u8> = (0..RAPID_RESETS)
            .flat_map(|index| {
                let id = 2 * index + 1;
                let reset = frame(RST_STREAM, 0, id, &8_u32.to_be_bytes());
                [frame(HEADERS, END_HEADERS, id, &headers), reset].concat()
            })
            .collect();
        // A daemon that keeps up accepts the calls before they are reset, which is allowed. So it
        // finds all frames at once.
        kill_process(pid, Signal::STOP).unwrap();
        stream.write_all(&frames).unwrap();
        kill_process(pid, Signal::CONT).unwrap();
        let _closed = stream.shutdown(Shutdown::Write);
        wait_for_frame(&mut stream, GOAWAY)
    });
    assert_eq!(error_code(goaway.await), Some(ENHANCE_YOUR_CALM));
}

#[tokio::test(flavor = "multi_thread")]
async fn flood_of_resets_leaves_neighbours_served() {
    let daemon = start_tcp_daemon(&[]).await;
    let port = daemon.port();
    serve_during(&daemon, "flood of resets", move || {
        let mut stream = connect_http2(port);
        let headers = call_headers(METHOD);
        flood(&mut stream, flood_size(), |id| {
            let reset = frame(RST_STREAM, 0, id, &8_u32.to_be_bytes());
            [frame(HEADERS, END_HEADERS, id, &headers), reset].concat()
        })
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn empty_data_frames_end_the_connection() {
    let daemon = start_tcp_daemon(&[]).await;
    let port = daemon.port();
    let goaway = serve_during(&daemon, "empty DATA", move || {
        let mut stream = connect_http2(port);
        stream.write_all(&frame(HEADERS, END_HEADERS, 1, &call_headers(METHOD))).unwrap();
        flood(&mut stream, flood_size(), |_| frame(DATA, 0, 1, b""))
    });
    assert_eq!(error_code(goaway.await), Some(ENHANCE_YOUR_CALM));
}

#[tokio::test(flavor = "multi_thread")]
async fn provoked_resets_end_the_connection() {
    let daemon = start_tcp_daemon(&[]).await;
    let port = daemon.port();
    // The library ends the connection for the first one itself.
    for (name, kind, content, expected) in [
        ("window of zero", WINDOW_UPDATE, 0_u32, PROTOCOL_ERROR),
        ("window overflow", WINDOW_UPDATE, 0x7fff_ffff, ENHANCE_YOUR_CALM),
    ] {
        let goaway = serve_during(&daemon, name, move || {
            let mut stream = connect_http2(port);
            let headers = call_headers(METHOD);
            flood(&mut stream, MAX_PROVOKED_RESETS + 1000, |id| {
                let wrong = frame(kind, 0, id, &content.to_be_bytes());
                [frame(HEADERS, END_HEADERS, id, &headers), wrong].concat()
            })
        });
        assert_eq!(error_code(goaway.await), Some(expected), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn floods_of_frames_leave_neighbours_served() {
    let daemon = start_tcp_daemon(&[]).await;
    let port = daemon.port();
    for (name, kind, content) in [("PING", PING, &b"12345678"[..]), ("SETTINGS", SETTINGS, b"")] {
        serve_during(&daemon, name, move || {
            let mut stream = connect_http2(port);
            flood(&mut stream, flood_size(), |_| frame(kind, 0, 0, content))
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_without_end_are_rejected() {
    let daemon = start_tcp_daemon(&[]).await;
    let port = daemon.port();
    let goaway = serve_during(&daemon, "CONTINUATION", move || {
        let mut stream = connect_http2(port);
        stream.write_all(&frame(HEADERS, 0, 1, &call_headers(METHOD))).unwrap();
        let more = literal("x-more", &"x".repeat(100)).repeat(100);
        flood(&mut stream, 10_000, |_| frame(CONTINUATION, 0, 1, &more))
    });
    let code = error_code(goaway.await);
    assert!(code.is_some_and(|code| code != 0), "{code:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn message_of_100_mb_is_rejected_from_its_prefix() {
    let daemon = start_tcp_daemon(&[]).await;
    let port = daemon.port();
    let headers = serve_during(&daemon, "message of 100 MB", move || {
        let mut stream = connect_http2(port);
        let length = 100_000_000_u32.to_be_bytes();
        let prefix = [&[0], &length[..]].concat();
        stream.write_all(&frame(HEADERS, END_HEADERS, 1, &call_headers(METHOD))).unwrap();
        stream.write_all(&frame(DATA, 0, 1, &prefix)).unwrap();
        wait_for_frame(&mut stream, HEADERS)
    });
    assert!(headers.await.is_some(), "the call is answered before its message has arrived");
}

/// Reads until the daemon closes.
fn read_to_end(mut stream: TcpStream) -> String {
    let mut answer = Vec::new();
    let _reset = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn oversized_headers_of_http1_are_rejected() {
    let daemon = start_tcp_daemon(&[]).await;
    let port = daemon.port();
    let answer = serve_during(&daemon, "headers of HTTP/1.1", move || {
        let header = format!("x-more: {}\r\n", "x".repeat(1000)).repeat(100);
        read_to_end(connect(port, format!("GET / HTTP/1.1\r\n{header}").as_bytes()))
    });
    let answer = answer.await;
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
}

#[tokio::test(flavor = "multi_thread")]
async fn goaway_reaches_a_client_at_shutdown() {
    let daemon = start_tcp_daemon(&[]).await;
    let mut stream = connect_http2(daemon.port());
    wait_for_frame(&mut stream, SETTINGS).unwrap();
    daemon.signal(Signal::TERM);
    let goaway = tokio::task::spawn_blocking(move || wait_for_frame(&mut stream, GOAWAY));
    assert_eq!(error_code(goaway.await.unwrap()), Some(0));
}
