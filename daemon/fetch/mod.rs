//! HTTP client of the tool `fetch_url`: GET requests to the hosts that the operator allows.
//!
//! ```text
//! URL ─▶ http(s), without credentials? ─no─▶ rejected
//!   │ yes
//!   ▼
//! host and port allowed, name resolved once, addresses allowed? (netpolicy) ─no─▶ EGRESS_DENIED
//!   │ the allowed addresses
//!   ▼
//! connection to one of these addresses, for one request ─▶ redirect? ─▶ from the start, with its URL
//!   │ no
//!   ▼
//! body, decompressed, up to the requested size ─▶ text
//! ```
//!
//! reqwest resolves no name and follows no redirect by itself. Each request has its own client,
//! which knows only the checked addresses. reqwest does not call its resolver for hosts that are
//! addresses, in any spelling. The policy checks these as the URL parser reads them, and reqwest
//! connects to the same address.
//!
//! | module | contents |
//! |---|---|
//! | [`target`] | which URLs can be fetched |
//! | [`http_client`] | one request |
//! | [`decode`] | bodies as text |
//! | [`html`] | hostile HTML as Markdown or text |
//! | [`error`] | errors about the transfer |

mod decode;
mod error;
mod html;
mod http_client;
pub(crate) mod target;

use std::{io, sync::Arc};

use reqwest::{Response, StatusCode, header};
use tokio::sync::Semaphore;
use url::Url;

use self::{
    error::{cause, fetch_error, origin},
    http_client::PinnedHttpClient,
    target::{FetchTarget, strip_final_dot},
};
use super::{
    error::{Error, Reason},
    netpolicy::{NetworkPolicy, ResolveError, rules::NetworkRules},
    task,
};

/// Redirects that one call follows. Browsers follow 20.
const MAX_REDIRECTS: usize = 10;
/// Pages that are converted at once. A conversion uses one core and about ten times the page's
/// size.
const MAX_CONCURRENT_CONVERSIONS: usize = 4;

/// Fetches URLs within a network policy.
#[derive(Debug)]
pub(crate) struct Fetcher {
    policy: NetworkPolicy,
    client: PinnedHttpClient,
    conversions: Arc<Semaphore>,
}

/// Form in which the caller wants the content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContentFormat {
    /// Unchanged.
    Raw,
    /// HTML converted to text.
    Text,
    /// HTML converted to Markdown.
    Markdown,
}

#[derive(Debug)]
pub(crate) struct FetchResult {
    /// URL after all redirects.
    pub(crate) url: Url,
    /// HTTP status, success or not.
    pub(crate) status: u16,
    /// `Content-Type` of the response. Empty if the server sends none.
    pub(crate) content_type: String,
    /// Size of the received body, decompressed.
    pub(crate) body_bytes: usize,
    pub(crate) content: String,
    /// Whether the body or the content was cut at the limit.
    pub(crate) truncated: bool,
}

impl Fetcher {
    /// Creates a fetcher for `policy`. It never connects to the daemon itself, which listens on
    /// `own_ports`. `None` if the policy allows no host.
    pub(crate) fn new(policy: NetworkRules, own_ports: Vec<u16>) -> Option<Arc<Self>> {
        if policy.hosts.is_empty() {
            return None;
        }
        Some(Arc::new(Self {
            policy: NetworkPolicy::new(policy, own_ports),
            client: PinnedHttpClient::default(),
            conversions: Arc::new(Semaphore::new(MAX_CONCURRENT_CONVERSIONS)),
        }))
    }

    /// Fetches up to `max_bytes` from `url`, following redirects. Work that outlives the call, such
    /// as a DNS lookup, holds a clone of `call_permit` until it ends.
    ///
    /// # Errors
    ///
    /// If the policy denies a URL, if the transfer fails, or if the content is not text.
    pub(crate) async fn fetch(
        &self,
        url: &Url,
        format: ContentFormat,
        max_bytes: usize,
        call_permit: impl Clone + Send + 'static,
    ) -> Result<FetchResult, Error> {
        let mut url = url.clone();
        for _ in 0..=MAX_REDIRECTS {
            url.set_fragment(None);
            url = strip_final_dot(url);
            let response = self.request(&url, call_permit.clone()).await?;
            if let Some(next) = redirect_target(&url, response.status(), response.headers())? {
                url = next;
                continue;
            }
            return self.read_response(response, url, format, max_bytes, call_permit).await;
        }

        let text = format!(
            "{} redirects more than {MAX_REDIRECTS} times: give the URL at the end of the redirects",
            origin(&url)
        );
        Err(fetch_error(text, cause::TOO_MANY_REDIRECTS))
    }

