//! One client connection, by TCP, TLS or a Unix socket, with a preface timeout and an authentication timeout.
//!
//! A connection must send the HTTP/2 preface in time, so that it can neither hold its permit nor
//! delay shutdown. It must also make an authenticated call in time.

use std::{
    future::Future,
    io::{self, IoSlice},
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
    time::{Instant, Sleep, sleep},
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use super::{
    authority::AuthorityRewriter,
    connection_limits::{
        AUTH_TIMEOUT, ConnectionAuth, ConnectionLifetime, ConnectionPermit, REJECTION_GRACE,
    },
    peer,
    ping_ack::HeldPingAck,
    tls::TlsConnection,
};
use crate::daemon::{config::client_certificate::ClientCertificate, pipeline::access::PeerOrigin};

/// How long a new connection may take to send the preface. Nothing else limits that, and graceful
/// shutdown waits for it forever (hyper issue 4170). After the preface, keepalive pings detect a
/// peer that does not respond.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);
/// The client connection preface of HTTP/2 (RFC 9113, section 3.4).
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// How long the peer of an HTTP/2 connection may read nothing while data waits for it. It is as
/// long as keepalive takes. hyper cannot end such a connection: it waits until its GOAWAY is sent.
/// Over HTTP/1.1, a client may pause a response for as long as it likes.
const WRITE_STALL_TIMEOUT: Duration = Duration::from_secs(40);

#[derive(Debug)]
pub(super) enum Socket {
    Tcp(TcpStream),
    Tls(TlsConnection),
    Unix(UnixStream),
}

/// An accepted connection, as hyper serves it.
#[derive(Debug)]
pub(crate) struct ServerConnection {
    socket: Socket,
    /// Set for a Unix socket, because some clients send its path as authority.
    authority: Option<AuthorityRewriter>,
    /// Set until the preface has arrived.
    preface_timeout: Option<PrefaceTimeout>,
    /// Set until a call is authenticated.
    auth_timeout: Option<AuthTimeout>,
    /// Whether the connection has begun with the preface of HTTP/2.
    is_http2: bool,
    ping_ack: HeldPingAck,
    /// Set while data waits for a peer of HTTP/2 that does not read.
    stall_timer: Option<Pin<Box<Sleep>>>,
    /// Set if the connection is cut at a time, whatever it does.
    cut_timer: Option<Pin<Box<Sleep>>>,
    origin: PeerOrigin,
    permit: ConnectionPermit,
}

/// Ends a connection that does not send its preface.
#[derive(Debug)]
struct PrefaceTimeout {
    /// Number of bytes received.
    bytes: usize,
    /// Whether they are the first ones of [`PREFACE`]. Otherwise, hyper reads HTTP/1.1.
    is_http2: bool,
    timer: Pin<Box<Sleep>>,
    draining: Pin<Box<WaitForCancellationFutureOwned>>,
}

/// Ends a connection on which no call is authenticated.
#[derive(Debug)]
struct AuthTimeout {
    timer: Pin<Box<Sleep>>,
    /// Resolves when the connection is evicted for another one.
    evicted: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Whether the timer runs for the rejection grace already.
    is_rejected: bool,
}

/// What is known about the peer of a connection.
#[derive(Debug, Clone)]
pub(crate) struct PeerInfo {
    pub(crate) address: PeerAddress,
    pub(crate) origin: PeerOrigin,
    /// The certificate of a TLS client, verified by the CA of the listener.
    pub(crate) certificate: Option<Arc<ClientCertificate>>,
    /// Authentication state of the connection.
    pub(crate) auth: Arc<ConnectionAuth>,
}

#[derive(Debug, Clone)]
pub(crate) enum PeerAddress {
    Tcp(SocketAddr),
    /// The path of the daemon's socket, which a process on this machine connected to.
    Unix(Option<PathBuf>),
    /// The peer has disconnected already.
    Unknown,
}

impl PeerAddress {
    /// The address as text. `None` if it is unknown.
    pub(super) fn to_text(&self) -> Option<String> {
        match self {
            Self::Tcp(address) => Some(address.to_string()),
            Self::Unix(path) => Some(format!("unix:{}", path.as_ref()?.display())),
            Self::Unknown => None,
        }
    }
}

impl Socket {
    /// The process or user at the other end, as far as the kernel identifies it.
    pub(super) fn origin(&self) -> PeerOrigin {
        match self {
            Self::Tcp(_) | Self::Tls(_) => {
                self.tcp().map_or(PeerOrigin::Elsewhere, peer::tcp_origin)
            }
            Self::Unix(socket) => peer::unix_origin(socket),
        }
    }

    /// The IP address of the peer; `None` for a Unix socket.
    pub(super) fn peer_ip(&self) -> Option<IpAddr> {
        self.tcp()?.peer_addr().ok().map(|peer| peer.ip())
    }

    fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Self::Tcp(socket) => Some(socket),
            Self::Tls(connection) => Some(connection.stream.get_ref().0),
            Self::Unix(_) => None,
        }
    }

    fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self {
            Self::Tcp(socket) => Pin::new(socket).poll_write_vectored(context, data),
            Self::Tls(connection) => {
                Pin::new(&mut connection.stream).poll_write_vectored(context, data)
            }
            Self::Unix(socket) => Pin::new(socket).poll_write_vectored(context, data),
        }
    }

    fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(socket) => Pin::new(socket).poll_flush(context),
            Self::Tls(connection) => Pin::new(&mut connection.stream).poll_flush(context),
            Self::Unix(socket) => Pin::new(socket).poll_flush(context),
        }
    }

    fn certificate(&self) -> Option<&Arc<ClientCertificate>> {
        match self {
            Self::Tls(connection) => connection.certificate.as_ref(),
            Self::Tcp(_) | Self::Unix(_) => None,
        }
    }
}

