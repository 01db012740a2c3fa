//! Runs the jobs of one queue: claims as many as would begin now, runs each as a job of this
//! daemon, and returns its end to the source.

use std::{
    convert::Infallible,
    future::{Future, pending},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    backoff::{Backoff, retry},
    counts::{FleetJobEvent, FleetQueueState},
    job_log::{FleetJobFacts, FleetJobLog},
    local_job::{LocalJob, find_or_submit, mark_settled},
    running::RunningFleetJobs,
    work_source::{
        ClaimedWork, FinishOutcome, JobEnd, PlacedWork, Progress, ReleaseReason, Work, WorkSource,
    },
};
use crate::{
    api::{self, v1::Job},
    daemon::{
        error::{Error, Reason},
        pipeline::{
            Pipeline,
            jobs::{JobHandle, JobSnapshot, LiveOrEndedJob, lost_response},
        },
        store::jobs::JobState,
        task,
    },
};

/// Delay of work that this daemon has no place for, if the error names none.
const NO_PLACE_DELAY: Duration = Duration::from_secs(1);
/// Delay of work that this daemon could not begin. Another daemon may be able to.
const FAILURE_DELAY: Duration = Duration::from_secs(5);
/// Longest delay before a claim that could not be kept is tried again. Its lease may end soon.
const MAX_KEEP_RETRY: Duration = Duration::from_secs(1);
/// The same as a part of the usual interval.
const KEEP_RETRY_FRACTION: u32 = 4;
/// How long the daemon tries to store the end of a job after its commands had to stop. Its own
/// database has the end.
const LAST_ATTEMPTS: Duration = Duration::from_secs(5);

/// What the runners of all queues share.
#[derive(Debug)]
pub(super) struct FleetRunner {
    pub(super) pipeline: Arc<Pipeline>,
    /// The start of this daemon.
    pub(super) start_id: Arc<str>,
    pub(super) log: Arc<FleetJobLog>,
    pub(super) running: Arc<RunningFleetJobs>,
    /// The tasks of queues and jobs.
    pub(super) tasks: TaskTracker,
    /// Cancelled when no more attempts to reach the source are made.
    pub(super) give_up: CancellationToken,
    /// Whether a claim remains that this daemon could not settle.
    pub(super) has_unsettled: AtomicBool,
}

/// Why a job of this daemon has ended, or will not run.
enum LocalEnd {
    Ended {
        snapshot: Box<JobSnapshot>,
        /// Whether the shutdown of this daemon has stopped it.
        stopped_by_shutdown: bool,
    },
    /// It was cancelled before it began, because the daemon drains, or by a caller.
    NotBegun,
    /// An earlier start of the daemon may have run it.
    MayHaveBegun,
    /// The database of this daemon could not be read until it stopped. The claim stays.
    Unreadable,
}

impl FleetRunner {
    /// Cancels `give_up` when running commands are killed, or a while after they had to stop.
    pub(super) async fn watch_shutdown(&self) {
        let shutdown = &self.pipeline.shutdown;
        tokio::select! {
            () = shutdown.kill_token().cancelled_owned() => {}
            () = async {
                shutdown.terminate_token().cancelled().await;
                sleep(LAST_ATTEMPTS).await;
            } => {}
        }
        self.give_up.cancel();
    }

