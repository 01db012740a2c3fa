//! Connections of callers without keys cannot exhaust the slots of key holders.

use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpStream,
    os::unix::process::CommandExt as _,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use jig::api::v1::{GetInfoRequest, daemon_service_client::DaemonServiceClient};
use tokio::{io::copy, net::TcpListener, time::timeout};
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use super::start_daemon_with_keys;
use crate::support::{
    DAEMON_UID, KeyFile, Refusal, Setup, eventually, kill_and_reap, lazy_channel, promptly,
    with_key,
};

/// A user other than root and the daemon's.
const OTHER_UID: u32 = 23_457;
/// Opens HTTP/2 connections and leaves them idle. Prints the number of open connections on which
/// the daemon has sent its preface.
const IDLE_CONNECTIONS_SCRIPT: &str = r"
import socket, sys
port, number = int(sys.argv[1]), int(sys.argv[2])
connections = []
for _ in range(number):
    connection = socket.create_connection(('127.0.0.1', port))
    connection.settimeout(20)
    try:
        connection.sendall(b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        if connection.recv(9):
            connections.append(connection)
    except ConnectionError:
        pass
print(len(connections), flush=True)
sys.stdin.read()
";
/// Opens connections with a watch of the daemon's health on each, which keeps them open.
const HEALTH_WATCHERS_SCRIPT: &str = r"
import socket, sys
port, number = int(sys.argv[1]), int(sys.argv[2])
def text(value):
    return bytes([len(value)]) + value.encode()
def frame(kind, flags, stream, body):
    return len(body).to_bytes(3, 'big') + bytes([kind, flags]) + stream.to_bytes(4, 'big') + body
fields = bytes([0x83, 0x86, 0x04]) + text('/grpc.health.v1.Health/Watch') + b'\x01' + text('x')
for name, value in (('content-type', 'application/grpc'), ('te', 'trailers')):
    fields += b'\x00' + text(name) + text(value)
request = frame(1, 4, 1, fields) + frame(0, 1, 1, bytes(5))
connections = []
for _ in range(number):
    connection = socket.create_connection(('127.0.0.1', port))
    connection.settimeout(20)
    response = connection.makefile('rb')
    try:
        connection.sendall(b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + frame(4, 0, 0, b'') + request)
        kind = None
        while kind != 0:
            head = response.read(9)
            if len(head) < 9:
                break
            response.read(int.from_bytes(head[:3], 'big'))
            kind = head[3]
        else:
            connections.append(connection)
    except ConnectionError:
        pass
print(len(connections), flush=True)
sys.stdin.read()
";

/// A user's connections.
struct ConnectionFlood {
    child: Child,
    /// Number of connections that the daemon has served.
    served: usize,
}

impl ConnectionFlood {
    fn open(user: u32, port: u16, number: usize, script: &str) -> Self {
        let mut child = Command::new("python3")
            .args(["-c", script, &port.to_string(), &number.to_string()])
            .current_dir("/")
            .uid(user)
            .gid(user)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();

        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let served = line.trim().parse().unwrap();
        Self { child, served }
    }
}

impl Drop for ConnectionFlood {
    fn drop(&mut self) {
        kill_and_reap(&mut self.child);
    }
}

#[tokio::test]
async fn connections_without_keys_do_not_block_a_key_holder() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add_key("owner", "read", &[]);
    let daemon = start_daemon_with_keys(Setup::new().listen_tcp(), &keys).await;
    let port = daemon.port();
    let flood = tokio::task::spawn_blocking(move || {
        ConnectionFlood::open(OTHER_UID, port, 1100, IDLE_CONNECTIONS_SCRIPT)
    });
    let flood = flood.await.unwrap();
    assert!((64..512).contains(&flood.served), "{}", flood.served);

    for channel in [lazy_channel(&format!("http://127.0.0.1:{port}")), daemon.new_connection()] {
        let mut info = DaemonServiceClient::new(channel);
        let call = info.get_info(with_key(&key, GetInfoRequest {}));
        promptly("the daemon serves the key holder", call).await.unwrap();
    }
}

#[tokio::test]
async fn health_watchers_without_keys_do_not_block_a_key_holder() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add_key("owner", "read", &[]);
    let daemon = start_daemon_with_keys(Setup::new().listen_tcp(), &keys).await;
    let port = daemon.port();
    let tasks = (0..4).map(|user| {
        tokio::task::spawn_blocking(move || {
            ConnectionFlood::open(OTHER_UID + user, port, 256, HEALTH_WATCHERS_SCRIPT)
        })
    });

    let mut floods = Vec::new();
    for task in tasks.collect::<Vec<_>>() {
        floods.push(task.await.unwrap());
    }

    let served: Vec<_> = floods.iter().map(|flood| flood.served).collect();
    assert_eq!(served, [256; 4]);

    let mut info = DaemonServiceClient::new(lazy_channel(&format!("http://127.0.0.1:{port}")));
    let call = info.get_info(with_key(&key, GetInfoRequest {}));
    promptly("the daemon serves the key holder", call).await.unwrap();
}

