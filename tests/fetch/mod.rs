//! `fetch_url`: what it answers, and where it does not go.

/// What is made of what servers answer.
mod content;
/// What it must not reach.
mod guard;
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

use crate::support::{Daemon, Refusal, World, in_network_of};

/// A host that may be fetched from, and one that is there too.
pub(crate) const ALLOWED: (&str, &str) = ("site.jig.test", "203.0.113.10");
pub(crate) const OTHER: (&str, &str) = ("other.jig.test", "203.0.113.11");
/// Addresses that nothing must be fetched from.
pub(crate) const PRIVATE: &str = "10.1.2.3";
const METADATA: &str = "169.254.169.254";

/// What a server does with a request for a path.
type Answers = dyn Fn(&str, &mut TcpStream) -> std::io::Result<()> + Send + Sync;

/// A server, and what it was asked.
#[derive(Debug, Clone, Default)]
pub(crate) struct Site {
    heads: Arc<Mutex<Vec<String>>>,
    /// Connections that were made, whatever was said.
    connections: Arc<AtomicUsize>,
    /// Of these, the ones that have ended.
    ended: Arc<AtomicUsize>,
}

impl Site {
    /// Serves in the daemon's network. It ends with the test's process.
    pub(crate) fn at(
        daemon: &Daemon,
        address: &'static str,
        port: u16,
        answers: impl Fn(&str, &mut TcpStream) -> std::io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        let site = Self::default();
        let kept = site.clone();
        let answers: Arc<Answers> = Arc::new(answers);
        let listener = in_network_of(daemon, move || TcpListener::bind((address, port)).unwrap());
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (site, answers) = (kept.clone(), Arc::clone(&answers));
                site.connections.fetch_add(1, Ordering::SeqCst);
                thread::spawn(move || {
                    // One that goes away is no matter.
                    let _gone = site.serve(stream, &*answers);
                    site.ended.fetch_add(1, Ordering::SeqCst);
                });
            }
        });
        site
    }

    fn serve(&self, mut stream: TcpStream, answers: &Answers) -> std::io::Result<()> {
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

    fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    fn ended(&self) -> usize {
        self.ended.load(Ordering::SeqCst)
    }
}

/// Answers with a status, more fields, and a body.
pub(crate) fn answer(
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
fn hello(_: &str, stream: &mut TcpStream) -> std::io::Result<()> {
    answer(stream, "200 OK", "Content-Type: text/plain\r\n", b"hello")
}

fn world() -> World {
    World::with(&[ALLOWED, OTHER, ("", PRIVATE), ("", METADATA)])
}

/// A daemon that may fetch from these hosts, at these addresses too.
async fn fetching(world: &World, hosts: &[&str], addresses: &[&str]) -> Daemon {
    let setup = world
        .setup()
        .workspace_table(&format!("[fetch]\nhosts = {hosts:?}\nallow_addresses = {addresses:?}"));
    setup.start().await
}

/// One that may fetch from the host that is allowed.
async fn usual(world: &World) -> Daemon {
    fetching(world, &[ALLOWED.0], &[ALLOWED.1]).await
}

fn url(url: &str) -> FetchUrlRequest {
    FetchUrlRequest { url: url.to_owned(), ..FetchUrlRequest::default() }
}

/// A page of the host that is allowed, in this format.
fn page(path: &str, format: FetchFormat) -> FetchUrlRequest {
    FetchUrlRequest { format: Some(format.into()), ..url(&format!("http://{}{path}", ALLOWED.0)) }
}

async fn try_fetch(daemon: &Daemon, request: FetchUrlRequest) -> Result<FetchUrlResponse, Refusal> {
    let answer = daemon.tools().fetch_url(request).await;
    answer.map(tonic::Response::into_inner).map_err(|status| Refusal::of(&status))
}

async fn fetch(daemon: &Daemon, request: FetchUrlRequest) -> FetchUrlResponse {
    try_fetch(daemon, request).await.unwrap()
}

/// Fetches what must not be fetched, for this reason.
async fn refuses(daemon: &Daemon, request: FetchUrlRequest, reason: &str) -> Refusal {
    let shown = format!("{request:.300?}");
    match try_fetch(daemon, request).await {
        Ok(response) => panic!("{shown} was fetched: {response:?}"),
        Err(refusal) => {
            assert_eq!(refusal.reason, reason, "{shown}: {refusal:?}");
            refusal
        }
    }
}
