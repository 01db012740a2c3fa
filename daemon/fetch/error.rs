//! How it is told what went wrong on the way.

use url::Url;

use crate::daemon::error::{Error, Reason};

/// What went wrong on the way; `cause` says it in short.
pub(super) fn fetch_error(text: String, cause: &str) -> Error {
    Error::new(Reason::FetchError, text).with_metadata("cause", cause)
}

/// The part of a URL that can be told: its path and what comes after may be secret.
pub(super) fn origin(url: &Url) -> String {
    url.origin().ascii_serialization()
}
