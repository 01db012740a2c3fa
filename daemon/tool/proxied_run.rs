//! Connects a command with the egress proxy. Sets the environment variables, records the
//! connections, and adds the totals to the span. Watches the bounds of the command's workspace.

use std::sync::Arc;

use opentelemetry::{Context, KeyValue, trace::TraceContextExt as _};
use serde_json::{Map, Value};

use super::{WorkspaceContext, bounds_watch::BoundsWatch};
use crate::daemon::{
    egress::{
        connection_log::{ConnectionLog, EgressTotals},
        proxy::{EgressProxy, ProxyRun},
        proxy_env,
    },
    process::{environment::CommandEnvironment, outcome::ResourceLimit, run_observer::RunObserver},
    sandbox::proxy_listener::ProxyLease,
    store::session::{Session, StepId},
    telemetry::{Telemetry, semconv},
};

/// Forwards to an observer, and serves the command's connections through the proxy.
pub(super) struct ProxiedObserver<O> {
    observer: O,
    /// The proxy, until the command opens its listener.
    pending: Option<(Arc<EgressProxy>, ConnectionLog)>,
    serving: Option<ProxyRun>,
    /// Span of the command's process.
    span: Context,
    bounds_watch: BoundsWatch,
}

/// Writes the records of a command's connections.
pub(super) struct RunRecorder {
    session: Arc<Session>,
    step: StepId,
    /// Fields of every record.
    common_fields: Map<String, Value>,
}

/// Sets the variables that point a command to the proxy, except those that it already has.
pub(super) fn set_proxy_variables(
    workspace_context: &WorkspaceContext,
    environment: &mut CommandEnvironment,
) {
    if workspace_context.run_settings.proxy.is_some() {
        for (name, value) in proxy_env::proxy_variables(|name| environment.get(name).is_some()) {
            environment.set_default(name, value);
        }
    }
}

impl RunRecorder {
    /// Records connections under `step`.
    pub(super) fn new(
        session: Arc<Session>,
        step: StepId,
        common_fields: Map<String, Value>,
    ) -> Self {
        Self { session, step, common_fields }
    }

    fn write(&self, fields: Map<String, Value>) {
        let record = self.common_fields.clone().into_iter().chain(fields).collect();
        if let Err(error) = self.session.record(self.step, record) {
            tracing::error!(%error, "failed to record a network connection");
        }
    }
}

impl<O: RunObserver> ProxiedObserver<O> {
    /// Observes a command for `observer`, with `span` as the span of its process.
    pub(super) fn new(
        observer: O,
        workspace_context: &WorkspaceContext,
        telemetry: &Telemetry,
        span: &Context,
        recorder: RunRecorder,
    ) -> Self {
        let pending = workspace_context.run_settings.proxy.clone().map(|proxy| {
            let write = Box::new(move |fields| recorder.write(fields));
            let log = ConnectionLog::new(write, telemetry.tracer().clone(), span.clone());
            (proxy, log)
        });
        let bounds_watch = BoundsWatch::new(&workspace_context.workspace);
        Self { observer, pending, serving: None, span: span.clone(), bounds_watch }
    }

    /// Waits until the proxy has closed the connections of the ended command. Returns the observer.
    pub(super) async fn finish(self) -> O {
        if let Some(serving) = self.serving {
            let EgressTotals { attempts, denied, sent_bytes, received_bytes, .. } =
                serving.finish().await;

            for (name, number) in [
                (semconv::EGRESS_ATTEMPTS, attempts),
                (semconv::EGRESS_DENIED, denied),
                (semconv::EGRESS_SENT_BYTES, sent_bytes),
                (semconv::EGRESS_RECEIVED_BYTES, received_bytes),
            ] {
                let number = i64::try_from(number).unwrap_or(i64::MAX);
                self.span.span().set_attribute(KeyValue::new(name, number));
            }
        }
        self.observer
    }
}

impl<O: RunObserver> RunObserver for ProxiedObserver<O> {
    fn started(&mut self, pid: Option<i32>, vpid: i32) {
        self.observer.started(pid, vpid);
    }

    fn proxy_opened(&mut self, lease: ProxyLease) {
        if let Some((proxy, log)) = self.pending.take() {
            self.serving = Some(proxy.serve_run(lease, log));
        }
    }

    async fn limit_exceeded(&mut self) -> ResourceLimit {
        self.bounds_watch.wait_until_exceeded().await
    }
}
