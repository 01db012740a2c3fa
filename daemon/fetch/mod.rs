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

mod failure;
mod get;
mod html;
pub(crate) mod target;
mod text;

use std::{io, sync::Arc};

use reqwest::{StatusCode, header};
use tokio::sync::Semaphore;
use url::Url;

use self::{
    failure::{failed, origin},
    get::Get,
    target::{Target, without_final_dot},
};
use super::{
    error::{Error, Reason},
    outside::{NoWay, Outside, policy::Policy},
    task,
};

/// Redirects that are followed; browsers follow 20, and nobody needs so many.
const REDIRECTS: usize = 10;
/// Pages that are converted at a time: each takes a core meanwhile, and some ten times its size.
const CONVERSIONS: usize = 4;

/// What fetches.
#[derive(Debug)]
pub(crate) struct Fetcher {
    outside: Outside,
    get: Get,
    conversions: Arc<Semaphore>,
}

/// How content is to be given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// As it is.
    Raw,
    /// HTML as its text.
    Text,
    /// HTML as Markdown.
    Markdown,
}

/// What was fetched.
#[derive(Debug)]
pub(crate) struct Fetched {
    /// Where it was in the end.
    pub(crate) url: Url,
    /// The status of the answer, whatever it is.
    pub(crate) status: u16,
    /// Its media type, as the server says; empty where it does not.
    pub(crate) content_type: String,
    /// Bytes of the body that were read.
    pub(crate) bytes: usize,
    /// The body.
    pub(crate) content: String,
    /// Whether there is more than that.
    pub(crate) is_cut: bool,
}

impl Fetcher {
    /// One that fetches what `policy` allows, but for the daemon itself, which listens on `own_ports`; none
    /// where that is nothing.
    pub(crate) fn new(policy: Policy, own_ports: Vec<u16>) -> Option<Arc<Self>> {
        let fetcher = || {
            Arc::new(Self {
                outside: Outside::new(policy.clone(), own_ports),
                get: Get::default(),
                conversions: Arc::new(Semaphore::new(CONVERSIONS)),
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
        form: Form,
        most: usize,
        hold: impl Clone + Send + 'static,
    ) -> Result<Fetched, Error> {
        let mut url = url.clone();
        for _ in 0..=REDIRECTS {
            url.set_fragment(None);
            url = without_final_dot(url);
            let target = Target::of(&url).map_err(|problem| denied(&url, problem))?;
            let holds = async { Ok::<_, io::Error>(hold.clone()) };
            let Target { host, port } = &target;
            let addresses = self.outside.addresses(host, *port, holds).await;
            let addresses = addresses.map_err(|no_way| self.no_way(&target, no_way))?;
            let mut response = self.get.send(&url, addresses).await?;
            if let Some(next) = redirect(&url, response.status(), response.headers())? {
                url = next;
                continue;
            }
            let status = response.status().as_u16();
            let content_type = response.headers().get(header::CONTENT_TYPE);
            let content_type = content_type.map(|value| String::from_utf8_lossy(value.as_bytes()));
            let content_type = content_type.unwrap_or_default().into_owned();
            let (body, is_cut) = get::body(&mut response, &url, most).await?;
            let bytes = body.len();
            let text = text::of(body, &content_type, is_cut).map_err(|()| {
                let text = format!(
                    "{} answers with {content_type}, which is no text: fetch it with a command that keeps it as a file",
                    origin(&url)
                );
                failed(text, "the content is no text").with("content_type", &content_type)
            })?;
            let (content, is_shortened) = match form {
                Form::Text | Form::Markdown if text::is_html(&content_type) => {
                    self.convert(text, form, url.clone(), most, hold).await?
                }
                Form::Raw | Form::Text | Form::Markdown => text::cut(text, most),
            };
            return Ok(Fetched {
                url,
                status,
                content_type,
                bytes,
                content,
                is_cut: is_cut || is_shortened,
            });
        }
        let text = format!(
            "{} redirects for the {REDIRECTS}th time and more: give the URL where that ends",
            origin(&url)
        );
        Err(failed(text, "too many redirects"))
    }

    /// Converts a page, in its turn and on a thread that may block.
    async fn convert(
        &self,
        page: String,
        form: Form,
        base: Url,
        most: usize,
        hold: impl Send + 'static,
    ) -> Result<(String, bool), Error> {
        let permit = Arc::clone(&self.conversions).acquire_owned().await;
        let permit = permit.map_err(Error::internal)?;
        let converted = task::blocking(move || {
            let _held = (permit, hold);
            let converted = match form {
                Form::Text => html::text(&page, &base),
                Form::Raw | Form::Markdown => html::markdown(&page, &base),
            };
            converted.map(|content| text::cut(content, most))
        });
        let converted = converted.await.map_err(Error::internal)?;
        converted.map_err(Error::internal)
    }

    fn no_way(&self, target: &Target, no_way: NoWay) -> Error {
        let Target { host, port } = target;
        match no_way {
            NoWay::Denied(denial, _) => {
                let text = self.outside.explain(&denial, host, *port);
                Error::new(Reason::EgressDenied, text)
                    .with("host", host.to_string())
                    .with("denied", denial.name())
            }
            NoWay::Unknown(error) => {
                let text = format!("{host} could not be looked up: {error}");
                failed(text, "the name could not be looked up")
            }
            NoWay::TooSlow => {
                let text = format!("{host} could not be looked up in time");
                failed(text, "the name could not be looked up in time")
            }
        }
    }
}

/// Where an answer redirects to, if it does.
fn redirect(
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
        failed(text, "a redirect to what is no URL")
    })
}

/// A URL that a server redirects to and that is not fetched, whatever the operator allows.
fn denied(url: &Url, problem: &str) -> Error {
    let text = format!("a redirect leads to a URL that {problem}");
    Error::new(Reason::EgressDenied, text)
        .with("scheme", url.scheme())
        .with("denied", "url_not_allowed")
}
