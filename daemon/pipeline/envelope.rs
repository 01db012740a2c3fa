//! Builds `jig.v1.InvokeResponse`, the result of a call by tool name.

mod exit_info;
mod truncate;

use std::time::SystemTime;

use serde_json::{Map, Value as Json, json};

pub(crate) use self::exit_info::output_hint;
use self::truncate::{text_beside_data, truncate_text_beside_data, truncate_to_fit};
pub(crate) use self::truncate::{truncate_object, truncate_text_to_json_bytes};
pub(super) use self::{exit_info::CommandExitInfo, truncate::encoded_size_of_fields};
use crate::{
    api::{
        json_struct::json_to_struct,
        v1::{InvokeResponse, InvokeStatus, ToolError},
    },
    daemon::{
        dialect::{Dialect, DialectFailure, DialectInvocation, DialectResponse},
        error::{Error, MAX_VIOLATIONS},
        tool::{Tool as _, read_file::ReadFile},
    },
};

/// The tool of a call, and when it ran.
#[derive(Debug)]
pub(super) struct CallTiming<'a> {
    pub(super) tool: &'a str,
    pub(super) started: SystemTime,
    pub(super) ended: SystemTime,
}

/// Builds the response of a call, in the terms of its dialect.
pub(super) fn build(
    timing: &CallTiming<'_>,
    dialect: Option<&Dialect>,
    dialect_invocation: &DialectInvocation,
    result: Result<DialectResponse, Error>,
    exit_info: &CommandExitInfo,
) -> InvokeResponse {
    let reader = dialect.map_or(ReadFile::NAME, |dialect| dialect.artifact_reader);
    let rest_hint = exit_info.output_hint(Some(reader));
    let Some(dialect) = dialect else {
        return match result {
            Ok(output) => success_response(timed_response(timing), output, exit_info, &rest_hint),
            Err(error) => error_response(timed_response(timing), &error),
        };
    };

    match result {
        Ok(output) => dialect_response(timed_response(timing), output, None, exit_info, &rest_hint),
        Err(error) => {
            let response = error_response(timed_response(timing), &error);
            let contract_error = response.error.clone();
            dialect_response(
                response,
                dialect.render_error(dialect_invocation, &error),
                contract_error,
                exit_info,
                &rest_hint,
            )
        }
    }
}

/// Builds the response of a call that no tool began, because of this error.
pub(crate) fn rejected_response(tool: &str, error: &Error) -> InvokeResponse {
    error_response(InvokeResponse { tool: tool.to_owned(), ..InvokeResponse::default() }, error)
}

/// Builds the response of a call in a dialect. `contract_error` is the same error in the contract's
/// terms. It gives suggestion and details; without it, the exit of a command does.
fn dialect_response(
    mut response: InvokeResponse,
    output: DialectResponse,
    contract_error: Option<ToolError>,
    exit_info: &CommandExitInfo,
    rest_hint: &str,
) -> InvokeResponse {
    let is_success = output.is_success();
    let DialectResponse { data, text, failure, job_id, model_data: _, is_truncated } = output;
    response.status = if is_success { InvokeStatus::Success } else { InvokeStatus::Error }.into();
    exit_info.write_to(&mut response);
    response.pending = job_id.is_some();
    response.job_id = job_id.unwrap_or_default();

    let (text, is_text_complete) = match (text, &data, &failure) {
        (Some(text), data, _) => truncate_text_beside_data(text, data.as_ref(), rest_hint),
        (None, Some(data), _) => text_beside_data(data, data, rest_hint),
        (None, None, Some(failure)) => (failure.message.clone(), true),
        (None, None, None) => (String::new(), true),
    };
    let mut is_data_complete = true;
    let data = data.map(|mut data| {
        is_data_complete = truncate_to_fit(&mut data, rest_hint);
        data
    });
    response.text = text;
    response.truncated = !is_data_complete || !is_text_complete || is_truncated;
    response.data = data.map(json_to_struct);

    response.error = match failure {
        Some(DialectFailure { code, message, suggestion, .. }) => {
            let source =
                contract_error.or_else(|| exit_info.abnormal_exit.clone()).unwrap_or_default();
            Some(ToolError {
                error_type: code,
                message,
                suggestion: suggestion.unwrap_or(source.suggestion),
                details: source.details,
            })
        }
        None => exit_info.abnormal_exit.clone(),
    };

    response
}

fn timed_response(timing: &CallTiming<'_>) -> InvokeResponse {
    let duration = timing.ended.duration_since(timing.started).unwrap_or_default();
    InvokeResponse {
        tool: timing.tool.to_owned(),
        started_at: Some(timing.started.into()),
        ended_at: Some(timing.ended.into()),
        duration_sec: duration.as_secs_f64(),
        ..InvokeResponse::default()
    }
}

