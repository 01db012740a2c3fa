//! Connections: who has no key cannot take the places of those who have one.

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
    DAEMON_UID, KeyFile, Refusal, Setup, eventually, lazy_channel, promptly, with_key,
};

/// A user that is neither root nor the daemon's.
const OTHER_UID: u32 = 23_457;
/// Opens connections as HTTP/2 begins them, and leaves them open. Tells how many stay so: the daemon has said
/// its part there.
const IDLE_CONNECTIONS_SCRIPT: &str = r"
import socket, sys
port, number = int(sys.argv[1]), int(sys.argv[2])
held = []
for _ in range(number):
    end = socket.create_connection(('127.0.0.1', port))
    end.settimeout(20)
    try:
        end.sendall(b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))
        if end.recv(9):
            held.append(end)
    except ConnectionError:
        pass
print(len(held), flush=True)
sys.stdin.read()
";
/// Opens connections and watches the health of the daemon on each, which keeps them.
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
asked = frame(1, 4, 1, fields) + frame(0, 1, 1, bytes(5))
held = []
for _ in range(number):
    end = socket.create_connection(('127.0.0.1', port))
    end.settimeout(20)
    told = end.makefile('rb')
    try:
        end.sendall(b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n' + frame(4, 0, 0, b'') + asked)
        kind = None
        while kind != 0:
            head = told.read(9)
            if len(head) < 9:
                break
            told.read(int.from_bytes(head[:3], 'big'))
            kind = head[3]
        else:
            held.append(end)
    except ConnectionError:
        pass
print(len(held), flush=True)
sys.stdin.read()
";

/// A user's connections.
struct ConnectionFlood {
    child: Child,
    /// How many were served.
    held: usize,
}

impl ConnectionFlood {
    fn open(user: u32, port: u16, number: usize, flood: &str) -> Self {
        let mut child = Command::new("python3")
            .args(["-c", flood, &port.to_string(), &number.to_string()])
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
        let held = line.trim().parse().unwrap();
        Self { child, held }
    }
}

impl Drop for ConnectionFlood {
    fn drop(&mut self) {
        let _dead_already = self.child.kill();
        let _reaped = self.child.wait();
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
    assert!((64..512).contains(&flood.held), "{}", flood.held);
    for channel in [lazy_channel(&format!("http://127.0.0.1:{port}")), daemon.new_connection()] {
        let mut info = DaemonServiceClient::new(channel);
        let called = info.get_info(with_key(&key, GetInfoRequest {}));
        promptly("there is a place", called).await.unwrap();
    }
}

#[tokio::test]
async fn health_watchers_without_keys_do_not_block_a_key_holder() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add_key("owner", "read", &[]);
    let daemon = start_daemon_with_keys(Setup::new().listen_tcp(), &keys).await;
    let port = daemon.port();
    let watching = (0..4).map(|user| {
        tokio::task::spawn_blocking(move || {
            ConnectionFlood::open(OTHER_UID + user, port, 256, HEALTH_WATCHERS_SCRIPT)
        })
    });
    let mut floods = Vec::new();
    for flood in watching.collect::<Vec<_>>() {
        floods.push(flood.await.unwrap());
    }
    let held: Vec<_> = floods.iter().map(|flood| flood.held).collect();
    assert_eq!(held, [256; 4]);
    let mut info = DaemonServiceClient::new(lazy_channel(&format!("http://127.0.0.1:{port}")));
    let called = info.get_info(with_key(&key, GetInfoRequest {}));
    promptly("there is a place", called).await.unwrap();
}

#[tokio::test]
async fn idle_connection_without_an_authorized_call_is_closed() {
    let keys = Arc::new(KeyFile::new());
    let key = keys.add_key("owner", "read", &[]);
    let daemon = start_daemon_with_keys(Setup::new().listen_tcp(), &keys).await;
    let address = format!("http://127.0.0.1:{}", daemon.port());
    // One that is let in once, one that watches over the daemon without a key, and one that does nothing.
    let known = lazy_channel(&address);
    let mut info = DaemonServiceClient::new(known.clone());
    info.get_info(with_key(&key, GetInfoRequest {})).await.unwrap();
    let mut watch = HealthClient::new(lazy_channel(&address));
    let request = HealthCheckRequest::default();
    let mut watched = watch.watch(request).await.unwrap().into_inner();
    watched.message().await.unwrap().unwrap();
    let mut known = HealthClient::new(known);
    let mut beside = known.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    beside.message().await.unwrap().unwrap();
    let mut stranger = TcpStream::connect(("127.0.0.1", daemon.port())).unwrap();
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let preface = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &settings].concat();
    stranger.write_all(&preface).unwrap();
    stranger.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    let read = tokio::task::spawn_blocking(move || stranger.read_to_end(&mut Vec::new()));
    read.await.unwrap().expect("the daemon closes it");
    // The others go on.
    for stream in [&mut watched, &mut beside] {
        let next = timeout(Duration::from_millis(1), stream.message()).await;
        assert!(next.is_err(), "{next:?}");
    }
}

#[tokio::test]
async fn unauthenticated_caller_gets_an_error_and_is_disconnected() {
    // Commands of an ordinary daemon with its network could be anybody on loopback.
    let setup = Setup::new().user(DAEMON_UID).listen_tcp();
    let daemon = setup.arguments(&["--network", "host"]).start().await;
    let relay = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", relay.local_addr().unwrap());
    let port = daemon.port();
    let passed = tokio::spawn(async move {
        let (from, _) = relay.accept().await.unwrap();
        let to = TcpStream::connect(("127.0.0.1", port)).unwrap();
        to.set_nonblocking(true).unwrap();
        let to = tokio::net::TcpStream::from_std(to).unwrap();
        let ((mut client_read, mut client_write), (mut daemon_read, mut daemon_write)) =
            (from.into_split(), to.into_split());
        let there = tokio::spawn(async move { copy(&mut client_read, &mut daemon_write).await });
        // Until the daemon closes its end; nobody else does.
        let ended = copy(&mut daemon_read, &mut client_write).await;
        there.abort();
        ended
    });
    let mut info = DaemonServiceClient::new(lazy_channel(&address));
    let refused = info.get_info(GetInfoRequest {}).await.unwrap_err();
    assert_eq!(Refusal::from_status(&refused).reason, "UNAUTHENTICATED");
    promptly("the daemon closes the connection", passed).await.unwrap().unwrap();
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
        let watched = health.watch(HealthCheckRequest::default()).await?;
        let mut watched = watched.into_inner();
        watched.message().await.map(|_| watched)
    };
    let mut held = Vec::new();
    let refusal = loop {
        match watch().await {
            Ok(watched) => held.push(watched),
            Err(status) => break Refusal::from_status(&status),
        }
        assert!(held.len() < 100, "nothing is refused");
    };
    assert_eq!(held.len(), 16);
    assert_eq!(refusal.reason, "RESOURCE_EXHAUSTED");
    assert!(refusal.retry_after.is_some(), "{refusal:?}");
    // One that has ended makes room, as a connection does on which a call is let in.
    held.truncate(15);
    eventually("there is room", async || match watch().await {
        Ok(watched) => {
            held.push(watched);
            true
        }
        Err(_) => false,
    })
    .await;
    let mut info = DaemonServiceClient::new(channel.clone());
    info.get_info(with_key(&key, GetInfoRequest {})).await.unwrap();
    watch().await.unwrap();
}
