//! Results of tool calls.

use rmcp::{
    ErrorData,
    model::{CallToolResponse, CallToolResult, ContentBlock, MetaObject},
};
use serde_json::{Map, Value, json};

use crate::api::{
    json_struct::struct_to_json,
    v1::{InvokeResponse, InvokeStatus},
};

/// Error type of a name that no tool of the caller has.
const UNKNOWN_TOOL: &str = "unknown_tool";

/// Returns the result of a call. A tool that failed is a result, so that the model sees why.
///
/// # Errors
///
/// Fails if no tool has the name, as the protocol wants it.
pub(super) fn to_tool_result(
    response: InvokeResponse,
    dialect: &str,
) -> Result<CallToolResult, ErrorData> {
    let is_success = response.status() == InvokeStatus::Success;
    let error = response.error.as_ref().filter(|_| !is_success);
    if let Some(error) = error
        && error.error_type == UNKNOWN_TOOL
    {
        return Err(ErrorData::invalid_params(error.message.clone(), None));
    }

    let meta = result_meta(&response);
    let content = vec![ContentBlock::text(response.text)];
    let mut result =
        if is_success { CallToolResult::success(content) } else { CallToolResult::error(content) };
    // Tools of a dialect have no schema of their output: the text is what models know.
    if is_success && dialect.is_empty() {
        result.structured_content = response.data.map(|data| Value::Object(struct_to_json(data)));
    }
    result.meta = meta;
    Ok(result)
}

/// Returns values for programs: why the tool failed, how its command ended, and its job.
fn result_meta(response: &InvokeResponse) -> Option<MetaObject> {
    let mut meta = Map::new();
    if let Some(error) = &response.error {
        let value = json!({ "type": error.error_type, "suggestion": error.suggestion });
        meta.insert("jig-error".to_owned(), value);
    }
    if let Some(code) = response.exit_code {
        meta.insert("jig-exit-code".to_owned(), code.into());
    }
    if response.pending {
        meta.insert("jig-job".to_owned(), response.job_id.clone().into());
    }
    (!meta.is_empty()).then(|| meta.into())
}

/// Outcome of a request that the client has cancelled. The client does not get it.
pub(super) fn cancelled_outcome() -> CallToolResponse {
    CallToolResult::error(vec![ContentBlock::text("the client has cancelled the request")]).into()
}
