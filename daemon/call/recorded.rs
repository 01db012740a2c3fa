//! Calls that are no tool's but change the workspace: recorded as tools are, with a span, while the
//! door itself sees to their work.

use std::{sync::Arc, time::Instant};

use serde_json::{Map, Value};

use super::{
    Pipeline,
    context::Incoming,
    ended::{end_span, log_end},
    record,
    subject::Permitted,
};
use crate::daemon::{
    error::Error,
    store::{
        failure::state_failure,
        session::{Session, Step},
    },
    telemetry::spans::Span,
    tool::{Done, activity::Going},
};

/// A call that goes on.
#[derive(Debug)]
pub(crate) struct Recorded {
    /// What each of its records says.
    about: Map<String, Value>,
    going: Going,
    session: Arc<Session>,
    step: Step,
    span: Arc<Span>,
    begun: Instant,
}

impl Pipeline {
    /// Records that a call starts. `shown` is what the record says of its request, and
    /// `permitted` of what let it in.
    pub(crate) async fn begin_recorded(
        self: &Arc<Self>,
        name: &'static str,
        incoming: Incoming,
        shown: Value,
        permitted: Permitted,
    ) -> Result<Recorded, Error> {
        let scene = self.scene(&incoming)?.clone();
        let session = self.session(&incoming).await?;
        let about = record::about(name, &incoming, scene.workspace.name());
        let begun = record::started(&about, &incoming, shown, permitted.by);
        let step = session.begin_step(begun).map_err(|error| state_failure(&error))?;
        Ok(Recorded {
            about,
            span: Arc::new(self.start_span(name, &incoming, &scene)),
            going: scene.activity.begin(),
            session,
            step,
            begun: Instant::now(),
        })
    }
}

impl Recorded {
    /// Which step of its session it is.
    pub(crate) fn step(&self) -> u64 {
        self.step.number()
    }

    /// Records how it ended. `facts` is what the record says beside that.
    pub(crate) fn end<T>(
        self,
        result: Result<T, Error>,
        facts: impl FnOnce(&T) -> Map<String, Value>,
    ) -> Result<T, Error> {
        let result =
            result.map(|response| Done { facts: facts(&response), ..Done::plain(response) });
        let fields = record::finished(&self.about, None, self.begun.elapsed(), &result);
        if let Err(error) = self.session.record(self.step, fields) {
            tracing::error!(%error, "the end of a call could not be recorded");
        }
        end_span(self.span, &result);
        log_end(&result);
        drop(self.going);
        result.map(|done| done.response)
    }
}
