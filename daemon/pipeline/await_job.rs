//! The jobs of a caller, for the tool that waits for them.

use std::{future::Future, pin::Pin, sync::Arc, time::Instant};

use serde_json::Value;

use super::{
    Pipeline, context::CallContext, invoke::batch::cancelled_response, jobs::LiveOrEndedJob,
};
use crate::{
    api::{
        json_struct::json_to_struct,
        v1::{AwaitJobResponse, InvokeResponse, InvokeStatus},
    },
    daemon::{error::Error, store::jobs::Job, task, tool::job_waiter::JobWaiter},
};

/// The jobs that the caller of a call may look at.
#[derive(Debug)]
struct CallerJobs {
    pipeline: Arc<Pipeline>,
    context: CallContext,
}

impl Pipeline {
    /// The jobs that the caller of a call may look at.
    pub(super) fn caller_jobs(self: &Arc<Self>, context: &CallContext) -> Box<dyn JobWaiter> {
        Box::new(CallerJobs { pipeline: Arc::clone(self), context: context.clone() })
    }
}

impl JobWaiter for CallerJobs {
    fn wait(
        &self,
        id: String,
        until: Instant,
    ) -> Pin<Box<dyn Future<Output = Result<AwaitJobResponse, Error>> + Send + '_>> {
        Box::pin(async move {
            let found = self.pipeline.find_job(&self.context, &id).await?;
            self.check_vocabulary(&found.job())?;
            let seen = match found {
                LiveOrEndedJob::Ended(seen) => *seen,
                LiveOrEndedJob::Live(live) => tokio::select! {
                    biased;
                    seen = live.wait_for_end() => seen,
                    () = task::sleep_until(Some(until)) => {
                        return Ok(AwaitJobResponse {
                            pending: true,
                            ..AwaitJobResponse::default()
                        });
                    }
                },
            };
            Ok(await_job_response(seen.response()?.unwrap_or_else(cancelled_response)))
        })
    }
}

impl CallerJobs {
    /// Refuses a job of a vocabulary that is not the one of a call by name: its result is written in the
    /// words of its own, and names tools that the model of the call does not have.
    fn check_vocabulary(&self, job: &Job) -> Result<(), Error> {
        let Some(by_name) = &self.context.invoke_origin else {
            return Ok(());
        };
        let asking = by_name.dialect.map_or("", |dialect| dialect.name);
        if job.dialect.is_empty() || job.dialect == asking {
            return Ok(());
        }
        let text = format!(
            "is a job of the vocabulary {}, whose tools answer otherwise: wait for it in that vocabulary",
            job.dialect
        );
        Err(Error::invalid_field("job_id", text))
    }
}

/// What came of a job, as models are shown it.
fn await_job_response(response: InvokeResponse) -> AwaitJobResponse {
    let ok = response.status() == InvokeStatus::Success;
    // The text is JSON where the answer is an object, in the contract without what models do not need.
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
