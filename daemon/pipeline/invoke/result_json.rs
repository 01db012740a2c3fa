//! `result_json`: a result as the single object that a dialect's specification defines.

use prost_types::{Struct, Timestamp};
use serde_json::{Map, Value};

use crate::{
    api::{
        json_struct::try_struct_to_json,
        v1::{InvokeResponse, InvokeStatus},
    },
    daemon::{
        dialect::{Dialect, DialectCallSummary},
        error::Error,
    },
};

/// Replaces `data` and `text` by `result_json`, if the dialect defines such an object.
pub(super) fn with_result_json(
    dialect: &Dialect,
    mut response: InvokeResponse,
) -> Result<InvokeResponse, Error> {
    let data = optional_struct_to_json(response.data.clone())?;
    let error = match &response.error {
        Some(error) => {
            let details = optional_struct_to_json(error.details.clone())?
                .filter(|details| !details.is_empty());
            Some((error.error_type.as_str(), error.message.as_str(), details))
        }
        None => None,
    };

    let time = |time: Option<Timestamp>| time.map(|time| time.to_string()).unwrap_or_default();
    let summary = DialectCallSummary {
        request_id: &response.request_id,
        tool: &response.tool,
        is_success: response.status() == InvokeStatus::Success,
        started_at: time(response.started_at),
        ended_at: time(response.ended_at),
        duration_sec: response.duration_sec,
        error,
        exit_code: response.exit_code,
        stdout_path: &response.stdout_path,
        stderr_path: &response.stderr_path,
        text: &response.text,
    };

    if let Some(result) = dialect.render_result(&summary, data) {
        response.result_json = result.to_string();
        response.data = None;
        response.text.clear();
    }

    Ok(response)
}

fn optional_struct_to_json(message: Option<Struct>) -> Result<Option<Map<String, Value>>, Error> {
    let fields = message.map(|message| try_struct_to_json(message, "data")).transpose();
    fields.map_err(|_| Error::internal("a response has numbers that are not finite"))
}
