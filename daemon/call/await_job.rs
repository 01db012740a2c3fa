//! The jobs of a caller, for the tool that waits for them.

use std::{future::Future, pin::Pin, sync::Arc, time::Instant};

use serde_json::Value;

use super::{
    Pipeline, context::Incoming, invoke::batch::outcome_of_cancelled, jobs::Found,
    structure::structure,
};
use crate::{
    api::v1::{AwaitJobResponse, InvokeResponse, InvokeStatus},
    daemon::{error::Error, store::jobs::Job, task, tool::jobs::Jobs},
};

/// The jobs that the caller of a call may look at.
#[derive(Debug)]
struct JobsOf {
    pipeline: Arc<Pipeline>,
    incoming: Incoming,
}

impl Pipeline {
    /// The jobs that the caller of a call may look at.
    pub(super) fn jobs_of(self: &Arc<Self>, incoming: &Incoming) -> Box<dyn Jobs> {
        Box::new(JobsOf { pipeline: Arc::clone(self), incoming: incoming.clone() })
    }
}

impl Jobs for JobsOf {
    fn wait(
        &self,
        id: String,
        until: Instant,
    ) -> Pin<Box<dyn Future<Output = Result<AwaitJobResponse, Error>> + Send + '_>> {
        Box::pin(async move {
            let found = self.pipeline.find_job(&self.incoming, &id).await?;
            self.check_vocabulary(&found.job())?;
            let seen = match found {
                Found::Ended(seen) => *seen,
                Found::Live(live) => tokio::select! {
                    biased;
                    seen = live.ended() => seen,
                    () = task::until(Some(until)) => {
                        return Ok(AwaitJobResponse {
                            pending: true,
                            ..AwaitJobResponse::default()
                        });
                    }
                },
            };
            Ok(ended(seen.response()?.unwrap_or_else(outcome_of_cancelled)))
        })
    }
}

impl JobsOf {
    /// Refuses a job of a vocabulary that is not the one of a call by name: its result is written in the
    /// words of its own, and names tools that the model of the call does not have.
    fn check_vocabulary(&self, job: &Job) -> Result<(), Error> {
        let Some(by_name) = &self.incoming.by_name else {
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
fn ended(response: InvokeResponse) -> AwaitJobResponse {
    let ok = response.status() == InvokeStatus::Success;
    // The text is JSON where the answer is an object, in the contract without what models do not need.
    let output = match response.data.is_some().then(|| serde_json::from_str(&response.text)) {
        Some(Ok(Value::Object(output))) => Some(structure(output)),
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
