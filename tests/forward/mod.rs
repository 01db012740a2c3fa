//! Connections to ports of processes: `ForwardPort` and `jig forward`.

mod boundaries;
mod command;
mod ends;
mod streams;

use bytes::Bytes;
use jig::{
    api::v1::ForwardPortStart,
    client::{CallError, Client, Options, PortReader, PortWriter},
};

use crate::support::{Daemon, WatchedProcess, argv, eventually, start_request};

/// Start of the servers: `listener` listens on port 8000.
const LISTEN: &str = "import socket, sys, time, threading, hashlib, struct\n\
    listener = socket.create_server(('127.0.0.1', 8000), backlog=128)\n\
    print('ready', flush=True)\n";

/// Starts a Python server, and waits until it listens.
async fn start_server(daemon: &Daemon, body: &str) -> WatchedProcess {
    let script = format!("{LISTEN}{body}");
    let mut server = daemon.start_process(start_request(argv(&["python3", "-c", &script]))).await;
    server.read_until("ready\n").await;
    server
}

async fn client(daemon: &Daemon) -> Client {
    client_with_key(daemon, None).await
}

async fn client_with_key(daemon: &Daemon, key: Option<&str>) -> Client {
    let address = format!("unix:{}", daemon.socket().display());
    let options = Options { key: key.map(str::to_owned), ..Options::default() };
    Client::connect(&address, options).await.unwrap()
}

async fn connect(
    client: &Client,
    process_id: &str,
    port: u32,
) -> Result<(PortReader, PortWriter), CallError> {
    let start = ForwardPortStart { process_id: process_id.to_owned(), port };
    client.forward_port(start).await
}

/// Connects, and fails the test with any error.
async fn connected(client: &Client, server: &WatchedProcess) -> (PortReader, PortWriter) {
    connect(client, &server.id, 8000).await.unwrap()
}

/// Receives until the server ends its output.
async fn receive_all(reader: &mut PortReader) -> Result<Vec<u8>, CallError> {
    let mut received = Vec::new();
    while let Some(data) = reader.next().await? {
        received.extend_from_slice(&data);
    }
    Ok(received)
}

/// Waits until something listens on a port.
async fn wait_for_port(client: &Client, process_id: &str, port: u32) {
    eventually("the server listens", async || match connect(client, process_id, port).await {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.name(), "PORT_REFUSED", "{error}");
            false
        }
    })
    .await;
}

fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}
