//! Waits for the ends of jobs while the daemon may be shutting down.

use crate::daemon::{
    error::{Error, Reason},
    pipeline::{
        Pipeline,
        jobs::{JobHandle, JobSnapshot},
    },
};

/// Waits until a job has ended. Fails if the drain timeout passes first.
pub(super) async fn wait_until_ended(
    pipeline: &Pipeline,
    job: &JobHandle,
) -> Result<JobSnapshot, Error> {
    tokio::select! {
        biased;
        snapshot = job.wait_for_end() => Ok(snapshot),
        () = pipeline.shutdown.terminate_token().cancelled_owned() => {
            Err(shutdown_error())
        }
    }
}

/// The error of a call that waits for the end of a job when the daemon ends.
pub(super) fn shutdown_error() -> Error {
    let text = "the daemon is shutting down, and the job has not ended: wait again when the daemon is back";
    Error::new(Reason::Draining, text)
}
