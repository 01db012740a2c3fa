//! Clients that send frames which the daemon must answer, and read no answers.

use std::{
    io::{BufReader, ErrorKind, Read as _, Write as _},
    net::TcpStream,
    time::Duration,
};

use super::{
    frames::{ACK, HEADERS, PING, SETTINGS, call, connect_http2, frame, wait_for_frame},
    resident_bytes, serve_during, start_tcp_daemon,
};
use crate::support::full_size;

/// A write that makes no progress for this long has stalled: the daemon does not read.
const STALL_TIME: Duration = Duration::from_secs(1);
/// Upper bound of the bytes that the buffers of both sockets hold.
const MAX_BUFFERED_BYTES: usize = 64 << 20;
/// Memory that the daemon may need for one flood, and that the neighbours may need beside it.
const MAX_GROWTH_BYTES: u64 = 16 << 20;
/// More than the write stall timeout of the daemon, 40 seconds.
const MAX_TIME_TO_CLOSE: Duration = Duration::from_secs(120);

/// Writes a frame repeatedly until the daemon reads no more. Returns the number of frames, of
/// which the last one may be incomplete, and the rest of that one.
fn write_until_stalled(stream: &mut TcpStream, frame: &[u8]) -> (usize, Vec<u8>) {
    stream.set_write_timeout(Some(STALL_TIME)).unwrap();
    let batch = frame.repeat(4096);
    let mut written = 0;
    loop {
        assert!(written < MAX_BUFFERED_BYTES, "the daemon buffers its answers without limit");
        match stream.write(&batch[written % frame.len()..]) {
            Ok(count) => written += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
    let frames = written.div_ceil(frame.len());
    let rest = frame.len() * frames - written;
    (frames, frame[frame.len() - rest..].to_vec())
}

/// Reads until `count` frames of a kind have been acknowledged.
fn read_acknowledgements(stream: TcpStream, kind: u8, count: usize) {
    let mut stream = BufReader::new(stream);
    let mut acknowledged = 0;
    while acknowledged < count {
        let mut head = [0; 9];
        stream.read_exact(&mut head).unwrap();
        let [a, b, c, found, flags, ..] = head;
        let length = u64::from(u32::from_be_bytes([0, a, b, c]));
        std::io::copy(&mut stream.by_ref().take(length), &mut std::io::sink()).unwrap();
        acknowledged += usize::from(found == kind && flags & ACK != 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn floods_whose_answers_are_not_read_use_little_memory() {
    let daemon = start_tcp_daemon(&[]).await;
    let (port, pid) = (daemon.port(), daemon.pid());
    for (name, kind, content, acknowledged_before) in
        [("unread PING", PING, &b"12345678"[..], 0), ("unread SETTINGS", SETTINGS, b"", 1)]
    {
        let growth = serve_during(&daemon, name, move || {
            let before = resident_bytes(pid);
            let mut stream = connect_http2(port);
            let (frames, rest) = write_until_stalled(&mut stream, &frame(kind, 0, 0, content));
            let growth = resident_bytes(pid).saturating_sub(before);

            // All are answered as soon as the client reads.
            let reader = stream.try_clone().unwrap();
            let reading = std::thread::spawn(move || {
                read_acknowledgements(reader, kind, frames + acknowledged_before);
            });
            stream.set_write_timeout(Some(MAX_TIME_TO_CLOSE)).unwrap();
            stream.write_all(&rest).unwrap();
            reading.join().unwrap();
            growth
        });
        let growth = growth.await;
        assert!(growth < MAX_GROWTH_BYTES, "{name}: {growth} bytes");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connection_whose_client_does_not_read_is_closed() {
    // It takes 30 seconds before the first authenticated call, and 40 seconds after it.
    if full_size(1, 0) == 0 {
        return;
    }
    let daemon = start_tcp_daemon(&[]).await;
    let clients = [(PING, false), (PING, true), (SETTINGS, true)].map(|(kind, calls_first)| {
        let mut stream = connect_http2(daemon.port());
        if calls_first {
            stream.write_all(&call(1, "/jig.v1.DaemonService/GetInfo", b"")).unwrap();
            wait_for_frame(&mut stream, HEADERS).unwrap();
        }
        tokio::task::spawn_blocking(move || {
            let content: &[u8] = if kind == PING { b"12345678" } else { b"" };
            let frame = frame(kind, 0, 0, content);
            write_until_stalled(&mut stream, &frame);
            stream.set_write_timeout(Some(MAX_TIME_TO_CLOSE)).unwrap();
            loop {
                if let Err(error) = stream.write_all(&frame) {
                    return error.kind();
                }
            }
        })
    });
    for client in clients {
        let kind = client.await.unwrap();
        assert!(matches!(kind, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{kind:?}");
    }
}
