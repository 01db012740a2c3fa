//! The gRPC server: listeners, middleware, health, reflection and graceful shutdown.
//!
//! The layers, from the outside in:
//!
//! 1. [`trace`] assigns the call id, opens the span and records how the call ends;
//! 2. [`error_details`] adds reason and details to errors that tonic returns before a handler runs;
//! 3. [`catch_panic`] turns a panic into `INTERNAL`;
//! 4. [`deadline`] ends the call at the client's deadline;
//! 5. [`auth`] authenticates the caller and checks its role;
//! 6. [`body_limits`] counts the call against the caller's rate, and buffers the request before it is
//!    decoded.

mod auth;
mod authority;
mod body_limits;
mod browser_guard;
mod catch_panic;
mod connection;
mod connection_limits;
mod connection_server;
mod deadline;
mod error_details;
mod health;
mod health_listener;
pub(crate) mod inherited_listeners;
pub(crate) mod listener;
mod metrics_listener;
pub(crate) mod peer;
mod ping_ack;
mod protocol_servers;
mod revocation;
mod served_addresses;
pub(crate) mod service_manager;
pub(crate) mod tls;
mod trace;
mod unread_body;

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    io,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
    task::JoinHandle,
    time::timeout,
};
use tonic::service::Routes;
use tonic_health::pb::health_server::{Health as HealthService, HealthServer};
use tower::ServiceBuilder;

use self::{
    health::{Health, HealthConditions},
    listener::Listeners,
    protocol_servers::{GrpcServices, ProtocolServers, ProtocolSettings},
    served_addresses::ServedAddresses,
    service_manager::ServiceManager,
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
            watch_service_server::WatchServiceServer,
            workspace_service_server::WorkspaceServiceServer,
        },
    },
    daemon::{
        catalog::MAX_REQUEST_BYTES,
        config::{
            http::HttpConfig,
            lifetimes::{ConnectionAge, ShutdownTimes},
        },
        grpc::{
            approvals::ApprovalServiceHandler, artifacts::ArtifactServiceHandler,
            catalog::CatalogServiceHandler, events::EventServiceHandler,
            info::DaemonServiceHandler, invoke::InvokeServiceHandler, jobs::JobServiceHandler,
            processes::ProcessServiceHandler, tools::ToolServiceHandler,
            transfer::TransferServiceHandler, watch::WatchServiceHandler,
            workspaces::WorkspaceServiceHandler,
        },
        http::HttpService,
        pipeline::{Pipeline, shutdown::Shutdown},
        queue::ByteBudget,
        sandbox::pools::SandboxPools,
        task,
    },
};

/// Largest request of the standard services: names of services, files and types.
const MAX_STANDARD_REQUEST_BYTES: usize = 64 << 10;
/// How long responses that were written already may take to reach their clients at shutdown.
const CONNECTION_CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time beyond the drain timeout after which shutdown stops waiting for calls. A call itself waits
/// up to 5 seconds for the kill of its processes.
const MAX_DRAIN_OVERRUN: Duration = Duration::from_secs(30);

/// What the server serves.
#[derive(Debug)]
pub(crate) struct ServerContext {
    pub(crate) pipeline: Arc<Pipeline>,
    pub(crate) info: DaemonServiceHandler,
    /// Who may call from browsers.
    pub(crate) http: HttpConfig,
    /// Metadata that the agent-sandbox runtime serves.
    pub(crate) agent_sandbox_metadata: BTreeMap<String, String>,
    pub(crate) connection_age: ConnectionAge,
    /// Watched: health depends on whether sandboxes can be built.
    pub(crate) sandboxes: Arc<SandboxPools>,
    /// Whether commands can run at start.
    pub(crate) can_run_commands: bool,
    /// Whether the files of the state directory are lost. `None` if they are not watched.
    pub(crate) state_lost: Option<watch::Receiver<bool>>,
}

/// The event that begins shutdown.
#[derive(Debug)]
pub(crate) enum ShutdownTrigger {
    /// SIGTERM or SIGINT. A second signal kills all running calls.
    Signals(ShutdownSignals),
    /// The embedding process drops the sender.
    Channel(tokio::sync::oneshot::Receiver<()>),
}

/// SIGTERM and SIGINT. They are caught from the moment that this value exists.
#[derive(Debug)]
pub(crate) struct ShutdownSignals {
    terminate: Signal,
    interrupt: Signal,
}

