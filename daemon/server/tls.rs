//! TLS of a listener: handshakes, and credentials that are replaced while the daemon runs.

use std::{
    future::Future as _,
    io,
    pin::Pin,
    sync::{Arc, PoisonError, RwLock},
    task::{Context, Poll},
    time::{Duration, SystemTime},
};

use rustls::ServerConfig;
use tokio::{
    io::{AsyncReadExt as _, AsyncWrite as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{Sleep, sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};

use crate::daemon::config::{
    client_certificate::ClientCertificate,
    tls::{TlsCredentials, TlsFiles},
};

/// Time from the accept of a connection to the end of its handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client may take to read the end of a connection, or to close a connection after a
/// failed handshake.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes that are read and discarded after a failed handshake.
const MAX_DISCARDED_BYTES: u64 = 64 << 10;
/// First byte of a TLS connection: a record that contains a handshake message (RFC 8446, section
/// 5.1).
const HANDSHAKE_RECORD: u8 = 22;
/// Answer to a client that speaks plaintext.
const PLAINTEXT_RESPONSE: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: 45\r\nconnection: close\r\n\r\nthis port speaks TLS: use an https:// address";

/// The TLS credentials of one or more listeners.
#[derive(Debug)]
pub(crate) struct ListenerTls {
    files: TlsFiles,
    current: RwLock<TlsCredentials>,
}

/// A connection after its handshake.
#[derive(Debug)]
pub(super) struct TlsConnection {
    pub(super) stream: Box<TlsStream<TcpStream>>,
    /// The certificate of the client, verified by the CA of the listener.
    pub(super) certificate: Option<Arc<ClientCertificate>>,
    /// Set once the connection closes.
    close_timer: Option<Pin<Box<Sleep>>>,
}

impl TlsConnection {
    /// Sends the end of the connection, for at most [`CLOSE_TIMEOUT`].
    ///
    /// A client that does not read would otherwise hold its connection for as long as it wants.
    pub(super) fn poll_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Poll::Ready(result) = Pin::new(&mut self.stream).poll_shutdown(context) {
            return Poll::Ready(result);
        }
        let timer = self.close_timer.get_or_insert_with(|| Box::pin(sleep(CLOSE_TIMEOUT)));
        timer.as_mut().poll(context).map(Ok)
    }
}

impl ListenerTls {
    /// Reads the files for the first time.
    pub(super) fn load(files: TlsFiles) -> Result<Self, Vec<String>> {
        let credentials = files.read()?;
        log_credentials(&files, &credentials, "serving TLS");
        Ok(Self { files, current: RwLock::new(credentials) })
    }

    pub(crate) fn files(&self) -> &TlsFiles {
        &self.files
    }

    /// Uses `credentials` for new connections. Does nothing if they are the current ones.
    ///
    /// Sessions of earlier credentials cannot be resumed: their clients authenticate again.
    pub(crate) fn replace(&self, credentials: TlsCredentials) {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if current.digest == credentials.digest {
            return;
        }
        log_credentials(&self.files, &credentials, "reloaded the TLS certificate");
        *current = credentials;
    }

    fn server_config(&self) -> Arc<ServerConfig> {
        let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&current.server_config)
    }

    /// Makes the handshake of an accepted connection, within [`HANDSHAKE_TIMEOUT`].
    pub(super) async fn accept(&self, socket: TcpStream) -> io::Result<TlsConnection> {
        let handshake = timeout(HANDSHAKE_TIMEOUT, self.handshake(socket));
        handshake.await.map_err(|_elapsed| io::Error::from(io::ErrorKind::TimedOut))?
    }

    async fn handshake(&self, mut socket: TcpStream) -> io::Result<TlsConnection> {
        let mut first_byte = [0];
        if socket.peek(&mut first_byte).await? > 0 && first_byte != [HANDSHAKE_RECORD] {
            socket.write_all(PLAINTEXT_RESPONSE).await?;
            close_after_delivery(socket).await;
            return Err(io::Error::other("the client speaks plaintext"));
        }

        let accept = TlsAcceptor::from(self.server_config()).accept(socket);
        let stream = match accept.into_fallible().await {
            Ok(stream) => stream,
            Err((error, socket)) => {
                close_after_delivery(socket).await;
                return Err(error);
            }
        };
        let (_, session) = stream.get_ref();
        let certificate = session.peer_certificates().and_then(|chain| chain.first());
        let certificate = certificate
            .map(|certificate| ClientCertificate::from_der(certificate).map(Arc::new))
            .transpose()
            .map_err(io::Error::other)?;
        Ok(TlsConnection { stream: Box::new(stream), certificate, close_timer: None })
    }
}

