//! Forwards a byte stream to a port of a process, in both directions.
//!
//! ```text
//! client ── request stream ──▶ upload ───▶ socket in the run ──▶ server
//!        ◀─ response stream ── download ◀──                   ◀──
//! ```
//!
//! Each direction ends by itself. Both wait for their receivers: the daemon holds no more than the
//! buffers of the socket and a few messages.

use std::{
    io::ErrorKind,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::{Bytes, BytesMut};
use rustix::net::sockopt::set_socket_linger;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpStream,
        tcp::{ReadHalf, WriteHalf},
    },
    sync::mpsc::Sender,
    time::timeout,
};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, Streaming};

use super::process_ended::process_ended_error;
use crate::{
    api::v1::{
        EndOfPortData, ForwardPortRequest, ForwardPortResponse, ForwardPortStart, PortConnected,
        forward_port_request, forward_port_response::Part,
    },
    daemon::{
        catalog::Catalog,
        error::{Error, Reason},
        grpc::response_stream::{ResponseStream, StreamItem, StreamTerminator, response_channel},
        pipeline::context::CallContext,
        process::handle::{
            MAX_PORT_CONNECTIONS as MAX_PORT_CONNECTIONS_PER_PROCESS,
            MAX_PORT_CONNECTIONS_PER_PRINCIPAL as MAX_PORT_CONNECTIONS_PER_PROCESS_AND_PRINCIPAL,
            ProcessHandle,
        },
        queue::{Limiter, Permit, Saturated, Sharing},
        sandbox::loopback_connection::PortConnectError,
        task,
    },
};

/// Connections to ports of all processes. Each has a descriptor and up to 1 MiB in buffers.
const MAX_PORT_CONNECTIONS: usize = 512;
/// Connections of one caller.
const MAX_PORT_CONNECTIONS_PER_PRINCIPAL: usize = 128;
/// Time to send the first message.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Messages buffered for a slow client.
const STREAM_BUFFER_MESSAGES: usize = 2;
/// Size of the data of a response, in bytes.
const MAX_CHUNK_BYTES: usize = 64 << 10;
/// Maximum size of the data of a request, in bytes.
const MAX_DATA_BYTES: usize = 1 << 20;
/// Time after the end of the process to send what its server had written. The slot has no other run
/// until then.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// An open connection.
struct ForwardedConnection {
    stream: TcpStream,
    requests: Streaming<ForwardPortRequest>,
    run_ended: CancellationToken,
    deadline: Option<Instant>,
    /// The error if the process ends.
    process_ended: Error,
    _permits: [Permit; 2],
}

/// How the transfer of one direction ended.
enum DirectionEnd {
    /// At the end of the data.
    Complete,
    /// The server has reset the connection.
    Reset,
    /// The client has gone.
    ClientGone,
    Failed(Error),
}

/// Permits for connections to ports of all processes.
pub(super) fn port_limiter() -> Arc<Limiter> {
    Limiter::new(MAX_PORT_CONNECTIONS, Sharing::KeepHeadroom, 0)
}

/// Connects to a port, and forwards bytes.
pub(super) async fn forward_port(
    process: &ProcessHandle,
    port: u16,
    context: &CallContext,
    requests: Streaming<ForwardPortRequest>,
    limiter: &Arc<Limiter>,
) -> Result<ResponseStream<ForwardPortResponse>, Error> {
    let principal = context.principal.shared_name();
    let permits = [
        process.acquire_port_permit(principal).map_err(|saturated| {
            let limits =
                (MAX_PORT_CONNECTIONS_PER_PROCESS_AND_PRINCIPAL, MAX_PORT_CONNECTIONS_PER_PROCESS);
            too_many_connections_error("this process", limits, saturated)
        })?,
        limiter.try_acquire(principal, MAX_PORT_CONNECTIONS_PER_PRINCIPAL).map_err(
            |saturated| {
                let limits = (MAX_PORT_CONNECTIONS_PER_PRINCIPAL, MAX_PORT_CONNECTIONS);
                too_many_connections_error("processes", limits, saturated)
            },
        )?,
    ];

    let process_ended = || process_ended_error(process);
    let connector = process.port_connector().await.ok_or_else(process_ended)?;
    let stream = connector.connect(port).await.map_err(|error| {
        let is_ended = matches!(error, PortConnectError::RunEnded);
        if is_ended { process_ended() } else { connect_error(port, error) }
    })?;
    let address = stream.peer_addr().map_err(|_| reset_error())?.ip().to_string();

    let (sender, terminator, responses) =
        response_channel(STREAM_BUFFER_MESSAGES, &context.call_id);
    let connected = Part::Connected(PortConnected { address });
    if sender.try_send(Ok(response(connected))).is_err() {
        return Err(Error::internal("a new stream is full"));
    }
    let connection = ForwardedConnection {
        stream,
        requests,
        run_ended: connector.run_ended().clone(),
        deadline: context.deadline,
        process_ended: process_ended(),
        _permits: permits,
    };
    task::spawn("forwarded connection", connection.run(sender, terminator));
    Ok(responses)
}

