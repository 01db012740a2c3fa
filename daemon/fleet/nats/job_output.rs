//! The daemon that runs fleet jobs, as the other daemons use it: it sends them the output of its
//! jobs, and cancels jobs for them.
//!
//! ```text
//! watching daemon                                 daemon that runs the job
//!       │── FleetWatchRequest {offsets} ── jig.watch.DAEMON ──▶│
//!       │◀── WatchJobResponse {stdout} ─── reply subject ──────│  at most 1 MiB beyond
//!       │◀── WatchJobResponse {stdout} ────────────────────────│  the offsets
//!       │── FleetWatchRequest {offsets} ──────────────────────▶│  every 15 seconds, and as
//!       │◀── WatchJobResponse {job} ───────────────────────────│  output arrives
//! ```
//!
//! Messages of NATS can be lost. The watcher finds a gap in the offsets, and asks again under
//! another reply subject.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use async_nats::{Message, Subject};
use bytes::Bytes;
use prost::Message as _;
use tokio::{sync::watch, time::sleep};
use tokio_stream::StreamExt as _;
use tokio_util::sync::CancellationToken;

use super::{
    connection::is_daemon_inbox,
    names::{cancel_subject, watch_subject},
    session::NatsSession,
};
use crate::{
    api::v1::{
        FleetCancelRequest, FleetCancelResponse, FleetJobState, FleetWatchRequest, Job,
        JobKeepAlive, JobOutput, WatchJobResponse, watch_job_response::Event,
    },
    daemon::{
        error::Error,
        fleet::{running::RunningFleetJobs, work_source::SourceUnavailable},
        pipeline::{
            Pipeline,
            command_output::OutputCursor,
            context::CallContext,
            fleet_jobs::is_fleet_job_id,
            jobs::{JobSnapshot, LiveOrEndedJob},
        },
        store::session::StepId,
        task,
    },
};

/// Output that is sent beyond the offsets of the watcher.
pub(super) const OUTPUT_WINDOW_BYTES: u64 = 1 << 20;
/// Time without another message after which the watcher gets `keep_alive`.
pub(super) const OUTPUT_KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// Time without a repetition of the request after which the watcher has gone.
const WATCHER_TIMEOUT: Duration = Duration::from_secs(45);
const MAX_WATCHERS_PER_JOB: usize = 4;
const MAX_WATCHERS: usize = 256;
/// How long a claimed job may take until it is a job of this daemon.
const MAX_SUBMISSION_TIME: Duration = Duration::from_secs(3);
const SUBMISSION_POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Delay before the daemon subscribes again after a failure.
const SUBSCRIBE_INTERVAL: Duration = Duration::from_secs(1);

/// Serves the other daemons of the fleet.
#[derive(Debug)]
pub(crate) struct JobOutputServer {
    pipeline: Arc<Pipeline>,
    session: Arc<NatsSession>,
    running: Arc<RunningFleetJobs>,
    /// The watchers, by their reply subjects.
    watchers: Mutex<BTreeMap<Subject, Watcher>>,
}

/// A daemon that watches a job.
#[derive(Debug)]
struct Watcher {
    job_id: String,
    demand: watch::Sender<Demand>,
}

/// What a watcher has received, by its last request.
#[derive(Debug, Clone, Copy)]
struct Demand {
    offsets: [u64; 2],
    time: Instant,
}

impl JobOutputServer {
    pub(crate) fn new(
        pipeline: Arc<Pipeline>,
        session: Arc<NatsSession>,
        running: Arc<RunningFleetJobs>,
    ) -> Arc<Self> {
        Arc::new(Self { pipeline, session, running, watchers: Mutex::default() })
    }

