//! Conversion of jobs to protobuf messages.

use super::{JobRegistry, JobSnapshot};
use crate::{
    api::v1,
    daemon::{
        error::Error,
        store::jobs::{Job, JobState},
    },
};

/// Converts a job with its result.
pub(crate) fn wire_job(snapshot: JobSnapshot, jobs: &JobRegistry) -> Result<v1::Job, Error> {
    Ok(v1::Job { result: snapshot.response()?, ..wire_live_job(&snapshot, jobs) })
}

/// Converts a job without its result, with the approval that it waits for.
pub(crate) fn wire_live_job(snapshot: &JobSnapshot, jobs: &JobRegistry) -> v1::Job {
    let approval_id = snapshot.pending_approval().unwrap_or_default().to_owned();
    v1::Job { approval_id, ..wire_job_summary(&snapshot.job, jobs) }
}

/// Converts a job without its result.
pub(crate) fn wire_job_summary(job: &Job, jobs: &JobRegistry) -> v1::Job {
    v1::Job {
        job_id: job.id.clone(),
        state: wire_job_state(job.state).into(),
        tool: job.tool.clone(),
        dialect: job.dialect.clone(),
        queue: job.queue.clone(),
        priority: job.priority,
        session: job.session.clone(),
        principal: job.principal.clone(),
        step: job.step,
        submit_time: Some(job.submitted.into()),
        start_time: job.started.map(Into::into),
        end_time: job.ended.map(Into::into),
        result: None,
        approval_id: String::new(),
        retention: prost_types::Duration::try_from(jobs.retention()).ok(),
        fleet: false,
        daemon_id: String::new(),
    }
}

fn wire_job_state(state: JobState) -> v1::JobState {
    match state {
        JobState::Queued => v1::JobState::Queued,
        JobState::Running => v1::JobState::Running,
        JobState::Succeeded => v1::JobState::Succeeded,
        JobState::Failed => v1::JobState::Failed,
        JobState::Cancelled => v1::JobState::Cancelled,
        JobState::Lost => v1::JobState::Lost,
    }
}
