//! RPCs of `JobService`: tool calls that run in the background.

use tonic::Streaming;

use super::{call::Client, deadline::CallDeadline, error::CallError, methods::methods};
use crate::api::v1::{
    CancelJobRequest, CancelJobResponse, GetJobRequest, GetJobResponse, ListJobsRequest,
    ListJobsResponse, SubmitJobRequest, SubmitJobResponse, WaitJobRequest, WaitJobResponse,
    WatchJobRequest, WatchJobResponse, watch_job_response::Event,
};

/// Stream of the events of a job.
#[derive(Debug)]
pub struct JobEvents {
    messages: Streaming<WatchJobResponse>,
    deadline: CallDeadline,
}

methods! { jobs {
    /// Queues a tool call as a job. Once the daemon has responded, the call will be made.
    submit_job(SubmitJobRequest) -> SubmitJobResponse;
    /// Returns a job and, once it has ended, its result.
    get_job(GetJobRequest) -> GetJobResponse;
    /// Lists one page of the workspace's jobs, without their results.
    list_jobs(ListJobsRequest) -> ListJobsResponse;
    /// Waits until a job has ended, at most for the time in the request.
    wait_job(WaitJobRequest) -> WaitJobResponse;
    /// Cancels a job and waits until it has ended.
    cancel_job(CancelJobRequest) -> CancelJobResponse;
} }

impl Client {
    /// Streams the events of a job, from the given offsets of its output on.
    ///
    /// # Errors
    ///
    /// Returns an error if the call fails.
    pub async fn watch_job(&self, request: WatchJobRequest) -> Result<JobEvents, CallError> {
        let deadline = self.deadline();
        let mut jobs = self.jobs();
        let messages = deadline.enforce(jobs.watch_job(self.with_context(request))).await?;
        Ok(JobEvents { messages: messages.into_inner(), deadline })
    }
}

impl JobEvents {
    /// Waits for the next event. Returns `None` after the end of the job.
    ///
    /// # Errors
    ///
    /// Returns an error if the call fails. To resume, watch from the end of the output received so
    /// far.
    pub async fn next(&mut self) -> Result<Option<Event>, CallError> {
        loop {
            match self.deadline.enforce(self.messages.message()).await? {
                None => return Ok(None),
                Some(WatchJobResponse { event: Some(event) }) => return Ok(Some(event)),
                // A newer daemon may send an event that this client does not know.
                Some(WatchJobResponse { event: None }) => {}
            }
        }
    }
}
