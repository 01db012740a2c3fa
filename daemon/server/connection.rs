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
    peer,
    places::{FAREWELL, Place, STRANGERS_PATIENCE, Standing, Term},
};
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
    /// For a Unix socket, whose path some clients send as authority.
    authority: Option<AuthorityRewriter>,
    /// There until the preface has come.
    greeting: Option<Greeting>,
    /// There until a call was let in.
    probation: Option<Probation>,
    origin: Origin,
    place: Place,
}

/// What ends a connection that does not send its preface.
#[derive(Debug)]
struct Greeting {
    /// Bytes that have come. Whether they are the right ones is looked at elsewhere.
    bytes: usize,
    patience: Pin<Box<Sleep>>,
    draining: Pin<Box<WaitForCancellationFutureOwned>>,
}

/// What ends a connection on which no call is let in.
#[derive(Debug)]
struct Probation {
    end: Pin<Box<Sleep>>,
    /// Somebody else has its place.
    sent_away: Pin<Box<WaitForCancellationFutureOwned>>,
    /// It has been told that it has to go.
    is_farewell: bool,
}

/// Who is at the other end.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    /// Where that is.
    pub(crate) end: End,
    /// Whose process it is.
    pub(crate) origin: Origin,
    /// What becomes of its connection.
    pub(crate) standing: Arc<Standing>,
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

impl Socket {
    /// Where it comes from.
    pub(super) fn origin(&self) -> Origin {
        match self {
            Self::Tcp(socket) => peer::of_tcp(socket),
            Self::Unix(socket) => peer::of_unix(socket),
        }
    }

    /// The address at the other end.
    pub(super) fn peer(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(socket) => socket.peer_addr().ok().map(|peer| peer.ip()),
            Self::Unix(_) => None,
        }
    }
}

impl Probation {
    fn begin(standing: &Standing) -> Self {
        Self {
            end: Box::pin(sleep(STRANGERS_PATIENCE)),
            sent_away: Box::pin(standing.sent_away()),
            is_farewell: false,
        }
    }

    /// Whether the connection has to end.
    fn is_over(&mut self, standing: &Standing, context: &mut Context<'_>) -> bool {
        if standing.term() == Term::Farewell && !self.is_farewell {
            self.is_farewell = true;
            self.end.as_mut().reset(Instant::now() + FAREWELL);
        }
        while self.end.as_mut().poll(context).is_ready() {
            if self.is_farewell || !standing.is_checking() {
                return true;
            }
            let again = Instant::now() + STRANGERS_PATIENCE;
            self.end.as_mut().reset(again);
        }
        false
    }
}

impl Connection {
    pub(super) fn new(
        socket: Socket,
        origin: Origin,
        place: Place,
        draining: CancellationToken,
    ) -> Self {
        let greeting = Greeting {
            bytes: 0,
            patience: Box::pin(sleep(PREFACE_PATIENCE)),
            draining: Box::pin(draining.cancelled_owned()),
        };
        let authority = matches!(socket, Socket::Unix(_)).then(AuthorityRewriter::new);
        Self {
            socket,
            authority,
            greeting: Some(greeting),
            probation: Some(Probation::begin(place.standing())),
            origin,
            place,
        }
    }

    /// Ends it, whatever it does, where somebody else has its place: also when its other end reads nothing.
    fn keep_place(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let Some(probation) = &mut self.probation else {
            return Ok(());
        };
        // Who is known is not sent away any more.
        let is_known = self.place.standing().term() == Term::Open;
        if probation.sent_away.as_mut().poll(context).is_ready() {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        if is_known {
            self.probation = None;
        }
        Ok(())
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
        Peer { end, origin: self.origin, standing: Arc::clone(self.place.standing()) }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.keep_place(context)?;
        let before = buffer.filled().len();
        let read = match &mut this.socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_read(context, buffer),
            Socket::Unix(socket) => Pin::new(socket).poll_read(context, buffer),
        };
        if let Some(authority) = &mut this.authority {
            authority.rewrite(&mut buffer.filled_mut()[before..]);
        }
        let standing = this.place.standing();
        if let Some(probation) = &mut this.probation
            && probation.is_over(standing, context)
        {
            // As if the other end had nothing more to say: nothing of value is going on.
            return Poll::Ready(Ok(()));
        }
        let Some(greeting) = &mut this.greeting else {
            return read;
        };
        greeting.bytes += buffer.filled().len() - before;
        if greeting.bytes >= PREFACE_BYTES {
            this.greeting = None;
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
        self.keep_place(context)?;
        match &mut self.socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_write(context, data),
            Socket::Unix(socket) => Pin::new(socket).poll_write(context, data),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.keep_place(context)?;
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
        self.keep_place(context)?;
        match &mut self.socket {
            Socket::Tcp(socket) => Pin::new(socket).poll_write_vectored(context, data),
            Socket::Unix(socket) => Pin::new(socket).poll_write_vectored(context, data),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}
