//! gRPC services: each translates between its protobuf messages and the pipeline.

pub(crate) mod approvals;
pub(crate) mod artifacts;
pub(crate) mod catalog;
mod command_output;
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
pub(crate) mod watch;
pub(crate) mod workspaces;

use std::{future::Future, sync::Arc};

use tonic::{Request, Response, Status};

use self::response_stream::{ResponseStream, WorkspaceStream};
use super::{
    config::jobs::is_queue_name,
    dialect::{self, Dialect},
    error::{Error, Violation},
    pipeline::context::CallContext,
};

/// Handles a request with `work`. Errors become statuses, logged with the call id if internal.
async fn handle<Q, A, F>(
    request: Request<Q>,
    work: impl FnOnce(CallContext, Q) -> F,
) -> Result<Response<A>, Status>
where
    F: Future<Output = Result<A, Error>>,
{
    let context = metadata::call_context(&request)?;
    let call_id = context.call_id.clone();
    work(context, request.into_inner())
        .await
        .map(Response::new)
        .map_err(|error| status::to_logged_status(&error, &call_id))
}

/// Handles a request with `work`, which returns a stream. The stream ends when the workspace of the
/// call is deleted.
async fn handle_stream<Q, M, F>(
    request: Request<Q>,
    work: impl FnOnce(CallContext, Q) -> F,
) -> Result<Response<WorkspaceStream<M>>, Status>
where
    F: Future<Output = Result<ResponseStream<M>, Error>>,
{
    handle(request, async |context, request| {
        let (found, call_id) = (Arc::clone(&context.found_workspace), context.call_id.clone());
        let responses = work(context, request).await?;
        Ok(WorkspaceStream::new(responses, found.get(), call_id))
    })
    .await
}

/// Finds the dialect `name`. Returns `None` for an empty name, and adds a violation for an unknown
/// one.
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

/// Adds a violation for an invalid queue name, unless the field `queue` has one already.
fn validate_queue_name(name: &str, violations: &mut Vec<Violation>) {
    let is_reported = violations.iter().any(|violation| violation.field == "queue");
    if !is_reported && !is_queue_name(name) {
        let text = "must have 1 to 80 lower-case letters, digits, and . _ : -";
        violations.push(Violation::new("queue", text));
    }
}

/// Truncates `items` to a page. Returns the page's last item if another page follows.
///
/// `items` must hold one more than `size` if there is another page.
fn truncate_page<T>(items: &mut Vec<T>, size: usize) -> Option<&T> {
    let has_more = items.len() > size;
    items.truncate(size);
    items.last().filter(|_| has_more)
}