/// Serves until `trigger`, then drains.
///
/// With `announce`, prints the addresses to standard output once calls are accepted.
pub(crate) async fn serve(
    mut listeners: Listeners,
    context: ServerContext,
    trigger: ShutdownTrigger,
    times: ShutdownTimes,
    announce: bool,
    service_manager: ServiceManager,
) -> io::Result<()> {
    let ServerContext {
        pipeline,
        info,
        http,
        agent_sandbox_metadata,
        connection_age,
        sandboxes,
        can_run_commands,
        state_lost,
    } = context;
    let shutdown = pipeline.shutdown.clone();
    let methods: HashSet<_> = pipeline.catalog.method_paths().map(str::to_owned).collect();

    let (reporter, health_service) = tonic_health::server::health_reporter();
    let conditions = HealthConditions { can_run_commands, ..HealthConditions::default() };
    let health = Health::start(reporter, service_names(&methods), conditions).await;

    let monitoring = listeners.take_monitoring();
    let addresses = ServedAddresses::new(&listeners, &monitoring);
    let buffered = Arc::<ByteBudget>::default();
    let grpc_of = |methods, routes| grpc_service(&pipeline, methods, routes, &buffered);
    let health_grpc = grpc_of(HashSet::new(), Routes::new(health_service.clone()));
    let grpc = grpc_of(methods, routes(&pipeline, info, health_service));
    let grpc = GrpcServices { all: grpc, health: health_grpc, buffered };
    let settings = ProtocolSettings { http, agent_sandbox_metadata, connection_age };
    let servers = ProtocolServers::new(&pipeline, grpc, settings)?;

    // Connections stay open when the drain begins: clients continue to talk to their running
    // processes. The listeners accept no new ones, and the pipeline rejects new calls.
    listeners.accept(|protocol| servers.of(protocol), &health, &shutdown.draining_token());
    // Probes and scrapers see a daemon that drains.
    monitoring.accept(|protocol| servers.of(protocol), &health, &shutdown.terminate_token());

    if announce {
        addresses.print()?;
    }
    addresses.log();
    service_manager.ready(pipeline.workspaces.configured()).await;
    if let Some(state_lost) = state_lost {
        spawn_state_watch(health.clone(), state_lost);
    }
    let keeper_watch = spawn_keeper_watch(health.clone(), sandboxes, can_run_commands);

    let mut second_signal = trigger.wait().await;
    service_manager.stopping();
    health.update(|conditions| conditions.is_draining = true).await;
    let is_forced = wait_before_drain(times.delay, &mut second_signal).await;
    keeper_watch.abort();
    tracing::info!("draining");
    shutdown.drain();
    if is_forced {
        kill_calls(&shutdown);
    }
    drain_calls(&shutdown, second_signal, times.drain_timeout).await;

    // Unless the shutdown was forced, all calls have ended, and event streams have delivered their
    // ends. End the streams too.
    shutdown.terminate();
    // The remaining connections deliver their last responses, or their clients keep them open.
    if timeout(CONNECTION_CLOSE_TIMEOUT, servers.close()).await.is_err() {
        tracing::warn!("closed connections that their clients kept open");
    }
    Ok(())
}

/// Names of all services with a method, for health.
fn service_names(methods: &HashSet<String>) -> Vec<String> {
    let names: BTreeSet<&str> = methods
        .iter()
        .map(String::as_str)
        .chain(STANDARD_METHODS)
        .filter_map(|method| Some(method.split_once('/')?.0))
        .collect();
    names.into_iter().map(str::to_owned).collect()
}

/// The gRPC services with their layers. `buffered` limits the memory of incomplete requests.
fn grpc_service(
    pipeline: &Arc<Pipeline>,
    methods: HashSet<String>,
    routes: Routes,
    buffered: &Arc<ByteBudget>,
) -> HttpService {
    let body_limits = body_limits::BodyLimitsLayer::new(Arc::clone(pipeline), Arc::clone(buffered));
    let service = ServiceBuilder::new()
        .layer(trace::TraceLayer::new(pipeline.telemetry.clone(), methods))
        .layer(error_details::ErrorDetailsLayer)
        .layer(catch_panic::CatchPanicLayer)
        .layer(deadline::DeadlineLayer)
        .layer(auth::AuthLayer(Arc::clone(pipeline)))
        .layer(body_limits)
        .service(routes.prepare());
    HttpService::new(service)
}

/// Registers all services.
fn routes(
    pipeline: &Arc<Pipeline>,
    info: DaemonServiceHandler,
    health: HealthServer<impl HealthService>,
) -> Routes {
    let pipeline = || Arc::clone(pipeline);
    let upload = pipeline().catalog.request_limits("jig.v1.TransferService/Upload").cloned();
    let max_upload_part_bytes = upload.map_or(0, |limits| limits.max_bytes);

    Routes::new(health.max_decoding_message_size(MAX_STANDARD_REQUEST_BYTES))
        .add_service(reflection_v1())
        .add_service(reflection_v1alpha())
        .add_service(
            ToolServiceServer::new(ToolServiceHandler(pipeline()))
                .max_decoding_message_size(MAX_REQUEST_BYTES),
        )
        .add_service(ArtifactServiceServer::new(ArtifactServiceHandler::new(pipeline())))
        .add_service(CatalogServiceServer::new(CatalogServiceHandler(pipeline())))
        .add_service(
            InvokeServiceServer::new(InvokeServiceHandler(pipeline()))
                .max_decoding_message_size(MAX_REQUEST_BYTES),
        )
        .add_service(ApprovalServiceServer::new(ApprovalServiceHandler(pipeline())))
        .add_service(EventServiceServer::new(EventServiceHandler::new(pipeline())))
        .add_service(
            TransferServiceServer::new(TransferServiceHandler::new(pipeline()))
                .max_decoding_message_size(max_upload_part_bytes),
        )
        .add_service(WatchServiceServer::new(WatchServiceHandler::new(pipeline())))
        .add_service(WorkspaceServiceServer::new(WorkspaceServiceHandler(pipeline())))
        .add_service(
            ProcessServiceServer::new(ProcessServiceHandler::new(pipeline()))
                .max_decoding_message_size(MAX_REQUEST_BYTES),
        )
        .add_service(
            JobServiceServer::new(JobServiceHandler::new(pipeline()))
                .max_decoding_message_size(MAX_REQUEST_BYTES),
        )
        .add_service(DaemonServiceServer::new(info))
}