    /// Runs the jobs of a queue until the daemon drains.
    pub(super) async fn run_queue(
        self: Arc<Self>,
        queue: Arc<FleetQueueState>,
        source: Arc<dyn WorkSource>,
    ) {
        let draining = self.pipeline.shutdown.draining_token();
        let mut backoff = Backoff::default();
        // Claims that the daemon has already need no free places.
        let mut resumes = true;
        while resumes || !draining.is_cancelled() {
            let claimed = if resumes {
                let claimed = source.resume().await;
                claimed.map(|all| all.into_iter().map(|work| (work, queue.take_place())).collect())
            } else {
                source.claim(&queue, &draining).await
            };
            let claimed: Vec<PlacedWork> = match claimed {
                Ok(claimed) => claimed,
                Err(error) => {
                    tracing::warn!(%error, queue = queue.name(), "cannot take jobs of the fleet");
                    let was_resuming = std::mem::replace(&mut resumes, true);
                    if !backoff.wait(&draining).await && was_resuming {
                        return;
                    }
                    continue;
                }
            };

            if !resumes {
                backoff = Backoff::default();
            }
            resumes = false;
            for (claimed, place) in claimed {
                let runner = Arc::clone(&self);
                let job = async move {
                    runner.run(&*claimed).await;
                    // The place is free once the source has the end.
                    drop((claimed, place));
                };
                task::spawn_tracked("fleet job", self.tasks.track_future(job));
            }
        }
    }

    /// Runs one job, and returns its end to the source.
    async fn run(&self, claimed: &dyn ClaimedWork) {
        let mut facts = FleetJobFacts::of_work(claimed.work());
        let ran = self.keeping_claim(claimed, self.run_locally(claimed, &mut facts.local_id)).await;
        let (event, outcome) = match ran {
            Ok(LocalEnd::Ended { snapshot, stopped_by_shutdown }) => {
                let state = snapshot.job.state;
                facts.outcome = state.name();
                (end_event(state), self.finish(*snapshot, stopped_by_shutdown, claimed).await)
            }
            Ok(LocalEnd::NotBegun) => {
                facts.reason = self.pipeline.shutdown.is_draining().then_some(Reason::Draining);
                let released = self.release(claimed, ReleaseReason::NoPlace, Duration::ZERO).await;
                (FleetJobEvent::Released, released)
            }
            Ok(LocalEnd::MayHaveBegun) => {
                facts.outcome = JobState::Lost.name();
                let job = lost_job(claimed.work());
                let end = JobEnd { job, artifacts: None, stopped_by_shutdown: false };
                (FleetJobEvent::Lost, claimed.finish(end, &self.give_up).await)
            }
            Err(error) => {
                facts.reason = Some(error.reason);
                (FleetJobEvent::Rejected, self.settle_error(claimed, &error).await)
            }
            Ok(LocalEnd::Unreadable) => {
                self.has_unsettled.store(true, Ordering::Relaxed);
                return;
            }
        };
        if outcome != FinishOutcome::Unknown {
            let Work { id, claim_id, .. } = claimed.work();
            mark_settled(&self.pipeline, id, claim_id).await;
        }

        match outcome {
            FinishOutcome::Stored => self.log.report(event, facts),
            FinishOutcome::Superseded => self.log.report(FleetJobEvent::Superseded, facts),
            FinishOutcome::Requeued => self.log.report(FleetJobEvent::Released, facts),
            FinishOutcome::Unknown => {
                tracing::warn!(
                    job = claimed.work().id,
                    "a fleet job is unsettled: the next start of this daemon reports its end"
                );
                self.has_unsettled.store(true, Ordering::Relaxed);
            }
        }
    }

    /// Runs a job at this daemon, and waits for its end. Sets the id that it has here.
    async fn run_locally(
        &self,
        claimed: &dyn ClaimedWork,
        local_id: &mut String,
    ) -> Result<LocalEnd, Error> {
        let local = self.find_or_submit(claimed.work()).await;
        if let Ok(LocalJob::Known(known)) = &local {
            *local_id = known.job().id;
        }
        let facts = FleetJobFacts::of_work(claimed.work());
        let facts = FleetJobFacts { local_id: local_id.clone(), ..facts };
        self.log.report(FleetJobEvent::Claimed, facts);

        let handle = match local? {
            LocalJob::Known(LiveOrEndedJob::Live(handle)) => handle,
            LocalJob::Known(LiveOrEndedJob::Ended(snapshot)) => {
                return Ok(LocalEnd::Ended { snapshot, stopped_by_shutdown: false });
            }
            // The next claim ends it.
            LocalJob::Cancelled => return Ok(LocalEnd::NotBegun),
            LocalJob::MayHaveBegun => return Ok(LocalEnd::MayHaveBegun),
            LocalJob::Unreadable(_) => return Ok(LocalEnd::Unreadable),
        };

        let _running = self.running.add(&claimed.work().id, Arc::clone(&handle));
        tokio::select! {
            biased;
            snapshot = handle.wait_for_end() => {
                return Ok(self.ended(snapshot, handle.is_cancelled()));
            }
            () = self.pipeline.shutdown.draining_token().cancelled_owned() => {}
            never = self.show_approvals(claimed, &handle) => match never {},
        }
        Ok(self.drain(&handle).await)
    }

