//! Fetching from the web, for `fetch_url`: HTTP by GET, to the hosts that the operator lists.
//!
//! ```text
//! URL ─▶ http(s), without a password? ─no─▶ refused
//!   │ yes
//!   ▼
//! host and port listed, name looked up once, addresses allowed? (super::outside) ─no─▶ EGRESS_DENIED
//!   │ those that are
//!   ▼
//! a connection to one of these addresses, for one request ─▶ a redirect? ─▶ from the start, with its URL
//!   │ no
//!   ▼
//! the body, decompressed, as far as it is asked for ─▶ text
//! ```
//!
//! reqwest looks no name up by itself and follows nothing by itself: it has a client for each request, which
//! knows the addresses that were checked and no others. It does not ask its resolver about hosts that are
//! addresses, in whatever spelling; these were checked as what the URL parser has read, which is what reqwest
//! connects to.
//!
//! | file | holds |
//! |---|---|
//! | [`target`] | which URLs there are to fetch |
//! | [`get`] | one request |
//! | [`text`] | bodies as text |
//! | [`html`] | HTML as Markdown or text, whatever it is |
//! | [`failure`] | how it is told what went wrong |

mod decode;
mod error;
mod html;
mod http_client;
pub(crate) mod target;

use std::{io, sync::Arc};

use reqwest::{StatusCode, header};
use tokio::sync::Semaphore;
use url::Url;

use self::{
    error::{fetch_error, origin},
    http_client::PinnedHttpClient,
    target::{FetchTarget, strip_final_dot},
};
use super::{
    error::{Error, Reason},
    netpolicy::{NetworkPolicy, ResolveError, rules::NetworkRules},
    task,
};

/// Redirects that are followed; browsers follow 20, and nobody needs so many.
const MAX_REDIRECTS: usize = 10;
/// Pages that are converted at a time: each takes a core meanwhile, and some ten times its size.
const MAX_CONCURRENT_CONVERSIONS: usize = 4;

/// What fetches.
#[derive(Debug)]
pub(crate) struct Fetcher {
    policy: NetworkPolicy,
    client: PinnedHttpClient,
    conversions: Arc<Semaphore>,
}

/// How content is to be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ContentFormat {
    /// As it is.
    Raw,
    /// HTML as its text.
    Text,
    /// HTML as Markdown.
    Markdown,
}

/// What was fetched.
#[derive(Debug)]
pub(crate) struct FetchResult {
    /// Where it was in the end.
    pub(crate) url: Url,
    /// The status of the answer, whatever it is.
    pub(crate) status: u16,
    /// Its media type, as the server says; empty where it does not.
    pub(crate) content_type: String,
    /// Bytes of the body that were read.
    pub(crate) body_bytes: usize,
    /// The body.
    pub(crate) content: String,
    /// Whether there is more than that.
    pub(crate) truncated: bool,
}

impl Fetcher {
    /// One that fetches what `policy` allows, but for the daemon itself, which listens on `own_ports`; none
    /// where that is nothing.
    pub(crate) fn new(policy: NetworkRules, own_ports: Vec<u16>) -> Option<Arc<Self>> {
        let fetcher = || {
            Arc::new(Self {
                policy: NetworkPolicy::new(policy.clone(), own_ports),
                client: PinnedHttpClient::default(),
                conversions: Arc::new(Semaphore::new(MAX_CONCURRENT_CONVERSIONS)),
            })
        };
        (!policy.hosts.is_empty()).then(fetcher)
    }

