//! Jobs: calls of tools that nobody waits for.

use tonic::Streaming;

use super::{call::Client, deadline::CallDeadline, error::CallError, methods::methods};
use crate::api::v1::{
    CancelJobRequest, CancelJobResponse, GetJobRequest, GetJobResponse, ListJobsRequest,
    ListJobsResponse, SubmitJobRequest, SubmitJobResponse, WaitJobRequest, WaitJobResponse,
    WatchJobRequest, WatchJobResponse, watch_job_response::Event,
};

/// What becomes of a job, as it happens.
#[derive(Debug)]
pub struct JobEvents {
    messages: Streaming<WatchJobResponse>,
    deadline: CallDeadline,
}

methods! { jobs {
    /// Puts a call of a tool into a queue. Once this is answered, it will be made.
    submit_job(SubmitJobRequest) -> SubmitJobResponse;
    /// A job and, once it has ended, its result.
    get_job(GetJobRequest) -> GetJobResponse;
    /// One page of the jobs of the workspace, without their results.
    list_jobs(ListJobsRequest) -> ListJobsResponse;
    /// Waits until a job has ended, or for as long as the request says.
    wait_job(WaitJobRequest) -> WaitJobResponse;
    /// Ends a job, and waits until it has ended.
    cancel_job(CancelJobRequest) -> CancelJobResponse;
} }

impl Client {
    /// Watches a job, from offsets of its output on.
    ///
    /// # Errors
    ///
    /// When the call failed.
    pub async fn watch_job(&self, request: WatchJobRequest) -> Result<JobEvents, CallError> {
        let deadline = self.deadline();
        let mut jobs = self.jobs();
        let messages = deadline.enforce(jobs.watch_job(self.with_context(request))).await?;
        Ok(JobEvents { messages: messages.into_inner(), deadline })
    }
}

impl JobEvents {
    /// What comes next; nothing behind the end of the job.
    ///
    /// # Errors
    ///
    /// When the call failed: watch on from the offsets behind what came.
    pub async fn next(&mut self) -> Result<Option<Event>, CallError> {
        loop {
            match self.deadline.enforce(self.messages.message()).await? {
                None => return Ok(None),
                Some(WatchJobResponse { event: Some(event) }) => return Ok(Some(event)),
                // Of a later version.
                Some(WatchJobResponse { event: None }) => {}
            }
        }
    }
}
