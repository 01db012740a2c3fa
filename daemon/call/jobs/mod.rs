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

mod ends;
pub(crate) mod id;
mod live;
mod queues;
mod response;
mod room;

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::sync::{RwLock, oneshot};
use ulid::{Generator, Ulid};

pub(crate) use self::live::{Live, Seen};
use self::{
    queues::{Concurrency, Entry, Queues},
    room::{Amount, Room},
};
use super::{drain::Drain, state_error::of_database};
use crate::daemon::{
    config,
    descriptors::Attempts,
    error::{Error, Reason},
    store::{
        database::{Database, DatabaseError},
        failure::state_failure,
        job_params::JobParams,
        jobs::{Job, JobLog, JobState, Selection, now},
        keeping::Bounds,
    },
    task,
};

/// How long to wait before what the state directory did not do is asked of it again.
pub(super) const RETRY: Duration = Duration::from_secs(2);

/// The jobs.
#[derive(Debug)]
pub(crate) struct Jobs {
    log: JobLog,
    params: JobParams,
    /// Makes ids of which the later ones are the greater ones.
    ids: Mutex<Generator>,
    state: Mutex<State>,
    /// Held to read by whoever submits a job: the log may have it, and the state not yet.
    submitting: RwLock<()>,
    drain: Drain,
}

#[derive(Debug)]
struct State {
    queues: Queues,
    room: Room,
    /// Those that have not ended, by their ids.
    known: HashMap<String, Known>,
}

/// A job that has not ended, and where it is.
#[derive(Debug)]
struct Known {
    live: Arc<Live>,
    entry: Entry,
    caller: String,
    /// The room that it takes while it waits.
    room: Option<Amount>,
    /// Whether it was its turn: then its task sees to its end.
    has_task: bool,
    /// Told when it is its turn again.
    waits: Option<oneshot::Sender<()>>,
}

/// A job that was found.
#[derive(Debug)]
pub(crate) enum Found {
    /// It has not ended.
    Live(Arc<Live>),
    /// It has.
    Ended(Box<Seen>),
}

impl Found {
    /// The job.
    pub(super) fn job(&self) -> Job {
        match self {
            Self::Live(live) => live.seen().job,
            Self::Ended(seen) => seen.job.clone(),
        }
    }
}

