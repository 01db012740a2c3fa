//! One connection: a TCP or Unix socket that can neither keep its place nor hold up the end of the
//! daemon by not saying what HTTP/2 begins with.

use std::{
    future::Future,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
    sync::OwnedSemaphorePermit,
    time::{Sleep, sleep},
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

use super::peer;
use crate::daemon::call::access::Origin;

/// How long a new connection may take to send its preface: nothing else bounds that, and graceful
/// shutdown waits for it for ever (hyper issue 4170). From then on a peer that does not answer is
/// found by pings.
const PREFACE_PATIENCE: Duration = Duration::from_secs(10);
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
pub(crate) struct Connection {
    socket: Socket,
    /// There until the preface has come.
    greeting: Option<Greeting>,
    origin: Origin,
    _place: OwnedSemaphorePermit,
}

/// What ends a connection that does not send its preface.
#[derive(Debug)]
struct Greeting {
    /// Bytes that have come. Whether they are the right ones is looked at elsewhere.
    bytes: usize,
    patience: Pin<Box<Sleep>>,
    draining: Pin<Box<WaitForCancellationFutureOwned>>,
}

/// Who is at the other end.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    /// Where that is.
    pub(crate) end: End,
    /// Whose process it is.
    pub(crate) origin: Origin,
}

/// The other end of a connection.
#[derive(Debug, Clone)]
pub(crate) enum End {
    /// A port.
    Tcp(SocketAddr),
    /// A process on this machine, at the socket of this path.
    Unix(Option<PathBuf>),
    /// It is gone already.
    Unknown,
}

impl Connection {
    /// `ask`: whether it matters whose process a connection of the loopback interface is.
    pub(super) fn new(
        socket: Socket,
        place: OwnedSemaphorePermit,
        draining: CancellationToken,
        ask: bool,
    ) -> Self {
        let origin = match &socket {
            Socket::Tcp(socket) => peer::of_tcp(socket, ask),
            Socket::Unix(socket) => peer::of_unix(socket),
        };
        let greeting = Greeting {
            bytes: 0,
            patience: Box::pin(sleep(PREFACE_PATIENCE)),
            draining: Box::pin(draining.cancelled_owned()),
        };
        Self {
            socket,
            greeting: Some(greeting),
            origin,
            _place: place,
        }
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        let end = match &self.socket {
            Socket::Tcp(socket) => socket.peer_addr().map_or(End::Unknown, End::Tcp),
            Socket::Unix(socket) => {
                let address = socket.local_addr().ok();
                End::Unix(address.and_then(|address| address.as_pathname().map(Path::to_owned)))
            }
        };
        Peer {
            end,
            origin: self.origin,
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = match &mut self.socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_read(context, buffer),
            Socket::Unix(socket) => Pin::new(socket).poll_read(context, buffer),
        };
        let Some(greeting) = &mut self.greeting else {
            return read;
        };
        greeting.bytes += buffer.filled().len() - before;
        if greeting.bytes >= PREFACE_BYTES {
            self.greeting = None;
        } else if read.is_pending() {
            let too_long = greeting.patience.as_mut().poll(context).is_ready();
            if too_long || greeting.draining.as_mut().poll(context).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_write(context, data),
            Socket::Unix(socket) => Pin::new(socket).poll_write(context, data),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
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
        match &mut self.socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_write_vectored(context, data),
            Socket::Unix(socket) => Pin::new(socket).poll_write_vectored(context, data),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}
