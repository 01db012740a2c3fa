//! What came of jobs, as envelopes.

use prost::Message as _;

use super::handle::JobSnapshot;
use crate::{
    api::v1::{InvokeResponse, InvokeStatus, ToolError},
    daemon::{
        error::{Error, Reason},
        store::jobs::{Job, JobState},
    },
};

impl JobSnapshot {
    /// What came of it, once it has ended; nothing of one that was cancelled before it began.
    pub(crate) fn response(&self) -> Result<Option<InvokeResponse>, Error> {
        let response = match (&self.result, self.job.state) {
            (Some(result), _) => {
                let response = InvokeResponse::decode(result.clone());
                Some(response.map_err(Error::internal)?)
            }
            (None, JobState::Lost) => Some(lost_response(&self.job)),
            (None, _) => None,
        };
        Ok(response.map(|response| InvokeResponse {
            job_id: match response.pending {
                // It has begun another one, which goes on.
                true => response.job_id,
                false => self.job.id.clone(),
            },
            ..response
        }))
    }
}

/// What is told of a job whose daemon died.
fn lost_response(job: &Job) -> InvokeResponse {
    let text = "the daemon died while this job ran, so that it is not known how far it came: look what there is, then submit it again";
    InvokeResponse {
        tool: job.tool.clone(),
        status: InvokeStatus::Error.into(),
        started_at: job.started.map(Into::into),
        text: text.to_owned(),
        error: Some(ToolError {
            error_type: Reason::DaemonLost.name().to_lowercase(),
            message: text.to_owned(),
            suggestion: Reason::DaemonLost.suggestion().to_owned(),
            details: None,
        }),
        ..InvokeResponse::default()
    }
}