/// Receives and validates the first message. Returns the id of the process, and the port.
pub(super) async fn receive_start(
    catalog: &Catalog,
    requests: &mut Streaming<ForwardPortRequest>,
) -> Result<(String, u16), Error> {
    let first = timeout(START_TIMEOUT, requests.message())
        .await
        .map_err(|_| {
            let seconds = START_TIMEOUT.as_secs();
            Error::new(Reason::Timeout, format!("received nothing for {seconds} seconds"))
        })?
        .map_err(|status| invalid_message_error(&status).unwrap_or_else(disconnected_error))?
        .unwrap_or_default();
    if !matches!(first.part, Some(forward_port_request::Part::Start(_))) {
        let text = "must be in the first message: it has the process and its port";
        return Err(Error::invalid_field("start", text));
    }
    let first = catalog.check("jig.v1.ForwardPortRequest", first)?;
    let Some(forward_port_request::Part::Start(ForwardPortStart { process_id, port })) = first.part
    else {
        return Err(Error::internal("a start message that changed"));
    };
    Ok((process_id, u16::try_from(port).map_err(Error::internal)?))
}

impl ForwardedConnection {
    /// Forwards until both directions have ended.
    async fn run(
        mut self,
        sender: Sender<StreamItem<ForwardPortResponse>>,
        terminator: StreamTerminator<ForwardPortResponse>,
    ) {
        let end = self.forward(&sender).await;
        if !matches!(end, DirectionEnd::Complete) {
            // Closes with a reset: the server must not take the end for a complete one.
            let _best_effort = set_socket_linger(&self.stream, Some(Duration::ZERO));
        }
        // Before the call ends: a socket that is still open would keep the sandbox from another run.
        drop(self);
        match end {
            DirectionEnd::Complete | DirectionEnd::ClientGone => {}
            DirectionEnd::Reset => terminator.fail(&reset_error()),
            DirectionEnd::Failed(error) => terminator.fail(&error),
        }
    }

    async fn forward(&mut self, sender: &Sender<StreamItem<ForwardPortResponse>>) -> DirectionEnd {
        let (reader, writer) = self.stream.split();
        let mut download = std::pin::pin!(send_output(reader, sender));
        let mut upload = std::pin::pin!(write_input(&mut self.requests, writer));
        let (mut is_download_done, mut is_upload_done) = (false, false);
        // Whether the server takes no more data. What it has sent can still be received.
        let mut was_reset = false;
        let mut drain_deadline = None;
        // Whether output was left when the time to send it had passed.
        let mut is_output_cut = false;

        loop {
            if is_download_done && is_upload_done {
                return if was_reset { DirectionEnd::Reset } else { DirectionEnd::Complete };
            }
            if drain_deadline.is_some() && (is_download_done || is_output_cut) {
                return DirectionEnd::Failed(std::mem::replace(
                    &mut self.process_ended,
                    disconnected_error(),
                ));
            }
            tokio::select! {
                biased;
                end = &mut download, if !is_download_done => match end {
                    DirectionEnd::Complete => is_download_done = true,
                    DirectionEnd::Reset | DirectionEnd::ClientGone | DirectionEnd::Failed(_) => {
                        return end;
                    }
                },
                () = self.run_ended.cancelled(), if drain_deadline.is_none() => {
                    drain_deadline = Some(Instant::now() + DRAIN_TIMEOUT);
                }
                end = &mut upload, if !is_upload_done && drain_deadline.is_none() => match end {
                    DirectionEnd::Complete => is_upload_done = true,
                    DirectionEnd::Reset => (is_upload_done, was_reset) = (true, true),
                    DirectionEnd::ClientGone | DirectionEnd::Failed(_) => return end,
                },
                () = sender.closed() => return DirectionEnd::ClientGone,
                () = task::sleep_until(self.deadline) => {
                    let text = "the deadline of this connection has passed: set a longer one";
                    return DirectionEnd::Failed(Error::new(Reason::Timeout, text));
                }
                () = task::sleep_until(drain_deadline) => is_output_cut = true,
            }
        }
    }
}

