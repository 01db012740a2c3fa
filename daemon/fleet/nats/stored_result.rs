//! Results of jobs that are stored apart from their records.

use super::session::NatsSession;
use crate::{
    api::v1::Job,
    daemon::{error::Error, pipeline::fleet_jobs::FleetJob},
};

/// Returns a job with its result, which can be stored apart.
pub(super) async fn load_result(session: &NatsSession, found: FleetJob) -> Result<Job, Error> {
    let FleetJob { mut job, result_object, .. } = found;
    if !result_object.is_empty() {
        let mut result = session.results().await?.read(&result_object).await?;
        if !result.pending {
            result.job_id.clone_from(&job.job_id);
        }
        job.result = Some(result);
    }
    Ok(job)
}
