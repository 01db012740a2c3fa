//! `fetch_url`: its answers, and the targets that it does not reach.

/// Hosts, ports and addresses that are not allowed.
mod allowed_hosts;
/// Formats, encodings and TLS.
mod content;
/// Bounds on time and size.
mod limits;
/// Redirects.
mod redirects;

use std::{
    io::{BufRead as _, BufReader, Write as _},
    net::{TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use jig::api::v1::{FetchFormat, FetchUrlRequest, FetchUrlResponse};

use crate::support::{Daemon, Refusal, TestNetwork, run_in_network_of};

/// A name and its address that the daemon may fetch from.
pub(crate) const ALLOWED_HOST: (&str, &str) = ("site.jig.test", "203.0.113.10");
/// An existing host that the daemon may fetch from only where a test allows it.
pub(crate) const OTHER_HOST: (&str, &str) = ("other.jig.test", "203.0.113.11");
/// An address of a private network, which is not allowed by default.
pub(crate) const PRIVATE_ADDRESS: &str = "10.1.2.3";
/// The address of a cloud's metadata service.
const METADATA_ADDRESS: &str = "169.254.169.254";

/// How a server answers a request for a path.
type RequestHandler = dyn Fn(&str, &mut TcpStream) -> std::io::Result<()> + Send + Sync;

/// A web server that counts connections and stores the heads of requests.
#[derive(Debug, Clone, Default)]
pub(crate) struct HttpSite {
    heads: Arc<Mutex<Vec<String>>>,
    /// Accepted connections, with or without a request.
    connections: Arc<AtomicUsize>,
    /// How many of these connections have ended.
    ended_connections: Arc<AtomicUsize>,
}

impl HttpSite {
    /// Serves in the daemon's network. It ends with the test's process.
    pub(crate) fn start(
        daemon: &Daemon,
        address: &'static str,
        port: u16,
        respond: impl Fn(&str, &mut TcpStream) -> std::io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let site = Self::default();
        let server = site.clone();
        let respond: Arc<RequestHandler> = Arc::new(respond);
        let listener =
            run_in_network_of(daemon, move || TcpListener::bind((address, port)).unwrap());
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (site, respond) = (server.clone(), Arc::clone(&respond));
                site.connections.fetch_add(1, Ordering::SeqCst);
                thread::spawn(move || {
                    // A client may disconnect at any time.
                    let _disconnected = site.serve_connection(stream, &*respond);
                    site.ended_connections.fetch_add(1, Ordering::SeqCst);
                });
            }
        });

        site
    }

    fn serve_connection(
        &self,
        mut stream: TcpStream,
        respond: &RequestHandler,
    ) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut head = String::new();

        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head)? == 0 {
                return Ok(());
            }
        }

        let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
        self.heads.lock().unwrap().push(head);
        respond(&path, &mut stream)
    }

    fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }

    fn connection_count(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    fn ended_connection_count(&self) -> usize {
        self.ended_connections.load(Ordering::SeqCst)
    }
}

/// Writes a response with a status, further header fields and a body.
pub(crate) fn write_response(
    stream: &mut TcpStream,
    status: &str,
    fields: &str,
    body: &[u8],
) -> std::io::Result<()> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\n{fields}Content-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)
}

/// Answers every path with the text "hello".
fn respond_hello(_: &str, stream: &mut TcpStream) -> std::io::Result<()> {
    write_response(stream, "200 OK", "Content-Type: text/plain\r\n", b"hello")
}

fn test_network() -> TestNetwork {
    TestNetwork::with_hosts(&[
        ALLOWED_HOST,
        OTHER_HOST,
        ("", PRIVATE_ADDRESS),
        ("", METADATA_ADDRESS),
    ])
}

/// A daemon that may fetch from these hosts. `addresses` are allowed although they are not public.
async fn start_fetching_daemon(
    network: &TestNetwork,
    hosts: &[&str],
    addresses: &[&str],
) -> Daemon {
    let setup = network
        .setup()
        .workspace_table(&format!("[fetch]\nhosts = {hosts:?}\nallow_addresses = {addresses:?}"));
    setup.start().await
}

/// A daemon that may fetch from `ALLOWED_HOST` only.
async fn start_default_daemon(network: &TestNetwork) -> Daemon {
    start_fetching_daemon(network, &[ALLOWED_HOST.0], &[ALLOWED_HOST.1]).await
}

fn url_request(url: &str) -> FetchUrlRequest {
    FetchUrlRequest { url: url.to_owned(), ..FetchUrlRequest::default() }
}

/// A request for a page of `ALLOWED_HOST` in a format.
fn page_request(path: &str, format: FetchFormat) -> FetchUrlRequest {
    FetchUrlRequest {
        format: Some(format.into()),
        ..url_request(&format!("http://{}{path}", ALLOWED_HOST.0))
    }
}

async fn try_fetch(daemon: &Daemon, request: FetchUrlRequest) -> Result<FetchUrlResponse, Refusal> {
    let answer = daemon.tools().fetch_url(request).await;
    answer.map(tonic::Response::into_inner).map_err(|status| Refusal::from_status(&status))
}

async fn fetch(daemon: &Daemon, request: FetchUrlRequest) -> FetchUrlResponse {
    try_fetch(daemon, request).await.unwrap()
}

/// Fetches a URL that the daemon must refuse for this reason.
async fn fetch_failing(daemon: &Daemon, request: FetchUrlRequest, reason: &str) -> Refusal {
    let request_text = format!("{request:.300?}");
    match try_fetch(daemon, request).await {
        Ok(response) => panic!("{request_text} was fetched: {response:?}"),
        Err(refusal) => {
            assert_eq!(refusal.reason, reason, "{request_text}: {refusal:?}");
            refusal
        }
    }
}
