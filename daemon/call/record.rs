//! The records of a call in its session's `events.jsonl`.

use std::time::{Duration, SystemTime};

use serde_json::{Map, Value};

use super::{context::Incoming, policy::judged::Spoken};
use crate::daemon::{
    error::{Error, Reason},
    telemetry::logs::humantime,
    tool::Done,
};

/// What every record of a call says.
pub(super) fn about(tool: &str, incoming: &Incoming, workspace: &str) -> Map<String, Value> {
    let by_name = incoming.by_name.as_deref();
    let given = by_name.map(|call| &call.id).filter(|id| !id.is_empty());
    // A caller that gives no id of its own finds the call by the id it was answered with.
    let request_id = given.or(incoming.request_id.as_ref()).unwrap_or(&incoming.call_id);
    let said = by_name.and_then(|call| call.said.as_deref());
    let said = said.map(|said| [("dialect", said.dialect.name), ("said_as", said.tool)]);
    let job = incoming.job.as_ref().map(|job| ("job_id", job.id.as_str()));
    [
        ("call_id", incoming.call_id.as_str()),
        ("request_id", request_id.as_str()),
        ("principal", incoming.principal.name()),
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
pub(super) fn started(
    about: &Map<String, Value>,
    incoming: &Incoming,
    params: Value,
    allowed_by: Option<String>,
) -> Map<String, Value> {
    let mut fields = event("tool_call_started", about);
    if let Some(by) = allowed_by {
        fields.insert("allowed_by".to_owned(), by.into());
    }
    fields.insert("trace_id".to_owned(), incoming.trace_id().into());
    match incoming.said() {
        // As the vocabulary has them, and only those that were given; what they became is beside them.
        Some(said) => {
            fields.insert("params".to_owned(), said.given.clone());
            fields.insert("tool_params".to_owned(), params);
        }
        None => {
            fields.insert("params".to_owned(), params);
        }
    }
    fields
}

/// The record of a call that was not let in, and by what it was not.
pub(super) fn denied(about: &Map<String, Value>, denied_by: &str) -> Map<String, Value> {
    let mut fields = event("tool_call_denied", about);
    fields.insert("denied_by".to_owned(), denied_by.into());
    fields
}

/// The record of a call that ended. Its status is that of the answer in the vocabulary that the call was `said` in.
pub(super) fn finished<R>(
    about: &Map<String, Value>,
    said: Option<&Spoken>,
    duration: Duration,
    result: &Result<Done<R>, Error>,
) -> Map<String, Value> {
    let mut fields = event("tool_call_finished", about);
    fields.insert("duration_sec".to_owned(), duration.as_secs_f64().into());
    match result {
        Ok(done) => {
            let failure = said.and_then(|said| said.dialect.failure(&done.facts));
            let status = if failure.is_some() { "error" } else { "success" };
            fields.insert("status".to_owned(), status.into());
            if let Some(code) = failure {
                fields.insert("error_type".to_owned(), code.into());
            }
            fields.extend(done.facts.clone());
        }
        Err(error) => insert_error(&mut fields, error),
    }
    fields
}

/// Both records of a call that was refused before any tool began.
pub(super) fn refused(
    about: &Map<String, Value>,
    incoming: &Incoming,
    given: Value,
    duration: Duration,
    error: &Error,
) -> [Map<String, Value>; 2] {
    let mut started = event("tool_call_started", about);
    started.insert("trace_id".to_owned(), incoming.trace_id().into());
    started.insert("params".to_owned(), given);
    let mut finished = event("tool_call_finished", about);
    finished.insert("duration_sec".to_owned(), duration.as_secs_f64().into());
    insert_error(&mut finished, error);
    [started, finished]
}

fn insert_error(fields: &mut Map<String, Value>, error: &Error) {
    let code = error.reason.name().to_lowercase();
    fields.insert("status".to_owned(), "error".into());
    fields.insert("error_type".to_owned(), code.into());
    fields.insert("message".to_owned(), message(error).into());
}

/// What came of a call, as one word.
pub(super) fn outcome<R>(result: &Result<Done<R>, Error>) -> String {
    match result {
        Ok(done) => {
            let outcome = done.facts.get("outcome").and_then(Value::as_str);
            outcome.or(done.error_type).unwrap_or("success").to_lowercase()
        }
        Err(error) => error.reason.name().to_lowercase(),
    }
}

/// What went wrong, without the lines of files that its caller was told of: who may only look must not see
/// what is in them.
pub(super) fn message(error: &Error) -> &str {
    if matches!(error.reason, Reason::StringNotFound | Reason::PatchHunkFail) {
        return "it does not fit what is in the file: who called was told where, and what is there";
    }
    &error.message
}

/// The record of what a call has done that is an event of its own.
pub(super) fn happened<R>(
    about: &Map<String, Value>,
    said: Option<&Spoken>,
    result: &Result<Done<R>, Error>,
) -> Option<Map<String, Value>> {
    let done = result.as_ref().ok()?;
    let name = done.event?;
    let name = said.map_or(name, |said| said.dialect.event(name));
    let mut fields = event(name, about);
    fields.extend(done.facts.clone());
    Some(fields)
}

fn event(event: &str, about: &Map<String, Value>) -> Map<String, Value> {
    let mut fields = about.clone();
    fields.insert("event".to_owned(), event.into());
    let time = humantime(SystemTime::now());
    fields.insert("time".to_owned(), time.into());
    fields
}
