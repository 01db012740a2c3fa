//! What came of the calls of a batch, as messages, and for models.

use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    api::{
        json_struct::{json_to_struct, try_struct_to_json},
        v1::{self, BatchError, BatchResult, InvokeBatchResponse, InvokeResponse, InvokeStatus},
    },
    daemon::{
        catalog::render::{RenderFormat, result::ToolResult},
        error::Error,
        pipeline::{
            envelope::{output_hint, truncate_object, truncate_text_to_json_bytes},
            invoke::batch::{BatchCallResult, BatchCallState},
            jobs::id::as_uuid,
        },
        tool::{Tool as _, await_job::AwaitJob},
    },
};

/// Most bytes of the results of all calls, as JSON. A message has each of them up to five times, and has 4 MiB.
const MAX_RESULTS_BYTES: usize = 640 << 10;
/// Longest result, as JSON in bytes, of a vocabulary in which a preview stands for a longer one.
const PREVIEW_THRESHOLD_BYTES: usize = 12 << 10;
/// Most bytes of a file in a result that is not previewed, whatever they are as JSON; common texts fit more often.
const MOST_IN_PREVIEW: usize = 6000;
/// Characters of the preview.
const MAX_PREVIEW_CHARS: usize = 12_000;
/// What a call is told whose job has not ended in time.
const PENDING_MESSAGE: &str = "Job did not complete within wait_ms";
/// And how programs tell it.
const PENDING_ERROR_CODE: &str = "TIMEOUT";

/// What goes back to a model of a call, as JSON in this order.
#[derive(Debug, Serialize)]
struct ToolMessageContent<'a> {
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pending: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    job_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ToolMessageError<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a Value>,
}

#[derive(Debug, Serialize)]
struct ToolMessageError<'a> {
    code: &'a str,
    message: &'a str,
}

/// How the results of a batch are written.
#[derive(Debug, Clone, Copy)]
pub(super) struct BatchResultOptions {
    /// For whose models.
    pub(super) format: RenderFormat,
    /// Whether errors are marked, and not only to be read in the text.
    pub(super) marks_errors: bool,
    /// Whether a preview stands for a result that is too long.
    pub(super) has_previews: bool,
    /// Whether ids of jobs are UUIDs.
    pub(super) has_uuids: bool,
    /// Whether there are messages for models.
    pub(super) is_sync: bool,
    /// The tool that reads what commands wrote, if the caller may call it.
    pub(super) output_reader_tool: Option<&'static str>,
    /// Whether models of the caller know the tool that waits for jobs, and may call it.
    pub(super) can_await_jobs: bool,
}

/// Writes all of them.
pub(super) fn render_response(
    answers: Vec<BatchCallResult>,
    terms: BatchResultOptions,
) -> Result<InvokeBatchResponse, Error> {
    let mode = if terms.is_sync { "sync" } else { "async" };
    let mut response =
        InvokeBatchResponse { ok: true, mode: mode.to_owned(), ..InvokeBatchResponse::default() };
    let mut told = Vec::new();
    let most = MAX_RESULTS_BYTES / answers.len().max(1);
    for answer in answers {
        let answer = match terms.has_uuids {
            true => with_uuid_job_id(answer),
            false => answer,
        };
        let (result, output) = render_result(answer, most, terms)?;
        if terms.is_sync {
            let shown = output.model_data.as_ref().or(output.data.as_ref());
            response.tool_messages.push(tool_message(&result, shown)?);
            told.push(ToolResult {
                call_id: result.call_id.clone(),
                name: result.name.clone(),
                is_error: !result.ok,
                marks_errors: terms.marks_errors,
                text: output.text,
                data: output.data.filter(|_| !output.is_text),
                model_data: output.model_data,
            });
        }
        response.results.push(result);
    }
    response.messages_json = terms.format.render_results(&told).to_string();
    Ok(response)
}

/// The same, with the id of its job as a UUID.
fn with_uuid_job_id(mut answer: BatchCallResult) -> BatchCallResult {
    match &mut answer.state {
        BatchCallState::Submitted { job, .. } | BatchCallState::Pending { job } => {
            *job = as_uuid(job)
        }
        BatchCallState::Ended(ended) => ended.job_id = as_uuid(&ended.job_id),
    }
    answer
}

/// What a call has answered.
#[derive(Debug, Default)]
struct RenderedOutput {
    /// The object that it is, or that stands for it, for programs.
    data: Option<Value>,
    /// What models are shown of it, where that is another object.
    model_data: Option<Value>,
    /// Whether the tool answers by a text, for which the object stands.
    is_text: bool,
    /// What goes back to a model.
    text: String,
}

