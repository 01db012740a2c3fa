//! What a run has to do with the proxy, where that is its network: its variables, its records, and
//! what its span says.

use std::sync::Arc;

use opentelemetry::{Context, KeyValue, trace::TraceContextExt as _};
use serde_json::{Map, Value};

use super::Scene;
use crate::daemon::{
    egress::{
        journal::{Journal, Totals},
        proxy::{Attendance, Proxy},
        variables,
    },
    process::{environment::Environment, supervise::Observer},
    sandbox::entrance::Visit,
    store::session::{Session, Step},
    telemetry::{Telemetry, semconv},
};

/// An observer of a command that lets it through the proxy meanwhile.
pub(super) struct Connected<O> {
    observer: O,
    /// Until the command is there.
    waiting: Option<(Arc<Proxy>, Journal)>,
    attendance: Option<Attendance>,
    /// Of the command's process.
    span: Context,
}

/// Where the records of a call go.
pub(super) struct Records {
    session: Arc<Session>,
    step: Step,
    /// What each of them says.
    about: Map<String, Value>,
}

/// Gives a command the variables by which it finds the proxy, beside those that it has.
pub(super) fn provide(scene: &Scene, environment: &mut Environment) {
    if scene.settings.proxy.is_some() {
        for (name, value) in variables::missing(|name| environment.get(name).is_some()) {
            environment.provide(name, value);
        }
    }
}

impl Records {
    /// Those of `step`.
    pub(super) fn new(session: Arc<Session>, step: Step, about: Map<String, Value>) -> Self {
        Self { session, step, about }
    }

    fn write(&self, fields: Map<String, Value>) {
        let record = self.about.clone().into_iter().chain(fields).collect();
        if let Err(error) = self.session.record(self.step, record) {
            tracing::error!(%error, "a connection could not be recorded");
        }
    }
}

impl<O: Observer> Connected<O> {
    /// Connects the command that `observer` observes, and whose span this is.
    pub(super) fn new(
        observer: O,
        scene: &Scene,
        telemetry: &Telemetry,
        span: &Context,
        records: Records,
    ) -> Self {
        let waiting = scene.settings.proxy.clone().map(|proxy| {
            let write = Box::new(move |fields| records.write(fields));
            let journal = Journal::new(write, telemetry.tracer().clone(), span.clone());
            (proxy, journal)
        });
        Self { observer, waiting, attendance: None, span: span.clone() }
    }

    /// Waits until nothing of the command that has ended is left at the proxy; gives the observer
    /// back.
    pub(super) async fn end(self) -> O {
        if let Some(attendance) = self.attendance {
            let Totals { attempts, denied, sent_bytes, received_bytes, .. } =
                attendance.end().await;
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

impl<O: Observer> Observer for Connected<O> {
    fn started(&mut self, pid: Option<i32>) {
        self.observer.started(pid);
    }

    fn visited(&mut self, visit: Visit) {
        if let Some((proxy, journal)) = self.waiting.take() {
            self.attendance = Some(proxy.attend(visit, journal));
        }
    }
}
