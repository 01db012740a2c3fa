//! What came of the calls of a batch, as messages, and for models.

use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    api::v1::{self, BatchError, BatchResult, InvokeBatchResponse, InvokeResponse, InvokeStatus},
    daemon::{
        call::{
            envelope::{rest, shortened, shortened_text},
            invoke::batch::{BatchAnswer, BatchState},
            jobs::id::as_uuid,
            structure::{structure, unwrapped},
        },
        catalog::render::{Format, result::ToolResult},
        error::Error,
        tool::{Tool as _, await_job::AwaitJob},
    },
};

/// Most bytes of the results of all calls, as JSON. A message has each of them up to five times, and has 4 MiB.
const ALL_BYTES: usize = 640 << 10;
/// Longest result, as JSON in bytes, of a vocabulary in which a preview stands for a longer one.
const PREVIEWED_BYTES: usize = 12 << 10;
/// Most bytes of a file in a result that is not previewed, whatever they are as JSON; common texts fit more often.
const MOST_IN_PREVIEW: usize = 6000;
/// Characters of the preview.
const PREVIEW_CHARACTERS: usize = 12_000;
/// What a call is told whose job has not ended in time.
const PENDING: &str = "Job did not complete within wait_ms";
/// And how programs tell it.
const TIMEOUT: &str = "TIMEOUT";

/// What goes back to a model of a call, as JSON in this order.
#[derive(Debug, Serialize)]
struct Content<'a> {
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pending: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    job_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Why<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a Value>,
}

#[derive(Debug, Serialize)]
struct Why<'a> {
    code: &'a str,
    message: &'a str,
}

/// How the results of a batch are written.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms {
    /// For whose models.
    pub(super) format: Format,
    /// Whether errors are marked, and not only to be read in the text.
    pub(super) marks_errors: bool,
    /// Whether a preview stands for a result that is too long.
    pub(super) has_previews: bool,
    /// Whether ids of jobs are UUIDs.
    pub(super) has_uuids: bool,
    /// Whether there are messages for models.
    pub(super) is_waited_for: bool,
    /// The tool that reads what commands wrote, if the caller may call it.
    pub(super) reader: Option<&'static str>,
    /// Whether models of the caller know the tool that waits for jobs, and may call it.
    pub(super) may_wait: bool,
}

/// Writes all of them.
pub(super) fn response(
    answers: Vec<BatchAnswer>,
    terms: Terms,
) -> Result<InvokeBatchResponse, Error> {
    let mode = if terms.is_waited_for { "sync" } else { "async" };
    let mut response =
        InvokeBatchResponse { ok: true, mode: mode.to_owned(), ..InvokeBatchResponse::default() };
    let mut told = Vec::new();
    let most = ALL_BYTES / answers.len().max(1);
    for answer in answers {
        let answer = match terms.has_uuids {
            true => with_uuid(answer),
            false => answer,
        };
        let (result, output) = result(answer, most, terms)?;
        if terms.is_waited_for {
            let shown = output.shown.as_ref().or(output.data.as_ref());
            response.tool_messages.push(message(&result, shown)?);
            told.push(ToolResult {
                call_id: result.call_id.clone(),
                name: result.name.clone(),
                is_error: !result.ok,
                marks_errors: terms.marks_errors,
                text: output.text,
                data: output.data.filter(|_| !output.is_text),
                shown: output.shown,
            });
        }
        response.results.push(result);
    }
    response.messages_json = terms.format.render_results(&told).to_string();
    Ok(response)
}

/// The same, with the id of its job as a UUID.
fn with_uuid(mut answer: BatchAnswer) -> BatchAnswer {
    match &mut answer.state {
        BatchState::Submitted { job, .. } | BatchState::Pending { job } => *job = as_uuid(job),
        BatchState::Ended(ended) => ended.job_id = as_uuid(&ended.job_id),
    }
    answer
}

/// What a call has answered.
#[derive(Debug, Default)]
struct Output {
    /// The object that it is, or that stands for it, for programs.
    data: Option<Value>,
    /// What models are shown of it, where that is another object.
    shown: Option<Value>,
    /// Whether the tool answers by a text, for which the object stands.
    is_text: bool,
    /// What goes back to a model.
    text: String,
}

