//! What came of a call that was made by the name of its tool: `jig.v1.InvokeResponse`.

mod inline;
mod ran;

use std::time::SystemTime;

use serde_json::{Map, Value as Json, json};

use self::inline::{fit, text_of, within};
pub(crate) use self::inline::{shortened, shortened_text};
pub(crate) use self::ran::rest;
pub(super) use self::{inline::size_of_fields, ran::Ran};
use super::structure::structure;
use crate::{
    api::v1::{InvokeResponse, InvokeStatus, ToolError},
    daemon::{
        dialect::{Answer, Dialect, Failure, Said},
        error::{Error, MOST_VIOLATIONS},
        tool::{Tool as _, read_file::ReadFile},
    },
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

/// Puts what came of a call into an envelope, in the words of its dialect.
pub(super) fn of(
    call: &Call<'_>,
    dialect: Option<&Dialect>,
    said: &Said,
    result: Result<Answer, Error>,
    ran: &Ran,
) -> InvokeResponse {
    let reader = dialect.map_or(ReadFile::NAME, |dialect| dialect.reader);
    let rest = ran.rest(Some(reader));
    let Some(dialect) = dialect else {
        return match result {
            Ok(answer) => answered(begun(call), answer, ran, &rest),
            Err(error) => failed(begun(call), &error),
        };
    };
    match result {
        Ok(answer) => told(begun(call), answer, None, ran, &rest),
        Err(error) => {
            let response = failed(begun(call), &error);
            let of_contract = response.error.clone();
            told(response, dialect.refuse(said, &error), of_contract, ran, &rest)
        }
    }
}

/// What a dialect answers. Where that is why a call failed, `of_contract` is the same as the contract has it; where a
/// command was, that is known of it.
fn told(
    mut response: InvokeResponse,
    answer: Answer,
    of_contract: Option<ToolError>,
    ran: &Ran,
    rest: &str,
) -> InvokeResponse {
    let is_success = answer.is_success();
    let Answer { data, text, failure, job_id, shown: _, is_cut } = answer;
    response.status = match is_success {
        true => InvokeStatus::Success,
        false => InvokeStatus::Error,
    }
    .into();
    ran.put(&mut response);
    response.pending = job_id.is_some();
    response.job_id = job_id.unwrap_or_default();
    let (text, is_all) = match (text, &data, &failure) {
        (Some(text), data, _) => within(text, data.as_ref(), rest),
        (None, Some(data), _) => text_of(data, data, rest),
        (None, None, Some(failure)) => (failure.message.clone(), true),
        (None, None, None) => (String::new(), true),
    };
    let mut is_whole = true;
    let data = data.map(|mut data| {
        is_whole = fit(&mut data, rest);
        data
    });
    response.text = text;
    response.truncated = !is_whole || !is_all || is_cut;
    response.data = data.map(structure);
    response.error = match failure {
        Some(Failure { code, message, suggestion, .. }) => {
            let of_contract = of_contract.or_else(|| ran.abnormal_exit.clone());
            let of_contract = of_contract.unwrap_or_default();
            Some(ToolError {
                error_type: code,
                message,
                suggestion: suggestion.unwrap_or(of_contract.suggestion),
                details: of_contract.details,
            })
        }
        None => ran.abnormal_exit.clone(),
    };
    response
}

fn begun(call: &Call<'_>) -> InvokeResponse {
    let duration = call.ended.duration_since(call.started).unwrap_or_default();
    InvokeResponse {
        tool: call.tool.to_owned(),
        started_at: Some(call.started.into()),
        ended_at: Some(call.ended.into()),
        duration_sec: duration.as_secs_f64(),
        ..InvokeResponse::default()
    }
}

fn answered(mut response: InvokeResponse, answer: Answer, ran: &Ran, rest: &str) -> InvokeResponse {
    let mut data = answer.data.unwrap_or_default();
    let shown = answer.shown.as_ref().unwrap_or(&data);
    let (text, is_all) = text_of(shown, &data, rest);
    let is_whole = fit(&mut data, rest);
    response.status = InvokeStatus::Success.into();
    ran.put(&mut response);
    response.error = ran.abnormal_exit.clone();
    response.text = text;
    response.truncated = !is_whole || !is_all;
    response.data = Some(structure(data));
    response
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
        suggestion: error.reason.suggestion().to_owned(),
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
            let ran = Ran::of(&fields);
            let answer = Answer::data(fields.into());
            let response = answered(begun(&call()), answer, &ran, "");
            assert_eq!(response.status(), InvokeStatus::Success);
            assert_eq!(response.exit_code, code);
            let outcome = data.get("outcome").and_then(Json::as_str);
            let outcome = outcome.unwrap_or("OUTCOME_UNSPECIFIED");
            assert_eq!(response.outcome().as_str_name(), outcome);
            let text = |name: &str| data.get(name).and_then(Json::as_str).unwrap_or_default();
            assert_eq!(response.signal, text("signal"));
            assert_eq!(response.limit, text("limit"));
            assert_eq!(response.text, data.to_string());
            assert_eq!(response.duration_sec, 1.5);
            let message = response.error.map(|error| error.message);
            assert_eq!(message.is_some(), told.is_some(), "{data}");
            assert!(message.unwrap_or_default().contains(told.unwrap_or_default()), "{data}");
        }
    }

    #[test]
    fn an_error_tells_all_that_a_status_would() {
        let error = Error::invalid_field("path", "must be given").with("path", "x");
        let response = failed(begun(&call()), &error);
        assert_eq!(response.status(), InvokeStatus::Error);
        assert_eq!(response.data, None);
        let told = response.error.unwrap();
        assert_eq!(told.error_type, "invalid_params");
        let details = Json::Object(unwrapped(told.details.unwrap(), "details").unwrap());
        assert_eq!(details["fields"][0]["field"], "path");
        assert_eq!(details["path"], "x");
        let busy = Error::new(Reason::ResourceExhausted, "busy")
            .retry_after(std::time::Duration::from_millis(500));
        let told = failed(begun(&call()), &busy).error.unwrap();
        let details = unwrapped(told.details.unwrap(), "details").unwrap();
        assert_eq!(details.get("retry_after_sec"), Some(&json!(0.5)));
    }
}