    /// Finds the job of this daemon for a piece of work, or submits it. Repeats that while the database
    /// cannot be read, until the daemon stops.
    async fn find_or_submit(&self, work: &Work) -> Result<LocalJob, Error> {
        loop {
            let local = find_or_submit(&self.pipeline, work, &self.start_id).await;
            let Ok(LocalJob::Unreadable(error)) = &local else { return local };
            let job = &work.id;
            tracing::error!(%error, job, "cannot look a job of the fleet up: keeping its claim");
            if self.give_up.run_until_cancelled(sleep(FAILURE_DELAY)).await.is_none() {
                return local;
            }
        }
    }

    /// Waits for the end of a running job while the daemon drains. A job that has not begun is
    /// cancelled here, so that another daemon can run it.
    async fn drain(&self, handle: &JobHandle) -> LocalEnd {
        let was_queued = handle.snapshot().job.state == JobState::Queued;
        if was_queued {
            self.pipeline.jobs.cancel(handle).await;
        }
        let snapshot = handle.wait_for_end().await;
        let was_cancelled = was_queued && snapshot.job.state == JobState::Cancelled;
        if was_cancelled && snapshot.job.step.is_none() {
            LocalEnd::NotBegun
        } else {
            self.ended(snapshot, !was_queued && handle.is_cancelled())
        }
    }

    /// The end of a job, which a caller may have cancelled.
    fn ended(&self, snapshot: JobSnapshot, was_cancelled: bool) -> LocalEnd {
        let stopped_by_shutdown = snapshot.job.state == JobState::Cancelled
            && !was_cancelled
            && self.pipeline.shutdown.is_draining();
        LocalEnd::Ended { snapshot: Box::new(snapshot), stopped_by_shutdown }
    }

    async fn finish(
        &self,
        snapshot: JobSnapshot,
        stopped_by_shutdown: bool,
        claimed: &dyn ClaimedWork,
    ) -> FinishOutcome {
        match JobEnd::of_snapshot(&self.pipeline, snapshot, stopped_by_shutdown) {
            // Storing artifacts takes a while.
            Ok(end) => self.keeping_claim(claimed, claimed.finish(end, &self.give_up)).await,
            Err(error) => claimed.reject(&error, &self.give_up).await,
        }
    }

    /// Settles work that could not be submitted.
    async fn settle_error(&self, claimed: &dyn ClaimedWork, error: &Error) -> FinishOutcome {
        let job = &claimed.work().id;
        match release_reason(error) {
            Some(reason) => {
                tracing::warn!(%error, job, "cannot begin a fleet job: giving it back");
                let delay = match reason {
                    ReleaseReason::NoPlace => error.retry_after.unwrap_or(NO_PLACE_DELAY),
                    ReleaseReason::Failure => FAILURE_DELAY,
                };
                self.release(claimed, reason, delay).await
            }
            None => {
                tracing::warn!(%error, reason = error.reason.name(), job, "rejected a fleet job");
                claimed.reject(error, &self.give_up).await
            }
        }
    }

    async fn release(
        &self,
        claimed: &dyn ClaimedWork,
        reason: ReleaseReason,
        delay: Duration,
    ) -> FinishOutcome {
        claimed.release(reason, delay, &self.give_up).await
    }