/// Starts a task that reports to health whether the state directory is lost.
fn spawn_state_watch(health: Health, mut state_lost: watch::Receiver<bool>) {
    task::spawn("state watch", async move {
        while state_lost.changed().await.is_ok() {
            let is_lost = *state_lost.borrow_and_update();
            health.update(|conditions| conditions.has_lost_state = is_lost).await;
        }
    });
}

/// Starts a task that reports to health whether sandboxes can be built. Ends when the keeper dies.
fn spawn_keeper_watch(
    health: Health,
    sandboxes: Arc<SandboxPools>,
    mut can_run_commands: bool,
) -> JoinHandle<()> {
    task::spawn("keeper watch", async move {
        loop {
            let can_run = tokio::select! {
                () = sandboxes.keeper_died() => break,
                can_run = sandboxes.wait_for_availability_change() => can_run,
            };
            if can_run == can_run_commands {
                continue;
            }

            can_run_commands = can_run;
            if can_run_commands {
                tracing::info!("commands can be run again");
            } else {
                tracing::error!("no sandbox can be built: commands are rejected until one can");
            }
            health.update(|conditions| conditions.can_run_commands = can_run_commands).await;
        }

        tracing::error!(
            "the keeper of sandboxes (process jig-keeper) has died: no command can run until the daemon is restarted"
        );
        health.update(|conditions| conditions.can_run_commands = false).await;
    })
}

/// Gives load balancers the time to notice that the daemon is not ready. Returns whether a second
/// signal came.
async fn wait_before_drain(delay: Duration, second_signal: &mut SecondSignal) -> bool {
    if delay.is_zero() {
        return false;
    }
    tracing::info!(?delay, "not ready any more: calls are accepted until the shutdown delay ends");
    tokio::select! {
        () = tokio::time::sleep(delay) => false,
        () = second_signal.wait() => true,
    }
}

fn kill_calls(shutdown: &Shutdown) {
    tracing::warn!("received a second signal: killing running calls");
    shutdown.kill();
}

/// Waits for running calls to complete. Terminates them after `drain_timeout`, and kills them on a
/// second signal.
async fn drain_calls(
    shutdown: &Shutdown,
    mut second_signal: SecondSignal,
    drain_timeout: Duration,
) {
    let graceful = async {
        if timeout(drain_timeout, task::wait_for_tracked()).await.is_err() {
            tracing::warn!("the drain timeout has passed: terminating running calls");
            shutdown.terminate();
            task::wait_for_tracked().await;
        }
    };
    let kill_on_second_signal = async {
        second_signal.wait().await;
        kill_calls(shutdown);
        std::future::pending::<()>().await;
    };
    let hard_limit = tokio::time::sleep(drain_timeout + MAX_DRAIN_OVERRUN);

    tokio::select! {
        () = graceful => {}
        () = kill_on_second_signal => {}
        () = hard_limit => tracing::error!("some calls did not end: shutting down without them"),
    }
}

/// Waits for a second shutdown signal. An embedded daemon gets none.
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
                // The error means that the sender was dropped, which is the trigger.
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
        // Both versions of reflection describe both: a client can call whatever one of them lists.
        .include_reflection_service(false)
        .register_encoded_file_descriptor_set(tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET)
}

fn reflection_v1() -> tonic_reflection::server::v1::ServerReflectionServer<
    impl tonic_reflection::server::v1::ServerReflection,
> {
    reflection_builder()
        .build_v1()
        .expect("build.rs compiled the descriptors")
        .max_decoding_message_size(MAX_STANDARD_REQUEST_BYTES)
}

fn reflection_v1alpha() -> tonic_reflection::server::v1alpha::ServerReflectionServer<
    impl tonic_reflection::server::v1alpha::ServerReflection,
> {
    reflection_builder()
        .build_v1alpha()
        .expect("build.rs compiled the descriptors")
        .max_decoding_message_size(MAX_STANDARD_REQUEST_BYTES)
}

/// The start time of the daemon, by both clocks.
pub(crate) fn start_time() -> (SystemTime, Instant) {
    (SystemTime::now(), Instant::now())
}
