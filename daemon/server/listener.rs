//! Listening sockets (TCP and Unix) and their accept loops.

use std::{
    fs, io,
    net::{SocketAddr, TcpListener as StdTcpListener},
    os::unix::{
        fs::FileTypeExt as _,
        net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream},
    },
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{fs::Mode, io::Errno};
use tokio::{
    net::{TcpListener, UnixListener, UnixStream},
    sync::mpsc,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    connection::{ServerConnection, Socket},
    connection_limits::ConnectionLimits,
    health::Health,
};
use crate::daemon::{
    config::listen::ListenAddr,
    fd_exhaustion::{self, ACCEPT_RETRY_DELAY},
    task,
};

/// Connections that are accepted and not served yet.
const ACCEPTED_BUFFER_CONNECTIONS: usize = 16;
/// How long to wait for a connection after a failure, before a socket pair is created as a test.
const ACCEPT_PROBE_TIMEOUT: Duration = Duration::from_millis(500);

/// Bound sockets that the runtime does not drive yet.
#[derive(Debug)]
pub(crate) struct Listeners {
    tcp: Vec<StdTcpListener>,
    unix: Vec<BoundUnix>,
}

#[derive(Debug)]
struct BoundUnix {
    listener: StdUnixListener,
    path: SocketPath,
}

/// The path of a Unix socket. The file is removed on drop.
#[derive(Debug)]
struct SocketPath(PathBuf);

/// Why the daemon cannot listen on an address.
#[derive(Debug, thiserror::Error)]
#[error("--listen {address}: {problem}")]
pub(crate) struct BindError {
    address: String,
    problem: String,
}

impl Listeners {
    /// Binds all addresses.
    pub(crate) fn bind(addresses: &[ListenAddr]) -> Result<Self, BindError> {
        let mut listeners = Self { tcp: Vec::new(), unix: Vec::new() };
        for address in addresses {
            let failed = |error: io::Error| BindError {
                address: address.to_string(),
                problem: bind_problem(&error),
            };
            match address {
                ListenAddr::Tcp(address) => listeners.tcp.push(bind_tcp(*address).map_err(failed)?),
                ListenAddr::Unix(path) => listeners.unix.push(bind_unix(path).map_err(failed)?),
            }
        }
        Ok(listeners)
    }

    /// The bound addresses, with the actual port in place of 0.
    pub(super) fn addresses(&self) -> Vec<String> {
        let tcp = self
            .tcp
            .iter()
            .filter_map(|listener| listener.local_addr().ok())
            .map(|address| address.to_string());
        let unix = self.unix.iter().map(|bound| format!("unix:{}", bound.path.0.display()));
        tcp.chain(unix).collect()
    }

    /// The bound TCP ports.
    pub(crate) fn ports(&self) -> Vec<u16> {
        let addresses = self.tcp.iter().map(StdTcpListener::local_addr);
        addresses.flatten().map(|address| address.port()).collect()
    }

    /// Accepts connections on all listeners until `stop`. Reports listeners that fail to `health`.
    pub(super) fn accept(
        self,
        health: &Health,
        stop: CancellationToken,
    ) -> mpsc::Receiver<io::Result<ServerConnection>> {
        let (sender, receiver) = mpsc::channel(ACCEPTED_BUFFER_CONNECTIONS);
        let tcp =
            self.tcp.into_iter().map(|listener| TcpListener::from_std(listener).map(Acceptor::Tcp));
        let unix = self.unix.into_iter().map(|bound| {
            UnixListener::from_std(bound.listener)
                .map(|listener| Acceptor::Unix(listener, bound.path))
        });
        for acceptor in tcp.chain(unix) {
            match acceptor {
                Ok(acceptor) => {
                    let accept_loop = AcceptLoop {
                        sender: sender.clone(),
                        limits: ConnectionLimits::new(),
                        health: health.clone(),
                        stop: stop.clone(),
                    };
                    task::spawn("accept", accept_loop.run(acceptor));
                }
                Err(error) => tracing::error!(%error, "cannot accept connections on a listener"),
            }
        }
        receiver
    }
}

impl Drop for SocketPath {
    fn drop(&mut self) {
        // An error means that the file was removed already.
        let _removed = fs::remove_file(&self.0);
    }
}

/// A listener that the runtime drives.
enum Acceptor {
    Tcp(TcpListener),
    Unix(UnixListener, #[expect(dead_code, reason = "removes the file on drop")] SocketPath),
}

impl Acceptor {
    async fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Tcp(listener) => {
                let (socket, _) = listener.accept().await?;
                // Responses are small, and clients wait for them.
                socket.set_nodelay(true)?;
                Ok(Socket::Tcp(socket))
            }
            Self::Unix(listener, _) => Ok(Socket::Unix(listener.accept().await?.0)),
        }
    }
}

