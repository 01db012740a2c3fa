//! The job registry: which jobs exist, their states, and which one starts next. It does not run
//! them.
//!
//! ```text
//! submitted ─▶ queued ─▶ running ─▶ succeeded, failed, cancelled
//!                │  ▲       │
//!                │  └───────┤ requeued: it cannot start yet, or the daemon drains
//!                ▼          └─▶ lost: the daemon died
//!            cancelled
//! ```
//!
//! A running job holds a slot. A job may have to wait before its first call, for approval or
//! because its caller has reached a limit. It then yields its slot to other jobs, and rejoins its
//! queue later.
//!
//! Every change is stored before it is published ([`completion`]). Jobs that have not ended are
//! also in memory, for the clients that watch them.

mod completion;
mod counts;
#[cfg(feature = "fleet")]
mod fleet_slots;
mod handle;
pub(crate) mod id;
mod pending_budget;
mod queues;
mod response;
pub(crate) mod wire;

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::sync::{RwLock, oneshot, watch};
use ulid::{Generator, Ulid};

#[cfg(feature = "fleet")]
pub(crate) use self::queues::ClaimedFleetJobs;
use self::{
    counts::EndedJobCounts,
    pending_budget::{PendingJobsBudget, PendingJobsUsage},
    queues::{JobConcurrencyLimits, JobQueueEntry, JobQueues},
};
pub(crate) use self::{
    handle::{JobHandle, JobSnapshot},
    response::lost_response,
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
        jobs::{Job, JobQuery, JobState, JobTable, SubmittedJob, now_to_millis},
        retention::rows::RetentionLimits,
    },
    task,
    tool::WorkspaceContext,
};

/// All jobs of the state directory.
#[derive(Debug)]
pub(crate) struct JobRegistry {
    table: JobTable,
    params: JobParamFiles,
    /// Generates increasing ids.
    ids: Mutex<Generator>,
    state: Mutex<JobsState>,
    /// Notified when slots were given or have become free.
    slots: watch::Sender<()>,
    /// Held for reading during a submission, while the database may have the job and the state not.
    submit_lock: RwLock<()>,
    /// Jobs that have ended since the daemon started.
    ended: EndedJobCounts,
    shutdown: Shutdown,
}

#[derive(Debug)]
struct JobsState {
    queues: JobQueues,
    pending_budget: PendingJobsBudget,
    /// Jobs that have not ended, by id.
    live_jobs: HashMap<String, LiveJob>,
}

/// A job that has not ended.
#[derive(Debug)]
struct LiveJob {
    handle: Arc<JobHandle>,
    queue_entry: JobQueueEntry,
    principal: String,
    /// The budget that it holds while it is queued.
    reserved: Option<PendingJobsUsage>,
    /// Whether a task runs it. That task then records its end.
    has_task: bool,
    /// Notified when the job gets a slot again.
    slot_sender: Option<oneshot::Sender<()>>,
}

/// The result of a lookup.
#[derive(Debug)]
pub(crate) enum LiveOrEndedJob {
    Live(Arc<JobHandle>),
    Ended(Box<JobSnapshot>),
}

impl LiveOrEndedJob {
    pub(crate) fn job(&self) -> Job {
        match self {
            Self::Live(handle) => handle.snapshot().job,
            Self::Ended(snapshot) => snapshot.job.clone(),
        }
    }
}

pub(super) fn job_not_found_error(workspace: &str, id: &str) -> Error {
    let text = format!(
        "workspace {workspace} has no job {id:?}, or has evicted it: use the id from the response to its submission"
    );
    Error::new(Reason::JobNotFound, text).with_metadata("job_id", id)
}

