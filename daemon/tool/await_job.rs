//! `wait_job`: waits for the result of a job.

use std::time::{Duration, Instant};

use super::{Tool, ToolContext, ToolOutput, WorkspaceContext, response_deadline};
use crate::{
    api::v1,
    daemon::{
        error::{Error, Reason, Violation},
        workspace::CancelToken,
    },
};

#[derive(Debug)]
pub(crate) struct AwaitJob;

impl Tool for AwaitJob {
    const NAME: &'static str = "wait_job";
    // At its time limit it responds that the job is pending.
    const ENFORCES_OWN_TIMEOUT: bool = true;
    const WAITS_FOR_JOBS: bool = true;
    type Request = v1::AwaitJobRequest;
    type Response = v1::AwaitJobResponse;
    type Params = v1::AwaitJobRequest;

    fn validate(
        request: Self::Request,
        _workspace_context: &WorkspaceContext,
        violations: &mut Vec<Violation>,
    ) -> Result<Option<Self::Params>, Error> {
        Ok(violations.is_empty().then_some(request))
    }

    async fn execute(
        request: Self::Params,
        context: ToolContext,
    ) -> Result<ToolOutput<Self::Response>, Error> {
        let Some(jobs) = &context.job_waiter else {
            return Err(Error::internal("a call that waits for a job has no access to jobs"));
        };

        // Waiting takes no CPU time.
        context.start_permit.release();
        let wait = Duration::from_millis(request.wait_ms.unwrap_or_default().into());
        let until = response_deadline(Instant::now(), wait, context.deadline);
        tokio::select! {
            response = jobs.wait(request.job_id, until) => response.map(ToolOutput::new),
            () = context.cancel.abandoned.cancelled() => Err(CancelToken::timeout_error()),
            () = context.cancel.terminate.cancelled() => {
                let text = "the daemon is shutting down, and the job has not ended: wait for it again after the restart";
                Err(Error::new(Reason::Draining, text))
            }
        }
    }
}
