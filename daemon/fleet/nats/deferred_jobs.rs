//! Fleet jobs from the start of the daemon, even if the NATS servers answer later.

use std::{sync::OnceLock, time::Instant};

use super::nats_jobs::NatsJobs;
use crate::{
    api::v1::Job,
    daemon::{
        error::Error,
        fleet::work_source::SourceUnavailable,
        pipeline::fleet_jobs::{FleetJob, FleetJobEvents, FleetJobs, FleetSubmission},
        task::BoxFuture,
    },
};

/// The jobs of a fleet whose servers may not have answered yet. Until then, every call fails with
/// `FLEET_UNAVAILABLE`.
#[derive(Debug, Default)]
pub(crate) struct DeferredJobs {
    opened: OnceLock<NatsJobs>,
}

impl DeferredJobs {
    /// Sets the jobs, once the buckets and streams are open.
    pub(crate) fn open(&self, jobs: NatsJobs) {
        // The daemon opens them once.
        let _opened = self.opened.set(jobs);
    }

    fn opened(&self) -> Result<&NatsJobs, Error> {
        let unopened =
            || SourceUnavailable::new("there was no connection since the daemon started");
        Ok(self.opened.get().ok_or_else(unopened)?)
    }
}

impl FleetJobs for DeferredJobs {
    fn submit(&self, submission: FleetSubmission) -> BoxFuture<'_, Result<FleetJob, Error>> {
        Box::pin(async move { self.opened()?.submit(submission).await })
    }

    fn find<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<Option<FleetJob>, Error>> {
        Box::pin(async move { self.opened()?.find(id).await })
    }

    fn wait<'a>(
        &'a self,
        id: &'a str,
        until: Option<Instant>,
    ) -> BoxFuture<'a, Result<Option<FleetJob>, Error>> {
        Box::pin(async move { self.opened()?.wait(id, until).await })
    }

    fn cancel<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move { self.opened()?.cancel(id).await })
    }

    fn load_result(&self, job: FleetJob) -> BoxFuture<'_, Result<Job, Error>> {
        Box::pin(async move { self.opened()?.load_result(job).await })
    }

    fn watch<'a>(
        &'a self,
        id: &'a str,
        offsets: [u64; 2],
    ) -> BoxFuture<'a, Result<Box<dyn FleetJobEvents>, Error>> {
        Box::pin(async move { self.opened()?.watch(id, offsets).await })
    }
}
