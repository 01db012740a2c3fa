//! Sends one request, to checked addresses only.

use std::{
    error::Error as StdError,
    io::{self, ErrorKind},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use reqwest::{
    Client, Response,
    dns::{Addrs, Name, Resolve, Resolving},
    redirect::Policy,
    retry,
};
use rustls::{ClientConfig, RootCertStore, crypto::ring::default_provider};
use rustls_platform_verifier::BuilderVerifierExt as _;
use tokio::sync::OnceCell;
use url::Url;

use super::error::{cause, fetch_error, origin};
use crate::daemon::{error::Error, task};

/// Part of the request's time that connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Response headers over HTTP/2. Over HTTP/1, hyper limits them to 100 and to its read buffer.
const MAX_HEADER_LIST_BYTES: u32 = 64 << 10;
const USER_AGENT: &str = concat!("jigd/", env!("CARGO_PKG_VERSION"));

/// HTTP client that connects to given addresses only.
#[derive(Debug, Default)]
pub(super) struct PinnedHttpClient {
    /// TLS with the host's certificate authorities, read on first use.
    /// What is trusted: the certificates of the host, read when they are first needed.
    tls: OnceCell<ClientConfig>,
}

/// Resolves every name to the checked addresses of one request.
#[derive(Debug)]
struct PinnedResolver(Vec<SocketAddr>);

impl Resolve for PinnedResolver {
    fn resolve(&self, _: Name) -> Resolving {
        let addresses: Addrs = Box::new(self.0.clone().into_iter());
        Box::pin(async move { Ok(addresses) })
    }
}

impl PinnedHttpClient {
    /// Sends a GET request for `url` to one of `addresses`. Returns after the response headers.
    pub(super) async fn send(
        &self,
        url: &Url,
        addresses: Vec<SocketAddr>,
    ) -> Result<Response, Error> {
        let tls = match url.scheme() {
            "https" => self.tls_config(url).await?,
            // Unused. Without a configuration, reqwest would read the certificates itself.
            _ => without_certificates().map_err(Error::internal)?,
        };

        let client = Client::builder()
            .tls_backend_preconfigured(tls)
            .dns_resolver(Arc::new(PinnedResolver(addresses)))
            .no_proxy()
            .redirect(Policy::none())
            .retry(retry::never())
            .referer(false)
            .pool_max_idle_per_host(0)
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_max_header_list_size(MAX_HEADER_LIST_BYTES)
            .user_agent(USER_AGENT)
            .build()
            .map_err(Error::internal)?;

        client.get(url.clone()).send().await.map_err(|error| request_error(url, &error))
    }

    async fn tls_config(&self, url: &Url) -> Result<ClientConfig, Error> {
        let config = self.tls.get_or_try_init(async || {
            task::spawn_blocking(|| {
                let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
                    .with_safe_default_protocol_versions()?
                    .with_platform_verifier()?;
                let mut config = builder.with_no_client_auth();
                config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
                Ok::<_, rustls::Error>(config)
            })
            .await
            .map_err(Error::internal)?
            .map_err(|error| {
                let text = format!(
                    "{} cannot be verified: the daemon's host has no CA certificates ({error}); the operator can install the package ca-certificates",
                    origin(url)
                );
                fetch_error(text, cause::NO_CA_CERTIFICATES)
            })
        });
        config.await.cloned()
    }
}

fn without_certificates() -> Result<ClientConfig, rustls::Error> {
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()?;
    Ok(builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth())
}

/// Reads up to `max_bytes` of a body, decompressed. Returns them, and whether there are more.
pub(super) async fn read_body(
    response: &mut Response,
    url: &Url,
    max_bytes: usize,
) -> Result<(Vec<u8>, bool), Error> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| request_error(url, &error))? {
        let remaining = max_bytes - body.len();
        match chunk.get(..remaining) {
            Some(prefix) if prefix.len() < chunk.len() => {
                body.extend_from_slice(prefix);
                return Ok((body, true));
            }
            Some(_) | None => body.extend_from_slice(&chunk),
        }
    }
    Ok((body, false))
}

/// Describes a failed request by its root cause.
fn request_error(url: &Url, error: &reqwest::Error) -> Error {
    let mut root: &dyn StdError = error;
    while let Some(source) = root.source() {
        root = source;
    }
    let root_text = root.to_string();
    let io_error = root.downcast_ref::<io::Error>();
    let (cause, problem) = match io_error.map(io::Error::kind) {
        Some(ErrorKind::ConnectionRefused) => (cause::CONNECTION_REFUSED, "connection refused"),
        Some(ErrorKind::ConnectionReset) => (cause::CONNECTION_RESET, "connection reset"),
        Some(ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable) => {
            (cause::HOST_UNREACHABLE, "host unreachable")
        }
        _ if error.is_connect() && error.is_timeout() => {
            (cause::CONNECT_TIMEOUT, "connecting took too long")
        }
        _ if error.is_connect() => (cause::CONNECTION_FAILED, root_text.as_str()),
        _ => (cause::TRANSFER_FAILED, root_text.as_str()),
    };
    let text = format!("request to {} failed: {problem}", origin(url));
    fetch_error(text, cause)
}
