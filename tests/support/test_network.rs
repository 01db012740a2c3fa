//! A network for one daemon: a network namespace with addresses on its loopback interface, host
//! names and servers. No packet leaves it, so it can use public addresses.

use std::{
    collections::VecDeque,
    fs::{self, File},
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream, UdpSocket},
    os::fd::AsFd as _,
    path::PathBuf,
    sync::{Arc, Mutex},
    thread,
};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tempfile::TempDir;

use super::{Daemon, setup::Setup};

/// The requests that one HTTP server has received.
#[derive(Debug, Clone, Default)]
pub(crate) struct ReceivedRequests(Arc<Mutex<Vec<String>>>);

/// A name server with a list of answers. Each question for an IPv4 address takes the next answer;
/// the last one repeats. Records the names of these questions.
#[derive(Debug, Clone)]
pub(crate) struct NameServer {
    answers: Arc<Mutex<VecDeque<Vec<IpAddr>>>>,
    questions: Arc<Mutex<Vec<String>>>,
}

/// Files with host names, which exist as long as the daemon reads them.
#[derive(Debug)]
pub(crate) struct TestNetwork {
    directory: TempDir,
    addresses: Vec<String>,
}

impl TestNetwork {
    /// A network with hosts: their names and addresses.
    pub(crate) fn with_hosts(hosts: &[(&str, &str)]) -> Self {
        let directory = TempDir::with_prefix("jig-test-network-").unwrap();
        let mut text = "127.0.0.1 localhost\n".to_owned();
        let mut addresses = Vec::new();
        for (name, address) in hosts {
            if !name.is_empty() {
                text.push_str(&format!("{address} {name}\n"));
            }
            let prefix = if address.contains(':') { 128 } else { 32 };
            addresses.push(format!("{address}/{prefix}"));
        }

        fs::write(directory.path().join("hosts"), text).unwrap();
        let resolver = "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n";
        fs::write(directory.path().join("resolv.conf"), resolver).unwrap();
        addresses.sort_unstable();
        addresses.dedup();

        Self { directory, addresses }
    }

    /// Sets a resolver timeout of 30 s, for slow name servers.
    pub(crate) fn with_slow_name_servers(self) -> Self {
        let resolver = "nameserver 127.0.0.1\noptions timeout:30 attempts:1\n";
        fs::write(self.directory.path().join("resolv.conf"), resolver).unwrap();
        self
    }

    /// A daemon in this network.
    pub(crate) fn setup(&self) -> Setup {
        let mut script = "set -e; ip link set lo up".to_owned();
        for address in &self.addresses {
            script.push_str(&format!("; ip address add {address} dev lo"));
        }

        for name in ["hosts", "resolv.conf"] {
            let path = self.directory.path().join(name);
            script.push_str(&format!("; mount --bind {} /etc/{name}", path.display()));
        }

        script.push_str("; exec \"$0\" \"$@\"");
        Setup::new().wrapped_by(["unshare", "--net", "--mount", "sh", "-c", &script])
    }

    /// A daemon in this network whose commands may connect to these hosts, and at these addresses.
    pub(crate) fn proxy_setup(&self, hosts: &[&str], addresses: &[&str]) -> Setup {
        self.setup().workspace_table(&format!(
            "[sandbox]\nnetwork = \"proxy\"\n[proxy]\nallow_hosts = {hosts:?}\nallow_addresses = {addresses:?}"
        ))
    }
}

/// Runs a function in the daemon's network namespace.
pub(crate) fn run_in_network_of<T: Send + 'static>(
    daemon: &Daemon,
    function: impl FnOnce() -> T + Send + 'static,
) -> T {
    let network = File::open(format!("/proc/{}/ns/net", daemon.pid())).unwrap();
    let thread = thread::spawn(move || {
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        function()
    });
    thread.join().unwrap()
}

/// Serves HTTP in the daemon's network: the files of a directory, and `/zeros/COUNT`, which is
/// COUNT bytes. Returns the received requests. The server runs until the test process ends.
pub(crate) fn start_http_server(
    daemon: &Daemon,
    address: &'static str,
    port: u16,
    directory: Option<PathBuf>,
) -> ReceivedRequests {
    let requests = ReceivedRequests::default();
    let received = requests.clone();
    let listener = run_in_network_of(daemon, move || TcpListener::bind((address, port)).unwrap());
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let (directory, received) = (directory.clone(), received.clone());
            thread::spawn(move || serve_connection(stream, directory, &received));
        }
    });

    requests
}