    /// Runs `work`, and keeps the claim meanwhile.
    async fn keeping_claim<T>(
        &self,
        claimed: &dyn ClaimedWork,
        work: impl Future<Output = T>,
    ) -> T {
        let mut work = pin!(work);
        let progress_interval = claimed.progress_interval();
        let retry_interval = (progress_interval / KEEP_RETRY_FRACTION).min(MAX_KEEP_RETRY);
        let mut is_kept = true;
        let mut ticks = interval(progress_interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick is immediate.
        if claimed.work().resumed_from.is_none() {
            ticks.tick().await;
        }
        loop {
            tokio::select! {
                biased;
                result = &mut work => return result,
                _now = ticks.tick() => {
                    let (progress, job) = (claimed.progress().await, &claimed.work().id);
                    match &progress {
                        Ok(Progress::Kept) => {}
                        Ok(Progress::CancelRequested) => self.cancel(claimed.work()).await,
                        Ok(Progress::ClaimLost) => {
                            tracing::warn!(job, "the claim of a fleet job was lost");
                            self.cancel_if_queued(claimed.work()).await;
                            return work.await;
                        }
                        Err(error) => {
                            if is_kept {
                                tracing::warn!(%error, job, "cannot keep the claim of a fleet job");
                            }
                            ticks.reset_after(retry_interval);
                        }
                    }
                    is_kept = progress.is_ok();
                }
            }
        }
    }

    /// Shows callers at other daemons which approval a job waits for.
    async fn show_approvals(&self, claimed: &dyn ClaimedWork, handle: &JobHandle) -> Infallible {
        let mut updates = handle.watch();
        let mut shown = String::new();
        loop {
            let approval_id =
                updates.borrow_and_update().pending_approval().unwrap_or_default().to_owned();
            if approval_id != shown {
                let show = || claimed.show_approval(&approval_id);
                retry(&self.give_up, &claimed.work().id, "show an approval", show).await;
                shown = approval_id;
            }
            if updates.changed().await.is_err() {
                // The job has ended, which another branch sees.
                pending::<()>().await;
            }
        }
    }

    /// Cancels a job that has not begun, and that this daemon may not run any longer.
    async fn cancel_if_queued(&self, work: &Work) {
        if let Some(handle) = self.running.find(&work.id)
            && handle.snapshot().job.state == JobState::Queued
        {
            self.pipeline.jobs.cancel(&handle).await;
        }
    }

    /// Cancels a job that callers at other daemons cancel.
    async fn cancel(&self, work: &Work) {
        if let Some(handle) = self.running.find(&work.id) {
            self.pipeline.jobs.cancel(&handle).await;
        }
    }
}

/// What the end of a job of this daemon is to its fleet.
fn end_event(state: JobState) -> FleetJobEvent {
    if state == JobState::Lost { FleetJobEvent::Lost } else { FleetJobEvent::Finished }
}

/// The job of work that an earlier start of the daemon may have run.
fn lost_job(work: &Work) -> Job {
    let request = &work.request;
    Job {
        state: api::v1::JobState::Lost.into(),
        tool: request.tool.clone(),
        dialect: request.dialect.clone(),
        queue: work.queue.clone(),
        priority: request.priority.unwrap_or_default(),
        session: work.session.clone().unwrap_or_default(),
        principal: work.principal.clone(),
        end_time: Some(SystemTime::now().into()),
        result: Some(lost_response(&request.tool, None)),
        ..Job::default()
    }
}

/// Why work is given back after this error of its submission. `None` if no daemon could begin it.
fn release_reason(error: &Error) -> Option<ReleaseReason> {
    let no_place =
        [Reason::ResourceExhausted, Reason::NoSpace, Reason::Draining, Reason::StateLost];
    if no_place.contains(&error.reason) {
        Some(ReleaseReason::NoPlace)
    } else if [Reason::Internal, Reason::Timeout].contains(&error.reason) {
        Some(ReleaseReason::Failure)
    } else {
        None
    }
}
