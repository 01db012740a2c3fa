//! Clients that connect and stop, or send a byte at a time: the daemon ends their connections.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, pem::PemObject as _},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpStream,
    task::JoinSet,
    time::{interval, timeout},
};
use tokio_rustls::TlsConnector;

use super::{
    frames::{
        CONTINUATION, DATA, END_HEADERS, HEADERS, PREFACE, call, call_headers, frame, greeting,
        has_frame,
    },
    get_info, start_tcp_daemon, tcp_channel,
};
use crate::support::{CertificateAuthority, Daemon, Setup, full_size};

const METHOD: &str = "/jig.v1.DaemonService/GetInfo";
/// Pace of a client that sends slowly.
const DRIP_INTERVAL: Duration = Duration::from_millis(500);
/// More than each time limit of a listener. The longest is that of keepalive, 40 seconds.
const MAX_TIME_TO_CLOSE: Duration = Duration::from_secs(120);

/// A daemon that speaks plaintext, and one that speaks TLS.
pub(super) struct Daemons {
    plaintext: Daemon,
    tls: Daemon,
    ca: CertificateAuthority,
}

impl Daemons {
    pub(super) async fn start() -> Self {
        let ca = CertificateAuthority::new();
        let arguments = ca.issue_server().listener_arguments();
        let setup = Setup::new().listen_tcp();
        let tls = setup.arguments(&arguments.each_ref().map(String::as_str)).start().await;
        Self { plaintext: start_tcp_daemon(&[]).await, tls, ca }
    }

    /// Connects, with a TLS handshake if `is_tls`.
    pub(super) async fn connect(&self, is_tls: bool) -> Box<dyn Connection> {
        let daemon = if is_tls { &self.tls } else { &self.plaintext };
        let stream = TcpStream::connect(("127.0.0.1", daemon.port())).await.unwrap();
        if !is_tls {
            return Box::new(stream);
        }

        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.ca.ca()).unwrap()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector = TlsConnector::from(Arc::new(config));
        Box::new(connector.connect("localhost".try_into().unwrap(), stream).await.unwrap())
    }
}

/// A connection with or without TLS.
pub(super) trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

/// A client that sends some bytes, and then others at a slow pace.
struct SlowClient {
    name: &'static str,
    first: Vec<u8>,
    then: Vec<u8>,
    /// Whether the daemon has sent all that it must send. It must close the connection otherwise.
    is_answered: fn(&[u8]) -> bool,
    /// Whether the time limit is longer than the tests may last that run each time.
    is_long: bool,
}

fn never(_: &[u8]) -> bool {
    false
}

/// Whether the call on stream 3 has an answer.
fn has_headers_of_call(answer: &[u8]) -> bool {
    has_frame(answer, HEADERS, 3)
}

fn slow_clients() -> Vec<SlowClient> {
    let slow = |name, first: &[u8], then: &[u8]| {
        let (first, then) = (first.to_vec(), then.to_vec());
        SlowClient { name, first, then, is_answered: never, is_long: false }
    };
    let long =
        |name, first: &[u8], then: &[u8]| SlowClient { is_long: true, ..slow(name, first, then) };
    let http1_body = "POST /jig.v1.DaemonService/GetInfo HTTP/1.1\r\nhost: localhost\r\n\
                      content-type: application/json\r\ncontent-length: 1000\r\n\r\n";
    // An earlier limit applies to connections without an authenticated call.
    let http1_called = "POST /jig.v1.DaemonService/GetInfo HTTP/1.1\r\nhost: localhost\r\n\
                        content-type: application/json\r\ncontent-length: 2\r\n\r\n{}";
    let http1_headers = format!("{http1_called}GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: ");
    let called = [greeting(), call(1, METHOD, b"")].concat();
    let open_headers = [&called[..], &frame(HEADERS, 0, 3, &call_headers(METHOD))].concat();
    let open_body = [
        &called[..],
        &frame(HEADERS, END_HEADERS, 3, &call_headers(METHOD)),
        &frame(DATA, 0, 3, &[0, 0, 0, 4, 0]),
    ]
    .concat();
    vec![
        slow("silent", b"", b""),
        slow("half a preface", &PREFACE[..12], b""),
        slow("one byte of a request line", b"G", b""),
        long("slow headers of HTTP/1.1", http1_headers.as_bytes(), b"x"),
        long("idle HTTP/1.1", http1_called.as_bytes(), b""),
        long("no call of HTTP/1.1", b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n", b""),
        long("slow body of HTTP/1.1", http1_body.as_bytes(), b" "),
        long("no call of HTTP/2", &greeting(), b""),
        long("no answer to the pings of HTTP/2", &called, b""),
        long("headers of HTTP/2 that stop", &open_headers, b""),
        slow("slow headers of HTTP/2", &open_headers, &frame(CONTINUATION, 0, 3, b"")),
        SlowClient {
            is_answered: has_headers_of_call,
            ..long("slow message of gRPC", &open_body, &frame(DATA, 0, 3, b"x"))
        },
    ]
}

/// Sends `drip` at a slow pace until the daemon closes the connection or `is_answered`. Returns
/// everything that the daemon has sent.
async fn read_until(
    connection: Box<dyn Connection>,
    drip: &[u8],
    is_answered: impl Fn(&[u8]) -> bool,
) -> Vec<u8> {
    let (mut reader, mut writer) = tokio::io::split(connection);
    let mut answer = Vec::new();
    let reading = async {
        // A connection that is closed with unread data is reset.
        while let Ok(1..) = reader.read_buf(&mut answer).await {
            if is_answered(&answer) {
                break;
            }
        }
    };
    let dripping = async {
        let mut pace = interval(DRIP_INTERVAL);
        loop {
            pace.tick().await;
            if writer.write_all(drip).await.is_err() || writer.flush().await.is_err() {
                // The reader sees the end too.
                std::future::pending::<()>().await;
            }
        }
    };
    tokio::select! {
        () = reading => {}
        () = dripping => {}
    }
    answer
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_clients_are_disconnected() {
    let daemons = Arc::new(Daemons::start().await);
    let mut clients = JoinSet::new();
    for is_tls in [false, true] {
        for client in slow_clients() {
            if client.is_long && full_size(1, 0) == 0 {
                continue;
            }
            let daemons = Arc::clone(&daemons);
            clients.spawn(async move {
                let start = Instant::now();
                let mut connection = daemons.connect(is_tls).await;
                connection.write_all(&client.first).await.unwrap();
                connection.flush().await.unwrap();
                let ends = read_until(connection, &client.then, client.is_answered);
                let answer = timeout(MAX_TIME_TO_CLOSE, ends).await;
                let answer = answer.unwrap_or_else(|_| panic!("{}: still open", client.name));
                if full_size(1, 0) == 1 {
                    eprintln!("{} (TLS: {is_tls}): {:?}", client.name, start.elapsed());
                }
                (client, answer)
            });
        }
    }

    get_info(&tcp_channel(&daemons.plaintext)).await;
    get_info(&daemons.ca.channel(daemons.tls.port(), None)).await;
    while let Some(client) = clients.join_next().await {
        let (client, answer) = client.unwrap();
        let text = String::from_utf8_lossy(&answer);
        match client.name {
            "slow body of HTTP/1.1" => assert!(text.starts_with("HTTP/1.1 504 "), "{text}"),
            "slow message of gRPC" => assert!(has_headers_of_call(&answer), "{text}"),
            _ => {}
        }
    }
}
