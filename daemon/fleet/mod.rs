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
//! * [`nats`] and [`postgres`] are sources. The picture is that of NATS.
//! * [`runner`] runs the jobs of a queue.
//! * [`Fleet`] starts all of it.
//!
//! The daemon dies: its claims stay. When it is back, its messages are delivered again, and its own
//! database says how each job ended. If it stays away, another daemon ends each job as lost, or runs
//! it again if its submission allows that.

mod backoff;
mod counts;
mod failure;
mod fleet_session;
mod identity;
mod in_flight;
mod job_artifacts;
mod job_log;
mod local_job;
pub(crate) mod nats;
mod postgres;
mod queued_request;
mod record_job;
mod recovery;
mod runner;
pub(crate) mod running;
mod transition;
pub(crate) mod work_source;

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio_util::{sync::CancellationToken, task::TaskTracker};
use ulid::Ulid;

use self::{
    counts::FleetQueueState,
    fleet_session::FleetSession,
    identity::FleetIdentity,
    job_log::FleetJobLog,
    local_job::{StoredFleetJob, list_stored},
    nats::{JobOutputServer, NatsJobs, NatsQueue, NatsSession, NatsSetupError},
    postgres::{
        PostgresJobs, PostgresQueue, PostgresSession, PostgresSetupError, delete_old_rows,
        judge_daemons,
    },
    recovery::FleetRecovery,
    runner::FleetRunner,
    running::RunningFleetJobs,
    work_source::WorkSource,
};
use super::{
    config::fleet::{FleetConfig, FleetServers},
    error::Error,
    pipeline::Pipeline,
    store::{fleet_id, fleet_starts},
    task,
};

/// The fleet, as this daemon takes part in it.
#[derive(Debug)]
pub(crate) struct Fleet {
    session: FleetSession,
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
    #[error(transparent)]
    Postgres(#[from] PostgresSetupError),
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
        let start_id = Ulid::generate().to_string();
        let known_starts = record_start(pipeline, &start_id).await;
        let identity = FleetIdentity { daemon_id: daemon_id.into(), start_id: start_id.into() };
        let queues = FleetQueueState::of_all(&config.queues, &pipeline.jobs);
        let log = Arc::new(FleetJobLog {
            audit: pipeline.telemetry.audit().clone(),
            daemon_id: Arc::clone(&identity.daemon_id),
            queues: queues.clone(),
        });
        let session = match &config.servers {
            FleetServers::Nats(nats) => FleetSession::Nats(
                NatsSession::start(config.clone(), nats, identity.clone(), Arc::clone(&log))
                    .await?,
            ),
            FleetServers::Postgres(postgres) => FleetSession::Postgres(PostgresSession::new(
                &config,
                postgres,
                identity.clone(),
                known_starts,
                Arc::clone(&log),
            )?),
        };
        let FleetIdentity { daemon_id, start_id } = identity;
        tracing::info!(%daemon_id, %start_id, "joined the fleet");

        let fleet = Arc::new(Self { running: Arc::default(), queues, session });
        let stored = list_stored(pipeline).await.map_err(JoinFleetError::Jobs)?;
        for job in &stored {
            pipeline.held_jobs.hold(&job.local_id);
        }
        fleet.spawn(&config, pipeline, (start_id, log), stored);
        Ok(fleet)
    }

    /// The queues that this daemon takes jobs from.
    pub(crate) fn queues(&self) -> &[Arc<FleetQueueState>] {
        &self.queues
    }

    /// Whether another daemon has the name of this one, which takes no jobs then.
    pub(crate) fn is_name_taken(&self) -> bool {
        match &self.session {
            FleetSession::Nats(session) => session.is_name_taken(),
            // Claims name the start of their daemon.
            FleetSession::Postgres(_) => false,
        }
    }