    /// Fetches up to `most` bytes from `url`, and follows redirects. `hold` is kept as long as anything goes on
    /// for this.
    ///
    /// # Errors
    ///
    /// What is not allowed, and what went wrong on the way.
    pub(crate) async fn fetch(
        &self,
        url: &Url,
        form: ContentFormat,
        most: usize,
        hold: impl Clone + Send + 'static,
    ) -> Result<FetchResult, Error> {
        let mut url = url.clone();
        for _ in 0..=MAX_REDIRECTS {
            url.set_fragment(None);
            url = strip_final_dot(url);
            let target =
                FetchTarget::from_url(&url).map_err(|problem| denied_error(&url, problem))?;
            let holds = async { Ok::<_, io::Error>(hold.clone()) };
            let FetchTarget { host, port } = &target;
            let addresses = self.policy.resolve(host, *port, holds).await;
            let addresses = addresses.map_err(|no_way| self.resolve_error(&target, no_way))?;
            let mut response = self.client.send(&url, addresses).await?;
            if let Some(next) = redirect_target(&url, response.status(), response.headers())? {
                url = next;
                continue;
            }
            let status = response.status().as_u16();
            let content_type = response.headers().get(header::CONTENT_TYPE);
            let content_type = content_type.map(|value| String::from_utf8_lossy(value.as_bytes()));
            let content_type = content_type.unwrap_or_default().into_owned();
            let (body, is_cut) = http_client::read_body(&mut response, &url, most).await?;
            let bytes = body.len();
            let text = decode::decode(body, &content_type, is_cut).map_err(|()| {
                let text = format!(
                    "{} answers with {content_type}, which is no text: fetch it with a command that keeps it as a file",
                    origin(&url)
                );
                fetch_error(text, "the content is no text").with_metadata("content_type", &content_type)
            })?;
            let (content, is_shortened) = match form {
                ContentFormat::Text | ContentFormat::Markdown if decode::is_html(&content_type) => {
                    self.convert(text, form, url.clone(), most, hold).await?
                }
                ContentFormat::Raw | ContentFormat::Text | ContentFormat::Markdown => {
                    decode::truncate(text, most)
                }
            };
            return Ok(FetchResult {
                url,
                status,
                content_type,
                body_bytes: bytes,
                content,
                truncated: is_cut || is_shortened,
            });
        }
        let text = format!(
            "{} redirects for the {MAX_REDIRECTS}th time and more: give the URL where that ends",
            origin(&url)
        );
        Err(fetch_error(text, "too many redirects"))
    }

    /// Converts a page, in its turn and on a thread that may block.
    async fn convert(
        &self,
        page: String,
        form: ContentFormat,
        base: Url,
        most: usize,
        hold: impl Send + 'static,
    ) -> Result<(String, bool), Error> {
        let permit = Arc::clone(&self.conversions).acquire_owned().await;
        let permit = permit.map_err(Error::internal)?;
        let converted = task::spawn_blocking(move || {
            let _held = (permit, hold);
            let converted = match form {
                ContentFormat::Text => html::text(&page, &base),
                ContentFormat::Raw | ContentFormat::Markdown => html::markdown(&page, &base),
            };
            converted.map(|content| decode::truncate(content, most))
        });
        let converted = converted.await.map_err(Error::internal)?;
        converted.map_err(Error::internal)
    }

    fn resolve_error(&self, target: &FetchTarget, no_way: ResolveError) -> Error {
        let FetchTarget { host, port } = target;
        match no_way {
            ResolveError::Denied(denial, _) => {
                let text = self.policy.explain(&denial, host, *port);
                Error::new(Reason::EgressDenied, text)
                    .with_metadata("host", host.to_string())
                    .with_metadata("denied", denial.reason())
            }
            ResolveError::LookupFailed(error) => {
                let text = format!("{host} could not be looked up: {error}");
                fetch_error(text, "the name could not be looked up")
            }
            ResolveError::TimedOut => {
                let text = format!("{host} could not be looked up in time");
                fetch_error(text, "the name could not be looked up in time")
            }
        }
    }
}

/// Where an answer redirects to, if it does.
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
        let text = format!("{} redirects to what is no URL: {error}", origin(url));
        fetch_error(text, "a redirect to what is no URL")
    })
}

/// A URL that a server redirects to and that is not fetched, whatever the operator allows.
fn denied_error(url: &Url, problem: &str) -> Error {
    let text = format!("a redirect leads to a URL that {problem}");
    Error::new(Reason::EgressDenied, text)
        .with_metadata("scheme", url.scheme())
        .with_metadata("denied", "url_not_allowed")
}
