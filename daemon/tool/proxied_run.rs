//! What a run has to do with the proxy, where that is its network: its variables, its records, and
//! what its span says.

use std::sync::Arc;

use opentelemetry::{Context, KeyValue, trace::TraceContextExt as _};
use serde_json::{Map, Value};

use super::WorkspaceContext;
use crate::daemon::{
    egress::{
        connection_log::{ConnectionLog, EgressTotals},
        proxy::{EgressProxy, ProxyRun},
        proxy_env,
    },
    process::{environment::CommandEnvironment, supervisor::RunObserver},
    sandbox::proxy_listener::ProxyLease,
    store::session::{Session, StepId},
    telemetry::{Telemetry, semconv},
};

/// An observer of a command that lets it through the proxy meanwhile.
pub(super) struct ProxiedObserver<O> {
    observer: O,
    /// Until the command is there.
    pending: Option<(Arc<EgressProxy>, ConnectionLog)>,
    attendance: Option<ProxyRun>,
    /// Of the command's process.
    span: Context,
}

/// Where the records of a call go.
pub(super) struct RunRecorder {
    session: Arc<Session>,
    step: StepId,
    /// What each of them says.
    common_fields: Map<String, Value>,
}

/// Gives a command the variables by which it finds the proxy, beside those that it has.
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
    /// Those of `step`.
    pub(super) fn new(session: Arc<Session>, step: StepId, about: Map<String, Value>) -> Self {
        Self { session, step, common_fields: about }
    }

    fn write(&self, fields: Map<String, Value>) {
        let record = self.common_fields.clone().into_iter().chain(fields).collect();
        if let Err(error) = self.session.record(self.step, record) {
            tracing::error!(%error, "a connection could not be recorded");
        }
    }
}

impl<O: RunObserver> ProxiedObserver<O> {
    /// Connects the command that `observer` observes, and whose span this is.
    pub(super) fn new(
        observer: O,
        workspace_context: &WorkspaceContext,
        telemetry: &Telemetry,
        span: &Context,
        records: RunRecorder,
    ) -> Self {
        let waiting = workspace_context.run_settings.proxy.clone().map(|proxy| {
            let write = Box::new(move |fields| records.write(fields));
            let journal = ConnectionLog::new(write, telemetry.tracer().clone(), span.clone());
            (proxy, journal)
        });
        Self { observer, pending: waiting, attendance: None, span: span.clone() }
    }

    /// Waits until nothing of the command that has ended is left at the proxy; gives the observer
    /// back.
    pub(super) async fn finish(self) -> O {
        if let Some(attendance) = self.attendance {
            let EgressTotals { attempts, denied, sent_bytes, received_bytes, .. } =
                attendance.finish().await;
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
    fn started(&mut self, pid: Option<i32>) {
        self.observer.started(pid);
    }

    fn proxy_opened(&mut self, visit: ProxyLease) {
        if let Some((proxy, journal)) = self.pending.take() {
            self.attendance = Some(proxy.serve_run(visit, journal));
        }
    }
}