/// That a workspace has no such job.
pub(super) fn not_found(workspace: &str, id: &str) -> Error {
    let text = format!(
        "workspace {workspace} has no job {id:?}, or keeps it no longer: give the id that the answer to its submission has"
    );
    Error::new(Reason::JobNotFound, text).with("job_id", id)
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

impl Jobs {
    /// The jobs that the log has. Those that wait go on waiting, those that ran are lost. `is_shared`: whether
    /// callers are told apart, so that one leaves something to others.
    pub(crate) async fn open(
        database: Database,
        params: JobParams,
        config: config::jobs::Jobs,
        is_shared: bool,
        drain: &Drain,
    ) -> Result<Arc<Self>, JobsError> {
        let bounds =
            Bounds { age: config.retention, number: config.kept, bytes: config.kept_bytes };
        let (log, queued) = JobLog::open(database, bounds).await?;
        let ids = queued.iter().map(|job| job.id.as_str());
        let sizes = params.sweep(&ids.collect())?;
        let mut state = State {
            queues: Queues::new(Concurrency {
                all: config.concurrent as usize,
                each: config.queue_concurrency,
                named: config.queues,
                is_shared,
            }),
            room: Room::new(
                Amount { jobs: config.queued.into(), bytes: config.queued_bytes },
                is_shared,
            ),
            known: HashMap::new(),
        };
        for job in queued {
            let bytes = sizes.get(&job.id).copied().unwrap_or_default();
            let amount = Amount::of_job(bytes);
            state.room.put(&job.principal, amount);
            state.add(job, amount);
        }
        let jobs = Arc::new(Self {
            log,
            params,
            ids: Mutex::new(Generator::new()),
            state: Mutex::new(state),
            submitting: RwLock::default(),
            drain: drain.clone(),
        });
        let (weak, growth) = (Arc::downgrade(&jobs), jobs.log.growth());
        task::spawn("retention of jobs", async move {
            while let Some(jobs) = weak.upgrade() {
                if let Err(error) = jobs.log.retain().await {
                    tracing::warn!(%error, "old jobs could not be removed");
                }
                drop(jobs);
                growth.wait().await;
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
        let amount = Amount::of_job(params.len() as u64);
        self.state().room.take(&job.principal, amount)?;
        let _submits = self.submitting.read().await;
        let kept = self.keep(&job, params.into(), until).await;
        let mut state = self.state();
        match kept {
            Ok(()) => state.add(job, amount),
            Err(_) => state.room.give_back(&job.principal, amount),
        }
        kept
    }

    async fn keep(
        self: &Arc<Self>,
        job: &Job,
        params: Bytes,
        until: Option<Instant>,
    ) -> Result<(), Error> {
        let mut attempts = Attempts::until(until);
        loop {
            let (jobs, id, params) = (Arc::clone(self), job.id.clone(), params.clone());
            let kept = task::blocking(move || jobs.params.keep(&id, &params)).await;
            match kept.map_err(Error::internal)? {
                Err(error) if attempts.another_of_kernel(&error).await => {}
                kept => break kept.map_err(|error| state_failure(&error))?,
            }
        }
        if let Err(error) = self.log.submit(job.clone()).await {
            self.erase(job.id.clone()).await;
            return Err(of_database(&error));
        }
        Ok(())
    }

    /// Leaves something for others from now on: there are several callers, who are told apart.
    pub(super) fn share(&self) {
        let mut state = self.state();
        state.queues.share();
        state.room.share();
    }

    /// The next job whose turn it is that has no task yet; those that have one are told. `most`: how many of
    /// one caller may run.
    pub(super) fn next(&self, most: impl Fn(&str) -> usize) -> Option<Arc<Live>> {
        let mut state = self.state();
        loop {
            let id = state.queues.next(&most)?;
            let Some(known) = state.known.get_mut(&id) else {
                continue;
            };
            match known.waits.take() {
                // One that has gone away leaves the queues when it ends.
                Some(waits) => drop(waits.send(())),
                None => {
                    known.has_task = true;
                    return Some(Arc::clone(&known.live));
                }
            }
        }
    }

    /// Gives back the place of a job that cannot begin yet.
    pub(super) fn step_aside(&self, live: &Live) {
        let mut state = self.state();
        if let Some(known) = state.known.get(&live.id()) {
            let entry = known.entry.clone();
            state.queues.leave(&entry);
        }
    }

    /// Has a job that stepped aside wait for its turn; answers what tells when it is.
    pub(super) fn wait_again(&self, live: &Live) -> oneshot::Receiver<()> {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.state();
        if let Some(known) = state.known.get_mut(&live.id()) {
            known.waits = Some(sender);
            let entry = known.entry.clone();
            state.queues.push(&entry);
        }
        receiver
    }

    /// What a job is to do. Blocks.
    pub(super) async fn params(self: &Arc<Self>, live: &Live) -> io::Result<Vec<u8>> {
        let (jobs, id) = (Arc::clone(self), live.id());
        let read = task::blocking(move || jobs.params.read(&id)).await;
        read.map_err(io::Error::other)?
    }

    /// Keeps that a job runs. Where that cannot be kept, it must not.
    pub(super) async fn start(&self, live: &Live) -> Result<(), DatabaseError> {
        let started = now();
        self.log.start(live.id(), started).await?;
        live.change(|seen| {
            seen.job.state = JobState::Running;
            seen.job.started = Some(started);
        });
        Ok(())
    }

    /// Keeps which step a job is, and forgets what it was to do.
    pub(super) async fn begin(self: &Arc<Self>, live: &Live, step: u64) {
        if let Err(error) = self.log.begin(live.id(), step).await {
            tracing::warn!(%error, "the step of a job could not be kept");
        }
        self.erase(live.id()).await;
        live.change(|seen| seen.job.step = Some(step));
    }

    /// Puts a job of which nothing was done back into its queue, for another task.
    pub(super) async fn requeue(self: &Arc<Self>, live: &Arc<Live>) {
        self.take_back(live).await;
        {
            let mut state = self.state();
            if let Some(known) = state.known.get_mut(&live.id()) {
                (known.has_task, known.waits) = (false, None);
                let entry = known.entry.clone();
                state.queues.push(&entry);
            }
        }
        // Who ended it meanwhile has left that to the task.
        if live.cancelled().is_cancelled() {
            self.cancel(live).await;
        }
    }

    /// A job of a workspace.
    pub(crate) async fn find(&self, workspace: &str, id: &str) -> Result<Found, Error> {
        let id = &*id::as_ulid(id);
        for _ in 0..2 {
            if let Some(live) = self.live(workspace, id) {
                return Ok(Found::Live(live));
            }
            let found = self.log.find(workspace.to_owned(), id.to_owned()).await;
            match found.map_err(|error| of_database(&error))? {
                None => return Err(not_found(workspace, id)),
                Some((job, result)) if job.state.is_final() => {
                    return Ok(Found::Ended(Box::new(Seen { job, result })));
                }
                // It was not known yet, or is not any more: once those who submit now are through, either it
                // is, or the log has how it ended.
                Some(_) => drop(self.submitting.write().await),
            }
        }
        Err(Error::internal("a job that has not ended is not known"))
    }

    /// The job that this caller has submitted with a request id.
    pub(crate) async fn submitted(
        &self,
        principal: &str,
        workspace: &str,
        request: String,
    ) -> Result<Option<Job>, Error> {
        let (principal, workspace) = (principal.to_owned(), workspace.to_owned());
        let found = self.log.submitted(principal, workspace, request).await;
        found.map_err(|error| of_database(&error))
    }

    /// The jobs of a selection, without what came of them.
    pub(crate) async fn list(&self, selection: Selection) -> Result<Vec<Job>, Error> {
        let listed = self.log.list(selection).await;
        listed.map_err(|error| of_database(&error))
    }

    fn live(&self, workspace: &str, id: &str) -> Option<Arc<Live>> {
        let state = self.state();
        let live = &state.known.get(id)?.live;
        live.is_of(workspace).then(|| Arc::clone(live))
    }

    /// Forgets what a job was to do.
    async fn erase(self: &Arc<Self>, id: String) {
        {
            let mut state = self.state();
            let known = state.known.get_mut(&id);
            let taken = known.and_then(|known| Some((known.caller.clone(), known.room.take()?)));
            if let Some((caller, amount)) = taken {
                state.room.give_back(&caller, amount);
            }
        }
        let jobs = Arc::clone(self);
        if let Err(error) = task::blocking(move || jobs.params.erase(&id)).await {
            tracing::error!(%error, "the parameters of a job could not be erased");
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Adds a job that waits, and has taken this room.
    fn add(&mut self, job: Job, room: Amount) {
        let (id, entry) = (job.id.clone(), Entry::of(&job));
        self.queues.push(&entry);
        let known = Known {
            caller: job.principal.clone(),
            live: Live::new(job),
            entry,
            room: Some(room),
            has_task: false,
            waits: None,
        };
        self.known.insert(id, known);
    }
}

#[cfg(test)]
mod tests;
