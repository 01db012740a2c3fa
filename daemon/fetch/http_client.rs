//! One request: to addresses that were checked, and to nothing else.

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

use super::error::{fetch_error, origin};
use crate::daemon::{error::Error, task};

/// How long connecting may take, of the time that there is.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Most bytes of an answer's fields by HTTP/2; by HTTP/1, it is 100 fields in what hyper reads at once.
const MAX_HEADER_LIST_BYTES: u32 = 64 << 10;
/// Who asks, and what for.
const USER_AGENT: &str = concat!("jigd/", env!("CARGO_PKG_VERSION"));

/// Sends requests.
#[derive(Debug, Default)]
pub(super) struct PinnedHttpClient {
    /// What is trusted: the certificates of the host, read when they are first needed.
    tls: OnceCell<ClientConfig>,
}

/// The addresses that were checked, whatever name is asked for: each client is for one request.
#[derive(Debug)]
struct PinnedResolver(Vec<SocketAddr>);

impl Resolve for PinnedResolver {
    fn resolve(&self, _: Name) -> Resolving {
        let addresses: Addrs = Box::new(self.0.clone().into_iter());
        Box::pin(async move { Ok(addresses) })
    }
}

impl PinnedHttpClient {
    /// Asks for `url` at one of `addresses`; answers once there is a head.
    pub(super) async fn send(
        &self,
        url: &Url,
        addresses: Vec<SocketAddr>,
    ) -> Result<Response, Error> {
        let tls = match url.scheme() {
            "https" => self.tls_config(url).await?,
            // None is spoken; without one, reqwest would read the certificates for itself.
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
            .build();
        let client = client.map_err(Error::internal)?;
        let sent = client.get(url.clone()).send().await;
        sent.map_err(|error| request_error(url, &error))
    }

    async fn tls_config(&self, url: &Url) -> Result<ClientConfig, Error> {
        let read = self.tls.get_or_try_init(async || {
            let read = task::spawn_blocking(|| {
                let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
                    .with_safe_default_protocol_versions()?
                    .with_platform_verifier()?;
                let mut config = builder.with_no_client_auth();
                config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
                Ok::<_, rustls::Error>(config)
            });
            let read = read.await.map_err(Error::internal)?;
            read.map_err(|error| {
                let text = format!(
                    "{} cannot be trusted: the daemon's host has no certificates of authorities ({error}); the operator installs its package ca-certificates",
                    origin(url)
                );
                fetch_error(text, "no certificates of authorities")
            })
        });
        read.await.cloned()
    }
}

fn without_certificates() -> Result<ClientConfig, rustls::Error> {
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()?;
    Ok(builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth())
}

/// Reads up to `most` bytes of a body, decompressed. Answers them, and whether there is more.
pub(super) async fn read_body(
    response: &mut Response,
    url: &Url,
    most: usize,
) -> Result<(Vec<u8>, bool), Error> {
    let mut body = Vec::new();
    while let Some(piece) = response.chunk().await.map_err(|error| request_error(url, &error))? {
        let room = most - body.len();
        match piece.get(..room) {
            Some(fitting) if fitting.len() < piece.len() => {
                body.extend_from_slice(fitting);
                return Ok((body, true));
            }
            Some(_) | None => body.extend_from_slice(&piece),
        }
    }
    Ok((body, false))
}

/// What went wrong with a request.
fn request_error(url: &Url, error: &reqwest::Error) -> Error {
    let mut root: &dyn StdError = error;
    while let Some(source) = root.source() {
        root = source;
    }
    let kind = root.downcast_ref::<io::Error>().map(io::Error::kind);
    let cause = match kind {
        Some(ErrorKind::ConnectionRefused) => "connection refused".to_owned(),
        Some(ErrorKind::ConnectionReset) => "connection reset".to_owned(),
        Some(ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable) => {
            "host unreachable".to_owned()
        }
        _ if error.is_connect() && error.is_timeout() => "connecting took too long".to_owned(),
        _ => root.to_string(),
    };
    let text = format!("{} could not be fetched from: {cause}", origin(url));
    fetch_error(text, &cause)
}
