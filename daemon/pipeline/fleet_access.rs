//! The fleet of a daemon, and which of its jobs a caller may see.

use std::{sync::Arc, time::Instant};

use super::{
    Pipeline,
    context::CallContext,
    fleet_jobs::{FleetJob, FleetJobs},
    jobs::job_not_found_error,
};
use crate::{
    api::v1::{Job, JobState},
    daemon::error::Error,
};

impl Pipeline {
    /// Registers the fleet, before the first call.
    #[cfg(feature = "fleet")]
    pub(crate) fn join_fleet(&self, fleet: Arc<dyn FleetJobs>) {
        // The daemon joins at most once.
        let _joined = self.fleet_jobs.set(fleet);
    }

    /// Returns the fleet. Fails if the daemon has none.
    pub(crate) fn require_fleet(&self) -> Result<&Arc<dyn FleetJobs>, Error> {
        self.fleet_jobs.get().ok_or_else(|| {
            let text = "this daemon belongs to no fleet: submit without fleet, or the operator can configure [fleet]";
            Error::invalid_field("fleet", text)
        })
    }

    /// Finds a fleet job. Returns "not found" for a job of another workspace, and of a tool that the
    /// caller may not use.
    ///
    /// The workspace of the job is empty if it was submitted without one and no daemon has claimed it.
    /// Then [`Self::check_claim`] must follow each change.
    pub(crate) async fn find_fleet_job(
        &self,
        context: &CallContext,
        id: &str,
    ) -> Result<(&Arc<dyn FleetJobs>, FleetJob), Error> {
        context.access_log_entry.update(|fields| fields.job_id = Some(id.to_owned()));
        let workspace_context = self.resolve_workspace(context)?;
        let workspace = workspace_context.workspace.name();
        let Some(fleet) = self.fleet_jobs.get() else {
            return Err(job_not_found_error(workspace, id));
        };

        let found = fleet.find(id).await?.filter(|found| {
            let tool = self.require_job_tool(context, &found.job.dialect, &found.job.tool);
            (found.workspace == workspace || is_unclaimed(found)) && tool.is_ok()
        });
        match found {
            Some(found) => Ok((fleet, found)),
            None => Err(job_not_found_error(workspace, id)),
        }
    }

    /// Waits until a found job has ended or `until`, and returns it with its result.
    pub(crate) async fn wait_for_fleet_job(
        &self,
        context: &CallContext,
        found: FleetJob,
        until: Option<Instant>,
    ) -> Result<Job, Error> {
        let fleet = self.require_fleet()?;
        let found = match found.job.end_time {
            Some(_) => found,
            None => {
                let id = &found.job.job_id;
                let waited = fleet.wait(id, until).await?;
                let waited = self.check_claim(context, &found, waited).await?;
                waited.ok_or_else(|| job_not_found_error(&found.workspace, id))?
            }
        };
        fleet.load_result(found).await
    }

    /// Returns `changed`, which is a later state of a found job. Fails if a daemon has claimed it for
    /// another workspace since.
    pub(crate) async fn check_claim(
        &self,
        context: &CallContext,
        found: &FleetJob,
        changed: Option<FleetJob>,
    ) -> Result<Option<FleetJob>, Error> {
        if found.workspace.is_empty() {
            let (_fleet, found) = self.find_fleet_job(context, &found.job.job_id).await?;
            return Ok(Some(found));
        }
        Ok(changed)
    }
}

/// Whether no workspace has a job yet, or had when it was cancelled.
fn is_unclaimed(found: &FleetJob) -> bool {
    found.workspace.is_empty()
        && matches!(found.job.state(), JobState::Queued | JobState::Cancelled)
}
