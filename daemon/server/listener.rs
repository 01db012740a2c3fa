//! Listening sockets (TCP and Unix) and their accept loops.

use std::{
    fs, io,
    net::{SocketAddr, TcpListener as StdTcpListener},
    os::unix::{
        fs::FileTypeExt as _,
        net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream},
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rustix::{fs::Mode, io::Errno};
use tokio::{
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

use super::{
    connection::{ServerConnection, Socket},
    connection_limits::{ConnectionLimits, ConnectionPermit},
    connection_server::ConnectionServer,
    health::Health,
    inherited_listeners::InheritedListener,
    tls::ListenerTls,
};
use crate::daemon::{
    config::{
        Config,
        listen::{ListenAddr, ListenerConfig, ListenerProtocol},
        tls::TlsFiles,
    },
    fd_exhaustion::{self, ACCEPT_RETRY_DELAY},
    pipeline::access::PeerOrigin,
    task,
};

/// How long to wait for a connection after a failure, before a socket pair is created as a test.
const ACCEPT_PROBE_TIMEOUT: Duration = Duration::from_millis(500);

/// Bound sockets that the runtime does not drive yet.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    tcp: Vec<BoundTcp>,
    unix: Vec<BoundUnix>,
    /// The TLS credentials of all listeners, each once.
    tls: Vec<Arc<ListenerTls>>,
    /// The listeners for health checks and metrics, which stay open longest.
    monitoring: Option<Box<Self>>,
}

#[derive(Debug)]
struct BoundTcp {
    listener: StdTcpListener,
    protocol: ListenerProtocol,
    tls: Option<Arc<ListenerTls>>,
}

#[derive(Debug)]
struct BoundUnix {
    listener: StdUnixListener,
    protocol: ListenerProtocol,
    path: SocketPath,
}

/// The path of a Unix socket. The file is removed on drop if the daemon has created it.
#[derive(Debug)]
struct SocketPath {
    path: PathBuf,
    is_inherited: bool,
}

/// Why the daemon cannot listen on an address.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BindError {
    #[error("{setting} {address}: {problem}")]
    Address { setting: &'static str, address: String, problem: String, kind: io::ErrorKind },
    /// The problems of the files of TLS, or of inherited listeners.
    #[error("{}", .0.join("\n"))]
    Settings(Vec<String>),
}

impl Listeners {
    /// Binds all addresses of `config`, and adds the listeners that the service manager has passed.
    pub(crate) fn bind(
        config: &Config,
        inherited: Vec<InheritedListener>,
    ) -> Result<Self, BindError> {
        let mut listeners = Self::default();
        for listener in inherited {
            listeners.add_inherited(config, listener)?;
        }
        for configured in &config.listeners {
            let tls = listeners.load_tls(configured.tls.as_ref())?;
            listeners.add(&configured.address, configured.protocol, tls)?;
        }
        for (address, protocol) in [
            (&config.health_listener, ListenerProtocol::Health),
            (&config.metrics_listener, ListenerProtocol::Metrics),
        ] {
            if let Some(address) = address {
                listeners.monitoring.get_or_insert_default().add(address, protocol, None)?;
            }
        }
        Ok(listeners)
    }

    /// Binds one address.
    fn add(
        &mut self,
        address: &ListenAddr,
        protocol: ListenerProtocol,
        tls: Option<Arc<ListenerTls>>,
    ) -> Result<(), BindError> {
        let failed = |error: io::Error| {
            let (address, problem) = (address.to_string(), bind_problem(&error));
            let (setting, kind) = (protocol.setting(), error.kind());
            BindError::Address { setting, address, problem, kind }
        };
        match address {
            ListenAddr::Tcp(address) => {
                let listener = bind_tcp(*address).map_err(failed)?;
                self.tcp.push(BoundTcp { listener, protocol, tls });
            }
            ListenAddr::Unix(path) => self.unix.push(bind_unix(path, protocol).map_err(failed)?),
        }
        Ok(())
    }

    /// Removes the listeners for health checks and metrics, which have services of their own.
    pub(super) fn take_monitoring(&mut self) -> Self {
        self.monitoring.take().map(|monitoring| *monitoring).unwrap_or_default()
    }

    /// Binds one Unix socket, for an embedded daemon.
    pub(crate) fn bind_socket(path: &Path) -> Result<Self, BindError> {
        let mut listeners = Self::default();
        listeners.add(&ListenAddr::Unix(path.to_owned()), ListenerProtocol::Jig, None)?;
        Ok(listeners)
    }

    /// Adds a listener that the service manager has passed, with the same rules as for others.
    fn add_inherited(
        &mut self,
        config: &Config,
        listener: InheritedListener,
    ) -> Result<(), BindError> {
        let protocol = ListenerProtocol::Jig;
        match listener {
            InheritedListener::Tcp(listener, address) => {
                let address = ListenAddr::Tcp(address);
                let inherited = ListenerConfig { address, protocol, tls: config.tls.clone() };
                let problems = config.remote_access.problems(&inherited);
                if !problems.is_empty() {
                    return Err(BindError::Settings(problems));
                }
                let tls = self.load_tls(inherited.tls.as_ref())?;
                self.tcp.push(BoundTcp { listener, protocol, tls });
            }
            InheritedListener::Unix(listener, path) => {
                let path = SocketPath { path, is_inherited: true };
                self.unix.push(BoundUnix { listener, protocol, path });
            }
        }
        Ok(())
    }

    /// Reads the files of TLS, unless another listener has them too.
    fn load_tls(
        &mut self,
        files: Option<&TlsFiles>,
    ) -> Result<Option<Arc<ListenerTls>>, BindError> {
        let Some(files) = files else {
            return Ok(None);
        };
        if let Some(known) = self.tls.iter().find(|known| known.files() == files) {
            return Ok(Some(Arc::clone(known)));
        }

        let loaded = ListenerTls::load(files.clone()).map_err(BindError::Settings)?;
        let loaded = Arc::new(loaded);
        self.tls.push(Arc::clone(&loaded));
        Ok(Some(loaded))
    }

    /// The TLS credentials of all listeners, each once.
    pub(crate) fn tls(&self) -> &[Arc<ListenerTls>] {
        &self.tls
    }

    /// The bound addresses, with the actual port in place of 0, and what they serve.
    pub(super) fn addresses(&self) -> Vec<String> {
        self.bound_addresses().map(|(protocol, address)| describe(&address, protocol)).collect()
    }

    /// The bound addresses that serve `protocol`.
    pub(super) fn addresses_of(&self, protocol: ListenerProtocol) -> Vec<String> {
        let matching = self.bound_addresses().filter(|(served, _)| *served == protocol);
        matching.map(|(_, address)| address).collect()
    }

    fn bound_addresses(&self) -> impl Iterator<Item = (ListenerProtocol, String)> {
        let tcp = self.tcp.iter().filter_map(|bound| {
            Some((bound.protocol, bound.listener.local_addr().ok()?.to_string()))
        });
        let unix = self.unix.iter();
        tcp.chain(unix.map(|bound| (bound.protocol, format!("unix:{}", bound.path.path.display()))))
    }

    /// The bound TCP ports.
    pub(crate) fn ports(&self) -> Vec<u16> {
        let addresses = self.tcp.iter().map(|bound| bound.listener.local_addr());
        let ports = addresses.flatten().map(|address| address.port());
        ports.chain(self.monitoring.iter().flat_map(|listeners| listeners.ports())).collect()
    }

    /// Accepts connections on all listeners until `stop`, for the server of each. Reports listeners
    /// that fail to `health`.
    pub(super) fn accept(
        self,
        server: impl Fn(ListenerProtocol) -> ConnectionServer,
        health: &Health,
        stop: &CancellationToken,
    ) {
        let tcp = self.tcp.into_iter().map(|bound| {
            let listener = TcpListener::from_std(bound.listener);
            (bound.protocol, listener.map(|listener| Acceptor::Tcp(listener, bound.tls)))
        });
        let unix = self.unix.into_iter().map(|bound| {
            let listener = UnixListener::from_std(bound.listener);
            (bound.protocol, listener.map(|listener| Acceptor::Unix(listener, bound.path)))
        });
        for (protocol, acceptor) in tcp.chain(unix) {
            match acceptor {
                Ok(acceptor) => {
                    let accept_loop = AcceptLoop {
                        server: server(protocol),
                        limits: ConnectionLimits::new(),
                        health: health.clone(),
                        stop: stop.clone(),
                    };
                    task::spawn("accept", accept_loop.run(acceptor));
                }
                Err(error) => tracing::error!(%error, "cannot accept connections on a listener"),
            }
        }
    }
}

/// An address as the daemon prints it.
fn describe(address: &str, protocol: ListenerProtocol) -> String {
    match protocol {
        ListenerProtocol::Jig | ListenerProtocol::Health | ListenerProtocol::Metrics => {
            address.to_owned()
        }
        ListenerProtocol::AgentSandboxGrpc => format!("{address} for agent-sandbox gRPC"),
        ListenerProtocol::AgentSandboxRest => format!("{address} for agent-sandbox REST"),
    }
}

impl Drop for SocketPath {
    fn drop(&mut self) {
        if !self.is_inherited {
            // An error means that the file was removed already.
            let _removed = fs::remove_file(&self.path);
        }
    }
}

/// A listener that the runtime drives.
enum Acceptor {
    Tcp(TcpListener, Option<Arc<ListenerTls>>),
    Unix(UnixListener, #[expect(dead_code, reason = "removes the file on drop")] SocketPath),
}

impl Acceptor {
    async fn accept(&self) -> io::Result<Socket> {
        match self {
            Self::Tcp(listener, _) => {
                let (socket, _) = listener.accept().await?;
                // Responses are small, and clients wait for them.
                socket.set_nodelay(true)?;
                Ok(Socket::Tcp(socket))
            }
            Self::Unix(listener, _) => Ok(Socket::Unix(listener.accept().await?.0)),
        }
    }

    fn tls(&self) -> Option<&Arc<ListenerTls>> {
        match self {
            Self::Tcp(_, tls) => tls.as_ref(),
            Self::Unix(..) => None,
        }
    }
}

/// Accepts the connections of one listener and serves them.
struct AcceptLoop {
    server: ConnectionServer,
    limits: ConnectionLimits,
    health: Health,
    stop: CancellationToken,
}

impl AcceptLoop {
    /// Runs until `stop`, also while it waits for a connection or for a permit.
    async fn run(self, acceptor: Acceptor) {
        self.stop.run_until_cancelled(self.accept_all(&acceptor)).await;
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
            match (socket, acceptor.tls()) {
                (Socket::Tcp(socket), Some(tls)) => {
                    self.spawn_handshake(socket, origin, permit, Arc::clone(tls));
                }
                (socket, _) => {
                    let stop = self.stop.clone();
                    self.server.spawn(ServerConnection::new(socket, origin, permit, stop));
                }
            }
        }
    }

    /// Makes the TLS handshake of a connection in a task of its own: its client may be slow.
    ///
    /// The connection counts against the limits from now on. An eviction ends the handshake, as the
    /// start of the drain does.
    fn spawn_handshake(
        &self,
        socket: TcpStream,
        origin: PeerOrigin,
        permit: ConnectionPermit,
        tls: Arc<ListenerTls>,
    ) {
        let (server, stop) = (self.server.clone(), self.stop.clone());
        task::spawn("TLS handshake", async move {
            let accepted = tokio::select! {
                accepted = tls.accept(socket) => accepted,
                () = permit.auth().evicted() => return,
                () = stop.cancelled() => return,
            };
            match accepted {
                Ok(connection) => {
                    let socket = Socket::Tls(connection);
                    server.spawn(ServerConnection::new(socket, origin, permit, stop));
                }
                Err(error) => tracing::debug!(%error, ?origin, "a TLS handshake failed"),
            }
        });
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
fn bind_unix(path: &Path, protocol: ListenerProtocol) -> io::Result<BoundUnix> {
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
    let path = SocketPath { path: path.to_owned(), is_inherited: false };
    Ok(BoundUnix { listener, protocol, path })
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
