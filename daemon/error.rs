//! Errors of calls, in the terms of the contract. The frontends map them to their protocol, such as
//! a gRPC status.

use std::{borrow::Cow, error::Error as StdError, time::Duration};

pub(crate) use crate::api::reason::Reason;

/// Violations that one error reports. Validation stops at that number: a request can have a million
/// invalid fields, and the caller learns of the others once these are fixed.
pub(crate) const MAX_VIOLATIONS: usize = 20;
/// Longest text of an error, in bytes. It is sent in a trailer, and clients accept 8 KiB of trailers.
const MAX_MESSAGE_BYTES: usize = 2048;

/// Metadata of `RESOURCE_EXHAUSTED` from an admission queue: which of its limits was reached, as
/// `concurrency`, `queue`, `pending_bytes` or `queue_timeout`.
pub(crate) const LIMIT_KIND: &str = "limit_kind";

/// Metadata of `SYMLINK_BLOCKED` if the links lead out of the workspace.
pub(crate) const LEADS_OUT: &str = "leads_out";

/// An invalid field of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Violation {
    /// Path of the field: `cwd`, `argv[3]`, `env["A=B"]`.
    pub(crate) field: String,
    /// What is wrong, and what would be valid.
    pub(crate) description: String,
}

/// Why a call failed. Display says what happened and what to do, without the source.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Error {
    pub(crate) reason: Reason,
    /// What happened, and what to do about it.
    pub(crate) message: Cow<'static, str>,
    /// The variable parts of the message, by name.
    pub(crate) metadata: Vec<(Cow<'static, str>, String)>,
    /// The first [`MAX_VIOLATIONS`] invalid fields, and one more to show that there are others.
    /// Clients get at most [`MAX_VIOLATIONS`].
    pub(crate) violations: Vec<Violation>,
    /// Whether nothing was done, so the call may be repeated with its request id.
    pub(crate) not_started: bool,
    /// How long to wait before retrying, if that helps.
    pub(crate) retry_after: Option<Duration>,
    /// For the daemon's log only.
    #[source]
    pub(crate) cause: Option<Box<dyn StdError + Send + Sync>>,
}

impl Violation {
    pub(crate) fn new(field: impl Into<String>, description: impl Into<String>) -> Self {
        // Both may repeat what the caller sent.
        Self { field: truncate_message(field), description: truncate_message(description) }
    }
}

impl Error {
    pub(crate) fn new(reason: Reason, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            reason,
            message: message.into(),
            metadata: Vec::new(),
            violations: Vec::new(),
            not_started: false,
            retry_after: None,
            cause: None,
        }
    }

    /// Creates an error for invalid fields. The message names at most [`MAX_VIOLATIONS`] of them.
    pub(crate) fn invalid(mut violations: Vec<Violation>) -> Self {
        // One more shows that there are more.
        violations.truncate(MAX_VIOLATIONS + 1);

        let mut list: Vec<String> = violations
            .iter()
            .take(MAX_VIOLATIONS)
            .map(|violation| format!("{}: {}", violation.field, violation.description))
            .collect();
        if violations.len() > MAX_VIOLATIONS {
            list.insert(0, format!("more than {MAX_VIOLATIONS} fields are invalid"));
        }
        Self { violations, ..Self::new(Reason::InvalidParams, list.join("; ")) }
    }

    /// Creates an error for one invalid field.
    pub(crate) fn invalid_field(field: impl Into<String>, description: impl Into<String>) -> Self {
        Self::invalid(vec![Violation::new(field, description)])
    }

    /// Creates an internal error. The caller learns that it happened; only the log has the cause.
    pub(crate) fn internal(cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::new(
            Reason::Internal,
            "internal error of the daemon: its log has the details under the id of this call (jig-call-id)",
        )
        .with_cause(cause)
    }

    /// Adds a variable part of the message by name.
    pub(crate) fn with_metadata(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.metadata.push((name.into(), value.into()));
        self
    }

    pub(crate) fn with_cause(mut self, cause: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.cause = Some(cause.into());
        self
    }

    /// Declares that nothing was done.
    pub(crate) fn with_not_started(mut self) -> Self {
        self.not_started = true;
        self
    }

    /// Sets how long to wait before retrying.
    pub(crate) fn with_retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }
}

/// Cuts a text that is too long for an error.
pub(crate) fn truncate_message(text: impl Into<String>) -> String {
    let text = text.into();
    if text.len() <= MAX_MESSAGE_BYTES {
        return text;
    }
    let end = text.floor_char_boundary(MAX_MESSAGE_BYTES);
    format!("{} … ({} bytes)", text.get(..end).unwrap_or_default(), text.len())
}
