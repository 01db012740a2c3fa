//! `jig forward`: connects local ports to those of a process.

use std::{
    io::{self, Read as _},
    net::{Ipv4Addr, SocketAddr},
    process::ExitCode,
    str::FromStr,
    thread,
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use clap::Args;
use jig::{
    api::v1::{ForwardPortStart, ProcessState},
    client::{CallError, Client, PortReader, PortWriter},
};
use rustix::net::sockopt::set_socket_linger;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, tcp::OwnedReadHalf, tcp::OwnedWriteHalf},
    sync::mpsc,
    task::JoinSet,
};

use super::report_and_exit;
use crate::{cli_error::CliError, connection, global::GlobalArgs, local_error::LocalError, output};

/// Bytes to read at a time.
const CHUNK_BYTES: usize = 64 << 10;
/// Parts of standard input that wait for the daemon.
const STDIN_BUFFER_PARTS: usize = 2;
/// Time between two checks whether the process still runs. No call waits for the end of a process
/// without taking its output from those that read it.
const PROCESS_CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// Pause after a connection that could not be accepted, for example without free descriptors.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);

/// Forward local ports to TCP ports of a process, which `jig exec` or `jig run` started.
///
/// Listens on 127.0.0.1 and prints the addresses. Ends when the process ends, or at Ctrl-C.
///
/// Example: `jig forward PROCESS 8000` or `jig forward PROCESS 8000:3000 5432`.
#[derive(Debug, Args)]
pub(crate) struct ForwardArgs {
    /// Id of the process, as `jig ps` lists it.
    #[arg(value_name = "PROCESS")]
    process: String,
    /// Port of the process, and the local one. By default, a free local port is chosen.
    #[arg(value_name = "PORT[:LOCAL]", required = true)]
    ports: Vec<ForwardedPort>,
    /// Connect standard input and output to the port, instead of a local port.
    #[arg(long)]
    stdio: bool,
}

/// The daemon, to which each forwarded connection has a connection of its own. On a shared one, servers
/// that take no data would block the others: its flow control has room for few of them.
#[derive(Debug, Clone)]
struct ForwardedDaemon {
    address: String,
    global: GlobalArgs,
}

/// A port of a process, and the local port that leads to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ForwardedPort {
    port: u16,
    /// 0 for any.
    local: u16,
}

impl FromStr for ForwardedPort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (port, local) = text.split_once(':').unwrap_or((text, "0"));
        let parse = |text: &str| text.parse().map_err(|_| "a port is 1 to 65535".to_owned());
        match (parse(port)?, parse(local)?) {
            (0, _) => Err("a port is 1 to 65535".to_owned()),
            (port, local) => Ok(Self { port, local }),
        }
    }
}

pub(crate) fn forward(global: &GlobalArgs, args: ForwardArgs) -> ExitCode {
    let ForwardArgs { process, ports, stdio } = args;
    let as_json = global.json;
    let result = global.require_address().and_then(|address| {
        connection::call_address(address, global, async |client: Client| match ports.as_slice() {
            [ForwardedPort { port, local: 0 }] if stdio => {
                forward_stdio(&client, process, *port).await
            }
            _ if stdio => {
                let text = "--stdio takes one port, without a local one";
                Err(CliError::Usage(text.to_owned()))
            }
            ports => {
                let daemon =
                    ForwardedDaemon { address: address.to_owned(), global: global.clone() };
                forward_ports(&client, daemon, process, ports, as_json).await
            }
        })
    });
    report_and_exit(result, as_json)
}

// === Local ports ===

/// Forwards connections until the process has ended.
async fn forward_ports(
    client: &Client,
    daemon: ForwardedDaemon,
    process_id: String,
    ports: &[ForwardedPort],
    as_json: bool,
) -> Result<(), CliError> {
    check_process(client, &process_id).await?;

    // Ends with this function, and closes all connections.
    let mut tasks = JoinSet::new();
    let (ended_sender, mut ended) = mpsc::channel(1);
    let mut addresses = Vec::new();
    for &ForwardedPort { port, local } in ports {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, local)).await;
        let failed = |error| LocalError::new(&format!("cannot listen on port {local}"), &error);
        let listener = listener.map_err(failed)?;
        addresses.push((port, listener.local_addr().map_err(failed)?));

        let start = ForwardPortStart { process_id: process_id.clone(), port: port.into() };
        tasks.spawn(accept_connections(listener, daemon.clone(), start, ended_sender.clone()));
    }
    print_addresses(&process_id, &addresses, as_json)?;

    loop {
        tokio::select! {
            error = ended.recv() => return Err(error.unwrap_or_else(process_ended_error)),
            () = tokio::time::sleep(PROCESS_CHECK_INTERVAL) => {
                check_process(client, &process_id).await?;
            }
        }
    }
}

fn print_addresses(
    process_id: &str,
    addresses: &[(u16, SocketAddr)],
    as_json: bool,
) -> Result<(), CliError> {
    if as_json {
        let list = addresses
            .iter()
            .map(|(port, address)| json!({ "port": port, "address": address.to_string() }));
        let list: Vec<_> = list.collect();
        return output::write_json(&json!({ "process_id": process_id, "ports": list }));
    }
    let lines = addresses.iter().map(|(port, address)| format!("{address} -> port {port}\n"));
    output::write_stdout(lines.collect::<String>().as_bytes())
}