    /// Checks one URL against the policy, and sends a request for it.
    async fn request(
        &self,
        url: &Url,
        call_permit: impl Send + 'static,
    ) -> Result<Response, Error> {
        let target = FetchTarget::from_url(url).map_err(|problem| denied_error(url, problem))?;
        let acquire = async { Ok::<_, io::Error>(call_permit) };
        let addresses = self
            .policy
            .resolve(&target.host, target.port, acquire)
            .await
            .map_err(|error| self.resolve_error(&target, error))?;
        self.client.send(url, addresses).await
    }

    /// Reads, decodes and converts the body of a response.
    async fn read_response(
        &self,
        mut response: Response,
        url: Url,
        format: ContentFormat,
        max_bytes: usize,
        call_permit: impl Send + 'static,
    ) -> Result<FetchResult, Error> {
        let status = response.status().as_u16();
        let content_type = response
            .headers()
            .get(header::CONTENT_TYPE)
            .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
            .unwrap_or_default();
        let (body, is_body_cut) = http_client::read_body(&mut response, &url, max_bytes).await?;
        let body_bytes = body.len();

        let text = decode::decode(body, &content_type, is_body_cut).map_err(|()| {
            let text = format!(
                "{} answers with {content_type}, which is not text: fetch it with a command that stores it as a file",
                origin(&url)
            );
            fetch_error(text, cause::NOT_TEXT).with_metadata("content_type", &content_type)
        })?;
        let (content, is_content_cut) = match format {
            ContentFormat::Text | ContentFormat::Markdown if decode::is_html(&content_type) => {
                self.convert(text, format, url.clone(), max_bytes, call_permit).await?
            }
            ContentFormat::Raw | ContentFormat::Text | ContentFormat::Markdown => {
                decode::truncate(text, max_bytes)
            }
        };

        Ok(FetchResult {
            url,
            status,
            content_type,
            body_bytes,
            content,
            truncated: is_body_cut || is_content_cut,
        })
    }

    /// Converts a page on a blocking thread, after waiting for a permit.
    async fn convert(
        &self,
        page: String,
        format: ContentFormat,
        base: Url,
        max_bytes: usize,
        call_permit: impl Send + 'static,
    ) -> Result<(String, bool), Error> {
        let permit =
            Arc::clone(&self.conversions).acquire_owned().await.map_err(Error::internal)?;
        task::spawn_blocking(move || {
            let _held = (permit, call_permit);
            let converted = match format {
                ContentFormat::Text => html::text(&page, &base),
                ContentFormat::Raw | ContentFormat::Markdown => html::markdown(&page, &base),
            };
            converted.map(|content| decode::truncate(content, max_bytes))
        })
        .await
        .map_err(Error::internal)?
        .map_err(Error::internal)
    }

    fn resolve_error(&self, target: &FetchTarget, error: ResolveError) -> Error {
        let FetchTarget { host, port } = target;
        match error {
            ResolveError::Denied(denial, _) => {
                let text = self.policy.explain(&denial, host, *port);
                Error::new(Reason::EgressDenied, text)
                    .with_metadata("host", host.to_string())
                    .with_metadata("denied", denial.reason())
            }
            ResolveError::LookupFailed(error) => {
                let text = format!("{host} could not be resolved: {error}");
                fetch_error(text, cause::DNS_FAILED)
            }
            ResolveError::TimedOut => {
                let text = format!("{host} could not be resolved in time");
                fetch_error(text, cause::DNS_TIMEOUT)
            }
        }
    }
}

/// Returns the target of a redirect. `None` for other responses.
fn redirect_target(
    url: &Url,
    status: StatusCode,
    headers: &header::HeaderMap,
) -> Result<Option<Url>, Error> {
    let redirects = matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308);
    let Some(location) = headers.get(header::LOCATION).filter(|_| redirects) else {
        return Ok(None);
    };
    let location = String::from_utf8_lossy(location.as_bytes());
    url.join(&location).map(Some).map_err(|error| {
        let text = format!("{} redirects to an invalid URL: {error}", origin(url));
        fetch_error(text, cause::INVALID_REDIRECT)
    })
}

/// Builds the error for a redirect to a URL that no policy allows.
fn denied_error(url: &Url, problem: &str) -> Error {
    let text = format!("a redirect leads to a URL that {problem}");
    Error::new(Reason::EgressDenied, text)
        .with_metadata("scheme", url.scheme())
        .with_metadata("denied", "url_not_allowed")
}
