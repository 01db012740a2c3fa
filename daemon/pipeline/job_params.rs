//! Reads the stored parameters of jobs.

use std::{io, sync::Arc};

use bytes::Bytes;
use serde_json::{Map, Value};

use super::{
    Pipeline,
    job_runner::{StartBlocked, params_lost_error},
    jobs::JobHandle,
};
use crate::daemon::{
    error::Error,
    fd_exhaustion::FdRetry,
    store::{failure::STORE_RETRY_INTERVAL, jobs::Job},
};

impl Pipeline {
    /// Reads the parameters of a job. Returns [`StartBlocked::Transient`] if their file may exist but
    /// cannot be read now.
    pub(super) async fn read_job_params(
        &self,
        handle: &JobHandle,
        job: &Job,
    ) -> Result<Bytes, StartBlocked> {
        let mut attempts = FdRetry::with_deadline(None);
        loop {
            match self.jobs.read_params(handle).await {
                Ok(params) => return Ok(params.into()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return Err(params_lost_error(&job.id, &error).into());
                }
                Err(error) if attempts.should_retry_io(&error).await => {}
                Err(error) => {
                    tracing::error!(%error, job_id = job.id, "cannot read the parameters of a job yet");
                    return Err(StartBlocked::Transient(STORE_RETRY_INTERVAL));
                }
            }
        }
    }

    /// Waits until the parameters of a job can be read.
    pub(super) async fn await_job_params(
        self: &Arc<Self>,
        handle: &JobHandle,
        job: &Job,
    ) -> Result<Map<String, Value>, Error> {
        loop {
            match self.read_job_params(handle, job).await {
                Ok(params) => {
                    let params = serde_json::from_slice(&params);
                    return params.map_err(|error| params_lost_error(&job.id, &error.into()));
                }
                Err(StartBlocked::Permanent(error)) => return Err(error),
                Err(StartBlocked::Transient(delay)) => self.retry_job_later(handle, delay).await?,
                Err(StartBlocked::ApprovalQuota) => {
                    self.retry_job_later(handle, STORE_RETRY_INTERVAL).await?
                }
            }
        }
    }
}
