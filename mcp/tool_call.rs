//! The parameters of `tools/call`.

use rmcp::{
    ErrorData,
    model::{CallToolRequestParams, InputResponses},
};

/// A call of a tool, as the client has sent it.
#[derive(Debug)]
pub(super) struct ToolCall {
    pub(super) name: String,
    pub(super) arguments_json: String,
    pub(super) request_state: Option<String>,
    pub(super) input_responses: Option<InputResponses>,
}

impl ToolCall {
    pub(super) fn new(params: CallToolRequestParams) -> Result<Self, ErrorData> {
        let arguments = params.arguments.unwrap_or_default();
        let arguments_json = serde_json::to_string(&arguments)
            .map_err(|error| ErrorData::invalid_params(error.to_string(), None))?;
        Ok(Self {
            name: params.name.into_owned(),
            arguments_json,
            request_state: params.request_state,
            input_responses: params.input_responses,
        })
    }
}
