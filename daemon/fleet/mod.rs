//! The fleet: queues of jobs that several daemons share. Optional; without `[fleet]` nothing of it
//! runs.
//!
//! ```text
//!            SubmitJob with `fleet`            a NATS client
//!                     │                             │
//!                     ▼                             ▼
//!             record: QUEUED ─────────▶ message in the stream of jobs
//!                                                   │ one free place, one message
//!                                                   ▼
//!             record: CLAIMED by this daemon ◀── claim ──▶ another daemon has it: hand it back
//!                     │
//!                     ▼
//!             job in the daemon's own database, which runs it as any other
//!                     │ every third of `ack_wait`: in progress
//!                     ▼
//!             record: ENDED, with the result ──▶ message acknowledged
//! ```
//!
//! * [`work_source`] is the seam: where jobs come from, and where their results go.
//! * [`nats`] is a source.
//! * [`runner`] runs the jobs of a queue.
//! * [`Fleet`] starts all of it.
//!
//! The daemon dies: its claims stay. When it is back, its messages are delivered again, and its own
//! database says how each job ended. If it stays away, another daemon ends each job as lost, or runs
//! it again if its submission allows that.

mod backoff;
mod counts;
mod local_job;
pub(crate) mod nats;
mod recovery;
mod runner;
pub(crate) mod running;
pub(crate) mod work_source;

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{
    counts::FleetQueueState,
    local_job::{StoredFleetJob, list_stored},
    nats::{JobOutputServer, NatsJobs, NatsQueue, NatsSession, NatsSetupError},
    recovery::FleetRecovery,
    runner::FleetRunner,
    running::RunningFleetJobs,
    work_source::WorkSource,
};
use super::{
    config::fleet::{FleetConfig, FleetQueueConfig},
    error::Error,
    pipeline::Pipeline,
    store::fleet_id,
    task,
};

/// The fleet, as this daemon takes part in it.
#[derive(Debug)]
pub(crate) struct Fleet {
    session: Arc<NatsSession>,
    running: Arc<RunningFleetJobs>,
    queues: Vec<Arc<FleetQueueState>>,
}

/// Why the daemon cannot join the fleet.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JoinFleetError {
    #[error("reading the name of this daemon in its fleet: {0}")]
    DaemonId(#[source] io::Error),
    #[error("reading the jobs of the fleet: {0}")]
    Jobs(#[source] Error),
    #[error(transparent)]
    Nats(#[from] NatsSetupError),
}

impl Fleet {
    /// Joins the fleet, and begins to take jobs. Does not wait for the servers.
    pub(crate) async fn join(
        config: FleetConfig,
        pipeline: &Arc<Pipeline>,
    ) -> Result<Arc<Self>, JoinFleetError> {
        let daemon_id = match &config.daemon_id {
            Some(id) => id.clone(),
            None => fleet_id::read_or_create(&pipeline.state_dir.fleet_id_path())
                .map_err(JoinFleetError::DaemonId)?,
        };
        let session = NatsSession::start(config.clone(), &daemon_id).await?;
        tracing::info!(daemon_id, stream = config.nats.stream, "joined the fleet");

        let state = |queue: &FleetQueueConfig| {
            Arc::new(FleetQueueState::new(&queue.name, queue.places as usize))
        };
        let fleet = Arc::new(Self {
            running: Arc::default(),
            queues: config.queues.iter().map(state).collect(),
            session,
        });
        let stored = list_stored(pipeline).await.map_err(JoinFleetError::Jobs)?;
        fleet.spawn(&config, pipeline, stored);
        Ok(fleet)
    }

    /// The queues that this daemon takes jobs from.
    pub(crate) fn queues(&self) -> &[Arc<FleetQueueState>] {
        &self.queues
    }

    fn spawn(
        self: &Arc<Self>,
        config: &FleetConfig,
        pipeline: &Arc<Pipeline>,
        stored: Vec<StoredFleetJob>,
    ) {
        let runner = Arc::new(FleetRunner {
            pipeline: Arc::clone(pipeline),
            running: Arc::clone(&self.running),
            tasks: TaskTracker::new(),
            give_up: CancellationToken::new(),
            has_unsettled: AtomicBool::new(false),
        });
        let recovery = Arc::new(FleetRecovery {
            pipeline: Arc::clone(pipeline),
            session: Arc::clone(&self.session),
            running: Arc::clone(&self.running),
            give_up: runner.give_up.clone(),
        });
        task::spawn("recovery of fleet jobs", recovery.run(stored));
        for (state, queue) in self.queues.iter().zip(&config.queues) {
            let source = NatsQueue::new(Arc::clone(&self.session), queue.clone());
            let source: Arc<dyn WorkSource> = Arc::new(source);
            let queue = Arc::clone(&runner).run_queue(Arc::clone(state), source);
            task::spawn_tracked("queue of the fleet", runner.tasks.track_future(queue));
        }

        pipeline.join_fleet(Arc::new(NatsJobs::new(Arc::clone(&self.session))));
        let (pipeline, running) = (Arc::clone(pipeline), Arc::clone(&self.running));
        let terminate = pipeline.shutdown.terminate_token();
        let output = JobOutputServer::new(pipeline, Arc::clone(&self.session), running);
        task::spawn("output of fleet jobs", output.run(terminate));

        let watching = Arc::clone(&runner);
        task::spawn("shutdown of the fleet", async move { watching.watch_shutdown().await });
        task::spawn_tracked("heartbeat", Arc::clone(self).keep_alive(runner));
    }

    /// Renews the heartbeat of this daemon until it drains and all of its claims are settled.
    async fn keep_alive(self: Arc<Self>, runner: Arc<FleetRunner>) {
        let settled = CancellationToken::new();
        let drain = async {
            runner.pipeline.shutdown.draining_token().cancelled().await;
            runner.tasks.close();
            runner.tasks.wait().await;
            settled.cancel();
        };
        let beat = async {
            let places = || {
                let free = |queue: &Arc<FleetQueueState>| {
                    (
                        queue.name().to_owned(),
                        u32::try_from(queue.free_places()).unwrap_or(u32::MAX),
                    )
                };
                self.queues.iter().map(free).collect()
            };
            self.session.keep_alive(places, &settled).await;
        };
        tokio::join!(drain, beat);

        // With claims left, this daemon is not gone: its next start settles them.
        if !runner.has_unsettled.load(Ordering::Relaxed) && !runner.give_up.is_cancelled() {
            self.session.leave().await;
        }
    }
}
