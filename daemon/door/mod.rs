//! The ways in: each door translates between its protocol and the pipeline, and does nothing else.

pub(crate) mod approvals;
pub(crate) mod artifacts;
pub(crate) mod events;
pub(crate) mod info;
pub(crate) mod jobs;
pub(crate) mod metadata;
pub(crate) mod processes;
pub(crate) mod status;
pub(crate) mod tools;
pub(crate) mod transfer;

use std::future::Future;

use tonic::{Request, Response, Status};

use super::{call::context::Incoming, error::Error};

/// Answers a request with what `work` makes of it; an error names the call.
async fn answered<Q, A, F>(
    request: Request<Q>,
    work: impl FnOnce(Incoming, Q) -> F,
) -> Result<Response<A>, Status>
where
    F: Future<Output = Result<A, Error>>,
{
    let incoming = metadata::incoming(&request)?;
    let call_id = incoming.call_id.clone();
    work(incoming, request.into_inner())
        .await
        .map(Response::new)
        .map_err(|error| status::answer(&error, &call_id))
}
