//! Jobs: which there are, how far they are, and which comes next. What they do is not seen to here.
//!
//! ```text
//! submitted ─▶ queued ─▶ running ─▶ succeeded, failed, cancelled
//!                │  ▲       │
//!                │  └───────┤ it cannot begin yet, or the daemon drains: nothing was done
//!                ▼          └─▶ lost: the daemon died
//!            cancelled
//! ```
//!
//! Whose turn it is has a place, for as long as the job runs. One that must wait before it may begin, to be
//! approved or because its caller does too much, steps aside meanwhile: it gives its place to others, and
//! waits for its turn again.
//!
//! Each change is in the log before anybody is told ([`ends`]). A job that has not ended is in memory, too,
//! for those who wait for it.

mod completion;
mod handle;
pub(crate) mod id;
mod pending_budget;
mod queues;
mod response;

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::sync::{RwLock, oneshot};
use ulid::{Generator, Ulid};

pub(crate) use self::handle::{JobHandle, JobSnapshot};
use self::{
    pending_budget::{PendingJobsBudget, PendingJobsUsage},
    queues::{JobConcurrencyLimits, JobQueueEntry, JobQueues},
};
use super::{shutdown::Shutdown, state_error::state_database_error};
use crate::daemon::{
    config,
    error::{Error, Reason},
    fd_exhaustion::FdRetry,
    store::{
        database::{Database, DatabaseError},
        failure::state_failure,
        job_params::JobParamFiles,
        jobs::{Job, JobQuery, JobState, JobTable, now_to_millis},
        row_retention::RetentionLimits,
    },
    task,
};

/// How long to wait before what the state directory did not do is asked of it again.
pub(super) const STORE_RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// The jobs.
#[derive(Debug)]
pub(crate) struct JobRegistry {
    log: JobTable,
    params: JobParamFiles,
    /// Makes ids of which the later ones are the greater ones.
    ids: Mutex<Generator>,
    state: Mutex<JobsState>,
    /// Held to read by whoever submits a job: the log may have it, and the state not yet.
    submit_lock: RwLock<()>,
    shutdown: Shutdown,
}

#[derive(Debug)]
struct JobsState {
    queues: JobQueues,
    pending_budget: PendingJobsBudget,
    /// Those that have not ended, by their ids.
    live_jobs: HashMap<String, LiveJob>,
}

/// A job that has not ended, and where it is.
#[derive(Debug)]
struct LiveJob {
    handle: Arc<JobHandle>,
    queue_entry: JobQueueEntry,
    principal: String,
    /// The room that it takes while it waits.
    reserved: Option<PendingJobsUsage>,
    /// Whether it was its turn: then its task sees to its end.
    has_task: bool,
    /// Told when it is its turn again.
    slot_sender: Option<oneshot::Sender<()>>,
}

/// A job that was found.
#[derive(Debug)]
pub(crate) enum LiveOrEndedJob {
    /// It has not ended.
    Live(Arc<JobHandle>),
    /// It has.
    Ended(Box<JobSnapshot>),
}

impl LiveOrEndedJob {
    /// The job.
    pub(super) fn job(&self) -> Job {
        match self {
            Self::Live(live) => live.snapshot().job,
            Self::Ended(seen) => seen.job.clone(),
        }
    }
}

/// That a workspace has no such job.
pub(super) fn job_not_found_error(workspace: &str, id: &str) -> Error {
    let text = format!(
        "workspace {workspace} has no job {id:?}, or keeps it no longer: give the id that the answer to its submission has"
    );
    Error::new(Reason::JobNotFound, text).with_metadata("job_id", id)
}

