//! Errors about a transfer.

use url::Url;

use crate::daemon::error::{Error, Reason};

/// Builds a `FETCH_ERROR`. `cause` is the short form for metadata.
pub(super) fn fetch_error(text: String, cause: &str) -> Error {
    Error::new(Reason::FetchError, text).with_metadata("cause", cause)
}

/// Returns the part of a URL that errors may contain. Path and query may be secret.
pub(super) fn origin(url: &Url) -> String {
    url.origin().ascii_serialization()
}
