//! Connections that do nothing.

use std::{
    io::{ErrorKind, Read as _},
    net::TcpStream,
    time::Duration,
};

use super::{
    frames::{HEADERS, call, connect, greeting, wait_for_frame},
    resident_bytes, serve_during, start_tcp_daemon,
};
use crate::support::full_size;

#[tokio::test(flavor = "multi_thread")]
async fn idle_connections_leave_neighbours_served() {
    raise_descriptor_limit();
    let count = full_size(2000, 1100);
    // One call makes a connection authenticated, so that it may last.
    let info = call(1, "/jig.v1.DaemonService/GetInfo", b"");
    for (name, bytes) in [
        ("silent connections", Vec::new()),
        ("idle connections of HTTP/2", greeting()),
        ("idle connections of HTTP/2 after a call", [greeting(), info].concat()),
    ] {
        let has_call = bytes.len() > greeting().len();
        let daemon = start_tcp_daemon(&[]).await;
        let (port, pid) = (daemon.port(), daemon.pid());
        serve_during(&daemon, name, move || {
            let before = resident_bytes(pid);
            let mut connections = Vec::new();
            for _ in 0..count {
                // Over the limit, the daemon closes them at once.
                let mut connection = connect(port, &bytes);
                if !has_call || wait_for_frame(&mut connection, HEADERS).is_some() {
                    connections.push(connection);
                }
            }
            if full_size(1, 0) == 0 {
                return;
            }
            connections.retain_mut(is_open);
            let each = (resident_bytes(pid) - before) / u64::try_from(connections.len()).unwrap();
            eprintln!("{name}: {} of {count} are open, {each} bytes each", connections.len());
            // Neighbours are measured while the connections are open.
            std::thread::sleep(Duration::from_secs(5));
        })
        .await;
    }
}

fn is_open(connection: &mut TcpStream) -> bool {
    connection.set_nonblocking(true).unwrap();
    let mut buffer = [0; 4096];
    loop {
        match connection.read(&mut buffer) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
    }
}

fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|soft| soft < 8192) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(8192), ..limit }).unwrap();
    }
}
