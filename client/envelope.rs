//! JSON form of `jig.v1.InvokeResponse`, with the field names of the contract.

use jig::api::{
    json_struct::struct_to_json,
    v1::{InvokeResponse, InvokeStatus, Outcome, RunResponse, ToolError},
};
use prost_types::Timestamp;
use serde_json::{Value, json};

/// Converts a whole response.
pub(crate) fn to_json(response: &InvokeResponse) -> Value {
    let status = InvokeStatus::try_from(response.status).unwrap_or_default();
    json!({
        "request_id": response.request_id,
        "tool": response.tool,
        "status": status.as_str_name(),
        "started_at": timestamp_text(response.started_at),
        "ended_at": timestamp_text(response.ended_at),
        "duration_sec": response.duration_sec,
        "data": response.data.clone().map(struct_to_json),
        "text": response.text,
        "error": response.error.as_ref().map(error_json),
        "exit_code": response.exit_code,
        "stdout_path": response.stdout_path,
        "stderr_path": response.stderr_path,
        "job_id": response.job_id,
        "pending": response.pending,
        "truncated": response.truncated,
        "outcome": response.outcome().as_str_name(),
        "signal": response.signal,
        "limit": response.limit,
        "result_json": response.result_json,
    })
}

/// Returns how the command ended, without its output. `None` if the call ran no command.
///
/// The byte counts of the output are 0 in dialects that lack them.
pub(crate) fn command_result(response: &InvokeResponse) -> Option<RunResponse> {
    if response.outcome() == Outcome::Unspecified {
        return None;
    }

    let data = response.data.clone().map(struct_to_json).unwrap_or_default();
    let number = |name: &str| data.get(name).and_then(Value::as_u64).unwrap_or_default();

    Some(RunResponse {
        outcome: response.outcome,
        exit_code: response.exit_code,
        signal: response.signal.clone(),
        limit: response.limit.clone(),
        stdout_bytes: number("stdout_bytes"),
        stderr_bytes: number("stderr_bytes"),
        ..RunResponse::default()
    })
}

pub(crate) fn timestamp_text(time: Option<Timestamp>) -> Option<String> {
    time.map(|time| time.to_string())
}

fn error_json(error: &ToolError) -> Value {
    json!({
        "error_type": error.error_type,
        "message": error.message,
        "suggestion": error.suggestion,
        "details": error.details.clone().map(struct_to_json),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::has_all_fields;

    #[test]
    fn every_field_of_the_contract_is_printed() {
        let response = to_json(&InvokeResponse {
            error: Some(ToolError::default()),
            ..InvokeResponse::default()
        });
        has_all_fields("jig.v1.InvokeResponse", &response);
        has_all_fields("jig.v1.ToolError", &response["error"]);
    }
}
