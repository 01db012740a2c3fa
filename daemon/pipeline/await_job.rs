//! Gives the tool `await_job` access to the jobs of its caller.

use std::{sync::Arc, time::Instant};

use serde_json::Value;

use super::{
    Pipeline, context::CallContext, fleet_jobs::is_fleet_job_id, invoke::batch::cancelled_response,
    jobs::LiveOrEndedJob,
};
use crate::{
    api::{
        json_struct::json_to_struct,
        v1::{AwaitJobResponse, InvokeResponse, InvokeStatus},
    },
    daemon::{
        error::Error,
        task::{self, BoxFuture},
        tool::job_waiter::JobWaiter,
    },
};

/// The jobs that a caller may see.
#[derive(Debug)]
struct CallerJobs {
    pipeline: Arc<Pipeline>,
    context: CallContext,
}

impl Pipeline {
    /// Returns the jobs that the caller of a call may see.
    pub(super) fn caller_jobs(self: &Arc<Self>, context: &CallContext) -> Box<dyn JobWaiter> {
        Box::new(CallerJobs { pipeline: Arc::clone(self), context: context.clone() })
    }
}

impl JobWaiter for CallerJobs {
    fn wait(&self, id: String, until: Instant) -> BoxFuture<'_, Result<AwaitJobResponse, Error>> {
        Box::pin(async move {
            let ended = if is_fleet_job_id(&id) {
                self.wait_for_fleet_job(&id, until).await?
            } else {
                self.wait_for_local_job(&id, until).await?
            };
            Ok(ended.map_or_else(pending_response, await_job_response))
        })
    }
}

impl CallerJobs {
    /// Returns the result of a job of this daemon, or `None` if it has not ended by `until`.
    async fn wait_for_local_job(
        &self,
        id: &str,
        until: Instant,
    ) -> Result<Option<InvokeResponse>, Error> {
        let found = self.pipeline.find_job(&self.context, id).await?;
        self.check_dialect(&found.job().dialect)?;

        let snapshot = match found {
            LiveOrEndedJob::Ended(snapshot) => *snapshot,
            LiveOrEndedJob::Live(handle) => tokio::select! {
                biased;
                snapshot = handle.wait_for_end() => snapshot,
                () = task::sleep_until(Some(until)) => return Ok(None),
            },
        };
        Ok(Some(snapshot.response()?.unwrap_or_else(cancelled_response)))
    }

    /// Returns the result of a fleet job, or `None` if it has not ended by `until`.
    async fn wait_for_fleet_job(
        &self,
        id: &str,
        until: Instant,
    ) -> Result<Option<InvokeResponse>, Error> {
        let (_fleet, found) = self.pipeline.find_fleet_job(&self.context, id).await?;
        self.check_dialect(&found.job.dialect)?;

        let job = self.pipeline.wait_for_fleet_job(&self.context, found, Some(until)).await?;
        let has_ended = job.end_time.is_some();
        Ok(has_ended.then(|| job.result.unwrap_or_else(cancelled_response)))
    }

    /// Rejects a job of another dialect than that of the call. Its result is in the terms of its
    /// own dialect, and names tools that the calling model does not have.
    fn check_dialect(&self, job_dialect: &str) -> Result<(), Error> {
        let Some(origin) = &self.context.invoke_origin else {
            return Ok(());
        };

        let own_dialect = origin.dialect.map_or("", |dialect| dialect.name);
        if job_dialect.is_empty() || job_dialect == own_dialect {
            return Ok(());
        }

        let text = format!("is a job of the dialect {job_dialect}: call wait_job in that dialect");
        Err(Error::invalid_field("job_id", text))
    }
}

/// The response while a job has not ended.
fn pending_response() -> AwaitJobResponse {
    AwaitJobResponse { pending: true, ..AwaitJobResponse::default() }
}

/// Converts the result of a job for the model.
fn await_job_response(response: InvokeResponse) -> AwaitJobResponse {
    let ok = response.status() == InvokeStatus::Success;

    // The text of an object is JSON; in the contract, without fields that models do not need.
    let output = match response.data.is_some().then(|| serde_json::from_str(&response.text)) {
        Some(Ok(Value::Object(output))) => Some(json_to_struct(output)),
        Some(Ok(_) | Err(_)) | None => None,
    };

    let error = response.error.filter(|_| !ok);
    AwaitJobResponse {
        pending: false,
        ok,
        text: match output {
            Some(_) => String::new(),
            None => response.text,
        },
        output,
        error_type: error.map(|error| error.error_type).unwrap_or_default(),
    }
}