    /// Serves requests until `stop`.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                served = self.serve() => {
                    if let Err(error) = served {
                        tracing::warn!(%error, "other daemons cannot watch the fleet jobs of this one");
                    }
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(SUBSCRIBE_INTERVAL) => {}
            }
        }
    }

    async fn serve(self: &Arc<Self>) -> Result<(), SourceUnavailable> {
        let inbound = self.session.inbound().await?;
        let (client, daemon_id) = (inbound.client(), self.session.daemon_id());
        let watches = client.subscribe(watch_subject(daemon_id)).await;
        let mut watches = watches.map_err(SourceUnavailable::new)?;
        let cancels = client.subscribe(cancel_subject(daemon_id)).await;
        let mut cancels = cancels.map_err(SourceUnavailable::new)?;
        loop {
            tokio::select! {
                message = watches.next() => match message {
                    Some(message) => self.handle_watch(message),
                    None => return Ok(()),
                },
                message = cancels.next() => match message {
                    Some(message) => {
                        let server = Arc::clone(self);
                        task::spawn("cancellation of a fleet job", async move {
                            server.handle_cancel(message).await;
                        });
                    }
                    None => return Ok(()),
                },
            }
        }
    }

    async fn handle_cancel(&self, message: Message) {
        let Some(reply) = daemon_reply(&message) else { return };
        let Ok(request) = FleetCancelRequest::decode(message.payload) else { return };
        if !is_fleet_job_id(&request.job_id) {
            return;
        }
        let found = match self.find_job(&request.job_id).await {
            Ok(Some(LiveOrEndedJob::Live(job))) => {
                self.pipeline.jobs.cancel(&job).await;
                true
            }
            Ok(Some(LiveOrEndedJob::Ended(_))) => true,
            Ok(None) => false,
            Err(error) => {
                tracing::warn!(%error, job_id = request.job_id, "cannot cancel a fleet job");
                return;
            }
        };
        let response = FleetCancelResponse { found }.encode_to_vec();
        if let Err(error) = self.session.client().publish(reply, response.into()).await {
            tracing::warn!(%error, "cannot reply to another daemon");
        }
    }

    fn handle_watch(self: &Arc<Self>, message: Message) {
        let Some(reply) = daemon_reply(&message) else { return };
        let Ok(request) = FleetWatchRequest::decode(message.payload) else { return };
        if !is_fleet_job_id(&request.job_id) {
            return;
        }
        let mut watchers = self.watchers();
        if request.end {
            // Its task ends with the sender.
            watchers.remove(&reply);
            return;
        }

        let offsets = [request.stdout_offset, request.stderr_offset];
        let demand = Demand { offsets, time: Instant::now() };
        if let Some(watcher) = watchers.get(&reply) {
            watcher.demand.send_replace(demand);
            return;
        }

        let of_job = watchers.values().filter(|watcher| watcher.job_id == request.job_id).count();
        let demands = if of_job < MAX_WATCHERS_PER_JOB && watchers.len() < MAX_WATCHERS {
            let (sender, receiver) = watch::channel(demand);
            let watcher = Watcher { job_id: request.job_id.clone(), demand: sender };
            watchers.insert(reply.clone(), watcher);
            Some(receiver)
        } else {
            None
        };
        drop(watchers);

        let server = Arc::clone(self);
        task::spawn("output of a fleet job", async move {
            if let Some(demands) = demands {
                let sent = server.send_output(&request.job_id, &reply, demands).await;
                server.watchers().remove(&reply);
                match sent {
                    Ok(OutputEnd::Complete) => {}
                    Ok(OutputEnd::WatcherGone) => return,
                    // The watcher asks again, because it hears nothing.
                    Err(error) => {
                        tracing::warn!(%error, job_id = request.job_id, "cannot send the output of a fleet job");
                        return;
                    }
                }
            }
            // No output follows.
            server.send(&reply, Event::Job(Job::default())).await;
        });
    }

    /// Sends the output of a job until it has ended and all was sent, or the watcher has gone.
    async fn send_output(
        &self,
        job_id: &str,
        reply: &Subject,
        mut demands: watch::Receiver<Demand>,
    ) -> Result<OutputEnd, Error> {
        let Some(job) = self.find_job(job_id).await? else { return Ok(OutputEnd::Complete) };
        let mut output = OutgoingOutput::new(&self.pipeline, job, demands.borrow().offsets)?;
        loop {
            // Take the snapshot before reading the output: if it is final, no output follows later.
            let snapshot = output.updates.borrow_and_update().clone();
            let has_ended = snapshot.job.state.is_final();
            output.written.mark_unchanged();
            let demand = *demands.borrow_and_update();

            let mut is_complete = true;
            for index in 0..output.cursors.len() {
                let limit = demand.offsets[index].saturating_add(OUTPUT_WINDOW_BYTES);
                is_complete &= loop {
                    if output.cursors[index].offset() >= limit {
                        break false;
                    }
                    match output.read(index, &snapshot).await? {
                        Some(event) => self.send(reply, event).await,
                        None => break true,
                    }
                };
            }
            if has_ended && is_complete {
                for event in output.ends() {
                    self.send(reply, event).await;
                }
                return Ok(OutputEnd::Complete);
            }

            tokio::select! {
                changed = demands.changed() => if changed.is_err() {
                    return Ok(OutputEnd::WatcherGone);
                },
                changed = output.updates.changed(), if !has_ended => if changed.is_err() {
                    return Ok(OutputEnd::Complete);
                },
                _changed = output.written.changed(), if !has_ended => {}
                () = sleep(OUTPUT_KEEP_ALIVE_INTERVAL) => {
                    if demand.time.elapsed() > WATCHER_TIMEOUT {
                        return Ok(OutputEnd::WatcherGone);
                    }
                    self.send(reply, Event::KeepAlive(JobKeepAlive {})).await;
                }
            }
        }
    }

    /// Sends an event. A lost message is a gap that the watcher finds.
    async fn send(&self, reply: &Subject, event: Event) {
        let message = WatchJobResponse { event: Some(event) }.encode_to_vec();
        if let Err(error) = self.session.client().publish(reply.clone(), message.into()).await {
            tracing::debug!(%error, "a message to a watcher of a fleet job was lost");
        }
    }

    /// Finds the job of this daemon that is the fleet job. Waits until a claimed one is stored.
    async fn find_job(&self, id: &str) -> Result<Option<LiveOrEndedJob>, Error> {
        let until = Instant::now() + MAX_SUBMISSION_TIME;
        loop {
            if let Some(job) = self.running.find(id) {
                return Ok(Some(LiveOrEndedJob::Live(job)));
            }
            let record = self.session.records().await?.get(id).await?;
            let Some((record, _revision)) = record else { return Ok(None) };
            if record.daemon_id != self.session.daemon_id() {
                return Ok(None);
            }
            match record.state() {
                FleetJobState::Ended if !record.local_job_id.is_empty() => {
                    let found = self.pipeline.jobs.find(&record.workspace, &record.local_job_id);
                    return found.await.map(Some);
                }
                // It is about to be stored in the database of this daemon, or its end in the record.
                FleetJobState::Claimed if Instant::now() < until => {
                    sleep(SUBMISSION_POLL_INTERVAL).await;
                }
                FleetJobState::Claimed => {
                    return Err(Error::internal("a claimed job is not in the database yet"));
                }
                FleetJobState::Unspecified | FleetJobState::Queued | FleetJobState::Ended => {
                    return Ok(None);
                }
            }
        }
    }

    fn watchers(&self) -> MutexGuard<'_, BTreeMap<Subject, Watcher>> {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why no more output is sent.
