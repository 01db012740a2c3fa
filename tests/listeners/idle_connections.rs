//! Connections that do nothing.

use std::{net::TcpStream, time::Duration};

use super::{frames::connect, serve_during, start_tcp_daemon};
use crate::support::{full_size, status_field};

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_leave_neighbours_served() {
    let daemon = start_tcp_daemon(&[]).await;
    let (port, pid) = (daemon.port(), daemon.pid());
    let count = full_size(2000, 1100);
    raise_descriptor_limit();
    let memory = move || {
        let text = status_field(pid, "VmRSS").unwrap();
        text.split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    let before = memory();
    let held = serve_during(&daemon, "idle connections", move || {
        let connections: Vec<TcpStream> = (0..count).map(|_| connect(port, b"")).collect();
        if full_size(1, 0) == 1 {
            // Neighbours are measured while the connections are open.
            std::thread::sleep(Duration::from_secs(5));
        }
        connections
    });
    let held = held.await;
    if full_size(1, 0) == 1 {
        eprintln!("{} idle connections: RSS from {before} to {} KiB", held.len(), memory());
    }
}

fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|soft| soft < 8192) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(8192), ..limit }).unwrap();
    }
}
