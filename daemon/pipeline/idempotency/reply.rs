//! Encoding of stored replies: a tag byte, then the response message or the error as JSON.

use std::time::Duration;

use bytes::{BufMut as _, Bytes, BytesMut};
use prost::Message;
use serde::{Deserialize, Serialize};

use crate::daemon::{
    error::{Error, Reason, Violation},
    store::approvals::ApprovalEndState,
};

const RESPONSE_TAG: u8 = 0;
const ERROR_TAG: u8 = 1;

/// An error without its cause, which goes to the daemon's log only.
#[derive(Debug, Serialize, Deserialize)]
struct StoredError {
    reason: String,
    message: String,
    metadata: Vec<(String, String)>,
    violations: Vec<(String, String)>,
    #[serde(default)]
    retry_after_ms: Option<u64>,
}

pub(in crate::daemon::pipeline) fn encode<R: Message>(result: &Result<R, Error>) -> Bytes {
    match result {
        Ok(response) => {
            let mut bytes = BytesMut::new();
            bytes.put_u8(RESPONSE_TAG);
            bytes.put_slice(&response.encode_to_vec());
            bytes.freeze()
        }
        Err(error) => encode_error(error),
    }
}

pub(in crate::daemon::pipeline) fn encode_error(error: &Error) -> Bytes {
    let metadata = error.metadata.iter();
    let violations = error.violations.iter();
    let retry_after_ms = error.retry_after.map(|delay| delay.as_millis());
    let stored = StoredError {
        reason: error.reason.name().to_owned(),
        message: error.message.clone().into_owned(),
        metadata: metadata
            .map(|(name, value)| (name.clone().into_owned(), value.clone()))
            .collect(),
        violations: violations
            .map(|violation| (violation.field.clone(), violation.description.clone()))
            .collect(),
        retry_after_ms: retry_after_ms.and_then(|ms| u64::try_from(ms).ok()),
    };

    let mut bytes = BytesMut::new();
    bytes.put_u8(ERROR_TAG);
    bytes.put_slice(&serde_json::to_vec(&stored).unwrap_or_default());

    bytes.freeze()
}

/// Decodes a stored reply into the response, or the error that it holds.
pub(in crate::daemon::pipeline) fn decode<R: Message + Default>(bytes: &[u8]) -> Result<R, Error> {
    match bytes.split_first() {
        Some((&RESPONSE_TAG, message)) => R::decode(message).map_err(Error::internal),
        Some((&ERROR_TAG, json)) => {
            let stored: StoredError = serde_json::from_slice(json).map_err(Error::internal)?;
            let reason = Reason::from_name(&stored.reason).unwrap_or(Reason::Internal);
            let violations = stored.violations.into_iter();
            Err(Error {
                metadata: stored
                    .metadata
                    .into_iter()
                    .map(|(name, value)| (name.into(), value))
                    .collect(),
                violations: violations
                    .map(|(field, description)| Violation { field, description })
                    .collect(),
                retry_after: stored.retry_after_ms.map(Duration::from_millis),
                ..Error::new(reason, stored.message)
            })
        }
        _ => Err(Error::internal("a stored reply has an unknown tag")),
    }
}

/// Whether the result is the reply to every later duplicate.
///
/// An error that means that nothing was started is not final: the id can be used again. Such errors
/// are marked `not_started`, or have one of the reasons below: a rejection (parameters, permissions,
/// policy, missing approval) or a shortage (capacity, disk, state directory, sandbox).
pub(in crate::daemon::pipeline) fn is_final<R>(result: &Result<R, Error>) -> bool {
    match result {
        Ok(_) => true,
        Err(error) if error.not_started => false,
        Err(error) if error.reason == Reason::ApprovalDenied => is_denied(error),
        Err(error) => !matches!(
            error.reason,
            Reason::InvalidParams
                | Reason::Unauthenticated
                | Reason::Forbidden
                | Reason::UnknownTool
                | Reason::UnknownWorkspace
                | Reason::PolicyDenied
                | Reason::ToolDisabled
                | Reason::ResourceExhausted
                | Reason::NoSpace
                | Reason::StateLost
                | Reason::Draining
                | Reason::FleetUnavailable
                | Reason::SandboxUnavailable
        ),
    }
}

/// Whether an approver has denied the call. The daemon does not ask for approval twice.
pub(in crate::daemon::pipeline) fn is_denied(error: &Error) -> bool {
    let state = error.metadata.iter().find(|(name, _)| name == "state");
    error.reason == Reason::ApprovalDenied
        && state.is_some_and(|(_, state)| state == ApprovalEndState::Denied.name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::v1::StatPathResponse;

    #[test]
    fn replies_survive_encoding() {
        let response = StatPathResponse { size_bytes: 7, ..StatPathResponse::default() };
        let bytes = encode(&Ok(response.clone()));
        assert_eq!(decode::<StatPathResponse>(&bytes).unwrap(), response);

        let error = Error {
            violations: vec![Violation::new("path", "is long")],
            retry_after: Some(Duration::from_millis(1500)),
            ..Error::new(Reason::FileNotFound, "no such file").with_metadata("path", "a\nb")
        };
        let bytes = encode::<StatPathResponse>(&Err(error));
        let again = decode::<StatPathResponse>(&bytes).unwrap_err();
        assert_eq!(again.reason, Reason::FileNotFound);
        assert_eq!(again.message, "no such file");
        assert_eq!(again.metadata, [("path".into(), "a\nb".to_owned())]);
        assert_eq!(again.retry_after, Some(Duration::from_millis(1500)));
        assert_eq!(again.violations, [Violation::new("path", "is long")]);
    }
}
