//! The fleet jobs that run on this daemon, for those who watch or cancel them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::daemon::pipeline::jobs::JobHandle;

/// The running jobs by the id that the fleet knows.
#[derive(Debug, Default)]
pub(crate) struct RunningFleetJobs(Mutex<HashMap<String, Arc<JobHandle>>>);

/// A running job, until this is dropped.
#[derive(Debug)]
pub(super) struct RunningFleetJob {
    jobs: Arc<RunningFleetJobs>,
    id: String,
    handle: Arc<JobHandle>,
}

impl RunningFleetJobs {
    /// Finds a job that runs, or waits in a queue of this daemon.
    pub(crate) fn find(&self, id: &str) -> Option<Arc<JobHandle>> {
        self.handles().get(id).cloned()
    }

    /// Adds a job.
    pub(super) fn add(self: &Arc<Self>, id: &str, handle: Arc<JobHandle>) -> RunningFleetJob {
        self.handles().insert(id.to_owned(), Arc::clone(&handle));
        RunningFleetJob { jobs: Arc::clone(self), id: id.to_owned(), handle }
    }

    fn handles(&self) -> MutexGuard<'_, HashMap<String, Arc<JobHandle>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RunningFleetJob {
    fn drop(&mut self) {
        let mut handles = self.jobs.handles();
        // A later claim may have the job.
        if handles.get(&self.id).is_some_and(|handle| Arc::ptr_eq(handle, &self.handle)) {
            handles.remove(&self.id);
        }
    }
}
