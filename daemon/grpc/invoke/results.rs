//! Renders the results of a batch: as protobuf messages, and as messages for models.

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

/// Maximum size of all results as JSON. The response contains each up to five times, in 4 MiB.
const MAX_RESULTS_BYTES: usize = 640 << 10;
/// In dialects with previews, a result longer than this as JSON is replaced by a preview.
const PREVIEW_THRESHOLD_BYTES: usize = 12 << 10;
/// Bytes of a file that fit into a result without preview, whatever their JSON escapes. Usual text
/// fits more.
const MAX_READ_BYTES_WITHOUT_PREVIEW: usize = 6000;
/// Length of a preview.
const MAX_PREVIEW_CHARS: usize = 12_000;
/// Error message of a call whose job has not ended within `wait_ms`.
const PENDING_MESSAGE: &str = "Job did not complete within wait_ms";
/// Error code of such a call.
const PENDING_ERROR_CODE: &str = "TIMEOUT";

/// Content of a tool message for a model, as JSON in this order of fields.
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

/// How to render the results of a batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct BatchResultOptions {
    pub(super) format: RenderFormat,
    /// Whether a flag marks errors, in addition to the text.
    pub(super) marks_errors: bool,
    /// Whether a preview replaces a result that is too long.
    pub(super) has_previews: bool,
    /// Whether job ids are formatted as UUIDs.
    pub(super) has_uuids: bool,
    /// Whether the batch waits for its calls. If not, there are no messages for models.
    pub(super) is_sync: bool,
    /// The tool that reads the output of commands, if the caller may call it.
    pub(super) output_reader_tool: Option<&'static str>,
    /// Whether the caller's models know the tool that waits for jobs and may call it.
    pub(super) can_await_jobs: bool,
}

/// Renders the response to a batch.
pub(super) fn render_response(
    call_results: Vec<BatchCallResult>,
    options: BatchResultOptions,
) -> Result<InvokeBatchResponse, Error> {
    let mode = if options.is_sync { "sync" } else { "async" };
    let mut response =
        InvokeBatchResponse { ok: true, mode: mode.to_owned(), ..InvokeBatchResponse::default() };
    let mut model_results = Vec::new();
    let max_bytes = MAX_RESULTS_BYTES / call_results.len().max(1);

    for mut call_result in call_results {
        if options.has_uuids {
            use_uuid_job_id(&mut call_result.state);
        }
        let (result, output) = render_result(call_result, max_bytes, options)?;
        if options.is_sync {
            let model_data = output.model_data.as_ref().or(output.data.as_ref());
            response.tool_messages.push(tool_message(&result, model_data)?);
            model_results.push(ToolResult {
                call_id: result.call_id.clone(),
                name: result.name.clone(),
                is_error: !result.ok,
                marks_errors: options.marks_errors,
                text: output.text,
                data: output.data.filter(|_| !output.is_text),
                model_data: output.model_data,
            });
        }
        response.results.push(result);
    }
    response.messages_json = options.format.render_results(&model_results).to_string();
    Ok(response)
}

/// Formats the job id as a UUID.
fn use_uuid_job_id(state: &mut BatchCallState) {
    match state {
        BatchCallState::Submitted { job, .. } | BatchCallState::Pending { job } => {
            *job = as_uuid(job);
        }
        BatchCallState::Ended(ended) => ended.job_id = as_uuid(&ended.job_id),
    }
}

/// The output of a call, within its size limit.
#[derive(Debug, Default)]
struct RenderedOutput {
    /// The output as an object, for programs. A text is an object with the one field `text`.
    data: Option<Value>,
    /// The object for models, if it differs.
    model_data: Option<Value>,
    /// Whether the tool returns a text.
    is_text: bool,
    /// The text for a model.
    text: String,
}

/// Renders the result of one call: as a message, and its output.
fn render_result(
    call_result: BatchCallResult,
    max_bytes: usize,
    options: BatchResultOptions,
) -> Result<(BatchResult, RenderedOutput), Error> {
    let BatchCallResult { id, name, state } = call_result;
    let result = BatchResult { call_id: id, name, ..BatchResult::default() };
    Ok(match state {
        BatchCallState::Submitted { job, job_type } => {
            let submitted = BatchResult { ok: true, job_id: job, job_type, ..result };
            (submitted, RenderedOutput::default())
        }
        BatchCallState::Pending { job } => render_pending(job, result, options),
        BatchCallState::Ended(response) => render_ended(*response, result, max_bytes, options)?,
    })
}