/// Closes a connection once the client has read what was written: the reason of the failure.
///
/// With TLS 1.3, a client sends data before it knows that its certificate is rejected. Closing a
/// socket with unread data resets the connection, and the client could lose the alert.
async fn close_after_delivery(mut socket: TcpStream) {
    let drain = async {
        socket.shutdown().await?;
        let mut discarded = (&mut socket).take(MAX_DISCARDED_BYTES);
        tokio::io::copy(&mut discarded, &mut tokio::io::sink()).await
    };
    // Errors and a client that stays connected change nothing: the socket closes.
    let _closed = timeout(CLOSE_TIMEOUT, drain).await;
}

fn log_credentials(files: &TlsFiles, credentials: &TlsCredentials, event: &'static str) {
    let certificate = files.cert.display().to_string();
    let expires = credentials.expires.map(|time| prost_types::Timestamp::from(time).to_string());
    if credentials.expires.is_some_and(|time| time <= SystemTime::now()) {
        tracing::warn!(
            certificate,
            expires,
            remedy = "renew it: the daemon reads the files again when they change",
            "the TLS certificate has expired: clients reject it"
        );
    } else {
        tracing::info!(certificate, expires, "{event}");
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, future::poll_fn, os::unix::fs::PermissionsExt as _};

    use rcgen::{CertificateParams, KeyPair};
    use rustls::{ClientConfig, RootCertStore, crypto::ring::default_provider};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsConnector;

    use super::*;

    /// A connection after its handshake, and its client.
    async fn connect() -> (TlsConnection, impl Sized) {
        let directory = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let certificate = params.self_signed(&key).unwrap();
        let files = TlsFiles {
            cert: directory.path().join("cert.pem"),
            key: directory.path().join("key.pem"),
            client_ca: None,
        };
        fs::write(&files.cert, certificate.pem()).unwrap();
        fs::write(&files.key, key.serialize_pem()).unwrap();
        fs::set_permissions(&files.key, fs::Permissions::from_mode(0o600)).unwrap();
        let tls = ListenerTls::load(files).unwrap();

        let mut roots = RootCertStore::empty();
        roots.add(certificate.der().clone()).unwrap();
        let client = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector = TlsConnector::from(Arc::new(client));

        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let name = "localhost".try_into().unwrap();
        let client =
            async { connector.connect(name, TcpStream::connect(address).await.unwrap()).await };
        let server = async { tls.accept(listener.accept().await.unwrap().0).await };
        let (client, server) = tokio::join!(client, server);
        (server.unwrap(), client.unwrap())
    }

    #[tokio::test]
    async fn client_that_reads_nothing_cannot_hold_its_connection() {
        let (mut connection, client) = connect().await;
        let fill = async { while connection.stream.write_all(&[0; 65536]).await.is_ok() {} };
        timeout(Duration::from_millis(300), fill).await.expect_err("the client reads nothing");

        let start = std::time::Instant::now();
        poll_fn(|context| connection.poll_shutdown(context)).await.unwrap();
        assert!(start.elapsed() >= CLOSE_TIMEOUT / 2, "{:?}", start.elapsed());
        drop(client);
    }

    #[tokio::test]
    async fn close_of_an_idle_connection_does_not_wait() {
        let (mut connection, client) = connect().await;
        let start = std::time::Instant::now();
        poll_fn(|context| connection.poll_shutdown(context)).await.unwrap();
        assert!(start.elapsed() < CLOSE_TIMEOUT / 2, "{:?}", start.elapsed());
        drop(client);
    }
}
