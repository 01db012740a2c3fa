//! What came of a call that was made by the name of its tool: `jig.v1.InvokeResponse`.

mod inline;

use std::time::SystemTime;

use serde_json::{Map, Value as Json, json};

use self::inline::{fit, text_of};
use super::{structure::structure, suggestion::suggestion};
use crate::{
    api::v1::{InvokeResponse, InvokeStatus, ToolError},
    daemon::error::{Error, MOST_VIOLATIONS},
};

/// A call, and when its work was done.
#[derive(Debug)]
pub(super) struct Call<'a> {
    /// Name of the tool.
    pub(super) tool: &'a str,
    /// When the work began.
    pub(super) started: SystemTime,
    /// When it ended.
    pub(super) ended: SystemTime,
}

/// Puts what came of a call into an envelope.
pub(super) fn envelope(
    call: &Call<'_>,
    result: Result<Map<String, Json>, &Error>,
) -> InvokeResponse {
    let duration = call.ended.duration_since(call.started).unwrap_or_default();
    let response = InvokeResponse {
        tool: call.tool.to_owned(),
        started_at: Some(call.started.into()),
        ended_at: Some(call.ended.into()),
        duration_sec: duration.as_secs_f64(),
        ..InvokeResponse::default()
    };
    match result {
        Ok(data) => answered(response, data),
        Err(error) => failed(response, error),
    }
}

fn answered(mut response: InvokeResponse, mut data: Map<String, Json>) -> InvokeResponse {
    let is_whole = fit(&mut data);
    let text = |name: &str| data.get(name).and_then(Json::as_str).unwrap_or_default();
    response.status = InvokeStatus::Success.into();
    response.stdout_path = text("stdout_path").to_owned();
    response.stderr_path = text("stderr_path").to_owned();
    let code = data.get("exit_code").and_then(Json::as_i64);
    response.exit_code = code.and_then(|code| i32::try_from(code).ok());
    response.error = abnormal_exit(&data);
    let (text, is_all) = text_of(&data);
    response.text = text;
    response.truncated = !is_whole || !is_all;
    response.data = Some(structure(data));
    response
}

/// What is worth knowing of a command that ran, although it is no failure of the call.
fn abnormal_exit(data: &Map<String, Json>) -> Option<ToolError> {
    let outcome = data.get("outcome")?.as_str()?;
    let code = data.get("exit_code").and_then(Json::as_i64);
    let message = match code {
        Some(0) => return None,
        Some(code) => format!("the command exited with {code}"),
        None => {
            let outcome = outcome.trim_start_matches("OUTCOME_").to_lowercase();
            let signal = data.get("signal").and_then(Json::as_str);
            match signal.filter(|signal| !signal.is_empty()) {
                Some(signal) => format!("the command ended by {signal} ({outcome})"),
                None => format!("the command did not exit by itself ({outcome})"),
            }
        }
    };
    Some(ToolError {
        error_type: "abnormal_exit".to_owned(),
        message,
        suggestion: "Look at what it wrote to its standard error.".to_owned(),
        details: None,
    })
}

fn failed(mut response: InvokeResponse, error: &Error) -> InvokeResponse {
    let mut details: Map<String, Json> = error
        .metadata
        .iter()
        .map(|(name, value)| (name.clone().into_owned(), value.clone().into()))
        .collect();
    if !error.violations.is_empty() {
        let fields = error.violations.iter().take(MOST_VIOLATIONS);
        let fields = fields.map(
            |violation| json!({ "field": violation.field, "description": violation.description }),
        );
        details.insert("fields".to_owned(), fields.collect());
    }
    if let Some(wait) = error.retry_after {
        details.insert("retry_after_sec".to_owned(), wait.as_secs_f64().into());
    }
    response.status = InvokeStatus::Error.into();
    response.text = error.to_string();
    response.error = Some(ToolError {
        error_type: error.reason.name().to_lowercase(),
        message: error.to_string(),
        suggestion: suggestion(error.reason).to_owned(),
        details: Some(structure(details)),
    });
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::{call::structure::unwrapped, error::Reason};

    fn call() -> Call<'static> {
        Call {
            tool: "run",
            started: SystemTime::UNIX_EPOCH,
            ended: SystemTime::UNIX_EPOCH + std::time::Duration::from_millis(1500),
        }
    }

    fn fields(json: Json) -> Map<String, Json> {
        json.as_object().expect("an object").clone()
    }

    #[test]
    fn a_command_that_ran_is_a_success() {
        for (data, code, told) in [
            (
                json!({"outcome": "OUTCOME_EXITED", "exit_code": 0, "stdout_path": "p"}),
                Some(0),
                None,
            ),
            (
                json!({"outcome": "OUTCOME_EXITED", "exit_code": 3}),
                Some(3),
                Some("exited with 3"),
            ),
            (
                json!({"outcome": "OUTCOME_SIGNALED", "signal": "SIGSEGV"}),
                None,
                Some("SIGSEGV (signaled)"),
            ),
            (
                json!({"outcome": "OUTCOME_TIMED_OUT", "signal": ""}),
                None,
                Some("(timed_out)"),
            ),
            (json!({"files": []}), None, None),
        ] {
            let response = envelope(&call(), Ok(fields(data.clone())));
            assert_eq!(response.status(), InvokeStatus::Success);
            assert_eq!(response.exit_code, code);
            assert_eq!(response.text, data.to_string());
            assert_eq!(response.duration_sec, 1.5);
            let message = response.error.map(|error| error.message);
            assert_eq!(message.is_some(), told.is_some(), "{data}");
            assert!(
                message
                    .unwrap_or_default()
                    .contains(told.unwrap_or_default()),
                "{data}"
            );
        }
    }

    #[test]
    fn an_error_tells_all_that_a_status_would() {
        let error = Error::invalid_field("path", "must be given").with("path", "x");
        let response = envelope(&call(), Err(&error));
        assert_eq!(response.status(), InvokeStatus::Error);
        assert_eq!(response.data, None);
        let told = response.error.unwrap();
        assert_eq!(told.error_type, "invalid_params");
        let details = Json::Object(unwrapped(told.details.unwrap(), "details").unwrap());
        assert_eq!(details["fields"][0]["field"], "path");
        assert_eq!(details["path"], "x");
        let busy = Error::new(Reason::ResourceExhausted, "busy")
            .retry_after(std::time::Duration::from_millis(500));
        let told = envelope(&call(), Err(&busy)).error.unwrap();
        let details = unwrapped(told.details.unwrap(), "details").unwrap();
        assert_eq!(details.get("retry_after_sec"), Some(&json!(0.5)));
    }
}
