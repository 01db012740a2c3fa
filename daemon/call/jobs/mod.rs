//! Jobs: which there are, how far they are, and which comes next. What they do is not seen to here.
//!
//! ```text
//! submitted ─▶ queued ─▶ running ─▶ succeeded, failed, cancelled
//!                │  ▲       │
//!                │  └───────┤ the daemon drains, and nothing was done
//!                ▼          └─▶ lost: the daemon died
//!            cancelled
//! ```
//!
//! Each change is in the log before anybody is told. A job that has not ended is in memory, too, for
//! those who wait for it.

mod queues;

use std::{
    collections::{HashMap, HashSet},
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use tokio::{sync::watch, time::sleep};
use tokio_util::sync::CancellationToken;

use self::queues::{Concurrency, QueueKey, Queues};
use super::{
    drain::Drain,
    state_error::{of_database, of_files},
};
use crate::daemon::{
    config,
    error::{Error, Reason},
    store::{
        database::{Database, DatabaseError},
        job_params::JobParams,
        jobs::{Job, JobLog, JobState, Selection, now},
        keeping::Bounds,
    },
    task,
};

/// How long to wait before the log is asked again to keep what it had no room for.
const RETRY: Duration = Duration::from_secs(2);
/// How long a client is told to wait when too many jobs wait.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The jobs.
#[derive(Debug)]
pub(crate) struct Jobs {
    log: JobLog,
    params: JobParams,
    queued_at_most: u32,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    queues: Queues,
    /// Those that have not ended, by their ids.
    live: HashMap<String, Arc<Live>>,
}

/// A job that has not ended.
#[derive(Debug)]
pub(crate) struct Live {
    seen: watch::Sender<Seen>,
    /// Told when it is to end.
    cancel: CancellationToken,
    /// Told whenever its command has written something.
    written: watch::Sender<()>,
}

/// A job as it is, and what came of it.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    /// The job.
    pub(crate) job: Job,
    /// What came of it, encoded, once it has ended.
    pub(crate) result: Option<Bytes>,
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
    /// The tool that it calls.
    pub(super) fn tool(&self) -> String {
        match self {
            Self::Live(live) => live.seen.borrow().job.tool.clone(),
            Self::Ended(seen) => seen.job.tool.clone(),
        }
    }
}

