//! Commands with network access: through the daemon's proxy, or on its own network.

/// Lifetime and records of a run's connections.
mod connections;
/// The network mode `host`.
mod host_network;
/// HTTP semantics of the proxy.
mod http;
/// npm, Cargo and Go.
mod package_managers;
/// pip, curl and git.
mod programs;

use jig::api::v1::RunRequest;

use crate::support::{Daemon, TestNetwork, argv};

/// Name and address of the host that commands may connect to, and of another host.
const ALLOWED: (&str, &str) = ("packages.jig.test", "203.0.113.10");
const OTHER: (&str, &str) = ("other.jig.test", "203.0.113.11");

/// A daemon whose commands may connect to [`ALLOWED`], but not to [`OTHER`].
async fn start_with_proxy() -> (TestNetwork, Daemon) {
    let network = TestNetwork::with_hosts(&[ALLOWED, OTHER]);
    let daemon = network.proxy_setup(&[ALLOWED.0], &[ALLOWED.1]).start().await;
    (network, daemon)
}

/// A command that sends `text` to the proxy, and prints the response until the proxy closes.
fn proxy_request(text: &str) -> RunRequest {
    let program = "
import socket, sys
connection = socket.create_connection(('127.0.0.1', 3128))
connection.sendall(sys.stdin.buffer.read())
while data := connection.recv(65536):
    sys.stdout.buffer.write(data)
";

    RunRequest { stdin: text.as_bytes().to_vec().into(), ..argv(&["python3", "-c", program]) }
}

/// The connection records of the default session.
fn egress_records(daemon: &Daemon) -> Vec<serde_json::Value> {
    let path = daemon.state_dir().join("sessions/default/events.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    let records = text.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    records
        .filter(|record| record["event"].as_str().is_some_and(|event| event.starts_with("egress")))
        .collect()
}
