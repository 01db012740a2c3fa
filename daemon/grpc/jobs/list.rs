//! Lists of jobs: their queries and pages.

use crate::{
    api::v1::{self, ListJobsRequest},
    daemon::{
        error::{Error, Violation},
        store::jobs::{Job, JobQuery, JobState},
    },
};

/// Length of a job id, which is a ULID.
const JOB_ID_BYTES: usize = 26;

/// Validates a request to list jobs, and converts it to a query.
pub(super) fn parse_job_query(
    request: ListJobsRequest,
    workspace: &str,
) -> Result<JobQuery, Error> {
    let states = request.states().filter_map(|state| match state {
        v1::JobState::Queued => Some(JobState::Queued),
        v1::JobState::Running => Some(JobState::Running),
        v1::JobState::Succeeded => Some(JobState::Succeeded),
        v1::JobState::Failed => Some(JobState::Failed),
        v1::JobState::Cancelled => Some(JobState::Cancelled),
        v1::JobState::Lost => Some(JobState::Lost),
        v1::JobState::Unspecified => None,
    });
    let states: Vec<_> = states.collect();

    let mut violations = Vec::new();
    if states.len() < request.states.len() {
        let text = "must be states of jobs: JOB_STATE_QUEUED and those after it";
        violations.push(Violation::new("states", text));
    }
    let token = &request.page_token;
    let is_token =
        token.len() == JOB_ID_BYTES && token.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if !token.is_empty() && !is_token {
        let text = "must be next_page_token of the response before this one";
        violations.push(Violation::new("page_token", text));
    }
    if !violations.is_empty() {
        return Err(Error::invalid(violations));
    }

    Ok(JobQuery {
        workspace: workspace.to_owned(),
        states,
        tools: None,
        queue: Some(request.queue).filter(|queue| !queue.is_empty()),
        before: Some(request.page_token).filter(|token| !token.is_empty()),
        limit: request.page_size.unwrap_or_default(),
    })
}

/// The token of the page after this job.
pub(super) fn next_page_token(last: &Job) -> String {
    last.id.clone()
}