/// Serves requests until the client closes the connection.
fn serve_connection(
    stream: TcpStream,
    directory: Option<PathBuf>,
    requests: &ReceivedRequests,
) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut stream = stream;
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if reader.read_line(&mut head).ok()? == 0 {
                return None;
            }
        }
        let field = |name: &str| {
            let mut lines = head.lines().filter_map(|line| line.split_once(':'));
            lines.find(|(field, _)| field.eq_ignore_ascii_case(name))
        };
        let length = field("content-length").and_then(|(_, value)| value.trim().parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        reader.read_exact(&mut body).ok()?;
        requests.0.lock().unwrap().push(head.clone());
        let path = head.split(' ').nth(1)?.split('?').next()?;
        if let Some(count) = path.strip_prefix("/zeros/") {
            write_zeros(&mut stream, count.parse().ok()?)?;
            continue;
        }

        let file = directory.as_ref().map(|directory| directory.join(path.trim_start_matches('/')));
        let file = file.map(|file| if file.is_dir() { file.join("index.html") } else { file });
        let content = match file {
            Some(file) => fs::read(file).ok(),
            None => Some(format!("{} bytes at {path}\n", body.len()).into_bytes()),
        };

        let status = if content.is_some() { "200 OK" } else { "404 Not Found" };
        let content = content.unwrap_or_default();
        let kind = if path.ends_with('/') { "text/html" } else { "application/octet-stream" };
        write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            content.len()
        )
        .ok()?;
        stream.write_all(&content).ok()?;
    }
}

/// Writes a response with `count` zero bytes.
fn write_zeros(stream: &mut TcpStream, count: usize) -> Option<()> {
    write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {count}\r\n\r\n").ok()?;

    let chunk = [0; 1 << 16];
    let mut remaining = count;
    while remaining > 0 {
        let length = remaining.min(chunk.len());
        stream.write_all(&chunk[..length]).ok()?;
        remaining -= length;
    }

    Some(())
}

/// Starts a name server in the daemon's network, at 127.0.0.1:53.
pub(crate) fn start_name_server(daemon: &Daemon, answers: &[&[&str]]) -> NameServer {
    let parsed = answers
        .iter()
        .map(|addresses| addresses.iter().map(|text| text.parse().unwrap()).collect());
    let name_server =
        NameServer { answers: Arc::new(Mutex::new(parsed.collect())), questions: Arc::default() };
    let responder = name_server.clone();
    let socket = run_in_network_of(daemon, || UdpSocket::bind("127.0.0.1:53").unwrap());
    thread::spawn(move || {
        let mut bytes = [0; 1500];
        while let Ok((length, from)) = socket.recv_from(&mut bytes) {
            if let Some(answer) = responder.build_response(&bytes[..length]) {
                socket.send_to(&answer, from).unwrap();
            }
        }
    });

    name_server
}

impl NameServer {
    /// Number of questions for IPv4 addresses so far.
    pub(crate) fn question_count(&self) -> usize {
        self.questions.lock().unwrap().len()
    }

    /// The names in questions for IPv4 addresses, as they were sent.
    pub(crate) fn questions(&self) -> Vec<String> {
        self.questions.lock().unwrap().clone()
    }

    /// The answer to a question (RFC 1035, 4.1). IPv4 and IPv6 addresses come from the same list,
    /// which advances with each question for IPv4.
    fn build_response(&self, question: &[u8]) -> Option<Vec<u8>> {
        let name_end = 12 + question.get(12..)?.iter().position(|byte| *byte == 0)? + 1;
        let kind = u16::from_be_bytes([*question.get(name_end)?, *question.get(name_end + 1)?]);
        let mut answers = self.answers.lock().unwrap();
        let current = answers.front()?.clone();

        if kind == 1 {
            let name = decode_name(&question[12..name_end - 1]);
            self.questions.lock().unwrap().push(name);
            if answers.len() > 1 {
                answers.pop_front();
            }
        }

        let mut records = Vec::new();
        for address in current {
            let data = match (kind, address) {
                (1, IpAddr::V4(address)) => Ipv4Addr::octets(&address).to_vec(),
                (28, IpAddr::V6(address)) => Ipv6Addr::octets(&address).to_vec(),
                _ => continue,
            };
            let length = u8::try_from(data.len()).unwrap();
            let [high, low] = kind.to_be_bytes();
            records.push([&[0xc0, 12, high, low, 0, 1, 0, 0, 0, 0, 0, length][..], &data].concat());
        }

        let count = u8::try_from(records.len()).unwrap();
        let mut answer = question[..2].to_vec();
        answer.extend([0x81, 0x80, 0, 1, 0, count, 0, 0, 0, 0]);
        answer.extend(&question[12..name_end + 4]);
        answer.extend(records.concat());

        Some(answer)
    }
}

/// Decodes a name of a question: each label follows its length.
fn decode_name(mut bytes: &[u8]) -> String {
    let mut labels = Vec::new();
    while let Some((length, rest)) = bytes.split_first() {
        let (label, rest) = rest.split_at(usize::from(*length).min(rest.len()));
        labels.push(String::from_utf8_lossy(label).into_owned());
        bytes = rest;
    }

    labels.join(".")
}

impl ReceivedRequests {
    /// The heads of all requests so far.
    pub(crate) fn heads(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}
