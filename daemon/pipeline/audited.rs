//! Audited RPCs: they change the workspace but call no tool (uploads, for example). They leave the
//! records and the span of a tool call; the frontend does the work itself.

use std::{sync::Arc, time::Instant};

use serde_json::{Map, Value};

use super::{
    Pipeline,
    audit::ToolCallAudit,
    content::capture_arguments,
    context::CallContext,
    execute::{end_span, log_outcome, record_tool_call},
    policy_input::Authorization,
    records,
};
use crate::daemon::{
    error::Error,
    store::{
        failure::state_failure,
        session::{Session, StepId},
    },
    telemetry::{metrics::Metrics, spans::OtelSpan},
    tool::{ToolOutput, WorkspaceContext, activity::ActiveCall},
};

/// An audited RPC in progress.
#[derive(Debug)]
pub(crate) struct AuditedCall {
    common_record_fields: Map<String, Value>,
    activity: ActiveCall,
    session: Arc<Session>,
    step: StepId,
    span: Arc<OtelSpan>,
    name: &'static str,
    metrics: Metrics,
    audit: Option<ToolCallAudit>,
    started_at: Instant,
}

impl Pipeline {
    /// Records the start of a call in a workspace, unless that is being deleted. `record_params` are
    /// the parameters as the record shows them.
    pub(crate) async fn start_audited(
        self: &Arc<Self>,
        name: &'static str,
        context: CallContext,
        workspace_context: &WorkspaceContext,
        record_params: Value,
        authorization: Authorization,
    ) -> Result<AuditedCall, Error> {
        // Counted first: a deletion that begins later waits for this call.
        let activity = workspace_context.activity.begin();
        workspace_context.require_undeleted()?;
        let session = self.open_session(&context).await?;
        let common_record_fields =
            records::common_record_fields(name, &context, workspace_context.workspace.name());
        let span = self.start_span(name, &context, workspace_context);
        capture_arguments(self.telemetry.capture(), &span, &record_params);
        let mut audit = ToolCallAudit::begin(
            self.telemetry.audit(),
            &context,
            (name, workspace_context.workspace.name()),
            &record_params,
            authorization.allowed_by.clone(),
        );
        let started = records::started_record(
            &common_record_fields,
            &context,
            record_params,
            authorization.allowed_by,
        );
        let step = session.begin_step(started).map_err(|error| state_failure(&error))?;
        if let Some(audit) = &mut audit {
            audit.set_step(step.number());
        }

        Ok(AuditedCall {
            common_record_fields,
            span: Arc::new(span),
            activity,
            session,
            step,
            name,
            metrics: self.telemetry.metrics().clone(),
            audit,
            started_at: Instant::now(),
        })
    }
}

impl AuditedCall {
    /// Returns the step of the session.
    pub(crate) fn step(&self) -> u64 {
        self.step.number()
    }

    /// Records the end of the call. `record_fields` returns the tool-specific fields.
    pub(crate) fn end<T>(
        self,
        result: Result<T, Error>,
        record_fields: impl FnOnce(&T) -> Map<String, Value>,
    ) -> Result<T, Error> {
        let result = result.map(|response| ToolOutput {
            record_fields: record_fields(&response),
            ..ToolOutput::new(response)
        });
        let duration = self.started_at.elapsed();
        let finished =
            records::finished_record(&self.common_record_fields, None, duration, &result);
        if let Err(error) = self.session.record(self.step, finished) {
            tracing::error!(%error, "cannot record the end of a call");
        }

        if let Some(audit) = self.audit {
            audit.end(duration, &result);
        }
        record_tool_call(&self.metrics, self.name, duration, &result);
        end_span(self.span, &result);
        log_outcome(&result);
        drop(self.activity);

        result.map(|output| output.response)
    }
}
