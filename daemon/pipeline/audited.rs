//! Calls that are no tool's but change the workspace: recorded as tools are, with a span, while the
//! door itself sees to their work.

use std::{sync::Arc, time::Instant};

use serde_json::{Map, Value};

use super::{
    Pipeline,
    call_end::{end_span, log_outcome},
    context::CallContext,
    policy_input::Authorization,
    records,
};
use crate::daemon::{
    error::Error,
    store::{
        failure::state_failure,
        session::{Session, StepId},
    },
    telemetry::spans::OtelSpan,
    tool::{ToolOutput, activity::ActiveCall},
};

/// A call that goes on.
#[derive(Debug)]
pub(crate) struct AuditedCall {
    /// What each of its records says.
    common_record_fields: Map<String, Value>,
    activity: ActiveCall,
    session: Arc<Session>,
    step: StepId,
    span: Arc<OtelSpan>,
    started_at: Instant,
}

impl Pipeline {
    /// Records that a call starts. `shown` is what the record says of its request, and
    /// `permitted` of what let it in.
    pub(crate) async fn start_audited(
        self: &Arc<Self>,
        name: &'static str,
        context: CallContext,
        shown: Value,
        authorization: Authorization,
    ) -> Result<AuditedCall, Error> {
        let workspace_context = self.workspace_context(&context)?.clone();
        let session = self.session(&context).await?;
        let about =
            records::common_record_fields(name, &context, workspace_context.workspace.name());
        let begun = records::started_record(&about, &context, shown, authorization.allowed_by);
        let step = session.begin_step(begun).map_err(|error| state_failure(&error))?;
        Ok(AuditedCall {
            common_record_fields: about,
            span: Arc::new(self.start_span(name, &context, &workspace_context)),
            activity: workspace_context.activity.begin(),
            session,
            step,
            started_at: Instant::now(),
        })
    }
}

impl AuditedCall {
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
        let result = result.map(|response| ToolOutput {
            record_fields: facts(&response),
            ..ToolOutput::new(response)
        });
        let fields = records::finished_record(
            &self.common_record_fields,
            None,
            self.started_at.elapsed(),
            &result,
        );
        if let Err(error) = self.session.record(self.step, fields) {
            tracing::error!(%error, "the end of a call could not be recorded");
        }
        end_span(self.span, &result);
        log_outcome(&result);
        drop(self.activity);
        result.map(|done| done.response)
    }
}