impl PrefaceTimeout {
    /// Adds bytes that have arrived. Returns whether there are as many as in the preface.
    fn add(&mut self, received: &[u8]) -> bool {
        let expected = PREFACE.iter().skip(self.bytes);
        self.is_http2 &= received.iter().zip(expected).all(|(byte, expected)| byte == expected);
        self.bytes += received.len();
        self.bytes >= PREFACE.len()
    }
}

impl AuthTimeout {
    fn new(auth: &ConnectionAuth) -> Self {
        Self {
            timer: Box::pin(sleep(AUTH_TIMEOUT)),
            evicted: Box::pin(auth.evicted()),
            is_rejected: false,
        }
    }

    /// Whether the connection must end. A health check in progress extends the timeout.
    fn has_expired(&mut self, auth: &ConnectionAuth, context: &mut Context<'_>) -> bool {
        if auth.lifetime() == ConnectionLifetime::UntilRejectionGrace && !self.is_rejected {
            self.is_rejected = true;
            self.timer.as_mut().reset(Instant::now() + REJECTION_GRACE);
        }
        while self.timer.as_mut().poll(context).is_ready() {
            if self.is_rejected || !auth.has_health_check() {
                return true;
            }
            self.timer.as_mut().reset(Instant::now() + AUTH_TIMEOUT);
        }
        false
    }
}

impl ServerConnection {
    pub(super) fn new(
        socket: Socket,
        origin: PeerOrigin,
        permit: ConnectionPermit,
        draining: CancellationToken,
    ) -> Self {
        let preface_timeout = PrefaceTimeout {
            bytes: 0,
            is_http2: true,
            timer: Box::pin(sleep(PREFACE_TIMEOUT)),
            draining: Box::pin(draining.cancelled_owned()),
        };
        let authority = matches!(socket, Socket::Unix(_)).then(AuthorityRewriter::new);
        Self {
            socket,
            authority,
            preface_timeout: Some(preface_timeout),
            auth_timeout: Some(AuthTimeout::new(permit.auth())),
            is_http2: false,
            ping_ack: HeldPingAck::default(),
            stall_timer: None,
            cut_timer: None,
            origin,
            permit,
        }
    }

    /// Cuts the connection after `time`, with its calls and even after an upgrade.
    pub(super) fn cut_after(&mut self, time: Duration) {
        self.cut_timer = Some(Box::pin(sleep(time)));
    }

    /// Returns an error if the connection was evicted or cut, even if its peer reads nothing.
    fn check_end(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        if let Some(timer) = &mut self.cut_timer
            && timer.as_mut().poll(context).is_ready()
        {
            // A timer must not be polled again. The connection ends with the first error.
            self.cut_timer = None;
            tracing::info!(
                origin = ?self.origin,
                remedy = "raise --max-connection-age-grace if calls need more time",
                "cut a connection that outlasted its maximum age and the grace after it"
            );
            return Err(io::ErrorKind::TimedOut.into());
        }
        let Some(timeout) = &mut self.auth_timeout else {
            return Ok(());
        };
        // Read before the poll: an authenticated connection is not evicted afterwards.
        let is_authenticated = self.permit.auth().lifetime() == ConnectionLifetime::Unlimited;
        if timeout.evicted.as_mut().poll(context).is_ready() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if is_authenticated {
            self.auth_timeout = None;
        }
        Ok(())
    }

