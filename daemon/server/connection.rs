//! One connection: a TCP or Unix socket that can neither keep its place nor hold up the end of the
//! daemon by not saying what HTTP/2 begins with, nor keep its place without a call that is let in.

use std::{
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
    time::{Instant, Sleep, sleep},
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

use super::{
    authority::AuthorityRewriter,
    connection_limits::{
        AUTH_TIMEOUT, ConnectionAuth, ConnectionLifetime, ConnectionPermit, REJECTION_GRACE,
    },
    peer,
};
use crate::daemon::pipeline::access::PeerOrigin;

/// How long a new connection may take to send its preface: nothing else bounds that, and graceful
/// shutdown waits for it for ever (hyper issue 4170). From then on a peer that does not answer is
/// found by pings.
const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes of the preface (RFC 9113, section 3.4).
const PREFACE_BYTES: usize = 24;

/// A socket of either kind.
#[derive(Debug)]
pub(super) enum Socket {
    /// TCP.
    Tcp(TcpStream),
    /// Unix.
    Unix(UnixStream),
}

/// A connection.
#[derive(Debug)]
pub(crate) struct ServerConnection {
    socket: Socket,
    /// For a Unix socket, whose path some clients send as authority.
    authority: Option<AuthorityRewriter>,
    /// There until the preface has come.
    preface_timeout: Option<PrefaceTimeout>,
    /// There until a call was let in.
    auth_timeout: Option<AuthTimeout>,
    origin: PeerOrigin,
    permit: ConnectionPermit,
}

/// What ends a connection that does not send its preface.
#[derive(Debug)]
struct PrefaceTimeout {
    /// Bytes that have come. Whether they are the right ones is looked at elsewhere.
    bytes: usize,
    timer: Pin<Box<Sleep>>,
    draining: Pin<Box<WaitForCancellationFutureOwned>>,
}

/// What ends a connection on which no call is let in.
#[derive(Debug)]
struct AuthTimeout {
    timer: Pin<Box<Sleep>>,
    /// Somebody else has its place.
    evicted: Pin<Box<WaitForCancellationFutureOwned>>,
    /// It has been told that it has to go.
    is_rejected: bool,
}

/// Who is at the other end.
#[derive(Debug, Clone)]
pub(crate) struct PeerInfo {
    /// Where that is.
    pub(crate) address: PeerAddress,
    /// Whose process it is.
    pub(crate) origin: PeerOrigin,
    /// What becomes of its connection.
    pub(crate) auth: Arc<ConnectionAuth>,
}

/// The other end of a connection.
#[derive(Debug, Clone)]
pub(crate) enum PeerAddress {
    /// A port.
    Tcp(SocketAddr),
    /// A process on this machine, at the socket of this path.
    Unix(Option<PathBuf>),
    /// It is gone already.
    Unknown,
}

impl Socket {
    /// Where it comes from.
    pub(super) fn origin(&self) -> PeerOrigin {
        match self {
            Self::Tcp(socket) => peer::tcp_origin(socket),
            Self::Unix(socket) => peer::unix_origin(socket),
        }
    }

    /// The address at the other end.
    pub(super) fn peer_ip(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(socket) => socket.peer_addr().ok().map(|peer| peer.ip()),
            Self::Unix(_) => None,
        }
    }
}

impl AuthTimeout {
    fn new(standing: &ConnectionAuth) -> Self {
        Self {
            timer: Box::pin(sleep(AUTH_TIMEOUT)),
            evicted: Box::pin(standing.evicted()),
            is_rejected: false,
        }
    }

    /// Whether the connection has to end.
    fn has_expired(&mut self, standing: &ConnectionAuth, context: &mut Context<'_>) -> bool {
        if standing.lifetime() == ConnectionLifetime::UntilRejectionGrace && !self.is_rejected {
            self.is_rejected = true;
            self.timer.as_mut().reset(Instant::now() + REJECTION_GRACE);
        }
        while self.timer.as_mut().poll(context).is_ready() {
            if self.is_rejected || !standing.has_health_check() {
                return true;
            }
            let again = Instant::now() + AUTH_TIMEOUT;
            self.timer.as_mut().reset(again);
        }
        false
    }
}

impl ServerConnection {
    pub(super) fn new(
        socket: Socket,
        origin: PeerOrigin,
        place: ConnectionPermit,
        draining: CancellationToken,
    ) -> Self {
        let greeting = PrefaceTimeout {
            bytes: 0,
            timer: Box::pin(sleep(PREFACE_TIMEOUT)),
            draining: Box::pin(draining.cancelled_owned()),
        };
        let authority = matches!(socket, Socket::Unix(_)).then(AuthorityRewriter::new);
        Self {
            socket,
            authority,
            preface_timeout: Some(greeting),
            auth_timeout: Some(AuthTimeout::new(place.auth())),
            origin,
            permit: place,
        }
    }

    /// Ends it, whatever it does, where somebody else has its place: also when its other end reads nothing.
    fn check_eviction(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let Some(probation) = &mut self.auth_timeout else {
            return Ok(());
        };
        // Who is known is not sent away any more.
        let is_known = self.permit.auth().lifetime() == ConnectionLifetime::Unlimited;
        if probation.evicted.as_mut().poll(context).is_ready() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if is_known {
            self.auth_timeout = None;
        }
        Ok(())
    }
}

impl Connected for ServerConnection {
    type ConnectInfo = PeerInfo;

    fn connect_info(&self) -> PeerInfo {
        let end = match &self.socket {
            Socket::Tcp(socket) => {
                socket.peer_addr().map_or(PeerAddress::Unknown, PeerAddress::Tcp)
            }
            Socket::Unix(socket) => {
                let address = socket.local_addr().ok();
                PeerAddress::Unix(
                    address.and_then(|address| address.as_pathname().map(Path::to_owned)),
                )
            }
        };
        PeerInfo { address: end, origin: self.origin, auth: Arc::clone(self.permit.auth()) }
    }
}

impl AsyncRead for ServerConnection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.check_eviction(context)?;
        let before = buffer.filled().len();
        let read = match &mut this.socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_read(context, buffer),
            Socket::Unix(socket) => Pin::new(socket).poll_read(context, buffer),
        };
        if let Some(authority) = &mut this.authority {
            authority.rewrite(&mut buffer.filled_mut()[before..]);
        }
        let standing = this.permit.auth();
        if let Some(probation) = &mut this.auth_timeout
            && probation.has_expired(standing, context)
        {
            // As if the other end had nothing more to say: nothing of value is going on.
            return Poll::Ready(Ok(()));
        }
        let Some(greeting) = &mut this.preface_timeout else {
            return read;
        };
        greeting.bytes += buffer.filled().len() - before;
        if greeting.bytes >= PREFACE_BYTES {
            this.preface_timeout = None;
        } else if read.is_pending() {
            let too_long = greeting.timer.as_mut().poll(context).is_ready();
            if too_long || greeting.draining.as_mut().poll(context).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        read
    }
}

impl AsyncWrite for ServerConnection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.check_eviction(context)?;
        match &mut self.socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_write(context, data),
            Socket::Unix(socket) => Pin::new(socket).poll_write(context, data),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check_eviction(context)?;
        match &mut self.socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_flush(context),
            Socket::Unix(socket) => Pin::new(socket).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_shutdown(context),
            Socket::Unix(socket) => Pin::new(socket).poll_shutdown(context),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check_eviction(context)?;
        match &mut self.socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_write_vectored(context, data),
            Socket::Unix(socket) => Pin::new(socket).poll_write_vectored(context, data),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}
