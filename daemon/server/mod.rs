//! The server: listeners, layers, health, reflection, and the end.
//!
//! The layers, from the outside in:
//!
//! 1. [`trace`] gives the call its id and its span, and sees how it ends;
//! 2. [`explain`] says why a call was refused before a handler saw it;
//! 3. [`mod@panic`] turns a panic into `INTERNAL`;
//! 4. [`deadline`] ends the call when its caller stops waiting;
//! 5. [`auth`] finds out who calls, and refuses who may not;
//! 6. [`intake`] counts the call, and takes its request in whole before it is decoded.

mod auth;
mod authority;
mod body_limits;
mod catch_panic;
mod connection;
mod connection_limits;
mod deadline;
mod error_details;
mod health;
pub(crate) mod listener;
pub(crate) mod peer;
mod revocation;
mod trace;

use std::{
    collections::{BTreeSet, HashSet},
    io::{self, Write as _},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
    time::timeout,
};
use tokio_stream::{StreamExt as _, wrappers::ReceiverStream};
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;

use self::{
    health::{Health, HealthConditions},
    listener::Listeners,
    trace::STANDARD_METHODS,
};
use crate::{
    api::{
        self,
        v1::{
            approval_service_server::ApprovalServiceServer,
            artifact_service_server::ArtifactServiceServer,
            catalog_service_server::CatalogServiceServer,
            daemon_service_server::DaemonServiceServer, event_service_server::EventServiceServer,
            invoke_service_server::InvokeServiceServer, job_service_server::JobServiceServer,
            process_service_server::ProcessServiceServer, tool_service_server::ToolServiceServer,
            transfer_service_server::TransferServiceServer,
        },
    },
    daemon::{
        catalog::MAX_REQUEST_BYTES,
        grpc::{
            approvals::ApprovalServiceHandler, artifacts::ArtifactServiceHandler,
            catalog::CatalogServiceHandler as Catalog, events::EventServiceHandler,
            info::DaemonServiceHandler, invoke::InvokeServiceHandler, jobs::JobServiceHandler,
            processes::ProcessServiceHandler, tools::ToolServiceHandler,
            transfer::TransferServiceHandler,
        },
        pipeline::{Pipeline, shutdown::Shutdown},
        sandbox::pools::SandboxPools,
        task,
    },
};

/// Largest request of the standard services: names of services, files and types.
const MAX_STANDARD_REQUEST_BYTES: usize = 64 << 10;
/// Calls on one connection at one time; the default of the protocol's own library is no limit.
const MAX_STREAMS_PER_CONNECTION: u32 = 1024;
/// Streams that a client may reset before they were accepted (rapid reset, CVE-2023-44487).
const MAX_PENDING_RESETS: usize = 64;
/// Streams that were reset from here over a connection's life: every call that a client gives up is
/// one, so it must not be a small number.
const MAX_LOCAL_RESETS: usize = 1 << 20;
/// Bytes under way on one stream and on one connection.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 8 << 20;
/// Bytes of a request's metadata.
const MAX_HEADER_LIST_BYTES: u32 = 16 << 10;
/// A connection that is silent for so long is asked whether its peer still lives, and closed when
/// it does not answer.
const KEEPALIVE_INTERVAL_AND_TIMEOUT: (Duration, Duration) =
    (Duration::from_secs(30), Duration::from_secs(10));
/// How long answers that are written already may take to reach their callers.
const CONNECTION_CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// What is served.
#[derive(Debug)]
pub(crate) struct ServerContext {
    /// What calls go through.
    pub(crate) pipeline: Arc<Pipeline>,
    /// What is told about the daemon.
    pub(crate) info: DaemonServiceHandler,
    /// The sandboxes, to see that they can still be made.
    pub(crate) sandboxes: Arc<SandboxPools>,
    /// Whether commands are run.
    pub(crate) runs_commands: bool,
    /// Whether the state directory is lost, where that is looked at.
    pub(crate) state_lost: Option<watch::Receiver<bool>>,
}

/// How the daemon is told to end.
#[derive(Debug)]
pub(crate) enum ShutdownTrigger {
    /// By SIGTERM or SIGINT; a second one ends everything at once.
    Signals(ShutdownSignals),
    /// By whoever embeds it, when the sender is dropped.
    Channel(tokio::sync::oneshot::Receiver<()>),
}

/// The signals that end the daemon. They are caught from the moment that this exists.
#[derive(Debug)]
pub(crate) struct ShutdownSignals {
    terminate: Signal,
    interrupt: Signal,
}

