//! A connection server for the protocol of each listener.

use std::{collections::BTreeMap, io, sync::Arc};

use super::{
    auth, browser_guard::guard, connection_server::ConnectionServer, health_listener::health_only,
    metrics_listener::metrics_only,
};
use crate::daemon::{
    agent_sandbox::{self, AgentSandbox},
    config::{http::HttpConfig, lifetimes::ConnectionAge, listen::ListenerProtocol},
    http::{CallerCheck, HttpService, rejection, ways_in},
    pipeline::Pipeline,
    queue::ByteBudget,
};

/// The gRPC services with their layers.
pub(super) struct GrpcServices {
    pub(super) all: HttpService,
    pub(super) health: HttpService,
    /// Limits the memory of bodies, whatever their protocol.
    pub(super) buffered: Arc<ByteBudget>,
}

/// Settings of the protocols.
pub(super) struct ProtocolSettings {
    pub(super) http: HttpConfig,
    pub(super) agent_sandbox_metadata: BTreeMap<String, String>,
    pub(super) connection_age: ConnectionAge,
}

/// The servers of all protocols.
pub(super) struct ProtocolServers {
    jig: ConnectionServer,
    agent_sandbox_grpc: ConnectionServer,
    agent_sandbox_rest: ConnectionServer,
    health: ConnectionServer,
    metrics: ConnectionServer,
}

impl ProtocolServers {
    /// # Errors
    ///
    /// Fails if the system has no random bytes.
    pub(super) fn new(
        pipeline: &Arc<Pipeline>,
        grpc: GrpcServices,
        settings: ProtocolSettings,
    ) -> io::Result<Self> {
        let GrpcServices { all: grpc, health, buffered } = grpc;
        let ProtocolSettings { http, agent_sandbox_metadata, connection_age } = settings;
        let check_caller: CallerCheck = {
            let pipeline = Arc::clone(pipeline);
            Arc::new(move |headers, extensions| auth::check_caller(&pipeline, headers, extensions))
        };
        let agent_sandbox = AgentSandbox::new(
            grpc.clone(),
            Arc::clone(&check_caller),
            Arc::clone(&buffered),
            agent_sandbox_metadata,
        );
        let terminate = pipeline.shutdown.terminate_token();
        let jig = ways_in(grpc, &pipeline.catalog, check_caller, &buffered, &terminate)?;

        let guard = |service, reject| guard(service, http.clone(), reject);
        let server = |service, label| {
            let metrics = pipeline.telemetry.metrics().clone();
            ConnectionServer::new(service, connection_age, metrics, label)
        };
        let jig = server(guard(jig, rejection), "jig");
        let health = server(health_only(health), "health");
        let agent_sandbox_grpc = guard(agent_sandbox.grpc, agent_sandbox::rejection);
        let agent_sandbox_rest = guard(agent_sandbox.rest, agent_sandbox::rejection);
        let metrics = metrics_only(pipeline.telemetry.prometheus().cloned());
        Ok(Self {
            agent_sandbox_grpc: jig.with_service(agent_sandbox_grpc, "agent_sandbox_grpc"),
            agent_sandbox_rest: jig.with_service(agent_sandbox_rest, "agent_sandbox_rest"),
            metrics: health.with_service(metrics, "metrics"),
            jig,
            health,
        })
    }

    /// The server of a protocol.
    pub(super) fn of(&self, protocol: ListenerProtocol) -> ConnectionServer {
        let server = match protocol {
            ListenerProtocol::Jig => &self.jig,
            ListenerProtocol::AgentSandboxGrpc => &self.agent_sandbox_grpc,
            ListenerProtocol::AgentSandboxRest => &self.agent_sandbox_rest,
            ListenerProtocol::Health => &self.health,
            ListenerProtocol::Metrics => &self.metrics,
        };
        server.clone()
    }

    /// Ends all connections once they have delivered their responses.
    pub(super) async fn close(&self) {
        // Those of the other protocols belong to these.
        tokio::join!(self.jig.close(), self.health.close());
    }
}