/// Why the jobs of a state directory cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JobsError {
    /// The database failed.
    #[error(transparent)]
    Log(#[from] DatabaseError),
    /// The parameters of jobs of a daemon that died could not be removed.
    #[error("the parameters of jobs")]
    Params(#[from] io::Error),
}

impl JobRegistry {
    /// Loads the jobs of the database. Queued jobs stay queued; jobs that ran are lost.
    ///
    /// `is_shared` says whether callers are distinguished, so that each leaves headroom for others.
    pub(crate) async fn open(
        database: Database,
        params: JobParamFiles,
        config: config::jobs::JobsConfig,
        is_shared: bool,
        shutdown: &Shutdown,
    ) -> Result<Arc<Self>, JobsError> {
        let limits = RetentionLimits {
            max_age: config.retention,
            max_rows: config.max_entries,
            max_bytes: config.max_bytes,
        };
        let (table, queued) = JobTable::open(database, limits).await?;
        let queued_ids = queued.iter().map(|job| job.id.as_str()).collect();
        let param_sizes = params.remove_orphaned(&queued_ids)?;

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
            let bytes = param_sizes.get(&job.id).copied().unwrap_or_default();
            let amount = PendingJobsUsage::of_job(bytes);
            state.pending_budget.reserve_unchecked(&job.principal, amount);
            state.add(job, amount);
        }

        let jobs = Arc::new(Self {
            table,
            params,
            ids: Mutex::new(Generator::new()),
            state: Mutex::new(state),
            slots: watch::Sender::new(()),
            submit_lock: RwLock::default(),
            ended: EndedJobCounts::default(),
            shutdown: shutdown.clone(),
        });

        let (weak, retention_trigger) = (Arc::downgrade(&jobs), jobs.table.retention_trigger());
        task::spawn("retention of jobs", async move {
            while let Some(jobs) = weak.upgrade() {
                if let Err(error) = jobs.table.apply_retention().await {
                    tracing::warn!(%error, "cannot remove old jobs");
                }
                drop(jobs);
                retention_trigger.wait_until_due().await;
            }
        });

        Ok(jobs)
    }

    /// Returns an id greater than all ids before.
    pub(super) fn new_id(&self) -> Ulid {
        let mut ids = self.ids.lock().unwrap_or_else(PoisonError::into_inner);
        match ids.generate() {
            Ok(id) => id,
            Err(overflow) => overflow.commit_overflow_increment(),
        }
    }

    /// Stores a job, and adds it to its queue, unless its workspace was deleted. Not cancel safe.
    pub(crate) async fn submit(
        self: &Arc<Self>,
        job: Job,
        params: Vec<u8>,
        workspace: &WorkspaceContext,
        deadline: Option<Instant>,
    ) -> Result<(), Error> {
        let amount = PendingJobsUsage::of_job(params.len() as u64);
        self.state().pending_budget.reserve(&job.principal, amount)?;

        let _submitting = self.submit_lock.read().await;
        // A deletion ends the jobs after this submission, or this sees the deletion.
        let stored = match workspace.require_undeleted() {
            Ok(()) => self.store_submission(&job, params.into(), deadline).await,
            Err(error) => Err(error),
        };
        let mut state = self.state();
        match stored {
            Ok(()) => state.add(job, amount),
            Err(_) => state.pending_budget.release(&job.principal, amount),
        }
        stored
    }

    async fn store_submission(
        self: &Arc<Self>,
        job: &Job,
        params: Bytes,
        deadline: Option<Instant>,
    ) -> Result<(), Error> {
        let mut attempts = FdRetry::with_deadline(deadline);
        loop {
            let (jobs, id, params) = (Arc::clone(self), job.id.clone(), params.clone());
            let stored = task::spawn_blocking(move || jobs.params.save(&id, &params)).await;
            match stored.map_err(Error::internal)? {
                Err(error) if attempts.should_retry_io(&error).await => {}
                stored => break stored.map_err(|error| state_failure(&error))?,
            }
        }

        if let Err(error) = self.table.insert(job.clone()).await {
            self.erase_params(job.id.clone()).await;
            return Err(state_database_error(&error));
        }

        Ok(())
    }

    /// Permanently reserves headroom for callers that use little. Called when several have keys.
    pub(super) fn reserve_headroom(&self) {
        let mut state = self.state();
        state.queues.reserve_headroom();
        state.pending_budget.reserve_headroom();
    }

    /// Gives a slot to the next job, and returns it if it has no task yet. A job that waits for a
    /// slot in its task is notified instead. `max_running` limits the running jobs of one caller.
    pub(super) fn start_next(&self, max_running: impl Fn(&str) -> usize) -> Option<Arc<JobHandle>> {
        let mut state = self.state();
        loop {
            let Some(id) = state.queues.start_next(&max_running) else {
                self.slots.send_replace(());
                return None;
            };
            let Some(live_job) = state.live_jobs.get_mut(&id) else {
                continue;
            };
            match live_job.slot_sender.take() {
                // If the receiver has gone, the job leaves the queues when it ends.
                Some(sender) => drop(sender.send(())),
                None => {
                    live_job.has_task = true;
                    return Some(Arc::clone(&live_job.handle));
                }
            }
        }
    }

    /// Releases the slot of a job that cannot start yet.
    pub(super) fn yield_slot(&self, handle: &JobHandle) {
        let mut state = self.state();
        if let Some(live_job) = state.live_jobs.get(&handle.id()) {
            let entry = live_job.queue_entry.clone();
            state.queues.remove(&entry);
        }
    }

    /// Puts a job that yielded its slot back into its queue. The receiver is notified when it has a
    /// slot again.
    pub(super) fn rejoin_queue(&self, handle: &JobHandle) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.state();
        if let Some(live_job) = state.live_jobs.get_mut(&handle.id()) {
            live_job.slot_sender = Some(sender);
            let entry = live_job.queue_entry.clone();
            state.queues.enqueue(&entry);
        }
        receiver
    }

    /// Reads the parameters of a job, on a blocking thread.
    pub(super) async fn read_params(self: &Arc<Self>, handle: &JobHandle) -> io::Result<Vec<u8>> {
        let (jobs, id) = (Arc::clone(self), handle.id());
        let read = task::spawn_blocking(move || jobs.params.read(&id)).await;
        read.map_err(io::Error::other)?
    }

    /// Stores that a job runs. On an error, the job must not run.
    pub(super) async fn record_start(&self, handle: &JobHandle) -> Result<(), DatabaseError> {
        let started = now_to_millis();
        self.table.record_start(handle.id(), started).await?;

        handle.update(|snapshot| {
            snapshot.job.state = JobState::Running;
            snapshot.job.started = Some(started);
        });
        Ok(())
    }

    /// Stores the step of a job, and erases its parameters.
    pub(super) async fn record_step(self: &Arc<Self>, handle: &JobHandle, step: u64) {
        if let Err(error) = self.table.record_step(handle.id(), step).await {
            tracing::warn!(%error, "cannot store the step of a job");
        }
        self.erase_params(handle.id()).await;
        handle.update(|snapshot| snapshot.job.step = Some(step));
    }

    /// Puts a job of which nothing was done back into its queue, for another task.
    pub(super) async fn requeue(self: &Arc<Self>, handle: &Arc<JobHandle>) {
        self.record_requeue(handle).await;
        {
            let mut state = self.state();
            if let Some(live_job) = state.live_jobs.get_mut(&handle.id()) {
                (live_job.has_task, live_job.slot_sender) = (false, None);
                let entry = live_job.queue_entry.clone();
                state.queues.enqueue(&entry);
            }
        }

        // A cancellation in the meantime was left to the task, which has ended.
        if handle.cancel_token().is_cancelled() {
            self.cancel(handle).await;
        }
    }

    /// Finds a job of a workspace.
    pub(crate) async fn find(
        &self,
        workspace: &str,
        given_id: &str,
    ) -> Result<LiveOrEndedJob, Error> {
        let id = &*id::as_ulid(given_id);
        for _ in 0..2 {
            if let Some(handle) = self.find_live(workspace, id) {
                return Ok(LiveOrEndedJob::Live(handle));
            }

            let found = self.table.find(workspace.to_owned(), id.to_owned()).await;
            match found.map_err(|error| state_database_error(&error))? {
                None => return Err(job_not_found_error(workspace, given_id)),
                Some((job, result)) if job.state.is_final() => {
                    return Ok(LiveOrEndedJob::Ended(Box::new(JobSnapshot {
                        job,
                        result,
                        approval_id: None,
                    })));
                }
                // The job is between database and memory. After the submissions in progress, it is
                // in memory, or the database has its end.
                Some(_) => drop(self.submit_lock.write().await),
            }
        }

        Err(Error::internal("a job that has not ended is not in memory"))
    }

    /// Finds the job that this caller submitted with a request id.
    pub(crate) async fn find_submitted(
        &self,
        principal: &str,
        workspace: &str,
        request_id: String,
    ) -> Result<Option<Job>, Error> {
        let (principal, workspace) = (principal.to_owned(), workspace.to_owned());
        let found = self.table.find_by_request_id(principal, workspace, request_id).await;
        found.map_err(|error| state_database_error(&error))
    }

    /// Lists the jobs with request ids from `first` on and before `end`, in no order.
    pub(crate) async fn list_submitted(
        &self,
        first: &str,
        end: &str,
    ) -> Result<Vec<SubmittedJob>, Error> {
        let listed = self.table.list_by_request_ids(first.to_owned(), end.to_owned()).await;
        listed.map_err(|error| state_database_error(&error))
    }

    /// The table of jobs, for what is stored about those of the fleet.
    #[cfg(feature = "fleet")]
    pub(crate) fn table(&self) -> &JobTable {
        &self.table
    }

    /// Returns the time from its end that a job is stored.
    pub(crate) fn retention(&self) -> Duration {
        self.table.retention()
    }

    /// Lists the jobs of a query, without their results.
    pub(crate) async fn list(&self, query: JobQuery) -> Result<Vec<Job>, Error> {
        let listed = self.table.list(query).await;
        listed.map_err(|error| state_database_error(&error))
    }

    fn find_live(&self, workspace: &str, id: &str) -> Option<Arc<JobHandle>> {
        let state = self.state();
        let handle = &state.live_jobs.get(id)?.handle;
        handle.is_in_workspace(workspace).then(|| Arc::clone(handle))
    }

    /// Erases the parameters of a job, and releases its budget.
    async fn erase_params(self: &Arc<Self>, id: String) {
        {
            let mut state = self.state();
            if let Some(live_job) = state.live_jobs.get_mut(&id)
                && let Some(amount) = live_job.reserved.take()
            {
                let principal = live_job.principal.clone();
                state.pending_budget.release(&principal, amount);
            }
        }

        let jobs = Arc::clone(self);
        if let Err(error) = task::spawn_blocking(move || jobs.params.remove(&id)).await {
            tracing::error!(%error, "cannot erase the parameters of a job");
        }
    }

    /// Counts the jobs that have not ended, by the name of their state.
    pub(crate) fn live_counts(&self) -> [(&'static str, u64); 2] {
        let state = self.state();
        let live = state.live_jobs.values();
        let running = live.filter(|job| job.handle.state() == JobState::Running).count();
        let queued = state.live_jobs.len() - running;
        [("queued", queued as u64), ("running", running as u64)]
    }

    /// Counts the jobs that have ended since the daemon started, by the name of their state.
    pub(crate) fn ended_counts(&self) -> [(&'static str, u64); 3] {
        self.ended.by_state()
    }

    fn state(&self) -> MutexGuard<'_, JobsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl JobsState {
    /// Adds a queued job that holds `reserved`.
    fn add(&mut self, job: Job, reserved: PendingJobsUsage) {
        let (id, entry) = (job.id.clone(), JobQueueEntry::of(&job));
        self.queues.enqueue(&entry);
        let live_job = LiveJob {
            principal: job.principal.clone(),
            handle: JobHandle::new(job),
            queue_entry: entry,
            reserved: Some(reserved),
            has_task: false,
            slot_sender: None,
        };
        self.live_jobs.insert(id, live_job);
    }
}

#[cfg(test)]
mod tests;
