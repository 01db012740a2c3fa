//! The requests in the queues of a fleet, which any program may have put there.

use bytes::Bytes;
use prost::Message as _;

use crate::{
    api::v1::SubmitJobRequest,
    daemon::{
        error::{Error, Reason},
        pipeline::job_submission::DEFAULT_QUEUE_NAME,
        store::session::SessionId,
    },
};

/// Decodes a request, which may name only the queue that has it.
pub(super) fn decode_request(body: Bytes, queue: &str) -> Result<SubmitJobRequest, Error> {
    let request = SubmitJobRequest::decode(body).map_err(|error| {
        let text = format!("the body is no jig.v1.SubmitJobRequest: {error}");
        Error::new(Reason::InvalidParams, text)
    })?;
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
        ..request
    }
}
