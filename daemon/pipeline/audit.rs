//! The lines of tool calls and of decisions in the audit log.

use std::time::Duration;

use serde_json::Value;

use super::{context::CallContext, records};
use crate::daemon::{
    catalog::bound_to,
    error::Error,
    telemetry::{
        access_log::{AccessLogEntry, CallRecord, ReportedEnd},
        audit::{AuditEvent, AuditLog},
    },
    tool::ToolOutput,
};

/// Largest JSON of a call's parameters in a line.
const MAX_PARAMS_BYTES: usize = 4096;

/// The line of a tool call that runs.
#[derive(Debug)]
pub(super) struct ToolCallAudit {
    log: AuditLog,
    record: CallRecord,
    /// The entry of the RPC.
    entry: AccessLogEntry,
}

/// The fields of a line about a call.
pub(super) fn call_record(context: &CallContext, tool: &str, workspace: &str) -> CallRecord {
    let entry = context.access_log_entry.snapshot();
    let origin = context.invoke_origin.as_deref();
    let dialect_call = origin.and_then(|call| call.dialect_call.as_deref());
    let model_call_id = origin.map(|call| &call.model_call_id).filter(|id| !id.is_empty());
    CallRecord {
        method: entry.method,
        tool: Some(tool.to_owned()),
        dialect: dialect_call.map(|call| call.dialect.name),
        called_name: dialect_call.map(|call| call.tool.to_owned()),
        principal: Some(context.principal.name().to_owned()),
        workspace: Some(workspace.to_owned()),
        session: Some(context.session.as_str().to_owned()),
        call_id: Some(context.call_id.clone()),
        request_id: context.request_id.clone(),
        model_call_id: model_call_id.cloned(),
        job_id: context.job.as_ref().map(|job| job.id.clone()),
        trace_id: Some(context.trace_id()),
        peer: entry.peer,
        ..CallRecord::default()
    }
}

/// Reports a call of a batch that could not start.
pub(super) fn audit_unstarted(
    log: &AuditLog,
    context: &CallContext,
    (tool, workspace): (&str, &str),
    error: &Error,
) {
    log.record(AuditEvent::ToolCall, || CallRecord {
        reason: Some(error.reason.name().to_owned()),
        outcome: Some(error.reason.name().to_lowercase()),
        ..call_record(context, tool, workspace)
    });
}

/// Reports a call that was denied.
pub(super) fn audit_denial(
    log: &AuditLog,
    context: &CallContext,
    (tool, workspace): (&str, &str),
    denied_by: &str,
    error: &Error,
) {
    let reason = error.reason.name();
    log.record(AuditEvent::CallDenied, || {
        report_end(&context.access_log_entry, Some(reason));
        CallRecord {
            reason: Some(reason.to_owned()),
            denied_by: Some(denied_by.to_owned()),
            ..call_record(context, tool, workspace)
        }
    });
}

impl ToolCallAudit {
    /// Begins the line of a tool call. Returns `None` without an audit log.
    pub(super) fn begin(
        log: &AuditLog,
        context: &CallContext,
        (tool, workspace): (&str, &str),
        params: &Value,
        allowed_by: Option<String>,
    ) -> Option<Self> {
        if !log.is_enabled() {
            return None;
        }
        Some(Self {
            log: log.clone(),
            record: CallRecord {
                params: Some(bound_to(params.clone(), MAX_PARAMS_BYTES)),
                allowed_by,
                ..call_record(context, tool, workspace)
            },
            entry: context.access_log_entry.clone(),
        })
    }

    pub(super) fn set_step(&mut self, step: u64) {
        self.record.step = Some(step);
    }

    /// Reports the end of the call.
    pub(super) fn end<R>(self, duration: Duration, result: &Result<ToolOutput<R>, Error>) {
        let Self { log, mut record, entry } = self;
        let reason = result.as_ref().err().map(|error| error.reason.name());
        report_end(&entry, reason);
        record.outcome = Some(records::outcome_name(result));
        record.reason = reason.map(str::to_owned);
        record.set_duration(duration);
        log.record(AuditEvent::ToolCall, || record);
    }
}

/// Notes that a line reports the end of a call, so that the line of the RPC need not.
pub(super) fn report_end(entry: &AccessLogEntry, reason: Option<&'static str>) {
    entry.update(|fields| fields.reported = Some(ReportedEnd(reason)));
}
