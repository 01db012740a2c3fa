//! Connections to servers in a run, through the loopback interface of its network namespace.
//!
//! ```text
//! daemon                                slot keeper, in the run's network namespace
//!   asks for a port ────────────────▶   creates a socket, starts to connect
//!   waits for the connection ◀───────   sends the socket
//! ```
//!
//! The slot keeper takes a port and the version of the protocol, and nothing else: no other address,
//! and no other namespace. Without a network namespace of the run (L1, or the network `host`), it
//! refuses. The commands have no part in this.
//!
//! The namespace outlives a run, but connections must not. A request names its run by a token, which
//! is cancelled before the slot can make another sandbox. The slot's task drops the requests of an
//! ended run. It makes no sandbox between a request and its reply, and a connection that is pending
//! at the end of its run is given up. A socket that the daemon still holds counts in the namespace
//! ([`super::netns_check`], [`super::clean_check`]), so no other run starts there.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    time::Duration,
};

use rustix::net::{
    AddressFamily, SocketFlags, SocketType, connect, socket_with,
    sockopt::{set_socket_recv_buffer_size, set_socket_send_buffer_size},
};
use tokio::{
    net::TcpStream,
    sync::{mpsc, oneshot},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use super::{
    channel::Channel,
    level::IsolationLevel,
    plan::NetworkMode,
    proxy_listener::PROXY_PORT,
    stage::Stage,
    wire::{LoopbackPort, SANDBOX_REPORT_BYTES, SandboxReport, SlotKeeperRequest, send_bytes},
};
use crate::daemon::sys::Errno;

/// Requests of one slot that wait for its task.
pub(super) const MAX_PENDING_CONNECTS: usize = 16;
/// Time that a server may take to have room for a connection. Its kernel accepts connections in
/// microseconds, unless the server's backlog is full.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Size of each buffer of the daemon's end, in bytes. The kernel doubles it for its own data.
const SOCKET_BUFFER_BYTES: usize = 256 << 10;
/// The message that carries a socket. Its value has no meaning.
const SOCKET_MESSAGE: &[u8] = b"c";

/// Request to the task of a run's slot: start a connection.
#[derive(Debug)]
pub(super) struct ConnectRequest {
    port: LoopbackPort,
    run_ended: CancellationToken,
    reply: oneshot::Sender<Result<OwnedFd, Errno>>,
}

/// Connects to ports of one run.
#[derive(Debug, Clone)]
pub(crate) struct PortConnector {
    requests: mpsc::Sender<ConnectRequest>,
    level: IsolationLevel,
    run_ended: CancellationToken,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PortConnectError {
    #[error("the run has ended")]
    RunEnded,
    /// Neither 127.0.0.1 nor ::1 has a listener at the port.
    #[error("nothing listens on the port")]
    Refused,
    #[error("the server accepted no connection for {} seconds", CONNECT_TIMEOUT.as_secs())]
    TimedOut,
    /// The run has no network namespace of its own.
    #[error("the run shares the network of the daemon's host")]
    NoOwnNetwork,
    /// The port is that of the daemon's proxy.
    #[error("the port is that of the proxy")]
    ProxyPort,
    #[error("cannot connect")]
    Failed(#[source] io::Error),
}

impl PortConnector {
    /// A connector for a run that begins now.
    pub(super) fn new(requests: mpsc::Sender<ConnectRequest>, level: IsolationLevel) -> Self {
        Self { requests, level, run_ended: CancellationToken::new() }
    }

    /// Cancelled when the run has ended: its connections must be closed.
    pub(crate) fn run_ended(&self) -> &CancellationToken {
        &self.run_ended
    }

    /// Records that the run has ended.
    pub(super) fn end_run(&self) {
        self.run_ended.cancel();
    }

    /// Connects to a port: on 127.0.0.1, or else on ::1.
    pub(crate) async fn connect(&self, port: u16) -> Result<TcpStream, PortConnectError> {
        if !self.level.has_namespaces() {
            return Err(PortConnectError::NoOwnNetwork);
        }
        for is_ipv6 in [false, true] {
            match self.connect_to(LoopbackPort { number: port, is_ipv6 }).await {
                Err(PortConnectError::Refused) => {}
                result => return result,
            }
        }
        Err(PortConnectError::Refused)
    }

    async fn connect_to(&self, port: LoopbackPort) -> Result<TcpStream, PortConnectError> {
        let connecting = timeout(CONNECT_TIMEOUT, self.request_connection(port));
        connecting.await.unwrap_or(Err(PortConnectError::TimedOut))
    }

    async fn request_connection(&self, port: LoopbackPort) -> Result<TcpStream, PortConnectError> {
        let (reply, socket) = oneshot::channel();
        let request = ConnectRequest { port, run_ended: self.run_ended.clone(), reply };
        self.requests.send(request).await.map_err(|_| PortConnectError::RunEnded)?;
        let socket = socket.await.map_err(|_| PortConnectError::RunEnded)?;

        let stream = TcpStream::from_std(socket.map_err(connect_error)?.into())
            .map_err(PortConnectError::Failed)?;
        // As a rule, it is connected already. The run may have ended since: what its server has
        // written can still be read.
        if stream.peer_addr().is_err() {
            tokio::select! {
                biased;
                ready = stream.writable() => ready.map_err(PortConnectError::Failed)?,
                () = self.run_ended.cancelled() => return Err(PortConnectError::RunEnded),
            }
        }
        if let Some(error) = stream.take_error().map_err(PortConnectError::Failed)? {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            return Err(connect_error(errno));
        }
        // Without a listener, the kernel may choose the port itself as the source, and connect the
        // socket to itself.
        match (stream.local_addr(), stream.peer_addr()) {
            (Ok(local), Ok(peer)) if local != peer => Ok(stream),
            (Ok(_), Ok(_)) => Err(PortConnectError::Refused),
            (Err(error), _) | (_, Err(error)) => Err(PortConnectError::Failed(error)),
        }
    }
}

/// Converts the error of a connection.
fn connect_error(errno: Errno) -> PortConnectError {
    match errno {
        // The others come from hosts without IPv6.
        Errno::CONNREFUSED
        | Errno::CONNRESET
        | Errno::AFNOSUPPORT
        | Errno::ADDRNOTAVAIL
        | Errno::NETUNREACH => PortConnectError::Refused,
        Errno::OPNOTSUPP => PortConnectError::NoOwnNetwork,
        Errno::ACCESS => PortConnectError::ProxyPort,
        errno => PortConnectError::Failed(errno.into()),
    }
}

impl ConnectRequest {
    /// Passes the request on to the slot keeper, and the socket to the requester. An error means that
    /// the slot keeper is gone.
    pub(super) async fn serve(self, slot: &Channel) -> Result<(), Errno> {
        if self.run_ended.is_cancelled() {
            return Ok(());
        }
        slot.send(&SlotKeeperRequest::Connect(self.port).encode(), &[])?;

        let mut bytes = [0; SANDBOX_REPORT_BYTES];
        let (received, fds) = slot.receive(&mut bytes).await?;
        let message = bytes.get(..received.length).unwrap_or_default();
        let socket = match (SandboxReport::decode(message), fds.into_iter().next()) {
            (Some(SandboxReport::Failed { errno, .. }), None) => Err(errno),
            (None, Some(socket)) if message == SOCKET_MESSAGE => Ok(socket),
            _ => return Err(Errno::CONNRESET),
        };
        // If the run has ended meanwhile, the socket can be connected only to a server of that run.
        let _requester_has_gone = self.reply.send(socket);
        Ok(())
    }
}

// === The slot keeper's side ===

/// Starts a connection in this process's network namespace, which is that of its runs unless
/// `network` is that of the host, and sends the socket to the daemon. An error means that the daemon
/// is gone.
pub(super) fn send_connection(
    daemon: BorrowedFd<'_>,
    network: NetworkMode,
    port: LoopbackPort,
) -> Result<(), Errno> {
    let started = match network {
        NetworkMode::Host => Err(Errno::OPNOTSUPP),
        NetworkMode::Proxy if port.number == PROXY_PORT => Err(Errno::ACCESS),
        NetworkMode::Proxy | NetworkMode::None => start_connection(port),
    };
    // Commands can make the sending of descriptors fail, see `send_reply`.
    let sent = started.and_then(|socket| send_bytes(daemon, SOCKET_MESSAGE, &[socket.as_fd()]));
    sent.or_else(|errno| send_refusal(daemon, errno))
}

/// Tells the daemon that there is no connection.
pub(super) fn send_refusal(daemon: BorrowedFd<'_>, errno: Errno) -> Result<(), Errno> {
    let report = SandboxReport::Failed { stage: Stage::NetworkNamespace, errno };
    send_bytes(daemon, &report.encode(), &[])
}

/// Starts to connect a socket, without waiting.
fn start_connection(port: LoopbackPort) -> Result<OwnedFd, Errno> {
    let (family, address) = if port.is_ipv6 {
        (AddressFamily::INET6, IpAddr::V6(Ipv6Addr::LOCALHOST))
    } else {
        (AddressFamily::INET, IpAddr::V4(Ipv4Addr::LOCALHOST))
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    // Fixed sizes: otherwise the kernel lets them grow to megabytes.
    set_socket_recv_buffer_size(&socket, SOCKET_BUFFER_BYTES)?;
    set_socket_send_buffer_size(&socket, SOCKET_BUFFER_BYTES)?;
    match connect(&socket, &SocketAddr::new(address, port.number)) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(errno) => Err(errno),
    }
}
