//! `fetch_url`: what it answers, and where it does not go.

/// What it must not reach.
mod allowed_hosts;
/// What is made of what servers answer.
mod content;
/// What takes too long, or is too much.
mod limits;
/// Where servers redirect to.
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

/// A host that may be fetched from, and one that is there too.
pub(crate) const ALLOWED_HOST: (&str, &str) = ("site.jig.test", "203.0.113.10");
pub(crate) const OTHER_HOST: (&str, &str) = ("other.jig.test", "203.0.113.11");
/// Addresses that nothing must be fetched from.
pub(crate) const PRIVATE_ADDRESS: &str = "10.1.2.3";
const METADATA_ADDRESS: &str = "169.254.169.254";

/// What a server does with a request for a path.
type RequestHandler = dyn Fn(&str, &mut TcpStream) -> std::io::Result<()> + Send + Sync;

/// A server, and what it was asked.
#[derive(Debug, Clone, Default)]
pub(crate) struct HttpSite {
    heads: Arc<Mutex<Vec<String>>>,
    /// Connections that were made, whatever was said.
    connections: Arc<AtomicUsize>,
    /// Of these, the ones that have ended.
    ended_connections: Arc<AtomicUsize>,
}

impl HttpSite {
    /// Serves in the daemon's network. It ends with the test's process.
    pub(crate) fn start(
        daemon: &Daemon,
        address: &'static str,
        port: u16,
        answers: impl Fn(&str, &mut TcpStream) -> std::io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let site = Self::default();
        let server = site.clone();
        let answers: Arc<RequestHandler> = Arc::new(answers);
        let listener =
            run_in_network_of(daemon, move || TcpListener::bind((address, port)).unwrap());
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (site, answers) = (server.clone(), Arc::clone(&answers));
                site.connections.fetch_add(1, Ordering::SeqCst);
                thread::spawn(move || {
                    // One that goes away is no matter.
                    let _gone = site.serve_connection(stream, &*answers);
                    site.ended_connections.fetch_add(1, Ordering::SeqCst);
                });
            }
        });

        site
    }

    fn serve_connection(
        &self,
        mut stream: TcpStream,
        answers: &RequestHandler,
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
        answers(&path, &mut stream)
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

/// Answers with a status, more fields, and a body.
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

/// Answers with a text.
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

/// A daemon that may fetch from these hosts, at these addresses too.
async fn start_fetching_daemon(world: &TestNetwork, hosts: &[&str], addresses: &[&str]) -> Daemon {
    let setup = world
        .setup()
        .workspace_table(&format!("[fetch]\nhosts = {hosts:?}\nallow_addresses = {addresses:?}"));
    setup.start().await
}

/// One that may fetch from the host that is allowed.
async fn start_default_daemon(world: &TestNetwork) -> Daemon {
    start_fetching_daemon(world, &[ALLOWED_HOST.0], &[ALLOWED_HOST.1]).await
}

fn url_request(url: &str) -> FetchUrlRequest {
    FetchUrlRequest { url: url.to_owned(), ..FetchUrlRequest::default() }
}

/// A page of the host that is allowed, in this format.
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

/// Fetches what must not be fetched, for this reason.
async fn fetch_failing(daemon: &Daemon, request: FetchUrlRequest, reason: &str) -> Refusal {
    let shown = format!("{request:.300?}");
    match try_fetch(daemon, request).await {
        Ok(response) => panic!("{shown} was fetched: {response:?}"),
        Err(refusal) => {
            assert_eq!(refusal.reason, reason, "{shown}: {refusal:?}");
            refusal
        }
    }
}