/// Checks that the process runs, or waits for its sandbox.
async fn check_process(client: &Client, process_id: &str) -> Result<(), CliError> {
    let listed = client.list_processes().await?;
    let found = listed.processes.iter().find(|process| process.process_id == process_id);
    match found.map(|process| process.state()) {
        Some(ProcessState::Ended) => Err(process_ended_error()),
        Some(_) => Ok(()),
        None => {
            let text = format!("there is no process {process_id:?}: `jig ps` lists them");
            Err(CliError::System(text))
        }
    }
}

fn process_ended_error() -> CliError {
    CliError::System("the process has ended, and with it the forwarding".to_owned())
}

/// Whether no later connection to the process can succeed.
fn is_process_gone(error: &CliError) -> bool {
    let CliError::Call(error) = error else {
        return false;
    };
    matches!(error.name(), "PROCESS_ENDED" | "PROCESS_NOT_FOUND" | "FORWARDING_UNAVAILABLE")
}

/// Forwards each connection in a task of its own. Sends the error of a process that is gone.
async fn accept_connections(
    listener: TcpListener,
    daemon: ForwardedDaemon,
    start: ForwardPortStart,
    ended: mpsc::Sender<CliError>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let (daemon, start, ended) = (daemon.clone(), start.clone(), ended.clone());
                    connections.spawn(async move {
                        let port = start.port;
                        let Err(error) = forward_connection(&daemon, start, stream).await else {
                            return;
                        };
                        if is_process_gone(&error) {
                            let _others_are_first = ended.try_send(error);
                        } else {
                            output::note(&format!("port {port}: {}", error.summary()));
                        }
                    });
                }
                Err(_) => tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await,
            }
        }
    }
}

/// Forwards one connection. Resets the local one after an error.
async fn forward_connection(
    daemon: &ForwardedDaemon,
    start: ForwardPortStart,
    stream: TcpStream,
) -> Result<(), CliError> {
    // A reset unless both directions end.
    let _best_effort = set_socket_linger(&stream, Some(Duration::ZERO));
    // Small messages of a protocol wait for answers.
    let _best_effort = stream.set_nodelay(true);
    let client = connection::connect(&daemon.address, &daemon.global).await?;
    let (reader, writer) = client.forward_port(start).await?;
    let (local_reader, local_writer) = stream.into_split();

    // The error of a local client that has gone is `None`. Dropping the reader then resets the other
    // connection.
    let upload = async { upload(local_reader, writer).await.map_err(|_| None) };
    let download = download(reader, local_writer);
    match tokio::try_join!(upload, download) {
        Ok(_) | Err(None) => Ok(()),
        Err(Some(error)) => Err(error.into()),
    }
}

/// Sends what the local client sends, until it ends its output.
async fn upload(mut local: OwnedReadHalf, remote: PortWriter) -> io::Result<OwnedReadHalf> {
    loop {
        local.readable().await?;
        let mut chunk = BytesMut::with_capacity(CHUNK_BYTES);
        if local.read_buf(&mut chunk).await? == 0 {
            remote.finish().await;
            return Ok(local);
        }
        if !remote.send(chunk.freeze()).await {
            return Ok(local);
        }
    }
}

/// Writes what the server sends until it ends its output, and waits until the call has ended.
async fn download(
    mut remote: PortReader,
    mut local: OwnedWriteHalf,
) -> Result<OwnedWriteHalf, Option<CallError>> {
    while let Some(data) = remote.next().await? {
        local.write_all(&data).await.map_err(|_| None)?;
    }
    local.shutdown().await.map_err(|_| None)?;
    // The output is complete: a reset could cut it.
    let _best_effort = set_socket_linger(local.as_ref(), None);
    remote.finish().await?;
    Ok(local)
}

// === Standard streams ===

/// Connects standard input and output to a port, until both have ended.
async fn forward_stdio(client: &Client, process_id: String, port: u16) -> Result<(), CliError> {
    let start = ForwardPortStart { process_id, port: port.into() };
    let (mut reader, writer) = client.forward_port(start).await?;

    let mut parts = spawn_stdin_reader();
    let upload = async move {
        while let Some(part) = parts.recv().await {
            if !writer.send(part).await {
                return;
            }
        }
        writer.finish().await;
    };
    let download = async {
        while let Some(data) = reader.next().await? {
            output::write_stdout(&data)?;
        }
        Ok::<_, CliError>(())
    };
    let mut upload = std::pin::pin!(upload);
    let mut download = std::pin::pin!(download);
    tokio::select! {
        () = &mut upload => download.await,
        // As nc(1) does: the server has ended its output, so no answer can follow.
        result = &mut download => result,
    }
}

/// Reads standard input in a thread, because the runtime cannot.
fn spawn_stdin_reader() -> mpsc::Receiver<Bytes> {
    let (sender, parts) = mpsc::channel(STDIN_BUFFER_PARTS);
    thread::spawn(move || {
        let mut stdin = io::stdin().lock();
        let mut buffer = vec![0; CHUNK_BYTES];
        loop {
            match stdin.read(&mut buffer) {
                Ok(0) => return,
                Ok(length) => {
                    let part = buffer.get(..length).unwrap_or_default();
                    if sender.blocking_send(Bytes::copy_from_slice(part)).is_err() {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    });
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_parsed() {
        for (text, port, local) in [("80", 80, 0), ("80:8080", 80, 8080), ("65535:0", 65535, 0)] {
            assert_eq!(text.parse(), Ok(ForwardedPort { port, local }), "{text}");
        }
        for text in ["", "0", "0:80", "80:", ":80", "65536", "80:65536", "80:1:2", "http", "-1"] {
            assert!(text.parse::<ForwardedPort>().is_err(), "{text:?}");
        }
    }
}
