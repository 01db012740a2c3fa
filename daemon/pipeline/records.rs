//! The records of a call in its session's `events.jsonl`.

use std::time::{Duration, SystemTime};

use serde_json::{Map, Value};

use super::{context::CallContext, policy::request::DialectCall};
use crate::daemon::{
    error::{Error, Reason},
    telemetry::logs::rfc3339_micros,
    tool::ToolOutput,
};

/// What every record of a call says.
pub(super) fn common_record_fields(
    tool: &str,
    context: &CallContext,
    workspace: &str,
) -> Map<String, Value> {
    let by_name = context.invoke_origin.as_deref();
    let given = by_name.map(|call| &call.model_call_id).filter(|id| !id.is_empty());
    // A caller that gives no id of its own finds the call by the id it was answered with.
    let request_id = given.or(context.request_id.as_ref()).unwrap_or(&context.call_id);
    let said = by_name.and_then(|call| call.dialect_call.as_deref());
    let said = said.map(|said| [("dialect", said.dialect.name), ("said_as", said.tool)]);
    let job = context.job.as_ref().map(|job| ("job_id", job.id.as_str()));
    [
        ("call_id", context.call_id.as_str()),
        ("request_id", request_id.as_str()),
        ("principal", context.principal.name()),
        ("workspace", workspace),
        ("tool", tool),
    ]
    .into_iter()
    .chain(job)
    .chain(said.into_iter().flatten())
    .map(|(name, value)| (name.to_owned(), value.into()))
    .collect()
}

/// The record of a call that starts.
pub(super) fn started_record(
    about: &Map<String, Value>,
    context: &CallContext,
    params: Value,
    allowed_by: Option<String>,
) -> Map<String, Value> {
    let mut fields = event_fields("tool_call_started", about);
    if let Some(by) = allowed_by {
        fields.insert("allowed_by".to_owned(), by.into());
    }
    fields.insert("trace_id".to_owned(), context.trace_id().into());
    match context.dialect_call() {
        // As the vocabulary has them, and only those that were given; what they became is beside them.
        Some(said) => {
            fields.insert("params".to_owned(), said.record_params.clone());
            fields.insert("tool_params".to_owned(), params);
        }
        None => {
            fields.insert("params".to_owned(), params);
        }
    }
    fields
}

/// The record of a call that was not let in, and by what it was not.
pub(super) fn denied_record(about: &Map<String, Value>, denied_by: &str) -> Map<String, Value> {
    let mut fields = event_fields("tool_call_denied", about);
    fields.insert("denied_by".to_owned(), denied_by.into());
    fields
}

/// The record of a call that ended. Its status is that of the answer in the vocabulary that the call was `said` in.
pub(super) fn finished_record<R>(
    about: &Map<String, Value>,
    dialect_call: Option<&DialectCall>,
    duration: Duration,
    result: &Result<ToolOutput<R>, Error>,
) -> Map<String, Value> {
    let mut fields = event_fields("tool_call_finished", about);
    fields.insert("duration_sec".to_owned(), duration.as_secs_f64().into());
    match result {
        Ok(done) => {
            let failure =
                dialect_call.and_then(|said| said.dialect.failure_code(&done.record_fields));
            let status = if failure.is_some() { "error" } else { "success" };
            fields.insert("status".to_owned(), status.into());
            if let Some(code) = failure {
                fields.insert("error_type".to_owned(), code.into());
            }
            fields.extend(done.record_fields.clone());
        }
        Err(error) => insert_error(&mut fields, error),
    }
    fields
}

/// Both records of a call that was refused before any tool began.
pub(super) fn rejected_records(
    about: &Map<String, Value>,
    context: &CallContext,
    given: Value,
    duration: Duration,
    error: &Error,
) -> [Map<String, Value>; 2] {
    let mut started = event_fields("tool_call_started", about);
    started.insert("trace_id".to_owned(), context.trace_id().into());
    started.insert("params".to_owned(), given);
    let mut finished = event_fields("tool_call_finished", about);
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

/// What came of a call, as one word.
pub(super) fn outcome_name<R>(result: &Result<ToolOutput<R>, Error>) -> String {
    match result {
        Ok(done) => {
            let outcome = done.record_fields.get("outcome").and_then(Value::as_str);
            outcome.or(done.error_type).unwrap_or("success").to_lowercase()
        }
        Err(error) => error.reason.name().to_lowercase(),
    }
}

/// What went wrong, without the lines of files that its caller was told of: who may only look must not see
/// what is in them.
pub(super) fn redacted_message(error: &Error) -> &str {
    if matches!(error.reason, Reason::StringNotFound | Reason::PatchHunkFail) {
        return "it does not fit what is in the file: who called was told where, and what is there";
    }
    &error.message
}

/// The record of what a call has done that is an event of its own.
pub(super) fn tool_event_record<R>(
    about: &Map<String, Value>,
    dialect_call: Option<&DialectCall>,
    result: &Result<ToolOutput<R>, Error>,
) -> Option<Map<String, Value>> {
    let done = result.as_ref().ok()?;
    let name = done.record_event?;
    let name = dialect_call.map_or(name, |said| said.dialect.event_name(name));
    let mut fields = event_fields(name, about);
    fields.extend(done.record_fields.clone());
    Some(fields)
}

fn event_fields(event: &str, about: &Map<String, Value>) -> Map<String, Value> {
    let mut fields = about.clone();
    fields.insert("event".to_owned(), event.into());
    let time = rfc3339_micros(SystemTime::now());
    fields.insert("time".to_owned(), time.into());
    fields
}
