//! Errors about a transfer.

use url::Url;

use crate::daemon::error::{Error, Reason};

/// Values of the metadata `cause` of a `FETCH_ERROR`.
pub(super) mod cause {
    pub(crate) const CONNECTION_FAILED: &str = "connection_failed";
    pub(crate) const CONNECTION_REFUSED: &str = "connection_refused";
    pub(crate) const CONNECTION_RESET: &str = "connection_reset";
    pub(crate) const CONNECT_TIMEOUT: &str = "connect_timeout";
    pub(crate) const DNS_FAILED: &str = "dns_failed";
    pub(crate) const DNS_TIMEOUT: &str = "dns_timeout";
    pub(crate) const HOST_UNREACHABLE: &str = "host_unreachable";
    pub(crate) const INVALID_REDIRECT: &str = "invalid_redirect";
    pub(crate) const NOT_TEXT: &str = "not_text";
    pub(crate) const NO_CA_CERTIFICATES: &str = "no_ca_certificates";
    pub(crate) const TOO_MANY_REDIRECTS: &str = "too_many_redirects";
    /// The connection broke, or the server sent something that is not HTTP.
    pub(crate) const TRANSFER_FAILED: &str = "transfer_failed";
}

/// Builds a `FETCH_ERROR`. `cause` is one of [`mod@cause`].
pub(super) fn fetch_error(text: String, cause: &str) -> Error {
    Error::new(Reason::FetchError, text).with_metadata("cause", cause)
}

/// Returns the part of a URL that errors may contain. Path and query may be secret.
pub(super) fn origin(url: &Url) -> String {
    url.origin().ascii_serialization()
}
