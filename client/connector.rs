//! Opens connections, and examines what the peer sends first.
//!
//! An HTTP/2 server sends the first frame by itself (RFC 9113, section 3.4). tonic reports a
//! connection as established before that. With TLS 1.3, a server rejects a client certificate after
//! the handshake of the client has ended.

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
use tokio_rustls::client::TlsStream;
use tonic::codegen::{Service, http::Uri};

use super::{
    address::DaemonAddress,
    tls::{self, TlsSettings, tls_error},
};

/// First byte of a TLS alert (RFC 8446, section 5.1).
const ALERT_RECORD: u8 = 21;

/// Connects to one address.
pub(super) struct Connector {
    address: DaemonAddress,
    tls: Option<TlsSettings>,
    first_read: watch::Sender<Option<FirstRead>>,
}

/// What the peer has sent first.
#[derive(Debug, Clone)]
pub(super) enum FirstRead {
    /// Possibly an HTTP/2 frame; or the peer has closed the connection.
    Http2,
    /// Anything else: what it is, and what to do.
    OtherProtocol(String),
}

/// A connection that records what the peer sends first.
pub(super) struct ObservedStream {
    stream: Stream,
    first_read: watch::Sender<Option<FirstRead>>,
}

enum Stream {
    Tcp(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    Unix(UnixStream),
}

impl Connector {
    /// The receiver gets a value when the peer has responded or closed a connection. An address
    /// with TLS needs `tls`.
    pub(super) fn new(
        address: DaemonAddress,
        tls: Option<TlsSettings>,
    ) -> (Self, watch::Receiver<Option<FirstRead>>) {
        let (sender, first_read) = watch::channel(None);
        (Self { address, tls, first_read: sender }, first_read)
    }
}

/// Opens a TCP connection.
async fn connect_tcp(authority: String) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(authority).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

impl FirstRead {
    /// Examines the first bytes, or the error in their place.
    fn examine(result: &io::Result<()>, bytes: &[u8], stream: &Stream) -> Self {
        if let Err(error) = result {
            return tls_error(error)
                .map_or(Self::Http2, |error| Self::OtherProtocol(tls::explain(error)));
        }
        match (stream, bytes) {
            (Stream::Tcp(_), [ALERT_RECORD, ..]) => {
                Self::OtherProtocol("the peer speaks TLS: write `https://`".to_owned())
            }
            (Stream::Tcp(_), bytes) if bytes.starts_with(b"HTTP/1.") => Self::OtherProtocol(
                "the peer speaks HTTP/1.1 or TLS: check the address, or write `https://`"
                    .to_owned(),
            ),
            _ => Self::Http2,
        }
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
        let (address, tls) = (self.address.clone(), self.tls.clone());
        let first_read = self.first_read.clone();
        Box::pin(async move {
            let stream = match (address, tls) {
                (DaemonAddress::Unix(path), _) => Stream::Unix(UnixStream::connect(path).await?),
                (DaemonAddress::Tcp(authority), _) => Stream::Tcp(connect_tcp(authority).await?),
                (DaemonAddress::Tls(authority), Some(tls)) => {
                    let stream = tls.handshake(connect_tcp(authority).await?).await?;
                    Stream::Tls(Box::new(stream))
                }
                (DaemonAddress::Tls(_), None) => {
                    return Err(io::Error::other("the connection has no TLS settings"));
                }
            };
            Ok(TokioIo::new(ObservedStream { stream, first_read }))
        })
    }
}

impl Drop for ObservedStream {
    fn drop(&mut self) {
        // A write has failed before the first read. The first call reports that.
        self.first_read.send_if_modified(|first_read| {
            let is_first = first_read.is_none();
            first_read.get_or_insert(FirstRead::Http2);
            is_first
        });
    }
}

impl AsyncRead for ObservedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let filled_before = buffer.filled().len();
        let result = ready!(match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
        });
        let this = &*self;
        this.first_read.send_if_modified(|first_read| {
            let is_first = first_read.is_none();
            let bytes = buffer.filled().get(filled_before..).unwrap_or_default();
            first_read.get_or_insert_with(|| FirstRead::examine(&result, bytes, &this.stream));
            is_first
        });
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
            Stream::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
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
            Stream::Tls(stream) => Pin::new(stream).poll_write_vectored(context, parts),
            Stream::Unix(stream) => Pin::new(stream).poll_write_vectored(context, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Tcp(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
            Stream::Unix(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(context),
            Stream::Unix(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}
