//! Bytes in both directions.

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use super::{bytes, client, connect, connected, receive_all, start_server};
use crate::support::{Daemon, full_size, promptly};

/// Echoes each connection in a thread of its own, until its client ends its output.
const ECHO: &str = "
def echo(stream):
    while data := stream.recv(65536):
        stream.sendall(data)
    stream.close()
while True:
    threading.Thread(target=echo, args=[listener.accept()[0]]).start()
";

#[tokio::test]
async fn large_transfers_in_both_directions_at_once_arrive_unchanged() {
    let daemon = Daemon::start().await;
    let server = start_server(&daemon, ECHO).await;
    let (mut reader, writer) = connected(&client(&daemon).await, &server).await;
    assert_eq!(reader.address(), "127.0.0.1");

    let chunks = full_size(100, 16) as u64;
    let chunk = |number: u64| -> Vec<u8> {
        (0..1_u64 << 17).flat_map(|index| (number << 17 | index).to_le_bytes()).collect()
    };
    let sent = tokio::spawn(async move {
        let mut hash = Sha256::new();
        for number in 0..chunks {
            let data = chunk(number);
            hash.update(&data);
            assert!(writer.send(data.into()).await);
        }
        writer.finish().await;
        hash.finalize()
    });
    let (mut hash, mut length) = (Sha256::new(), 0);
    while let Some(data) = promptly("more data", reader.next()).await.unwrap() {
        hash.update(&data);
        length += data.len() as u64;
    }
    assert_eq!(length, chunks << 20);
    assert_eq!(hash.finalize(), sent.await.unwrap());
    reader.finish().await.unwrap();
}

#[tokio::test]
async fn each_direction_ends_by_itself() {
    let daemon = Daemon::start().await;
    let body = "
for number in range(2):
    stream = listener.accept()[0]
    stream.sendall(b'hello')
    if number == 1: stream.shutdown(socket.SHUT_WR)
    count = 0
    while data := stream.recv(65536): count += len(data)
    print('received', count, flush=True)
    if number == 0: stream.sendall(b' after %d' % count)
    stream.close()
";
    let mut server = start_server(&daemon, body).await;
    let client = client(&daemon).await;

    // The caller ends first: the server answers after that.
    let (mut reader, writer) = connected(&client, &server).await;
    assert!(writer.send(Bytes::from(vec![7; 3 << 20])).await);
    writer.finish().await;
    assert_eq!(receive_all(&mut reader).await.unwrap(), b"hello after 3145728");
    reader.finish().await.unwrap();

    // The server ends first: it receives after that.
    let (mut reader, writer) = connected(&client, &server).await;
    assert_eq!(receive_all(&mut reader).await.unwrap(), b"hello");
    assert!(writer.send(bytes("late")).await);
    writer.finish().await;
    reader.finish().await.unwrap();
    assert_eq!(server.wait_for_exit().await.exit_code, Some(0));
    assert_eq!(server.stdout_text(), "ready\nreceived 3145728\nreceived 4\n");
}

#[tokio::test]
async fn fifty_connections_at_once_are_kept_apart() {
    let daemon = Daemon::start().await;
    let server = start_server(&daemon, ECHO).await;
    let client = client(&daemon).await;

    let mut connections = Vec::new();
    for number in 0..50 {
        let (reader, writer) = connected(&client, &server).await;
        assert!(writer.send(format!("connection {number}").into()).await);
        connections.push((reader, writer));
    }
    for (number, (mut reader, writer)) in connections.into_iter().enumerate().rev() {
        writer.finish().await;
        let received = promptly("the echo", receive_all(&mut reader)).await.unwrap();
        assert_eq!(received, format!("connection {number}").as_bytes());
        reader.finish().await.unwrap();
    }
}

#[tokio::test]
async fn server_on_ipv6_is_reached() {
    let daemon = Daemon::start().await;
    let body = "
v6 = socket.create_server(('::1', 8001), family=socket.AF_INET6)
print('both', flush=True)
v6.accept()[0].sendall(b'six')
";
    let mut server = start_server(&daemon, body).await;
    server.read_until("both\n").await;
    let (mut reader, _writer) = connect(&client(&daemon).await, &server.id, 8001).await.unwrap();
    assert_eq!(reader.address(), "::1");
    assert_eq!(receive_all(&mut reader).await.unwrap(), b"six");
}

/// Neither a client that reads nothing nor a server that reads nothing fills the daemon's memory.
#[tokio::test]
async fn memory_is_bounded_in_both_directions() {
    let daemon = Daemon::start().await;
    let body = "
def flood(stream):
    try:
        while True: stream.sendall(bytes(1 << 20))
    except OSError: pass
held = []
while True:
    held.append(listener.accept()[0])
    threading.Thread(target=flood, args=[held[-1]], daemon=True).start()
";
    let server = start_server(&daemon, body).await;
    drop(connected(&client(&daemon).await, &server).await);
    let before = daemon.resident_bytes();

    // A connection of HTTP/2 has room for 8 such streams.
    let mut connections = Vec::new();
    for _ in 0..32 {
        let (reader, writer) = connected(&client(&daemon).await, &server).await;
        let sending =
            tokio::spawn(
                async move { while writer.send(Bytes::from_static(&[0; 1 << 20])).await {} },
            );
        connections.push((reader, sending));
    }
    // All have had their first bytes, and time to receive more than they can hold.
    for (reader, _) in &mut connections {
        assert!(reader.next().await.unwrap().is_some());
    }
    let (mut reader, _writer) = connected(&client(&daemon).await, &server).await;
    for _ in 0..1000 {
        assert!(promptly("flood", reader.next()).await.unwrap().is_some());
    }
    let grown = daemon.resident_bytes().saturating_sub(before) >> 20;
    assert!(grown < 33 * 3, "{grown} MiB for 33 connections");
    for (_, sending) in connections {
        sending.abort();
    }
}
