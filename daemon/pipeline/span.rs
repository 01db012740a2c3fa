//! The OpenTelemetry span of a call.

use opentelemetry::{KeyValue, trace::SpanKind};

use super::{Pipeline, context::CallContext};
use crate::daemon::{
    telemetry::{semconv, spans::OtelSpan},
    tool::WorkspaceContext,
};

impl Pipeline {
    /// Starts the span of a call, named `execute_tool TOOL` as in the GenAI conventions.
    pub(super) fn start_span(
        &self,
        tool: &'static str,
        context: &CallContext,
        workspace_context: &WorkspaceContext,
    ) -> OtelSpan {
        let session = context.session.as_str().to_owned();
        let mut attributes = vec![
            KeyValue::new(semconv::GEN_AI_OPERATION_NAME, "execute_tool"),
            KeyValue::new(semconv::GEN_AI_TOOL_NAME, tool),
            KeyValue::new(semconv::GEN_AI_TOOL_TYPE, "function"),
            KeyValue::new(semconv::GEN_AI_TOOL_CALL_ID, context.model_call_id().to_owned()),
            KeyValue::new(semconv::GEN_AI_CONVERSATION_ID, session.clone()),
            KeyValue::new(semconv::CALL_ID, context.call_id.clone()),
            KeyValue::new(semconv::SESSION_ID, session),
            KeyValue::new(semconv::WORKSPACE, workspace_context.workspace.name().to_owned()),
            KeyValue::new(semconv::PRINCIPAL, context.principal.name().to_owned()),
        ];
        if let Some(dialect_call) = context.dialect_call() {
            attributes.push(KeyValue::new(semconv::DIALECT, dialect_call.dialect.name));
            attributes.push(KeyValue::new(semconv::CALLED_NAME, dialect_call.tool));
        }
        let name = format!("execute_tool {tool}");
        let tracer = self.telemetry.tracer();
        OtelSpan::start(tracer, name, SpanKind::Internal, attributes, &context.parent_span)
    }
}
