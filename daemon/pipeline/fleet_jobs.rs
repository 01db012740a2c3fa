//! The jobs of the fleet, as the services see them: jobs of queues that several daemons share.
//!
//! A source of the fleet implements [`FleetJobs`], and registers at the start. Without one, a daemon
//! has no such jobs, and their ids are those of no job.

use std::{fmt, future::ready, time::Instant};

use bytes::Bytes;

use crate::{
    api::v1::{FleetArtifact, Job, SubmitJobRequest, watch_job_response::Event},
    daemon::{error::Error, task::BoxFuture},
};

/// Prefix of the ids of fleet jobs. No ULID and no UUID has it.
pub(crate) const FLEET_JOB_ID_PREFIX: &str = "fleet-";
/// Hexadecimal digits after the prefix: 128 bits, too many for accidental collisions.
pub(crate) const FLEET_JOB_ID_DIGITS: usize = 32;

/// The jobs that all daemons of a fleet know.
pub(crate) trait FleetJobs: fmt::Debug + Send + Sync {
    /// Publishes a job to its queue. Returns the job of an earlier submission with the same request
    /// id, unless its request was another.
    fn submit(&self, submission: FleetSubmission) -> BoxFuture<'_, Result<FleetJob, Error>>;

    /// Whether it is known that no daemon has taken jobs of a queue and workspace so far.
    fn is_unserved<'a>(&'a self, _queue: &'a str, _workspace: &'a str) -> BoxFuture<'a, bool> {
        Box::pin(ready(false))
    }

    /// Finds a job by its id.
    fn find<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<FleetJob>, Error>>;

    /// Waits until a job has ended or `until`, and returns it if it is still stored.
    fn wait<'a>(
        &'a self,
        id: &'a str,
        until: Option<Instant>,
    ) -> BoxFuture<'a, Result<Option<FleetJob>, Error>>;

    /// Cancels a job, wherever it is. It may end later, and otherwise.
    fn cancel<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), Error>>;

    /// Returns a job with its result, which can be stored apart.
    fn load_result(&self, job: FleetJob) -> BoxFuture<'_, Result<Job, Error>> {
        Box::pin(ready(Ok(job.job)))
    }

    /// Opens the object of a stored artifact. Returns `None` if it is no longer stored.
    fn open_artifact<'a>(
        &'a self,
        _object: &'a str,
    ) -> BoxFuture<'a, Result<Option<Box<dyn FleetArtifactReader>>, Error>> {
        Box::pin(ready(Ok(None)))
    }

    /// Watches a job. The output begins at the offsets of standard output and standard error.
    fn watch<'a>(
        &'a self,
        id: &'a str,
        offsets: [u64; 2],
    ) -> BoxFuture<'a, Result<Box<dyn FleetJobEvents>, Error>>;
}

/// The states and the output of a fleet job.
pub(crate) trait FleetJobEvents: Send {
    /// Returns the next event, or `None` after the ended job. Cancel safe.
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Event>, Error>>;
}

/// The bytes of a stored artifact, from its beginning.
pub(crate) trait FleetArtifactReader: Send {
    /// Returns the next bytes, or `None` after the last ones.
    fn next(&mut self) -> BoxFuture<'_, Result<Option<Bytes>, Error>>;
}

/// A call to publish to a queue of the fleet.
#[derive(Debug, Clone)]
#[cfg_attr(not(feature = "fleet"), expect(dead_code, reason = "only a source reads the fields"))]
pub(crate) struct FleetSubmission {
    pub(crate) queue: String,
    pub(crate) workspace: String,
    pub(crate) request_id: String,
    pub(crate) principal: String,
    pub(crate) session: String,
    pub(crate) traceparent: String,
    /// The request, which was validated.
    pub(crate) request: SubmitJobRequest,
}

/// A fleet job, with what its visibility depends on.
#[derive(Debug, Clone)]
pub(crate) struct FleetJob {
    /// The job, without a result that is stored apart.
    pub(crate) job: Job,
    pub(crate) workspace: String,
    /// Name of the object with the result. Empty if the job has its result, or none.
    #[cfg_attr(not(feature = "fleet"), expect(dead_code, reason = "only a source reads it"))]
    pub(crate) result_object: String,
    /// The artifacts, if the job stores them. Empty before its end.
    pub(crate) artifacts: Option<Vec<FleetArtifact>>,
}

/// Whether an id has the form of those of fleet jobs.
pub(crate) fn is_fleet_job_id(id: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let digits = id.strip_prefix(FLEET_JOB_ID_PREFIX);
    digits.is_some_and(|digits| digits.len() == FLEET_JOB_ID_DIGITS && digits.bytes().all(is_digit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_fleet_jobs_are_those_of_no_other_job() {
        assert!(is_fleet_job_id("fleet-7a61ed7351f071be21e73060c62d236f"));
        for other in [
            "",
            "fleet-",
            "01HZZZZZZZZZZZZZZZZZZZZZZZ",
            "550e8400-e29b-41d4-a716-446655440000",
            "fleet-7a61ed7351f071be21e73060c62d236F",
            "fleet-7a61ed7351f071be21e73060c62d236f0",
        ] {
            assert!(!is_fleet_job_id(other), "{other}");
        }
    }
}
