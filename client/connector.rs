//! Opens connections, and detects whether the peer responds.
//!
//! An HTTP/2 server sends the first frame by itself (RFC 9113, section 3.4). tonic reports a
//! connection as established before that.

use std::{
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
    sync::watch,
};
use tonic::codegen::{Service, http::Uri};

use super::address::DaemonAddress;

/// Connects to one address.
pub(super) struct Connector {
    address: DaemonAddress,
    has_responded: watch::Sender<bool>,
}

/// A connection that records when the peer first responds or closes it.
pub(super) struct ObservedStream {
    stream: Stream,
    has_responded: watch::Sender<bool>,
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Connector {
    /// The receiver becomes true when the peer has responded or closed a connection.
    pub(super) fn new(address: DaemonAddress) -> (Self, watch::Receiver<bool>) {
        let (has_responded, peer_responded) = watch::channel(false);
        let connector = Self { address, has_responded };
        (connector, peer_responded)
    }
}

impl Service<Uri> for Connector {
    type Response = TokioIo<ObservedStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let (address, has_responded) = (self.address.clone(), self.has_responded.clone());
        Box::pin(async move {
            let stream = match address {
                DaemonAddress::Tcp(authority) => {
                    let stream = TcpStream::connect(authority).await?;
                    stream.set_nodelay(true)?;
                    Stream::Tcp(stream)
                }
                DaemonAddress::Unix(path) => Stream::Unix(UnixStream::connect(path).await?),
            };
            Ok(TokioIo::new(ObservedStream { stream, has_responded }))
        })
    }
}

impl AsyncRead for ObservedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let result = ready!(match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
        });
        self.has_responded
            .send_if_modified(|has_responded| !std::mem::replace(has_responded, true));
        Poll::Ready(result)
    }
}

impl AsyncWrite for ObservedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            Stream::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_write_vectored(context, parts),
            Stream::Unix(stream) => Pin::new(stream).poll_write_vectored(context, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Tcp(stream) => stream.is_write_vectored(),
            Stream::Unix(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Stream::Unix(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
