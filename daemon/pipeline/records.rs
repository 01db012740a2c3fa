//! The records of a call in its session's `events.jsonl`.

use std::time::{Duration, SystemTime};

use serde_json::{Map, Value};

use super::{context::CallContext, policy::request::DialectCall};
use crate::daemon::{
    error::{Error, Reason},
    telemetry::logs::rfc3339_micros,
    tool::ToolOutput,
};

/// Returns the fields that every record of a call has.
pub(super) fn common_record_fields(
    tool: &str,
    context: &CallContext,
    workspace: &str,
) -> Map<String, Value> {
    let origin = context.invoke_origin.as_deref();
    let model_call_id = origin.map(|call| &call.model_call_id).filter(|id| !id.is_empty());

    // Without a request id, the caller finds the call by the call id in its response.
    let request_id = model_call_id.or(context.request_id.as_ref()).unwrap_or(&context.call_id);
    let dialect_call = origin.and_then(|call| call.dialect_call.as_deref());
    let dialect =
        dialect_call.map(|call| [("dialect", call.dialect.name), ("called_name", call.tool)]);
    let job = context.job.as_ref().map(|job| ("job_id", job.id.as_str()));
    let is_by_name = origin.is_some() || job.is_some();

    let mut fields: Map<_, _> = [
        ("call_id", context.call_id.as_str()),
        ("request_id", request_id.as_str()),
        ("principal", context.principal.name()),
        ("workspace", workspace),
        ("tool", tool),
    ]
    .into_iter()
    .chain(job)
    .chain(dialect.into_iter().flatten())
    .map(|(name, value)| (name.to_owned(), value.into()))
    .collect();
    if is_by_name {
        fields.insert("by_name".to_owned(), true.into());
    }
    fields
}

/// The record `tool_call_started`.
pub(super) fn started_record(
    common_fields: &Map<String, Value>,
    context: &CallContext,
    params: Value,
    allowed_by: Option<String>,
) -> Map<String, Value> {
    let mut fields = event_fields("tool_call_started", common_fields);
    if let Some(by) = allowed_by {
        fields.insert("allowed_by".to_owned(), by.into());
    }

    fields.insert("trace_id".to_owned(), context.trace_id().into());
    match context.dialect_call() {
        // `params` holds the given parameters of the dialect, `tool_params` those of the tool.
        Some(dialect_call) => {
            fields.insert("params".to_owned(), dialect_call.record_params.clone());
            fields.insert("tool_params".to_owned(), params);
        }
        None => {
            fields.insert("params".to_owned(), params);
        }
    }

    fields
}

/// The record `tool_call_denied`. `denied_by` names the rule, person or reason.
pub(super) fn denied_record(
    common_fields: &Map<String, Value>,
    denied_by: &str,
) -> Map<String, Value> {
    let mut fields = event_fields("tool_call_denied", common_fields);
    fields.insert("denied_by".to_owned(), denied_by.into());
    fields
}

/// The record `tool_call_finished`. A call in a dialect has the status of the dialect's response.
pub(super) fn finished_record<R>(
    common_fields: &Map<String, Value>,
    dialect_call: Option<&DialectCall>,
    duration: Duration,
    result: &Result<ToolOutput<R>, Error>,
) -> Map<String, Value> {
    let mut fields = event_fields("tool_call_finished", common_fields);
    fields.insert("duration_sec".to_owned(), duration.as_secs_f64().into());
    match result {
        Ok(output) => {
            let failure =
                dialect_call.and_then(|call| call.dialect.failure_code(&output.record_fields));
            let status = if failure.is_some() { "error" } else { "success" };
            fields.insert("status".to_owned(), status.into());
            if let Some(code) = failure {
                fields.insert("error_type".to_owned(), code.into());
            }

            fields.extend(output.record_fields.clone());
        }
        Err(error) => insert_error(&mut fields, error),
    }

    fields
}

/// Both records of a call that was rejected before a tool started.
pub(super) fn rejected_records(
    common_fields: &Map<String, Value>,
    context: &CallContext,
    record_params: Value,
    duration: Duration,
    error: &Error,
) -> [Map<String, Value>; 2] {
    let mut started = event_fields("tool_call_started", common_fields);
    started.insert("trace_id".to_owned(), context.trace_id().into());
    started.insert("params".to_owned(), record_params);
    let mut finished = event_fields("tool_call_finished", common_fields);
    finished.insert("duration_sec".to_owned(), duration.as_secs_f64().into());
    insert_error(&mut finished, error);
    [started, finished]
}

fn insert_error(fields: &mut Map<String, Value>, error: &Error) {
    let code = error.reason.name().to_lowercase();
    fields.insert("status".to_owned(), "error".into());
    fields.insert("error_type".to_owned(), code.into());
    fields.insert("message".to_owned(), redacted_message(error).into());
}

/// Returns the outcome of a call as one lowercase word.
pub(super) fn outcome_name<R>(result: &Result<ToolOutput<R>, Error>) -> String {
    match result {
        Ok(output) => {
            let outcome = output.record_fields.get("outcome").and_then(Value::as_str);
            outcome.or(output.error_type).unwrap_or("success").to_lowercase()
        }
        Err(error) => error.reason.name().to_lowercase(),
    }
}

/// Returns the message of `error` without file content, which observers of a session may not see.
pub(super) fn redacted_message(error: &Error) -> &str {
    if matches!(error.reason, Reason::StringNotFound | Reason::PatchHunkFail) {
        return "the text is not in the file (the caller's error shows where it differs)";
    }
    &error.message
}

/// The record of the tool's own event (such as a file change), if it has one.
pub(super) fn tool_event_record<R>(
    common_fields: &Map<String, Value>,
    dialect_call: Option<&DialectCall>,
    result: &Result<ToolOutput<R>, Error>,
) -> Option<Map<String, Value>> {
    let output = result.as_ref().ok()?;
    let own_name = output.record_event?;
    let name = dialect_call.map_or(own_name, |call| call.dialect.event_name(own_name));

    let mut fields = event_fields(name, common_fields);
    fields.extend(output.record_fields.clone());
    Some(fields)
}

fn event_fields(event: &str, common_fields: &Map<String, Value>) -> Map<String, Value> {
    let mut fields = common_fields.clone();
    fields.insert("event".to_owned(), event.into());
    fields.insert("time".to_owned(), rfc3339_micros(SystemTime::now()).into());
    fields
}