fn render_pending(
    job: String,
    result: BatchResult,
    options: BatchResultOptions,
) -> (BatchResult, RenderedOutput) {
    let text = if options.can_await_jobs {
        format!(
            "{PENDING_MESSAGE}; the call continues as job {job}: call {} with job_id {job:?} for its result",
            AwaitJob::NAME
        )
    } else {
        format!(
            "{PENDING_MESSAGE}; the call continues as job {job}: your client can wait for its result (JobService.WaitJob)"
        )
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
    (pending, RenderedOutput { text, ..RenderedOutput::default() })
}

fn render_ended(
    response: InvokeResponse,
    result: BatchResult,
    max_bytes: usize,
    options: BatchResultOptions,
) -> Result<(BatchResult, RenderedOutput), Error> {
    let ok = response.status() == InvokeStatus::Success;
    let output = render_output(&response, max_bytes, options)?;
    let error = response.error.filter(|_| !ok).map(|error| BatchError {
        code: error.error_type.to_uppercase(),
        message: error.message,
        details: error.details.filter(|details| !details.fields.is_empty()),
    });

    let object = output.data.as_ref().and_then(Value::as_object).cloned();
    let ended = BatchResult {
        ok,
        pending: response.pending,
        // A pending response names the job that it has started. The id of the call's own job, which
        // has ended, is of no use.
        job_id: if response.pending { response.job_id } else { String::new() },
        output: object.map(json_to_struct),
        error,
        ..result
    };
    Ok((ended, output))
}

/// Renders the output of a call, truncated to `max_bytes` or replaced by a preview.
fn render_output(
    response: &InvokeResponse,
    max_bytes: usize,
    options: BatchResultOptions,
) -> Result<RenderedOutput, Error> {
    let data = response.data.clone().map(|data| try_struct_to_json(data, "data"));
    let data = data
        .transpose()
        .map_err(|_| Error::internal("a response has numbers that JSON does not have"))?;
    let is_success = response.status() == InvokeStatus::Success;
    let is_text = data.is_none();
    let text_object = || is_success.then(|| json!({ "text": response.text }));
    let data = data.map(Value::Object).or_else(text_object);

    if options.has_previews {
        let note = rest_note(response, options.output_reader_tool);
        return Ok(render_preview(data, is_text, &response.text, note));
    }

    let hint =
        output_hint(&response.stdout_path, &response.stderr_path, options.output_reader_tool);
    let truncate = |value: Value| {
        let fields = value.as_object();
        let truncated = fields.and_then(|fields| truncate_object(fields, max_bytes, &hint));
        truncated.map_or(value, Value::Object)
    };
    let model_data = if is_text {
        None
    } else {
        let object = serde_json::from_str(&response.text).ok().filter(Value::is_object);
        object.map(truncate)
    };
    let text = match &model_data {
        Some(object) if response.text.len() > max_bytes => object.to_string(),
        Some(_) => response.text.clone(),
        None => truncate_text_to_json_bytes(&response.text, max_bytes, &hint),
    };
    Ok(RenderedOutput { data: data.map(truncate), model_data, is_text, text })
}

/// Renders an output, with a preview in place of an object or text that is too long.
fn render_preview(
    data: Option<Value>,
    is_text: bool,
    text: &str,
    note: Option<String>,
) -> RenderedOutput {
    let data = data.map(|data| {
        let json_text = data.to_string();
        if json_text.len() <= PREVIEW_THRESHOLD_BYTES {
            return data;
        }
        let mut preview = json!({
            "truncated": true,
            "bytes": json_text.len(),
            "preview": preview_text(&json_text),
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

/// Returns a note for models: where the output is that a preview omits.
fn rest_note(response: &InvokeResponse, reader: Option<&str>) -> Option<String> {
    let path = Some(&response.stdout_path).filter(|path| !path.is_empty())?;
    let reader = reader?;
    Some(format!(
        "the output is in {path} and {}: read it with {reader}, at most {MAX_READ_BYTES_WITHOUT_PREVIEW} bytes (max_bytes) at a time",
        response.stderr_path
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