/// Why the jobs of a state directory cannot be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JobsError {
    /// The log cannot be read.
    #[error(transparent)]
    Log(#[from] DatabaseError),
    /// What jobs of a daemon that died were to do could not be removed.
    #[error("the parameters of jobs")]
    Params(#[from] io::Error),
}

impl JobRegistry {
    /// The jobs that the log has. Those that wait go on waiting, those that ran are lost. `is_shared`: whether
    /// callers are told apart, so that one leaves something to others.
    pub(crate) async fn open(
        database: Database,
        params: JobParamFiles,
        config: config::jobs::JobsConfig,
        is_shared: bool,
        shutdown: &Shutdown,
    ) -> Result<Arc<Self>, JobsError> {
        let bounds = RetentionLimits {
            max_age: config.retention,
            max_rows: config.max_entries,
            max_bytes: config.max_bytes,
        };
        let (log, queued) = JobTable::open(database, bounds).await?;
        let ids = queued.iter().map(|job| job.id.as_str());
        let sizes = params.remove_orphaned(&ids.collect())?;
        let mut state = JobsState {
            queues: JobQueues::new(JobConcurrencyLimits {
                total: config.concurrency as usize,
                per_queue: config.queue_concurrency,
                by_queue_name: config.queues,
                is_shared,
            }),
            pending_budget: PendingJobsBudget::new(
                PendingJobsUsage { jobs: config.max_queued.into(), bytes: config.max_queued_bytes },
                is_shared,
            ),
            live_jobs: HashMap::new(),
        };
        for job in queued {
            let bytes = sizes.get(&job.id).copied().unwrap_or_default();
            let amount = PendingJobsUsage::of_job(bytes);
            state.pending_budget.reserve_unchecked(&job.principal, amount);
            state.add(job, amount);
        }
        let jobs = Arc::new(Self {
            log,
            params,
            ids: Mutex::new(Generator::new()),
            state: Mutex::new(state),
            submit_lock: RwLock::default(),
            shutdown: shutdown.clone(),
        });
        let (weak, growth) = (Arc::downgrade(&jobs), jobs.log.retention_trigger());
        task::spawn("retention of jobs", async move {
            while let Some(jobs) = weak.upgrade() {
                if let Err(error) = jobs.log.apply_retention().await {
                    tracing::warn!(%error, "old jobs could not be removed");
                }
                drop(jobs);
                growth.wait_until_due().await;
            }
        });
        Ok(jobs)
    }

    /// An id for a job that comes after all that have one.
    pub(super) fn new_id(&self) -> Ulid {
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        match ids.generate() {
            Ok(id) => id,
            Err(overflow) => overflow.commit_overflow_increment(),
        }
    }

    /// Keeps a job, and puts it into its queue. Not to be cancelled half-way.
    pub(crate) async fn submit(
        self: &Arc<Self>,
        job: Job,
        params: Vec<u8>,
        until: Option<Instant>,
    ) -> Result<(), Error> {
        let amount = PendingJobsUsage::of_job(params.len() as u64);
        self.state().pending_budget.reserve(&job.principal, amount)?;
        let _submits = self.submit_lock.read().await;
        let kept = self.store_submission(&job, params.into(), until).await;
        let mut state = self.state();
        match kept {
            Ok(()) => state.add(job, amount),
            Err(_) => state.pending_budget.release(&job.principal, amount),
        }
        kept
    }

    async fn store_submission(
        self: &Arc<Self>,
        job: &Job,
        params: Bytes,
        until: Option<Instant>,
    ) -> Result<(), Error> {
        let mut attempts = FdRetry::with_deadline(until);
        loop {
            let (jobs, id, params) = (Arc::clone(self), job.id.clone(), params.clone());
            let kept = task::spawn_blocking(move || jobs.params.save(&id, &params)).await;
            match kept.map_err(Error::internal)? {
                Err(error) if attempts.should_retry_io(&error).await => {}
                kept => break kept.map_err(|error| state_failure(&error))?,
            }
        }
        if let Err(error) = self.log.insert(job.clone()).await {
            self.erase_params(job.id.clone()).await;
            return Err(state_database_error(&error));
        }
        Ok(())
    }

    /// Leaves something for others from now on: there are several callers, who are told apart.
    pub(super) fn keep_headroom(&self) {
        let mut state = self.state();
        state.queues.keep_headroom();
        state.pending_budget.keep_headroom();
    }

    /// The next job whose turn it is that has no task yet; those that have one are told. `most`: how many of
    /// one caller may run.
    pub(super) fn start_next(&self, most: impl Fn(&str) -> usize) -> Option<Arc<JobHandle>> {
        let mut state = self.state();
        loop {
            let id = state.queues.start_next(&most)?;
            let Some(known) = state.live_jobs.get_mut(&id) else {
                continue;
            };
            match known.slot_sender.take() {
                // One that has gone away leaves the queues when it ends.
                Some(waits) => drop(waits.send(())),
                None => {
                    known.has_task = true;
                    return Some(Arc::clone(&known.handle));
                }
            }
        }
    }

    /// Gives back the place of a job that cannot begin yet.
    pub(super) fn yield_slot(&self, handle: &JobHandle) {
        let mut state = self.state();
        if let Some(known) = state.live_jobs.get(&handle.id()) {
            let entry = known.queue_entry.clone();
            state.queues.remove(&entry);
        }
    }

    /// Has a job that stepped aside wait for its turn; answers what tells when it is.
    pub(super) fn rejoin_queue(&self, handle: &JobHandle) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.state();
        if let Some(known) = state.live_jobs.get_mut(&handle.id()) {
            known.slot_sender = Some(sender);
            let entry = known.queue_entry.clone();
            state.queues.enqueue(&entry);
        }
        receiver
    }

    /// What a job is to do. Blocks.
    pub(super) async fn read_params(self: &Arc<Self>, handle: &JobHandle) -> io::Result<Vec<u8>> {
        let (jobs, id) = (Arc::clone(self), handle.id());
        let read = task::spawn_blocking(move || jobs.params.read(&id)).await;
        read.map_err(io::Error::other)?
    }

    /// Keeps that a job runs. Where that cannot be kept, it must not.
    pub(super) async fn record_start(&self, handle: &JobHandle) -> Result<(), DatabaseError> {
        let started = now_to_millis();
        self.log.record_start(handle.id(), started).await?;
        handle.update(|seen| {
            seen.job.state = JobState::Running;
            seen.job.started = Some(started);
        });
        Ok(())
    }

    /// Keeps which step a job is, and forgets what it was to do.
    pub(super) async fn record_step(self: &Arc<Self>, handle: &JobHandle, step: u64) {
        if let Err(error) = self.log.record_step(handle.id(), step).await {
            tracing::warn!(%error, "the step of a job could not be kept");
        }
        self.erase_params(handle.id()).await;
        handle.update(|seen| seen.job.step = Some(step));
    }

    /// Puts a job of which nothing was done back into its queue, for another task.
    pub(super) async fn requeue(self: &Arc<Self>, handle: &Arc<JobHandle>) {
        self.record_requeue(handle).await;
        {
            let mut state = self.state();
            if let Some(known) = state.live_jobs.get_mut(&handle.id()) {
                (known.has_task, known.slot_sender) = (false, None);
                let entry = known.queue_entry.clone();
                state.queues.enqueue(&entry);
            }
        }
        // Who ended it meanwhile has left that to the task.
        if handle.cancel_token().is_cancelled() {
            self.cancel(handle).await;
        }
    }

    /// A job of a workspace.
    pub(crate) async fn find(&self, workspace: &str, id: &str) -> Result<LiveOrEndedJob, Error> {
        let id = &*id::as_ulid(id);
        for _ in 0..2 {
            if let Some(live) = self.find_live(workspace, id) {
                return Ok(LiveOrEndedJob::Live(live));
            }
            let found = self.log.find(workspace.to_owned(), id.to_owned()).await;
            match found.map_err(|error| state_database_error(&error))? {
                None => return Err(job_not_found_error(workspace, id)),
                Some((job, result)) if job.state.is_final() => {
                    return Ok(LiveOrEndedJob::Ended(Box::new(JobSnapshot { job, result })));
                }
                // It was not known yet, or is not any more: once those who submit now are through, either it
                // is, or the log has how it ended.
                Some(_) => drop(self.submit_lock.write().await),
            }
        }
        Err(Error::internal("a job that has not ended is not known"))
    }

    /// The job that this caller has submitted with a request id.
    pub(crate) async fn find_submitted(
        &self,
        principal: &str,
        workspace: &str,
        request: String,
    ) -> Result<Option<Job>, Error> {
        let (principal, workspace) = (principal.to_owned(), workspace.to_owned());
        let found = self.log.find_by_request_id(principal, workspace, request).await;
        found.map_err(|error| state_database_error(&error))
    }

    /// The jobs of a selection, without what came of them.
    pub(crate) async fn list(&self, selection: JobQuery) -> Result<Vec<Job>, Error> {
        let listed = self.log.list(selection).await;
        listed.map_err(|error| state_database_error(&error))
    }

    fn find_live(&self, workspace: &str, id: &str) -> Option<Arc<JobHandle>> {
        let state = self.state();
        let live = &state.live_jobs.get(id)?.handle;
        live.is_in_workspace(workspace).then(|| Arc::clone(live))
    }

    /// Forgets what a job was to do.
    async fn erase_params(self: &Arc<Self>, id: String) {
        {
            let mut state = self.state();
            let known = state.live_jobs.get_mut(&id);
            let taken =
                known.and_then(|known| Some((known.principal.clone(), known.reserved.take()?)));
            if let Some((caller, amount)) = taken {
                state.pending_budget.release(&caller, amount);
            }
        }
        let jobs = Arc::clone(self);
        if let Err(error) = task::spawn_blocking(move || jobs.params.remove(&id)).await {
            tracing::error!(%error, "the parameters of a job could not be erased");
        }
    }

    fn state(&self) -> MutexGuard<'_, JobsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl JobsState {
    /// Adds a job that waits, and has taken this room.
    fn add(&mut self, job: Job, room: PendingJobsUsage) {
        let (id, entry) = (job.id.clone(), JobQueueEntry::of(&job));
        self.queues.enqueue(&entry);
        let known = LiveJob {
            principal: job.principal.clone(),
            handle: JobHandle::new(job),
            queue_entry: entry,
            reserved: Some(room),
            has_task: false,
            slot_sender: None,
        };
        self.live_jobs.insert(id, known);
    }
}

#[cfg(test)]
mod tests;