/// Serves until told to end, then drains. `announce` says where it listens, once calls are
/// answered.
pub(crate) async fn serve(
    listeners: Listeners,
    services: ServerContext,
    until: ShutdownTrigger,
    drain_timeout: Duration,
    announce: bool,
) -> io::Result<()> {
    let ServerContext { pipeline, info, sandboxes, runs_commands, state_lost } = services;
    let drain = pipeline.shutdown.clone();
    let (reporter, health_service) = tonic_health::server::health_reporter();
    let methods: HashSet<_> = pipeline.catalog.method_paths().map(str::to_owned).collect();
    let services = methods
        .iter()
        .map(String::as_str)
        .chain(STANDARD_METHODS)
        .filter_map(|method| method.split_once('/'));
    let services: BTreeSet<_> = services.map(|(service, _)| service.to_owned()).collect();
    let conditions = HealthConditions { runs_commands, ..HealthConditions::default() };
    let health = Health::start(reporter, services.into_iter().collect(), conditions).await;

    let upload = pipeline.catalog.request_limits("jig.v1.TransferService/Upload");
    let largest_part = upload.map_or(0, |measure| measure.max_bytes);
    let router = Server::builder()
        .max_concurrent_streams(MAX_STREAMS_PER_CONNECTION)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL_AND_TIMEOUT.0))
        .http2_keepalive_timeout(Some(KEEPALIVE_INTERVAL_AND_TIMEOUT.1))
        .http2_max_header_list_size(MAX_HEADER_LIST_BYTES)
        .http2_max_pending_accept_reset_streams(Some(MAX_PENDING_RESETS))
        .http2_max_local_error_reset_streams(Some(MAX_LOCAL_RESETS))
        .layer(trace::TraceLayer::new(pipeline.telemetry.clone(), methods))
        .layer(error_details::ErrorDetailsLayer)
        .layer(catch_panic::CatchPanicLayer)
        .layer(deadline::DeadlineLayer)
        .layer(auth::AuthLayer(Arc::clone(&pipeline)))
        .layer(body_limits::BodyLimitsLayer::new(Arc::clone(&pipeline)))
        .add_service(health_service.max_decoding_message_size(MAX_STANDARD_REQUEST_BYTES))
        .add_service(reflection_v1())
        .add_service(reflection_v1alpha())
        .add_service(
            ToolServiceServer::new(ToolServiceHandler(Arc::clone(&pipeline)))
                .max_decoding_message_size(MAX_REQUEST_BYTES),
        )
        .add_service(ArtifactServiceServer::new(ArtifactServiceHandler::new(Arc::clone(&pipeline))))
        .add_service(CatalogServiceServer::new(Catalog(Arc::clone(&pipeline))))
        .add_service(
            InvokeServiceServer::new(InvokeServiceHandler(Arc::clone(&pipeline)))
                .max_decoding_message_size(MAX_REQUEST_BYTES),
        )
        .add_service(ApprovalServiceServer::new(ApprovalServiceHandler(Arc::clone(&pipeline))))
        .add_service(EventServiceServer::new(EventServiceHandler::new(Arc::clone(&pipeline))))
        .add_service(
            TransferServiceServer::new(TransferServiceHandler::new(Arc::clone(&pipeline)))
                .max_decoding_message_size(largest_part),
        )
        .add_service(
            ProcessServiceServer::new(ProcessServiceHandler(Arc::clone(&pipeline)))
                .max_decoding_message_size(MAX_REQUEST_BYTES),
        )
        .add_service(
            JobServiceServer::new(JobServiceHandler::new(Arc::clone(&pipeline)))
                .max_decoding_message_size(MAX_REQUEST_BYTES),
        )
        .add_service(DaemonServiceServer::new(info));
    let addresses = listeners.addresses();
    // Its end would be the server's.
    let accepted = listeners.accept(&health, drain.draining_token());
    let incoming = ReceiverStream::new(accepted).chain(tokio_stream::pending());
    // Not when the drain begins: who talks to a process that goes on meanwhile goes on, too. New
    // connections are not taken, and other calls are refused by the pipeline.
    let closing = CancellationToken::new();
    let stop = closing.clone();
    let server =
        router.serve_with_incoming_shutdown(incoming, async move { stop.cancelled().await });
    let server = task::spawn("server", server);
    if announce {
        let mut stdout = io::stdout().lock();
        for address in &addresses {
            writeln!(stdout, "listening on {address}")?;
        }
        stdout.flush()?;
    }
    tracing::info!(addresses = ?addresses, "serving");

    if let Some(mut state_lost) = state_lost {
        let health = health.clone();
        task::spawn("state watch", async move {
            while state_lost.changed().await.is_ok() {
                let is_lost = *state_lost.borrow_and_update();
                health.update(|known| known.has_lost_state = is_lost).await;
            }
        });
    }
    let watch = {
        let health = health.clone();
        task::spawn("keeper watch", async move {
            let mut runs_commands = runs_commands;
            loop {
                let can_run = tokio::select! {
                    () = sandboxes.keeper_died() => break,
                    can_run = sandboxes.availability_changed() => can_run,
                };
                if can_run == runs_commands {
                    continue;
                }
                runs_commands = can_run;
                if runs_commands {
                    tracing::info!("commands can be run again");
                } else {
                    tracing::error!("no sandbox can be made: no command is run until one can");
                }
                health.update(|known| known.runs_commands = runs_commands).await;
            }
            tracing::error!(
                "the keeper of sandboxes has died: no commands can be run until the daemon is restarted"
            );
            health.update(|known| known.runs_commands = false).await;
        })
    };
    let end_at_once = until.wait().await;
    watch.abort();
    tracing::info!("draining");
    health.update(|known| known.is_draining = true).await;
    drain.drain();
    drain_calls(&drain, end_at_once, drain_timeout).await;
    // Who watches has seen all of them end.
    drain.terminate();
    closing.cancel();
    // What is left are connections on which the last answers are being written, or which nobody
    // closes.
    if timeout(CONNECTION_CLOSE_TIMEOUT, server).await.is_err() {
        tracing::warn!("connections were cut that did not close in time");
    }
    Ok(())
}