/// What came of one call: as a message, and its output.
fn result(answer: BatchAnswer, most: usize, terms: Terms) -> Result<(BatchResult, Output), Error> {
    let BatchAnswer { id, name, state } = answer;
    let result = BatchResult { call_id: id, name, ..BatchResult::default() };
    Ok(match state {
        BatchState::Submitted { job, job_type } => {
            let submitted = BatchResult { ok: true, job_id: job, job_type, ..result };
            (submitted, Output::default())
        }
        BatchState::Pending { job } => {
            let text = match terms.may_wait {
                true => format!(
                    "{PENDING}; it goes on as job {job}: call {} with job_id {job:?} for its result",
                    AwaitJob::NAME
                ),
                false => format!(
                    "{PENDING}; it goes on as job {job}: the program that makes the calls can wait for its result"
                ),
            };
            let pending = BatchResult {
                pending: true,
                job_id: job,
                error: Some(BatchError {
                    code: TIMEOUT.to_owned(),
                    message: PENDING.to_owned(),
                    details: None,
                }),
                ..result
            };
            let output = Output { text, ..Output::default() };
            (pending, output)
        }
        BatchState::Ended(ended) => {
            let ended = *ended;
            let ok = ended.status() == InvokeStatus::Success;
            let output = output(&ended, most, terms)?;
            let error = ended.error.filter(|_| !ok).map(|error| BatchError {
                code: error.error_type.to_uppercase(),
                message: error.message,
                details: error.details.filter(|details| !details.fields.is_empty()),
            });
            let ended = BatchResult {
                ok,
                pending: ended.pending,
                // That it has begun; its own is of no use any more.
                job_id: match ended.pending {
                    true => ended.job_id,
                    false => String::new(),
                },
                output: output.data.as_ref().and_then(Value::as_object).cloned().map(structure),
                error,
                ..result
            };
            (ended, output)
        }
    })
}

/// What a call has answered, no longer than it may be.
fn output(ended: &InvokeResponse, most: usize, terms: Terms) -> Result<Output, Error> {
    let data = ended.data.clone().map(|data| unwrapped(data, "data"));
    let data = data
        .transpose()
        .map_err(|_| Error::internal("an answer has numbers that JSON does not have"))?;
    let is_success = ended.status() == InvokeStatus::Success;
    let is_text = data.is_none();
    // A text is told as the only field of an object.
    let of_text = || is_success.then(|| json!({ "text": ended.text }));
    let data = data.map(Value::Object).or_else(of_text);
    if terms.has_previews {
        let note = rest_note(ended, terms.reader);
        return Ok(previewed(data, is_text, &ended.text, note));
    }
    let rest = rest(&ended.stdout_path, &ended.stderr_path, terms.reader);
    let short = |value: Value| {
        let fields = value.as_object();
        let short = fields.and_then(|fields| shortened(fields, most, &rest));
        short.map_or(value, Value::Object)
    };
    let shown = match is_text {
        true => None,
        false => serde_json::from_str(&ended.text).ok().filter(Value::is_object),
    };
    let shown = shown.map(short);
    let text = match &shown {
        Some(shown) if ended.text.len() > most => shown.to_string(),
        Some(_) => ended.text.clone(),
        None => shortened_text(&ended.text, most, &rest),
    };
    Ok(Output { data: data.map(short), shown, is_text, text })
}

/// The same, where a preview stands for what is too long.
fn previewed(data: Option<Value>, is_text: bool, text: &str, note: Option<String>) -> Output {
    let data = data.map(|data| {
        let whole = data.to_string();
        if whole.len() <= PREVIEWED_BYTES {
            return data;
        }
        let mut preview = json!({
            "truncated": true,
            "bytes": whole.len(),
            "preview": beginning(&whole),
        });
        if let Some(note) = note {
            preview["rest"] = note.into();
        }
        preview
    });
    let text = match (text.len() > PREVIEWED_BYTES, &data) {
        (false, _) => text.to_owned(),
        (true, Some(data)) if !is_text => data.to_string(),
        (true, _) => format!("{} … (the beginning of {} bytes)", beginning(text), text.len()),
    };
    Output { data, shown: None, is_text, text }
}

/// Where a model finds what a preview of a command's result leaves out.
fn rest_note(ended: &InvokeResponse, reader: Option<&str>) -> Option<String> {
    let path = Some(&ended.stdout_path).filter(|path| !path.is_empty())?;
    let reader = reader?;
    Some(format!(
        "the output is in {path} and {}: read it with {reader}, at most {MOST_IN_PREVIEW} bytes (max_bytes) at a time",
        ended.stderr_path
    ))
}

fn beginning(text: &str) -> String {
    text.chars().take(PREVIEW_CHARACTERS).collect()
}

fn message(result: &BatchResult, output: Option<&Value>) -> Result<v1::ToolMessage, Error> {
    let error =
        result.error.as_ref().map(|error| Why { code: &error.code, message: &error.message });
    let content = Content {
        ok: result.ok,
        pending: result.pending.then_some(true),
        job_id: result.pending.then_some(result.job_id.as_str()),
        error,
        result: output,
    };
    Ok(v1::ToolMessage {
        role: "tool".to_owned(),
        tool_call_id: result.call_id.clone(),
        name: result.name.clone(),
        content: serde_json::to_string(&content).map_err(Error::internal)?,
    })
}
