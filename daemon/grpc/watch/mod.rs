//! `jig.v1.WatchService`: reports changes of files.

mod stream;

use std::sync::Arc;

use tonic::{Request, Response, Status};

use self::stream::{FileWatchStream, StreamEnd};
use super::{
    handle_stream,
    response_stream::{ResponseStream, WorkspaceStream, keep_alive_interval},
};
use crate::{
    api::v1::{WatchFilesRequest, WatchFilesResponse, watch_service_server::WatchService},
    daemon::{
        error::Error,
        pipeline::{Pipeline, admission::FailFastLimiter, context::CallContext},
        tool::{Tool as _, list_files::ListFiles},
        workspace::{
            CancelToken, compile_globs,
            file_watch::{TreeWatch, WatchBudget, WatchFilter},
        },
    },
};

/// Streams that watch files. With the headroom for others, one caller has at most 48. By default,
/// the kernel allows a user 128 queues of events.
const MAX_FILE_WATCHES: usize = 64;

#[derive(Debug)]
pub(crate) struct WatchServiceHandler {
    pipeline: Arc<Pipeline>,
    limiter: FailFastLimiter,
    budget: Arc<WatchBudget>,
}

impl WatchServiceHandler {
    pub(crate) fn new(pipeline: Arc<Pipeline>) -> Self {
        let limiter = FailFastLimiter::new(MAX_FILE_WATCHES, "file watches");
        Self { pipeline, limiter, budget: Arc::default() }
    }

    /// Authorizes the call, watches the directory, and starts a task that sends the changes.
    async fn open_stream(
        &self,
        context: CallContext,
        request: WatchFilesRequest,
    ) -> Result<ResponseStream<WatchFilesResponse>, Error> {
        let pipeline = &self.pipeline;
        // The policy gets the request as sent, without defaults.
        let sent_request = request.clone();
        let request = pipeline.catalog.check("jig.v1.WatchFilesRequest", request)?;
        let workspace_context = pipeline.resolve_workspace(&context)?;
        let workspace = Arc::clone(&workspace_context.workspace);
        let text = request.path.as_deref().unwrap_or(".");
        context.note_params([("path", Some(text))]);
        let path = workspace.resolve(text)?;
        let filter = watch_filter(&request)?;
        let message = "jig.v1.WatchFilesRequest";
        pipeline
            .authorize_as(ListFiles::NAME, &context, message, &sent_request, path.as_str())
            .await?;

        let permit = self.limiter.try_acquire(&context.principal, &pipeline.shutdown)?;
        let principal = Arc::clone(context.principal.shared_name());
        let files = workspace_context.file_limiters.clone();
        let end = StreamEnd {
            deadline: context.deadline,
            draining: pipeline.shutdown.draining_token(),
            workspace_context,
        };
        let reservation = self.budget.reserve(&principal);
        let file_permit = files.acquire(&principal).await?;
        let ended = async { drop(end.wait().await) };
        let opened = CancelToken::run_blocking(file_permit, ended, move |cancel| {
            TreeWatch::open(workspace, path, filter, reservation, cancel)
        });
        let watch = opened.await??;

        let stream = FileWatchStream {
            files,
            principal,
            keep_alive_interval: keep_alive_interval(request.keep_alive_sec),
            end,
            _permit: permit,
        };
        stream.spawn(watch, &context.call_id)
    }
}

#[tonic::async_trait]
impl WatchService for WatchServiceHandler {
    type WatchFilesStream = WorkspaceStream<WatchFilesResponse>;

    async fn watch_files(
        &self,
        request: Request<WatchFilesRequest>,
    ) -> Result<Response<Self::WatchFilesStream>, Status> {
        handle_stream(request, |context, request| self.open_stream(context, request)).await
    }
}

fn watch_filter(request: &WatchFilesRequest) -> Result<WatchFilter, Error> {
    let excluded = request.exclude_globs.iter().filter(|glob| !glob.is_empty());
    let excluded: Vec<_> = excluded.map(|glob| format!("!{glob}")).collect();
    let globs = request.globs.iter().chain(&excluded).map(String::as_str);
    Ok(WatchFilter {
        globs: compile_globs(globs)?,
        include_hidden: request.hidden.unwrap_or(true),
        max_depth: request.max_depth.map(|levels| usize::try_from(levels).unwrap_or(usize::MAX)),
    })
}