#[tokio::test]
async fn idle_connection_without_an_authorized_call_is_closed() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add_key("owner", "read", &[]);
    let daemon = start_daemon_with_keys(Setup::new().listen_tcp(), &keys).await;
    let address = format!("http://127.0.0.1:{}", daemon.port());

    // Three connections: one with an authorized call, one with a health watch that has no key, one
    // idle.
    let authorized = lazy_channel(&address);
    let mut info = DaemonServiceClient::new(authorized.clone());
    info.get_info(with_key(&key, GetInfoRequest {})).await.unwrap();
    let mut anonymous = HealthClient::new(lazy_channel(&address));
    let request = HealthCheckRequest::default();
    let mut anonymous_watch = anonymous.watch(request).await.unwrap().into_inner();
    anonymous_watch.message().await.unwrap().unwrap();

    let mut authorized = HealthClient::new(authorized);
    let mut authorized_watch =
        authorized.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    authorized_watch.message().await.unwrap().unwrap();
    let mut idle = TcpStream::connect(("127.0.0.1", daemon.port())).unwrap();
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let preface = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &settings].concat();
    idle.write_all(&preface).unwrap();
    idle.set_read_timeout(Some(Duration::from_secs(120))).unwrap();

    let read_task = tokio::task::spawn_blocking(move || idle.read_to_end(&mut Vec::new()));
    read_task.await.unwrap().expect("the daemon did not close the idle connection");

    // The other connections stay open.
    for stream in [&mut anonymous_watch, &mut authorized_watch] {
        let next = timeout(Duration::from_millis(1), stream.message()).await;
        assert!(next.is_err(), "{next:?}");
    }
}

#[tokio::test]
async fn unauthenticated_caller_gets_an_error_and_is_disconnected() {
    // With commands on the daemon's network, any user could call from loopback.
    let setup = Setup::new().user(DAEMON_UID).listen_tcp();
    let daemon = setup.arguments(&["--network", "host"]).start().await;
    let relay = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", relay.local_addr().unwrap());
    let port = daemon.port();
    let forwarding = tokio::spawn(async move {
        let (client, _) = relay.accept().await.unwrap();
        let server = TcpStream::connect(("127.0.0.1", port)).unwrap();
        server.set_nonblocking(true).unwrap();
        let server = tokio::net::TcpStream::from_std(server).unwrap();
        let ((mut client_read, mut client_write), (mut daemon_read, mut daemon_write)) =
            (client.into_split(), server.into_split());
        let upload = tokio::spawn(async move { copy(&mut client_read, &mut daemon_write).await });
        // Ends when the daemon closes its side; the client keeps its side open.
        let result = copy(&mut daemon_read, &mut client_write).await;
        upload.abort();
        result
    });

    let mut info = DaemonServiceClient::new(lazy_channel(&address));
    let status = info.get_info(GetInfoRequest {}).await.unwrap_err();
    assert_eq!(Refusal::from_status(&status).reason, "UNAUTHENTICATED");

    promptly("the daemon closes the connection", forwarding).await.unwrap().unwrap();
}

#[tokio::test]
async fn health_watches_without_a_key_are_limited_per_connection() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add_key("owner", "read", &[]);
    let daemon = start_daemon_with_keys(Setup::new().listen_tcp(), &keys).await;
    let address = format!("http://127.0.0.1:{}", daemon.port());
    let channel = lazy_channel(&address);
    let watch = async || {
        let mut health = HealthClient::new(channel.clone());
        let stream = health.watch(HealthCheckRequest::default()).await?;
        let mut stream = stream.into_inner();
        stream.message().await.map(|_| stream)
    };

    let mut streams = Vec::new();
    let refusal = loop {
        match watch().await {
            Ok(stream) => streams.push(stream),
            Err(status) => break Refusal::from_status(&status),
        }
        assert!(streams.len() < 100, "no watch was rejected");
    };

    assert_eq!(streams.len(), 16);
    assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED");
    assert!(refusal.retry_after.is_some(), "{refusal:?}");

    // A watch that ends frees a slot. So does an authorized call on the connection.
    streams.truncate(15);
    eventually("a watch slot is free", async || match watch().await {
        Ok(stream) => {
            streams.push(stream);
            true
        }
        Err(_) => false,
    })
    .await;

    let mut info = DaemonServiceClient::new(channel.clone());
    info.get_info(with_key(&key, GetInfoRequest {})).await.unwrap();
    watch().await.unwrap();
}