    fn spawn(
        self: &Arc<Self>,
        config: &FleetConfig,
        pipeline: &Arc<Pipeline>,
        (start_id, log): (Arc<str>, Arc<FleetJobLog>),
        stored: Vec<StoredFleetJob>,
    ) {
        let runner = Arc::new(FleetRunner {
            pipeline: Arc::clone(pipeline),
            start_id,
            log,
            running: Arc::clone(&self.running),
            tasks: TaskTracker::new(),
            give_up: CancellationToken::new(),
            has_unsettled: AtomicBool::new(false),
        });
        let (session, for_recovery) = (self.session.clone(), Arc::clone(&runner));
        let recovery = Arc::new(FleetRecovery { session, runner: for_recovery }).run(stored);
        task::spawn("recovery of fleet jobs", runner.tasks.track_future(recovery));
        for (state, queue) in self.queues.iter().zip(&config.queues) {
            let source: Arc<dyn WorkSource> = match &self.session {
                FleetSession::Nats(session) => {
                    Arc::new(NatsQueue::new(Arc::clone(session), queue.clone()))
                }
                FleetSession::Postgres(session) => {
                    Arc::new(PostgresQueue::new(Arc::clone(session), queue.clone()))
                }
            };
            let queue = Arc::clone(&runner).run_queue(Arc::clone(state), source);
            task::spawn_tracked("queue of the fleet", runner.tasks.track_future(queue));
        }

        let watching = Arc::clone(&runner);
        task::spawn("shutdown of the fleet", async move { watching.watch_shutdown().await });
        match &self.session {
            FleetSession::Nats(session) => self.serve_nats(session, runner),
            FleetSession::Postgres(session) => {
                let calls = session.with_own_connection();
                let stop = pipeline.shutdown.draining_token();
                // Calls can wait for locks, and the judge must not miss a look.
                let judgement = judge_daemons(session.with_own_connection(), stop.clone());
                task::spawn("judgement of dead daemons", judgement);
                let deletion = delete_old_rows(Arc::clone(&calls), stop);
                task::spawn("deletion of old fleet jobs", deletion);
                pipeline.join_fleet(Arc::new(PostgresJobs::new(calls)));
            }
        }
    }

    /// Serves the calls about jobs on NATS, the requests of other daemons, and the heartbeat.
    fn serve_nats(self: &Arc<Self>, session: &Arc<NatsSession>, runner: Arc<FleetRunner>) {
        let pipeline = Arc::clone(&runner.pipeline);
        pipeline.join_fleet(Arc::new(NatsJobs::new(Arc::clone(session))));
        let running = Arc::clone(&self.running);
        let terminate = pipeline.shutdown.terminate_token();
        let output = JobOutputServer::new(pipeline, Arc::clone(session), running);
        task::spawn("output of fleet jobs", output.run(terminate));

        let keep_alive = Arc::clone(self).keep_alive(Arc::clone(session), runner);
        task::spawn_tracked("heartbeat", keep_alive);
    }

    /// Renews the heartbeat of this daemon until it drains and all of its claims are settled.
    async fn keep_alive(self: Arc<Self>, session: Arc<NatsSession>, runner: Arc<FleetRunner>) {
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
            tokio::select! {
                () = session.keep_alive(places, &settled) => {}
                never = session.keep_objects() => match never {},
            }
        };
        tokio::join!(drain, beat);

        // With claims left, this daemon is not gone: its next start settles them.
        if !runner.has_unsettled.load(Ordering::Relaxed) && !runner.give_up.is_cancelled() {
            session.leave().await;
        }
    }
}

/// Notes in the database that it has the jobs of this start. Returns the starts whose jobs it has.
/// Without the note, claims that a later start finds without a job count as lost.
async fn record_start(pipeline: &Pipeline, start_id: &str) -> Vec<String> {
    let table = pipeline.jobs.table();
    let recorded = async {
        let place = fleet_starts::read_place(&pipeline.state_dir.database_path());
        let place = place.map_err(|error| error.to_string())?;
        let recorded = table.record_fleet_start(place, start_id.to_owned()).await;
        recorded.map_err(|error| error.to_string())?;
        let listed = table.list_fleet_starts(start_id.to_owned()).await;
        listed.map_err(|error| error.to_string())
    };
    recorded.await.unwrap_or_else(|error| {
        tracing::warn!(
            error,
            "the next start cannot tell which claims of the fleet have not begun"
        );
        vec![start_id.to_owned()]
    })
}