/// Waits for running calls, then ends them.
async fn drain_calls(drain: &Shutdown, mut again: SecondSignal, drain_timeout: Duration) {
    let at_once = async {
        again.wait().await;
        tracing::warn!("told to end a second time: killing what runs");
        drain.kill();
        std::future::pending::<()>().await;
    };
    let in_order = async {
        if timeout(drain_timeout, task::wait_for_tracked()).await.is_err() {
            tracing::warn!("the drain timeout has passed: ending what runs");
            drain.terminate();
            task::wait_for_tracked().await;
        }
    };
    tokio::select! {
        () = in_order => {}
        () = at_once => {}
        // Bound of last resort: a kill that is pending is waited for by its own call for 5 seconds.
        () = tokio::time::sleep(drain_timeout + Duration::from_secs(30)) => tracing::error!("calls were left behind"),
    }
}

/// Waits for a second word that the daemon is to end.
struct SecondSignal(Option<ShutdownSignals>);

impl SecondSignal {
    async fn wait(&mut self) {
        match &mut self.0 {
            Some(signals) => signals.recv().await,
            None => std::future::pending().await,
        }
    }
}

impl ShutdownTrigger {
    async fn wait(self) -> SecondSignal {
        match self {
            Self::Signals(mut signals) => {
                signals.recv().await;
                SecondSignal(Some(signals))
            }
            Self::Channel(receiver) => {
                // An error means that the sender was dropped, which is the word.
                let _dropped = receiver.await;
                SecondSignal(None)
            }
        }
    }
}

impl ShutdownSignals {
    /// Catches the signals from now on.
    pub(crate) fn catch() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn recv(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

fn reflection_builder() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(api::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
        // Both versions describe both: what one of them lists, a client can call.
        .include_reflection_service(false)
        .register_encoded_file_descriptor_set(tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET)
}

fn reflection_v1() -> tonic_reflection::server::v1::ServerReflectionServer<
    impl tonic_reflection::server::v1::ServerReflection,
> {
    reflection_builder()
        .build_v1()
        .expect("the descriptors were read when the daemon was built")
        .max_decoding_message_size(MAX_STANDARD_REQUEST_BYTES)
}

fn reflection_v1alpha() -> tonic_reflection::server::v1alpha::ServerReflectionServer<
    impl tonic_reflection::server::v1alpha::ServerReflection,
> {
    reflection_builder()
        .build_v1alpha()
        .expect("the descriptors were read when the daemon was built")
        .max_decoding_message_size(MAX_STANDARD_REQUEST_BYTES)
}

/// When the daemon started, by both clocks.
pub(crate) fn start_time() -> (SystemTime, Instant) {
    (SystemTime::now(), Instant::now())
}
