//! What came of the calls of a batch, as messages, and for models.

use serde::Serialize;
use serde_json::Value;

use crate::{
    api::v1::{self, BatchError, BatchResult, InvokeBatchResponse, InvokeResponse, InvokeStatus},
    daemon::{
        call::{
            invoke::batch::{BatchAnswer, BatchState},
            structure::{structure, unwrapped},
        },
        catalog::render::{Format, result::ToolResult},
        error::Error,
    },
};

/// Longest output of a call, as JSON in bytes: what is longer is told of by its beginning. It is for a model,
/// who is told of twenty at once.
const LONGEST: usize = 12 << 10;
/// Most characters of that beginning, which is no longer than that either.
const SHOWN: usize = 12_000;
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

/// Writes all of them. `is_waited_for`: whether there are messages for models.
pub(super) fn response(
    answers: Vec<BatchAnswer>,
    format: Format,
    marks_errors: bool,
    is_waited_for: bool,
) -> Result<InvokeBatchResponse, Error> {
    let mut response = InvokeBatchResponse::default();
    let mut told = Vec::new();
    for answer in answers {
        let (
            result,
            Output {
                data,
                is_text,
                text,
            },
        ) = result(answer)?;
        if is_waited_for {
            response
                .tool_messages
                .push(message(&result, data.as_ref())?);
            told.push(ToolResult {
                call_id: result.call_id.clone(),
                name: result.name.clone(),
                is_error: !result.ok,
                marks_errors,
                text,
                data: data.filter(|_| !is_text),
            });
        }
        response.results.push(result);
    }
    response.messages_json = format.render_results(&told).to_string();
    Ok(response)
}

/// What a call has answered, as models are told.
#[derive(Debug, Default)]
struct Output {
    /// The object that it is, or that stands for it.
    data: Option<Value>,
    /// Whether the tool answers by a text, for which the object stands.
    is_text: bool,
    /// What goes back to a model.
    text: String,
}

/// What came of one call: as a message, and its output.
fn result(answer: BatchAnswer) -> Result<(BatchResult, Output), Error> {
    let BatchAnswer { id, name, state } = answer;
    let result = BatchResult {
        call_id: id,
        name,
        ..BatchResult::default()
    };
    Ok(match state {
        BatchState::Submitted { job, job_type } => {
            let submitted = BatchResult {
                ok: true,
                job_id: job,
                job_type,
                ..result
            };
            (submitted, Output::default())
        }
        BatchState::Pending { job } => {
            let text = format!("{PENDING}; it goes on as job {job}");
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
            let output = Output {
                text,
                ..Output::default()
            };
            (pending, output)
        }
        BatchState::Ended(ended) => {
            let ended = *ended;
            let ok = ended.status() == InvokeStatus::Success;
            let output = output(&ended)?;
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
                    .map(structure),
                error,
                ..result
            };
            (ended, output)
        }
    })
}

/// What a call has answered, no longer than a model is told.
fn output(ended: &InvokeResponse) -> Result<Output, Error> {
    let data = ended.data.clone().map(|data| unwrapped(data, "data"));
    let data = data
        .transpose()
        .map_err(|_| Error::internal("an answer has numbers that JSON does not have"))?;
    let is_success = ended.status() == InvokeStatus::Success;
    let data = match data {
        Some(data) => Some(Value::Object(data)),
        // A text is told as the only field of an object.
        None => is_success.then(|| serde_json::json!({ "text": ended.text })),
    };
    let data = data.map(|data| {
        let whole = data.to_string();
        match whole.len() > LONGEST {
            true => serde_json::json!({
                "truncated": true,
                "bytes": whole.len(),
                "preview": beginning(&whole),
            }),
            false => data,
        }
    });
    let is_text = ended.data.is_none();
    let text = match (ended.text.len() > LONGEST, &data) {
        (false, _) => ended.text.clone(),
        (true, Some(data)) if !is_text => data.to_string(),
        (true, _) => {
            let bytes = ended.text.len();
            format!("{} … (the first of {bytes} bytes)", beginning(&ended.text))
        }
    };
    Ok(Output {
        data,
        is_text,
        text,
    })
}

fn beginning(text: &str) -> String {
    let text = text.get(..text.floor_char_boundary(LONGEST));
    text.unwrap_or_default().chars().take(SHOWN).collect()
}

fn message(result: &BatchResult, output: Option<&Value>) -> Result<v1::ToolMessage, Error> {
    let error = result.error.as_ref().map(|error| Why {
        code: &error.code,
        message: &error.message,
    });
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
