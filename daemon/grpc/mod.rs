//! The ways in: each door translates between its protocol and the pipeline, and does nothing else.

pub(crate) mod approvals;
pub(crate) mod artifacts;
pub(crate) mod catalog;
pub(crate) mod events;
pub(crate) mod info;
pub(crate) mod invoke;
pub(crate) mod jobs;
pub(crate) mod metadata;
pub(crate) mod processes;
mod response_stream;
pub(crate) mod status;
pub(crate) mod tools;
pub(crate) mod transfer;

use std::future::Future;

use prost::Message;
use tonic::{Request, Response, Status};

use super::{
    config::jobs::is_queue_name,
    dialect::{self, Dialect},
    error::{Error, Violation},
    pipeline::{Pipeline, context::CallContext},
};

/// Answers a request with what `work` makes of it; an error names the call.
async fn handle<Q, A, F>(
    request: Request<Q>,
    work: impl FnOnce(CallContext, Q) -> F,
) -> Result<Response<A>, Status>
where
    F: Future<Output = Result<A, Error>>,
{
    let incoming = metadata::call_context(&request)?;
    let call_id = incoming.call_id.clone();
    work(incoming, request.into_inner())
        .await
        .map(Response::new)
        .map_err(|error| status::to_logged_status(&error, &call_id))
}

/// As [`answered`], for a request that changes something: one that is repeated is answered with what came
/// of the first.
async fn handle_once<Q, A, F>(
    pipeline: &Pipeline,
    method: &str,
    request: Request<Q>,
    work: impl FnOnce(CallContext, Q) -> F,
) -> Result<Response<A>, Status>
where
    Q: Message,
    A: Message + Default + 'static,
    F: Future<Output = Result<A, Error>> + Send + 'static,
{
    handle(request, async |incoming, request| {
        let call = pipeline.idempotent_call(&incoming, method, &request)?;
        let work = work(incoming, request);
        pipeline.run_once(call, method, work).await
    })
    .await
}

/// The dialect that a request names; none where it names none, or one that there is not, which is told.
fn parse_dialect(name: &str, violations: &mut Vec<Violation>) -> Option<&'static Dialect> {
    if name.is_empty() {
        return None;
    }
    match dialect::find(name) {
        Ok(dialect) => Some(dialect),
        Err(error) => {
            violations.extend(error.violations);
            None
        }
    }
}

/// Looks whether a queue can be called so, where nothing is known to be wrong with its name.
fn validate_queue_name(name: &str, violations: &mut Vec<Violation>) {
    let is_known = violations.iter().any(|known| known.field == "queue");
    if !is_known && !is_queue_name(name) {
        let text = "must have 1 to 80 lower-case letters, digits, and . _ : -";
        violations.push(Violation::new("queue", text));
    }
}

/// Cuts what was found to a page; answers the last of it, where there is another page behind it. One more
/// than a page must have been looked for.
fn truncate_page<T>(found: &mut Vec<T>, size: usize) -> Option<&T> {
    let has_more = found.len() > size;
    found.truncate(size);
    found.last().filter(|_| has_more)
}