    /// Returns an error in place of [`Poll::Pending`] if the peer does not read for too long.
    fn check_stall<T>(
        &mut self,
        written: Poll<io::Result<T>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stall_timer = None;
            return written;
        }

        // hyper does not read while it cannot write, so reads cannot end the connection.
        let auth = self.permit.auth();
        let is_unauthenticated =
            self.auth_timeout.as_mut().is_some_and(|timeout| timeout.has_expired(auth, context));
        let has_stalled = self.is_http2 && {
            let new_timer = || Box::pin(sleep(WRITE_STALL_TIMEOUT));
            let timer = self.stall_timer.get_or_insert_with(new_timer);
            timer.as_mut().poll(context).is_ready()
        };
        if is_unauthenticated || has_stalled {
            tracing::debug!(origin = ?self.origin, "closed a connection: its peer does not read");
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Poll::Pending
    }

    /// Writes an acknowledgement that waits, and then `data`. Returns how much of `data` is written.
    fn poll_write_after_ping_ack(
        &mut self,
        context: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        while !self.ping_ack.waiting().is_empty() {
            let parts = self.ping_ack.before(data);
            let written = ready!(self.socket.poll_write(context, &parts))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            let of_data = self.ping_ack.written(written);
            if of_data > 0 {
                return Poll::Ready(Ok(of_data));
            }
        }
        if data.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.socket.poll_write(context, data)
    }

    /// Writes an acknowledgement that has waited for long enough. Has the task woken for it if it has
    /// not.
    fn poll_write_due_ping_ack(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        match self.ping_ack.poll_due(context) {
            true => self.poll_write_after_ping_ack(context, &[]),
            false => Poll::Ready(Ok(0)),
        }
    }

    /// What is known about the peer. Each request carries it as an extension.
    pub(super) fn peer_info(&self) -> PeerInfo {
        let address = match &self.socket {
            Socket::Tcp(_) | Socket::Tls(_) => {
                let peer = self.socket.tcp().and_then(|socket| socket.peer_addr().ok());
                peer.map_or(PeerAddress::Unknown, PeerAddress::Tcp)
            }
            Socket::Unix(socket) => {
                let address = socket.local_addr().ok();
                PeerAddress::Unix(
                    address.and_then(|address| address.as_pathname().map(Path::to_owned)),
                )
            }
        };
        PeerInfo {
            address,
            origin: self.origin,
            certificate: self.socket.certificate().cloned(),
            auth: Arc::clone(self.permit.auth()),
        }
    }
}

impl AsyncRead for ServerConnection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.check_end(context)?;

        let filled_before = buffer.filled().len();
        let read = match &mut this.socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_read(context, buffer),
            Socket::Tls(connection) => Pin::new(&mut connection.stream).poll_read(context, buffer),
            Socket::Unix(socket) => Pin::new(socket).poll_read(context, buffer),
        };
        if let Some(authority) = &mut this.authority {
            authority.rewrite(&mut buffer.filled_mut()[filled_before..]);
        }

        let auth = this.permit.auth();
        if let Some(timeout) = &mut this.auth_timeout
            && timeout.has_expired(auth, context)
        {
            // Report end of file, so that the connection closes orderly: it has no call of value.
            return Poll::Ready(Ok(()));
        }

        let Some(timeout) = &mut this.preface_timeout else {
            return read;
        };
        if timeout.add(&buffer.filled()[filled_before..]) {
            this.is_http2 = timeout.is_http2;
            this.preface_timeout = None;
        } else if read.is_pending() {
            let has_expired = timeout.timer.as_mut().poll(context).is_ready();
            if has_expired || timeout.draining.as_mut().poll(context).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        read
    }
}

impl AsyncWrite for ServerConnection {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[IoSlice::new(data)])
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check_end(context)?;
        let flushed = match self.poll_write_due_ping_ack(context)? {
            Poll::Ready(_) => self.socket.poll_flush(context),
            Poll::Pending => Poll::Pending,
        };
        self.check_stall(flushed, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_shutdown(context),
            Socket::Tls(connection) => connection.poll_shutdown(context),
            Socket::Unix(socket) => Pin::new(socket).poll_shutdown(context),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check_end(context)?;
        if self.is_http2 && self.ping_ack.hold(data) {
            return Poll::Ready(Ok(data.iter().map(|part| part.len()).sum()));
        }
        let written = self.poll_write_after_ping_ack(context, data);
        self.check_stall(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}