/// Accepts the connections of one listener and sends them to the server.
struct AcceptLoop {
    sender: mpsc::Sender<io::Result<ServerConnection>>,
    limits: ConnectionLimits,
    health: Health,
    stop: CancellationToken,
}

impl AcceptLoop {
    /// Runs until `stop`, or until the server drops its receiver.
    ///
    /// Stops at any await point: while waiting for a connection, for a permit, or for the server.
    async fn run(self, acceptor: Acceptor) {
        tokio::select! {
            () = self.accept_all(&acceptor) => {}
            () = self.stop.cancelled() => {}
            () = self.sender.closed() => {}
        }
    }

    async fn accept_all(&self, acceptor: &Acceptor) {
        loop {
            let socket = match acceptor.accept().await {
                Ok(socket) => Some(socket),
                Err(error) => match fd_exhaustion::remedy(&error) {
                    Some(remedy) => self.recover_accept(acceptor, &error, remedy).await,
                    None => {
                        tracing::debug!(%error, "a client disconnected before it was accepted");
                        None
                    }
                },
            };
            let Some(socket) = socket else { continue };

            let origin = socket.origin();
            let Some(permit) = self.limits.acquire(origin, socket.peer_ip()).await else {
                tracing::debug!(?origin, "closed a connection: its peer has too many");
                continue;
            };
            let connection = ServerConnection::new(socket, origin, permit, self.stop.clone());
            if self.sender.send(Ok(connection)).await.is_err() {
                return;
            }
        }
    }

    /// Retries until connections can be accepted again. Returns the first one if it has arrived.
    ///
    /// Listeners that fail at the same time log one line together.
    async fn recover_accept(
        &self,
        acceptor: &Acceptor,
        error: &io::Error,
        remedy: &str,
    ) -> Option<Socket> {
        fd_exhaustion::report_shortage(error);
        let failing = self.health.update(|conditions| {
            conditions.failing_listeners += 1;
            conditions.failing_listeners
        });
        if failing.await == 1 {
            tracing::error!(%error, remedy, "no connection can be accepted: health is NOT_SERVING");
        }

        let accepted = loop {
            sleep(ACCEPT_RETRY_DELAY).await;
            match timeout(ACCEPT_PROBE_TIMEOUT, acceptor.accept()).await {
                Ok(Ok(socket)) => break Some(socket),
                Ok(Err(error)) if fd_exhaustion::remedy(&error).is_some() => {
                    fd_exhaustion::report_shortage(&error);
                }
                Ok(Err(_disconnected)) => break None,
                // No client connects. A socket pair needs more descriptors than a connection.
                Err(_elapsed) if UnixStream::pair().is_ok() => break None,
                Err(_elapsed) => {}
            }
        };

        let failing = self.health.update(|conditions| {
            conditions.failing_listeners -= 1;
            conditions.failing_listeners
        });
        if failing.await == 0 {
            tracing::info!("connections are accepted again");
        }
        accepted
    }
}

fn bind_tcp(address: SocketAddr) -> io::Result<StdTcpListener> {
    let listener = StdTcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Binds a Unix socket that only this user and root can connect to.
///
/// Replaces the socket of a dead daemon. Rejects a path with another file or a live daemon.
fn bind_unix(path: &Path) -> io::Result<BoundUnix> {
    // The mask sets the final mode at creation: between bind and chmod any user could connect. It
    // affects no other files, because no other thread creates any yet.
    let mask = rustix::process::umask(Mode::from_raw_mode(0o177));
    let bound = StdUnixListener::bind(path).or_else(|error| {
        if error.kind() != io::ErrorKind::AddrInUse {
            return Err(error);
        }
        let is_socket =
            fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
        if !is_socket {
            return Err(io::Error::new(
                io::ErrorKind::AlreadyExists,
                "a file that is not a socket exists there: remove it or choose another path",
            ));
        }

        if StdUnixStream::connect(path).is_ok() {
            return Err(io::Error::new(
                io::ErrorKind::AddrInUse,
                "another daemon answers there: stop it or choose another path",
            ));
        }

        fs::remove_file(path)?;
        StdUnixListener::bind(path)
    });
    rustix::process::umask(mask);

    let listener = bound?;
    listener.set_nonblocking(true)?;
    Ok(BoundUnix { listener, path: SocketPath(path.to_owned()) })
}

fn bind_problem(error: &io::Error) -> String {
    match Errno::from_io_error(error) {
        Some(Errno::ADDRINUSE) => {
            "another program listens there: stop it, or choose another port (0 picks a free one)"
                .to_owned()
        }
        Some(Errno::ACCESS | Errno::PERM) => {
            "this user may not listen there: choose another path, or a port above 1023".to_owned()
        }
        Some(Errno::NOENT) => "the directory of the socket does not exist: create it".to_owned(),
        _ => error.to_string(),
    }
}
