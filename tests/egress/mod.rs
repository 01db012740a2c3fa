//! Commands that have a network: the daemon's own, or its proxy.

/// What is left of a run's connections, and what is recorded of them.
mod connections;
/// The network `host`.
mod host_network;
/// HTTP as the proxy reads and writes it.
mod http;
/// npm, Cargo, Go.
mod package_managers;
/// What people use: pip, curl, git.
mod programs;

use jig::api::v1::RunRequest;

use crate::support::{Daemon, argv};

/// The host that commands may connect to, and another that is there too.
const ALLOWED: (&str, &str) = ("packages.jig.test", "203.0.113.10");
const OTHER: (&str, &str) = ("other.jig.test", "203.0.113.11");

/// A command that sends `text` to the proxy, and writes what comes back until the proxy closes.
fn proxy_request(text: &str) -> RunRequest {
    let program = "
import socket, sys
end = socket.create_connection(('127.0.0.1', 3128))
end.sendall(sys.stdin.buffer.read())
while piece := end.recv(65536):
    sys.stdout.buffer.write(piece)
";
    RunRequest { stdin: text.as_bytes().to_vec().into(), ..argv(&["python3", "-c", program]) }
}

/// The records of the default session about connections.
fn egress_records(daemon: &Daemon) -> Vec<serde_json::Value> {
    let path = daemon.state_dir().join("sessions/default/events.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    let records = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    records
        .filter(|record| record["event"].as_str().is_some_and(|event| event.starts_with("egress")))
        .collect()
}
