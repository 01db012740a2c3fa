//! gRPC services: each translates between its protobuf messages and the pipeline.

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
pub(crate) mod watch;
pub(crate) mod workspaces;

use std::{future::Future, sync::Arc};

use tonic::{Request, Response, Status};

use self::response_stream::{ResponseStream, WorkspaceStream};
use super::{error::Error, pipeline::context::CallContext};

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

/// Truncates `items` to a page. Returns the page's last item if another page follows.
///
/// `items` must hold one more than `size` if there is another page.
fn truncate_page<T>(items: &mut Vec<T>, size: usize) -> Option<&T> {
    let has_more = items.len() > size;
    items.truncate(size);
    items.last().filter(|_| has_more)
}
