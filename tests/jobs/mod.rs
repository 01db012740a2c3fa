//! Jobs: calls that run once, without a waiting caller, even if the daemon restarts.

mod bounds;
mod callers;
mod cancellation;
mod client;
mod locked_database;
mod params;
mod queues;
mod restart;
mod results;
pub(crate) mod start_blocked;
mod watch;

use jig::api::v1::{
    CancelJobRequest, GetJobRequest, InvokeResponse, Job, JobState, ListJobsRequest,
    SubmitJobRequest, WaitJobRequest, job_service_client::JobServiceClient,
};
use prost_types::{Struct, value::Kind};
use serde_json::{Value, json};
use tonic::{IntoRequest, transport::Channel};

pub(crate) use self::watch::WatchedEvents;
use crate::{
    invoke::json_of,
    support::{Daemon, Refusal},
};

/// A command that runs until the file `go` exists.
const WAIT_FOR_GO_FILE: &str = "until [ -e go ]; do sleep 0.05; done";

/// Client of a daemon's job service.
pub(crate) struct Jobs(JobServiceClient<Channel>);

impl Jobs {
    pub(crate) fn of(daemon: &Daemon) -> Self {
        Self(JobServiceClient::new(daemon.channel()))
    }

    pub(crate) async fn try_submit(
        &mut self,
        request: impl IntoRequest<SubmitJobRequest>,
    ) -> Result<Job, Refusal> {
        match self.0.submit_job(request).await {
            Ok(response) => Ok(response.into_inner().job.unwrap()),
            Err(status) => Err(Refusal::from_status(&status)),
        }
    }

    /// Submits a job and returns its id.
    pub(crate) async fn submit(&mut self, request: impl IntoRequest<SubmitJobRequest>) -> String {
        let job = self.try_submit(request).await.unwrap();
        assert!(job.result.is_none());
        job.job_id
    }

    pub(crate) async fn get(&mut self, id: &str) -> Job {
        self.try_get(id).await.unwrap()
    }

    pub(crate) async fn try_get(&mut self, id: &str) -> Result<Job, Refusal> {
        let job_id = id.to_owned();
        match self.0.get_job(GetJobRequest { job_id }).await {
            Ok(response) => Ok(response.into_inner().job.unwrap()),
            Err(status) => Err(Refusal::from_status(&status)),
        }
    }

    pub(crate) async fn wait(&mut self, id: &str) -> Job {
        self.wait_for(id, None).await
    }

    async fn wait_for(&mut self, id: &str, wait_ms: Option<u32>) -> Job {
        let job_id = id.to_owned();
        let response = self.0.wait_job(WaitJobRequest { job_id, wait_ms }).await;
        response.unwrap().into_inner().job.unwrap()
    }

    pub(crate) async fn cancel(&mut self, id: &str) -> Job {
        let job_id = id.to_owned();
        let response = self.0.cancel_job(CancelJobRequest { job_id }).await;
        response.unwrap().into_inner().job.unwrap()
    }

    pub(crate) async fn list(&mut self, request: ListJobsRequest) -> Vec<Job> {
        self.0.list_jobs(request).await.unwrap().into_inner().jobs
    }
}

pub(crate) fn tool_job(tool: &str, params: Value) -> SubmitJobRequest {
    SubmitJobRequest {
        tool: tool.to_owned(),
        params_json: params.to_string(),
        ..SubmitJobRequest::default()
    }
}

pub(crate) fn command_job(text: &str) -> SubmitJobRequest {
    tool_job("run", json!({ "command": text }))
}

/// The result of a job, which must have ended in `state`.
fn expect_result(job: Job, state: JobState) -> InvokeResponse {
    assert_eq!(job.state(), state, "{job:?}");
    assert!(job.end_time.is_some());
    job.result.unwrap()
}

/// The data of a response, as JSON.
fn result_data(response: &InvokeResponse) -> Value {
    let data = response.data.as_ref();
    json_of(data.unwrap_or_else(|| panic!("{response:?}")))
}

fn field<'a>(structure: &'a Struct, name: &str) -> &'a Kind {
    let value = structure.fields.get(name);
    let value = value.unwrap_or_else(|| panic!("{name} in {structure:?}"));
    value.kind.as_ref().unwrap()
}
