//! The requests in the queues of a fleet, which any program may have put there.

use bytes::Bytes;
use prost::Message as _;

use crate::{
    api::v1::SubmitJobRequest,
    daemon::{
        error::{Error, Reason, Violation},
        pipeline::job_submission::DEFAULT_QUEUE_NAME,
        store::session::SessionId,
    },
};

/// Size of a name in a request. No tool, dialect or queue has a longer one.
const MAX_NAME_BYTES: usize = 80;

/// Decodes a request, which may name only the queue that has it. The names in it are stored with the
/// state of the job, so they must be short.
pub(super) fn decode_request(body: Bytes, queue: &str) -> Result<SubmitJobRequest, Error> {
    let request = SubmitJobRequest::decode(body).map_err(|error| {
        let text = format!("the body is no jig.v1.SubmitJobRequest: {error}");
        Error::new(Reason::InvalidParams, text)
    })?;
    let names = [
        ("tool", request.tool.as_str()),
        ("dialect", request.dialect.as_str()),
        ("queue", request.queue.as_deref().unwrap_or_default()),
    ];
    let too_long = names.iter().filter(|(_, name)| name.len() > MAX_NAME_BYTES);
    let violations: Vec<_> = too_long
        .map(|(field, _)| {
            Violation::new(*field, format!("must have at most {MAX_NAME_BYTES} bytes"))
        })
        .collect();
    if !violations.is_empty() {
        return Err(Error::invalid(violations));
    }

    match request.queue.as_deref() {
        None | Some("" | DEFAULT_QUEUE_NAME) => Ok(request),
        Some(named) if named == queue => Ok(request),
        Some(named) => {
            let text = format!("must be the queue that has the job, {queue:?}, not {named:?}");
            Err(Error::invalid_field("queue", text))
        }
    }
}

/// Checks the session of a job.
pub(super) fn check_session(session: Option<&str>) -> Result<(), Error> {
    if session.is_none_or(|session| SessionId::parse(session).is_some()) {
        return Ok(());
    }
    let text = "must have 1 to 64 letters, digits, dots, underscores and hyphens, and not begin with a dot";
    Err(Error::invalid_field("session", text))
}

/// Returns the request as one of the daemon's own queue of this name.
pub(super) fn to_local_request(request: SubmitJobRequest, queue: &str) -> SubmitJobRequest {
    SubmitJobRequest {
        queue: Some(queue.to_owned()),
        fleet: false,
        retry_if_lost: false,
        store_artifacts: false,
        ..request
    }
}
