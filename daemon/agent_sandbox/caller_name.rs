//! The name of the principal that a request was authenticated as.

use std::sync::Arc;

/// Added to the extensions of a request when its caller is known.
#[derive(Debug, Clone)]
pub(super) struct CallerName(pub(super) Arc<str>);