enum OutputEnd {
    Complete,
    WatcherGone,
}

/// The output of a job for one watcher.
struct OutgoingOutput {
    pipeline: Arc<Pipeline>,
    context: CallContext,
    updates: watch::Receiver<JobSnapshot>,
    written: watch::Receiver<()>,
    /// Standard output and standard error.
    cursors: [OutputCursor; 2],
}

impl OutgoingOutput {
    fn new(
        pipeline: &Arc<Pipeline>,
        job: LiveOrEndedJob,
        offsets: [u64; 2],
    ) -> Result<Self, Error> {
        let (updates, written) = match job {
            LiveOrEndedJob::Live(job) => (job.watch(), job.output_notifier().subscribe()),
            LiveOrEndedJob::Ended(snapshot) => {
                (watch::Sender::new(*snapshot).subscribe(), watch::Sender::new(()).subscribe())
            }
        };
        let pipeline = Arc::clone(pipeline);
        let context = pipeline.job_context(&updates.borrow().job)?;
        Ok(Self { pipeline, context, updates, written, cursors: offsets.map(OutputCursor::at) })
    }

    /// Reads the next bytes of an output, if there are any yet.
    async fn read(&mut self, index: usize, snapshot: &JobSnapshot) -> Result<Option<Event>, Error> {
        let Some(step) = snapshot.job.step else { return Ok(None) };
        let path = &StepId::stream_paths(step)[index];
        let cursor = &mut self.cursors[index];
        let chunk = cursor.read(&self.pipeline, &self.context, path).await?;
        Ok(chunk.map(|chunk| {
            let output = JobOutput { offset: chunk.offset, data: chunk.data.into() };
            if index == 0 { Event::Stdout(output) } else { Event::Stderr(output) }
        }))
    }

    /// Output without bytes after all others: the watcher finds a gap before it.
    fn ends(&self) -> [Event; 2] {
        let [stdout, stderr] = self.cursors.each_ref().map(OutputCursor::offset);
        let end = |offset| JobOutput { offset, data: Bytes::new() };
        [Event::Stdout(end(stdout)), Event::Stderr(end(stderr))]
    }
}

/// Returns where to reply. Replies to other subjects would have the rights of this daemon.
fn daemon_reply(message: &Message) -> Option<Subject> {
    let reply = message.reply.clone().filter(|reply| is_daemon_inbox(reply));
    if reply.is_none() {
        tracing::debug!(reply = ?message.reply, "ignored a request of another program");
    }
    reply
}