/// That a workspace has no such job.
pub(super) fn not_found(workspace: &str, id: &str) -> Error {
    let text = format!(
        "workspace {workspace} has no job {id:?}, or keeps it no longer: ListJobs tells which there are"
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
    /// The jobs that the log has. Those that wait go on waiting, those that ran are lost.
    pub(crate) async fn open(
        database: Database,
        params: JobParams,
        config: config::jobs::Jobs,
    ) -> Result<Arc<Self>, JobsError> {
        let bounds = Bounds {
            age: config.retention,
            number: config.kept,
            bytes: config.kept_bytes,
        };
        let (log, queued) = JobLog::open(database, bounds).await?;
        let ids = queued.iter().map(|job| job.id.as_str());
        params.sweep(&ids.collect::<HashSet<_>>())?;
        let mut state = State {
            queues: Queues::new(Concurrency {
                all: config.concurrent,
                each: config.queue_concurrency,
                named: config.queues,
            }),
            live: HashMap::new(),
        };
        for job in queued {
            let live = Live::new(job);
            state.push(&live);
        }
        let jobs = Arc::new(Self {
            log,
            params,
            queued_at_most: config.queued,
            state: Mutex::new(state),
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

    /// Keeps a job, and puts it into its queue. Not to be cancelled half-way.
    pub(crate) async fn submit(self: &Arc<Self>, job: Job, params: Vec<u8>) -> Result<(), Error> {
        if self.state().queues.waiting() >= self.queued_at_most {
            let text = format!(
                "{} jobs wait, and no more are taken: retry after the time given, or cancel some",
                self.queued_at_most
            );
            return Err(Error::new(Reason::ResourceExhausted, text)
                .with("limit", self.queued_at_most.to_string())
                .retry_after(RETRY_AFTER));
        }
        let (jobs, id) = (Arc::clone(self), job.id.clone());
        let kept = task::blocking(move || jobs.params.keep(&id, &params)).await;
        kept.map_err(Error::internal)?
            .map_err(|error| of_files(&error))?;
        if let Err(error) = self.log.submit(job.clone()).await {
            self.erase(job.id).await;
            return Err(of_database(&error));
        }
        self.state().push(&Live::new(job));
        Ok(())
    }

    /// The job whose turn it is.
    pub(super) fn next(&self) -> Option<Arc<Live>> {
        let mut state = self.state();
        loop {
            let id = state.queues.next()?;
            if let Some(live) = state.live.get(&id) {
                return Some(Arc::clone(live));
            }
        }
    }

    /// What a job is to do. Blocks.
    pub(super) async fn params(self: &Arc<Self>, live: &Live) -> io::Result<Vec<u8>> {
        let (jobs, id) = (Arc::clone(self), live.id());
        let read = task::blocking(move || jobs.params.read(&id)).await;
        read.map_err(io::Error::other)?
    }

    /// Keeps that a job runs. As long as that cannot be kept, it does not, unless `end` comes before it can.
    pub(super) async fn start(&self, live: &Live, end: &CancellationToken) -> Result<(), Error> {
        let started = now();
        while let Err(error) = self.log.start(live.id(), started).await {
            tracing::error!(%error, "that a job starts could not be kept");
            tokio::select! {
                () = sleep(RETRY) => {}
                () = end.cancelled() => return Err(Drain::refusal()),
            }
        }
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

    /// Puts a job of which nothing was done back into its queue.
    pub(super) async fn requeue(&self, live: &Arc<Live>) {
        if let Err(error) = self.log.requeue(live.id()).await {
            // The next daemon will take it for lost, which is no worse than it is.
            tracing::error!(%error, "that a job waits again could not be kept");
        }
        live.change(|seen| {
            seen.job.state = JobState::Queued;
            seen.job.started = None;
        });
        let mut state = self.state();
        state.queues.done(&live.key());
        state.push(live);
    }

    /// Keeps how a job that ran has ended, and tells those who wait.
    pub(super) async fn end(
        self: &Arc<Self>,
        live: &Arc<Live>,
        state: JobState,
        result: Option<Bytes>,
    ) {
        self.finish(live, state, result).await;
        self.state().queues.done(&live.key());
    }

    /// Keeps how a job has ended; without room for it, until there is some. Those who wait are told
    /// after the first attempt: the work is done.
    async fn finish(self: &Arc<Self>, live: &Arc<Live>, state: JobState, result: Option<Bytes>) {
        self.erase(live.id()).await;
        let ended = now();
        let keep = {
            let (jobs, id, result) = (Arc::clone(self), live.id(), result.clone());
            move || {
                let (jobs, id, result) = (Arc::clone(&jobs), id.clone(), result.clone());
                async move { jobs.log.end(id, state, ended, result).await }
            }
        };
        let kept = keep().await;
        live.change(|seen| {
            seen.job.state = state;
            seen.job.ended = Some(ended);
            seen.result = result;
        });
        let Err(error) = kept else {
            self.state().live.remove(&live.id());
            return;
        };
        tracing::error!(%error, "the end of a job could not be kept");
        let (jobs, id) = (Arc::downgrade(self), live.id());
        task::spawn("end of a job", async move {
            loop {
                sleep(RETRY).await;
                if keep().await.is_ok() {
                    break;
                }
            }
            if let Some(jobs) = jobs.upgrade() {
                jobs.state().live.remove(&id);
            }
        });
    }

    /// Ends a job: one that waits, here; one that runs is told to end. Answers whoever wants to see it
    /// end.
    pub(crate) async fn cancel(self: &Arc<Self>, live: &Arc<Live>) {
        live.cancel.cancel();
        let job = live.seen().job;
        let waits = {
            let mut state = self.state();
            let key = live.key();
            state
                .queues
                .remove(&key, &job.id, job.priority, job.submitted)
        };
        if waits {
            self.finish(live, JobState::Cancelled, None).await;
        }
    }

    /// A job of a workspace.
    pub(crate) async fn find(&self, workspace: &str, id: &str) -> Result<Found, Error> {
        if let Some(live) = self.live(workspace, id) {
            return Ok(Found::Live(live));
        }
        let found = self.log.find(workspace.to_owned(), id.to_owned()).await;
        match found.map_err(|error| of_database(&error))? {
            Some((job, result)) => Ok(Found::Ended(Box::new(Seen { job, result }))),
            None => Err(not_found(workspace, id)),
        }
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
        let live = state.live.get(id)?;
        (live.seen.borrow().job.workspace == workspace).then(|| Arc::clone(live))
    }

    async fn erase(self: &Arc<Self>, id: String) {
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
    fn push(&mut self, live: &Arc<Live>) {
        let job = live.seen().job;
        self.queues
            .push(&live.key(), &job.id, job.priority, job.submitted);
        self.live.insert(job.id, Arc::clone(live));
    }
}

impl Live {
    fn new(job: Job) -> Arc<Self> {
        Arc::new(Self {
            seen: watch::Sender::new(Seen { job, result: None }),
            cancel: CancellationToken::new(),
            written: watch::Sender::new(()),
        })
    }

    /// As it is.
    pub(crate) fn seen(&self) -> Seen {
        self.seen.borrow().clone()
    }

    /// As it is, and how it changes.
    pub(crate) fn watch(&self) -> watch::Receiver<Seen> {
        self.seen.subscribe()
    }

    /// Told whenever its command has written something.
    pub(crate) fn written(&self) -> &watch::Sender<()> {
        &self.written
    }

    /// Cancelled when it is to end.
    pub(super) fn cancelled(&self) -> &CancellationToken {
        &self.cancel
    }

    /// Waits until it has ended.
    pub(crate) async fn ended(&self) -> Seen {
        let mut seen = self.seen.subscribe();
        // It cannot close: `self` holds the sender.
        drop(seen.wait_for(|seen| seen.job.state.is_final()).await);
        self.seen()
    }

    fn id(&self) -> String {
        self.seen.borrow().job.id.clone()
    }

    fn key(&self) -> QueueKey {
        let seen = self.seen.borrow();
        QueueKey {
            workspace: seen.job.workspace.clone(),
            queue: seen.job.queue.clone(),
        }
    }

    fn change(&self, change: impl FnOnce(&mut Seen)) {
        self.seen.send_modify(change);
    }
}
