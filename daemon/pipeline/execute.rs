//! The last steps of a call: runs the tool, records how it ended, and enforces the timeout.

use std::{
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use prost::Message;
use tokio::{task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::{
    Pipeline, StartedCall,
    audit::ToolCallAudit,
    content::{ResponseToJson, capture_result, response_to_json},
    idempotency::Checkpoint,
    policy::request::DialectCall,
    records,
};
use crate::daemon::{
    error::{Error, LEADS_OUT, Reason},
    task,
    telemetry::{
        access_log::AccessLogEntry,
        metrics::{Metrics, ToolMeasurement},
        spans::OtelSpan,
    },
    tool::{Tool, ToolContext, ToolOutput},
    workspace::Workspace,
};

/// What the end of a call is reported to, beside its records.
struct CallEnd<T: Tool> {
    access_log_entry: AccessLogEntry,
    audit: Option<ToolCallAudit>,
    response_to_json: Option<ResponseToJson<T>>,
}

impl<T: Tool> StartedCall<T>
where
    T::Response: Message,
{
    /// Lets the span have the result of the call, if content is captured.
    pub(super) fn with_result_capture(mut self) -> Self {
        self.response_to_json = Some(response_to_json::<T>);
        self
    }
}

impl<T: Tool> StartedCall<T> {
    /// Stores the step of the call before the tool runs. The call fails if that is not possible.
    pub(super) fn with_checkpoint(mut self, checkpoint: Checkpoint) -> Self {
        self.checkpoint = Some(checkpoint);
        self
    }

    /// Runs the tool in a task that outlives the caller. Returns the task and the token that
    /// cancels the tool.
    pub(super) fn spawn(
        self,
        pipeline: &Arc<Pipeline>,
    ) -> (JoinHandle<Result<T::Response, Error>>, CancellationToken) {
        let context = self.context;
        let tool = context.effective_tool(T::NAME);
        let log_span = tracing::info_span!(
            "call",
            call_id = %context.call_id,
            trace_id = %context.trace_id(),
            span_id = %context.span_id(),
            tool,
        );
        // Boxed once: it has 13 kB, and five layers below would move it.
        let work = Box::pin(Arc::clone(pipeline).execute::<T>(
            tool,
            (self.params, self.checkpoint),
            self.tool_context,
            context.dialect_call(),
            CallEnd {
                access_log_entry: context.access_log_entry,
                audit: self.audit,
                response_to_json: self.response_to_json,
            },
        ));

        let task = task::spawn_tracked(T::NAME, work.instrument(log_span));
        drop(self.task_token);

        (task, self.abandon_token)
    }
}

impl Pipeline {
    /// Runs the tool to its end, records the end, then releases the permits.
    async fn execute<T: Tool>(
        self: Arc<Self>,
        tool: &'static str,
        (params, checkpoint): (T::Params, Option<Checkpoint>),
        context: ToolContext,
        dialect_call: Option<Arc<DialectCall>>,
        end: CallEnd<T>,
    ) -> Result<T::Response, Error> {
        let common_fields = context.common_record_fields.clone();
        let (session, step) = (Arc::clone(&context.session), context.step);
        let span = Arc::clone(&context.span);
        let (permit, start_permit) = (Arc::clone(&context.permit), context.start_permit.clone());
        let workspace = Arc::clone(&context.workspace_context.workspace);
        let activity = context.workspace_context.activity.begin();
        let started_at = Instant::now();

        let mut work = pin!(async {
            if let Some(checkpoint) = checkpoint {
                checkpoint.record_step(step.number()).await?;
            }
            T::execute(params, context).await
        });
        let result = match timeout(T::START_PERMIT_HOLD, &mut work).await {
            Ok(result) => result,
            Err(_) => {
                start_permit.release();
                work.await
            }
        };
        let result = match result {
            Err(error) if error.reason == Reason::SymlinkBlocked => {
                Err(with_leads_out(workspace, error).await)
            }
            result => result,
        };

        let dialect_call = dialect_call.as_deref();
        let event = records::tool_event_record(&common_fields, dialect_call, &result);
        let duration = started_at.elapsed();
        let finished = records::finished_record(&common_fields, dialect_call, duration, &result);
        let outcome = records::outcome_name(&result);
        end.access_log_entry.update(|fields| fields.outcome = Some(outcome));
        for record in event.into_iter().chain([finished]) {
            if let Err(error) = session.record(step, record) {
                tracing::error!(%error, "cannot record the end of a call");
            }
        }
        if let Some(audit) = end.audit {
            audit.end(duration, &result);
        }
        drop(activity);
        start_permit.release();
        drop(permit);

        record_tool_call(self.telemetry.metrics(), tool, duration, &result);
        if let Ok(output) = &result {
            capture_result(self.telemetry.capture(), &span, || {
                end.response_to_json.and_then(|to_json| to_json(&self.catalog, &output.response))
            });
        }
        end_span(span, &result);
        log_outcome(&result);

        result.map(|output| output.response)
    }
}

/// Adds to `error` whether the links on its path lead out of the workspace.
async fn with_leads_out(workspace: Arc<Workspace>, error: Error) -> Error {
    let Some((_, path)) = error.metadata.iter().find(|(name, _)| name == "path") else {
        return error;
    };

    let path = path.clone();
    match task::spawn_blocking(move || workspace.leads_out(&path)).await {
        Ok(true) => error.with_metadata(LEADS_OUT, "true"),
        Ok(false) | Err(_) => error,
    }
}

/// Records the metrics of a tool call that ended.
pub(super) fn record_tool_call<R>(
    metrics: &Metrics,
    tool: &'static str,
    duration: Duration,
    result: &Result<ToolOutput<R>, Error>,
) {
    if !metrics.is_enabled() {
        return;
    }
    let (outcome, reason, error_type) = match result {
        Ok(output) => (records::outcome_name(result), None, output.error_type),
        Err(error) => {
            let reason = Some(error.reason.name());
            ("error".to_owned(), reason, reason)
        }
    };
    metrics.record_tool_call(ToolMeasurement { tool, outcome, reason, error_type, duration });
}

/// Logs how a call ended, at debug level.
pub(super) fn log_outcome<R>(result: &Result<ToolOutput<R>, Error>) {
    match result {
        Ok(_) => tracing::debug!("call finished"),
        Err(error) => tracing::debug!(reason = error.reason.name(), %error, "call failed"),
    }
}

/// Sets the error status of a call's span, and ends it if this is the last reference.
pub(super) fn end_span<R>(span: Arc<OtelSpan>, result: &Result<ToolOutput<R>, Error>) {
    let failure = match result {
        Ok(output) => output.error_type.map(|kind| (kind, kind)),
        Err(error) => Some((error.reason.name(), records::redacted_message(error))),
    };
    if let Some((error_type, description)) = failure {
        span.fail_with(error_type, description);
    }

    // The span ends when its last holder drops it.
    drop(span);
}
