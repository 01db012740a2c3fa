//! Results of jobs as `InvokeResponse`.

use std::time::SystemTime;

use prost::Message as _;

use super::handle::JobSnapshot;
use crate::{
    api::v1::{InvokeResponse, InvokeStatus, ToolError},
    daemon::{
        error::{Error, Reason},
        store::jobs::JobState,
    },
};

impl JobSnapshot {
    /// Returns the result of an ended job, or `None` for one that was cancelled before it started.
    pub(crate) fn response(&self) -> Result<Option<InvokeResponse>, Error> {
        let response = match (&self.result, self.job.state) {
            (Some(result), _) => {
                let response = InvokeResponse::decode(result.clone());
                Some(response.map_err(Error::internal)?)
            }
            (None, JobState::Lost) => Some(lost_response(&self.job.tool, self.job.started)),
            (None, _) => None,
        };
        Ok(response.map(|response| InvokeResponse {
            // A pending response names another job, which this one has submitted.
            job_id: if response.pending { response.job_id } else { self.job.id.clone() },
            ..response
        }))
    }
}

/// The result of a job whose daemon died.
pub(crate) fn lost_response(tool: &str, started: Option<SystemTime>) -> InvokeResponse {
    let text = "the daemon died while this job ran, so its progress is unknown: check what it has done, then submit it again";
    InvokeResponse {
        tool: tool.to_owned(),
        status: InvokeStatus::Error.into(),
        started_at: started.map(Into::into),
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