/// Sends the output of the server to the client.
async fn send_output(
    mut reader: ReadHalf<'_>,
    sender: &Sender<StreamItem<ForwardPortResponse>>,
) -> DirectionEnd {
    loop {
        // No buffer waits for data.
        if reader.readable().await.is_err() {
            return DirectionEnd::Reset;
        }
        let mut chunk = BytesMut::with_capacity(MAX_CHUNK_BYTES);
        let part = match reader.read_buf(&mut chunk).await {
            Ok(0) => Part::EndOfData(EndOfPortData {}),
            // A small chunk would hold the whole buffer.
            Ok(length) if length < MAX_CHUNK_BYTES / 2 => {
                Part::Data(Bytes::copy_from_slice(&chunk))
            }
            Ok(_) => Part::Data(chunk.freeze()),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return DirectionEnd::Reset,
        };
        let is_end = matches!(part, Part::EndOfData(_));
        if sender.send(Ok(response(part))).await.is_err() {
            return DirectionEnd::ClientGone;
        }
        if is_end {
            return DirectionEnd::Complete;
        }
    }
}

/// Writes the data of the client to the server.
async fn write_input(
    requests: &mut Streaming<ForwardPortRequest>,
    mut writer: WriteHalf<'_>,
) -> DirectionEnd {
    loop {
        let part = match requests.message().await {
            Ok(Some(message)) => message.part,
            // Without the end of its data: the client can have died.
            Ok(None) => return DirectionEnd::ClientGone,
            Err(status) => {
                let invalid = invalid_message_error(&status);
                return invalid.map_or(DirectionEnd::ClientGone, DirectionEnd::Failed);
            }
        };
        let data = match part {
            Some(forward_port_request::Part::Data(data)) => data,
            Some(forward_port_request::Part::EndOfData(_)) => break,
            Some(forward_port_request::Part::Start(_)) | None => {
                let text = "must be in each message after the first, or end_of_data";
                return DirectionEnd::Failed(Error::invalid_field("data", text));
            }
        };
        if data.len() > MAX_DATA_BYTES {
            let text = format!("must have at most {MAX_DATA_BYTES} bytes");
            return DirectionEnd::Failed(Error::invalid_field("data", text));
        }
        if writer.write_all(&data).await.is_err() {
            return DirectionEnd::Reset;
        }
    }
    // An error means that the server has reset the connection, which `send_output` reports.
    let _reset = writer.shutdown().await;
    DirectionEnd::Complete
}

fn response(part: Part) -> ForwardPortResponse {
    ForwardPortResponse { part: Some(part) }
}

fn connect_error(port: u16, error: PortConnectError) -> Error {
    let error = match error {
        PortConnectError::Refused => {
            let text = format!(
                "nothing in the sandbox listens on port {port} of 127.0.0.1 or ::1: start a server there, or wait until it listens"
            );
            Error::new(Reason::PortRefused, text)
        }
        PortConnectError::TimedOut => {
            let text = format!("port {port}: {error}, because its backlog is full");
            Error::new(Reason::PortRefused, text)
        }
        PortConnectError::NoOwnNetwork => {
            let text = format!("{error}: its ports are those of the host, and are not forwarded");
            Error::new(Reason::ForwardingUnavailable, text)
        }
        PortConnectError::ProxyPort => {
            let text = format!("is {port}, the port of the daemon's proxy in this run");
            return Error::invalid_field("start.port", text);
        }
        PortConnectError::RunEnded | PortConnectError::Failed(_) => Error::internal(error),
    };
    error.with_metadata("port", port.to_string())
}

fn reset_error() -> Error {
    let text = "the server in the sandbox reset the connection: bytes may be lost";
    Error::new(Reason::ConnectionReset, text)
}

fn disconnected_error() -> Error {
    Error::new(Reason::Timeout, "the connection was lost")
}

/// The error of a message that cannot be decoded. `None` for a lost connection.
fn invalid_message_error(status: &Status) -> Option<Error> {
    let is_invalid =
        [Code::OutOfRange, Code::ResourceExhausted, Code::Internal].contains(&status.code());
    is_invalid
        .then(|| Error::invalid_field("data", format!("cannot be decoded: {}", status.message())))
}

/// `limits` are those of one caller and of all.
fn too_many_connections_error(of: &str, limits: (usize, usize), saturated: Saturated) -> Error {
    let text = format!(
        "{} connections of this caller to ports of {of} are open, of at most {} of one caller and {} of all: end one of them, or retry after the delay in RetryInfo",
        saturated.in_use, limits.0, limits.1
    );
    Error::new(Reason::ResourceExhausted, text)
        .with_metadata("limit", limits.0.to_string())
        .with_retry_after(saturated.retry_after)
}