fn success_response(
    mut response: InvokeResponse,
    output: DialectResponse,
    exit_info: &CommandExitInfo,
    rest_hint: &str,
) -> InvokeResponse {
    let mut data = output.data.unwrap_or_default();
    let model_view = output.model_data.as_ref().unwrap_or(&data);
    let (text, is_text_complete) = text_beside_data(model_view, &data, rest_hint);
    let is_data_complete = truncate_to_fit(&mut data, rest_hint);

    response.status = InvokeStatus::Success.into();
    exit_info.write_to(&mut response);
    response.error = exit_info.abnormal_exit.clone();
    response.text = text;
    response.truncated = !is_data_complete || !is_text_complete;
    response.data = Some(json_to_struct(data));
    response
}

fn error_response(mut response: InvokeResponse, error: &Error) -> InvokeResponse {
    let mut details: Map<String, Json> = error
        .metadata
        .iter()
        .map(|(name, value)| (name.clone().into_owned(), value.clone().into()))
        .collect();
    if !error.violations.is_empty() {
        let fields = error.violations.iter().take(MAX_VIOLATIONS).map(
            |violation| json!({ "field": violation.field, "description": violation.description }),
        );
        details.insert("fields".to_owned(), fields.collect());
    }
    if let Some(delay) = error.retry_after {
        details.insert("retry_after_sec".to_owned(), delay.as_secs_f64().into());
    }

    response.status = InvokeStatus::Error.into();
    response.text = error.to_string();
    response.error = Some(ToolError {
        error_type: error.reason.name().to_lowercase(),
        message: error.to_string(),
        suggestion: error.reason.suggestion().to_owned(),
        details: Some(json_to_struct(details)),
    });

    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{api::json_struct::struct_to_json, daemon::error::Reason};

    fn timing() -> CallTiming<'static> {
        CallTiming {
            tool: "run",
            started: SystemTime::UNIX_EPOCH,
            ended: SystemTime::UNIX_EPOCH + std::time::Duration::from_millis(1500),
        }
    }

    fn fields(json: Json) -> Map<String, Json> {
        json.as_object().expect("an object").clone()
    }

    #[test]
    fn command_that_ran_is_a_success() {
        for (data, code, expected) in [
            (
                json!({"outcome": "OUTCOME_EXITED", "exit_code": 0, "stdout_path": "p"}),
                Some(0),
                None,
            ),
            (json!({"outcome": "OUTCOME_EXITED", "exit_code": 3}), Some(3), Some("exited with 3")),
            (
                json!({"outcome": "OUTCOME_SIGNALED", "signal": "SIGSEGV"}),
                None,
                Some("SIGSEGV (signaled)"),
            ),
            (json!({"outcome": "OUTCOME_TIMED_OUT", "signal": ""}), None, Some("(timed_out)")),
            (
                json!({"outcome": "OUTCOME_OOM_KILLED", "signal": "SIGKILL", "limit": "memory"}),
                None,
                Some("SIGKILL (oom_killed)"),
            ),
            (json!({"files": []}), None, None),
        ] {
            let fields = fields(data.clone());
            let exit_info = CommandExitInfo::from_output(&fields);
            let output = DialectResponse::data(fields.into());
            let response = success_response(timed_response(&timing()), output, &exit_info, "");
            assert_eq!(response.status(), InvokeStatus::Success);
            assert_eq!(response.exit_code, code);
            let outcome =
                data.get("outcome").and_then(Json::as_str).unwrap_or("OUTCOME_UNSPECIFIED");
            assert_eq!(response.outcome().as_str_name(), outcome);
            let text = |name: &str| data.get(name).and_then(Json::as_str).unwrap_or_default();
            assert_eq!(response.signal, text("signal"));
            assert_eq!(response.limit, text("limit"));
            assert_eq!(response.text, data.to_string());
            assert_eq!(response.duration_sec, 1.5);
            let message = response.error.map(|error| error.message);
            assert_eq!(message.is_some(), expected.is_some(), "{data}");
            assert!(message.unwrap_or_default().contains(expected.unwrap_or_default()), "{data}");
        }
    }

    #[test]
    fn error_contains_everything_of_a_status() {
        let error = Error::invalid_field("path", "is required").with_metadata("path", "x");
        let response = error_response(timed_response(&timing()), &error);
        assert_eq!(response.status(), InvokeStatus::Error);
        assert_eq!(response.data, None);
        let tool_error = response.error.unwrap();
        assert_eq!(tool_error.error_type, "invalid_params");
        let details = Json::Object(struct_to_json(tool_error.details.unwrap()));
        assert_eq!(details["fields"][0]["field"], "path");
        assert_eq!(details["path"], "x");

        let busy = Error::new(Reason::ResourceExhausted, "busy")
            .with_retry_after(std::time::Duration::from_millis(500));
        let tool_error = error_response(timed_response(&timing()), &busy).error.unwrap();
        let details = struct_to_json(tool_error.details.unwrap());
        assert_eq!(details.get("retry_after_sec"), Some(&json!(0.5)));
    }
}