/// What came of one call: as a message, and its output.
fn render_result(
    answer: BatchCallResult,
    most: usize,
    terms: BatchResultOptions,
) -> Result<(BatchResult, RenderedOutput), Error> {
    let BatchCallResult { id, name, state } = answer;
    let result = BatchResult { call_id: id, name, ..BatchResult::default() };
    Ok(match state {
        BatchCallState::Submitted { job, job_type } => {
            let submitted = BatchResult { ok: true, job_id: job, job_type, ..result };
            (submitted, RenderedOutput::default())
        }
        BatchCallState::Pending { job } => {
            let text = match terms.can_await_jobs {
                true => format!(
                    "{PENDING_MESSAGE}; it goes on as job {job}: call {} with job_id {job:?} for its result",
                    AwaitJob::NAME
                ),
                false => format!(
                    "{PENDING_MESSAGE}; it goes on as job {job}: the program that makes the calls can wait for its result"
                ),
            };
            let pending = BatchResult {
                pending: true,
                job_id: job,
                error: Some(BatchError {
                    code: PENDING_ERROR_CODE.to_owned(),
                    message: PENDING_MESSAGE.to_owned(),
                    details: None,
                }),
                ..result
            };
            let output = RenderedOutput { text, ..RenderedOutput::default() };
            (pending, output)
        }
        BatchCallState::Ended(ended) => {
            let ended = *ended;
            let ok = ended.status() == InvokeStatus::Success;
            let output = render_output(&ended, most, terms)?;
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
                output: output
                    .data
                    .as_ref()
                    .and_then(Value::as_object)
                    .cloned()
                    .map(json_to_struct),
                error,
                ..result
            };
            (ended, output)
        }
    })
}

/// What a call has answered, no longer than it may be.
fn render_output(
    ended: &InvokeResponse,
    most: usize,
    terms: BatchResultOptions,
) -> Result<RenderedOutput, Error> {
    let data = ended.data.clone().map(|data| try_struct_to_json(data, "data"));
    let data = data
        .transpose()
        .map_err(|_| Error::internal("an answer has numbers that JSON does not have"))?;
    let is_success = ended.status() == InvokeStatus::Success;
    let is_text = data.is_none();
    // A text is told as the only field of an object.
    let of_text = || is_success.then(|| json!({ "text": ended.text }));
    let data = data.map(Value::Object).or_else(of_text);
    if terms.has_previews {
        let note = rest_note(ended, terms.output_reader_tool);
        return Ok(render_preview(data, is_text, &ended.text, note));
    }
    let rest = output_hint(&ended.stdout_path, &ended.stderr_path, terms.output_reader_tool);
    let short = |value: Value| {
        let fields = value.as_object();
        let short = fields.and_then(|fields| truncate_object(fields, most, &rest));
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
        None => truncate_text_to_json_bytes(&ended.text, most, &rest),
    };
    Ok(RenderedOutput { data: data.map(short), model_data: shown, is_text, text })
}

/// The same, where a preview stands for what is too long.
fn render_preview(
    data: Option<Value>,
    is_text: bool,
    text: &str,
    note: Option<String>,
) -> RenderedOutput {
    let data = data.map(|data| {
        let whole = data.to_string();
        if whole.len() <= PREVIEW_THRESHOLD_BYTES {
            return data;
        }
        let mut preview = json!({
            "truncated": true,
            "bytes": whole.len(),
            "preview": preview_text(&whole),
        });
        if let Some(note) = note {
            preview["rest"] = note.into();
        }
        preview
    });
    let text = match (text.len() > PREVIEW_THRESHOLD_BYTES, &data) {
        (false, _) => text.to_owned(),
        (true, Some(data)) if !is_text => data.to_string(),
        (true, _) => format!("{} … (the beginning of {} bytes)", preview_text(text), text.len()),
    };
    RenderedOutput { data, model_data: None, is_text, text }
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

fn preview_text(text: &str) -> String {
    text.chars().take(MAX_PREVIEW_CHARS).collect()
}

fn tool_message(result: &BatchResult, output: Option<&Value>) -> Result<v1::ToolMessage, Error> {
    let error = result
        .error
        .as_ref()
        .map(|error| ToolMessageError { code: &error.code, message: &error.message });
    let content = ToolMessageContent {
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
