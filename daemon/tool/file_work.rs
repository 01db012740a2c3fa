//! Runs the file work of tools on blocking threads: permits, cancellation and retries.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::time::timeout_at;

use super::{FILE_WORK, ToolContext, ToolOutput, no_permit_error, response_deadline};
use crate::daemon::{
    error::Error,
    fd_exhaustion::FdRetry,
    queue::{Acquire, Limiter, Permit},
    task,
    workspace::{BlockingPermit, CancelToken, Workspace},
};

/// How long a response waits for cancelled work, before it is sent without the result of that work.
/// A search with a complex pattern notices its cancellation only at the end of a long line.
const CANCEL_NOTICE_GRACE: Duration = Duration::from_millis(20);

/// Runs `function` on a blocking thread, and cancels it when the call is abandoned. Retries it if
/// it fails for lack of file descriptors, after it has closed its own.
pub(super) async fn run_on_files<R: Send + 'static>(
    context: ToolContext,
    function: impl Fn(&Workspace, &CancelToken) -> Result<R, Error> + Send + Sync + 'static,
) -> Result<ToolOutput<R>, Error> {
    let function = Arc::new(function);
    let mut attempts = FdRetry::with_deadline(context.deadline);
    loop {
        let permit = context.acquire_file_permit(None).await?;
        let workspace = Arc::clone(&context.workspace_context.workspace);
        let function = Arc::clone(&function);
        let abandoned = context.cancel.abandoned.cancelled();

        let function = move |cancel: &CancelToken| function(&workspace, cancel);
        match CancelToken::run_blocking(permit, abandoned, function).await? {
            Err(error) if context.should_retry(&mut attempts, &error).await => {}
            result => return result.map(ToolOutput::new),
        }
    }
}

impl ToolContext {
    /// When a tool that returns partial results must respond, if it starts now.
    pub(super) fn soft_deadline(&self) -> Instant {
        response_deadline(Instant::now(), self.default_timeout, self.deadline)
    }

    /// Waits for a file permit, until the call is abandoned or `soft_deadline` passes. Releases the
    /// start permit if the call has to queue.
    async fn acquire_file_permit(
        &self,
        soft_deadline: Option<Instant>,
    ) -> Result<BlockingPermit, Error> {
        let operations = &self.workspace_context.file_limiters.operations;
        let permit = self.acquire_permit(FILE_WORK, operations, soft_deadline).await?;

        let (operations, principal) = (Arc::clone(operations), Arc::clone(&self.principal));
        let start_permit = Some(self.start_permit.clone());
        Ok(BlockingPermit::new(operations, principal, permit, start_permit))
    }

    /// Waits for a permit of `limiter`, until the call is abandoned or `soft_deadline` passes.
    /// Releases the start permit if the call has to queue. `work` says in errors what the permit is
    /// for.
    pub(super) async fn acquire_permit(
        &self,
        work: &str,
        limiter: &Arc<Limiter>,
        soft_deadline: Option<Instant>,
    ) -> Result<Permit, Error> {
        match limiter.acquire(&self.principal, usize::MAX) {
            Ok(Acquire::Granted(permit)) => Ok(permit),
            Ok(Acquire::Queued(mut pending)) => {
                self.start_permit.release();
                tokio::select! {
                    permit = pending.wait() => Ok(permit),
                    () = self.cancel.abandoned.cancelled() => Err(CancelToken::timeout_error()),
                    () = task::sleep_until(soft_deadline) => {
                        Err(no_permit_error(work, limiter.reject(&self.principal, usize::MAX)))
                    }
                }
            }
            Err(saturated) => Err(no_permit_error(work, saturated)),
        }
    }

    /// Waits until a retry after `error` makes sense. Returns false if there is none.
    pub(super) async fn should_retry(&self, attempts: &mut FdRetry, error: &Error) -> bool {
        tokio::select! {
            retry = attempts.should_retry(error) => retry,
            () = self.cancel.abandoned.cancelled() => false,
        }
    }
}

/// Like [`run_on_files`], for tools that return partial results at `soft_deadline`.
///
/// Returns `None` if `function` did not notice the cancellation within [`CANCEL_NOTICE_GRACE`]. It
/// then continues until it does, and holds its permits until then.
pub(super) async fn run_on_files_until<R: Send + 'static>(
    context: &ToolContext,
    soft_deadline: Instant,
    function: impl FnOnce(&Workspace, &CancelToken) -> R + Send + 'static,
) -> Result<Option<R>, Error> {
    let file_permit = context.acquire_file_permit(Some(soft_deadline)).await?;
    let end = async {
        // Ends at the deadline or when the call is abandoned, whichever comes first.
        let _either = timeout_at(soft_deadline.into(), context.cancel.abandoned.cancelled()).await;
    };

    let workspace = Arc::clone(&context.workspace_context.workspace);
    let permit = Arc::clone(&context.permit);
    CancelToken::run_blocking_with_grace(file_permit, end, CANCEL_NOTICE_GRACE, move |cancel| {
        let _permit = permit;
        function(&workspace, cancel)
    })
    .await
}
