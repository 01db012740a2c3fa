//! Results of calls in the formats of model vendors.

use serde_json::{Value, json};

use super::RenderFormat;

/// The result of a call.
#[derive(Debug, Clone)]
pub(crate) struct ToolResult {
    /// Id of the call, given by the model.
    pub(crate) call_id: String,
    pub(crate) name: String,
    /// Text for the model.
    pub(crate) text: String,
    /// The complete result as an object, if it is one.
    pub(crate) data: Option<Value>,
    /// The fields of `data` that the model sees, if they are not all.
    pub(crate) model_data: Option<Value>,
    pub(crate) is_error: bool,
    /// Whether the format marks errors. Otherwise only the text identifies them.
    pub(crate) marks_errors: bool,
}

impl RenderFormat {
    /// The messages, or parts of one, with which the vendor's next request continues.
    pub(crate) fn render_results(self, results: &[ToolResult]) -> Value {
        results.iter().map(|result| self.result(result)).collect()
    }

    fn result(self, result: &ToolResult) -> Value {
        let ToolResult { call_id, name, text, data, model_data, is_error, marks_errors } = result;
        let is_marked = *is_error && *marks_errors;

        match self {
            Self::JsonSchema => json!({
                "call_id": call_id,
                "name": name,
                "ok": !is_error,
                "text": text,
                "data": data,
            }),
            // `ChatCompletionToolMessageParam`.
            Self::OpenaiChat | Self::Function => json!({
                "role": "tool",
                "tool_call_id": call_id,
                "content": text,
            }),
            // `ResponseInputItem.FunctionCallOutput`.
            Self::OpenaiResponses => json!({
                "type": "function_call_output",
                "call_id": call_id,
                "output": text,
            }),
            // `ToolResultBlockParam`.
            Self::Anthropic => {
                let mut block = json!({
                    "type": "tool_result",
                    "tool_use_id": call_id,
                    "content": text,
                });
                if is_marked {
                    block["is_error"] = true.into();
                }
                block
            }
            // `Part` with a `FunctionResponse`.
            Self::Gemini => {
                let key = if is_marked { "error" } else { "output" };
                let payload = match (is_marked, model_data.as_ref().or(data.as_ref())) {
                    (false, Some(data)) => data.clone(),
                    (true, _) | (false, None) => text.as_str().into(),
                };
                json!({ "functionResponse": { "id": call_id, "name": name, "response": { key: payload } } })
            }
            // `CallToolResult`.
            Self::Mcp => {
                let mut tool_result = json!({
                    "content": [{ "type": "text", "text": text }],
                    "isError": is_marked,
                });
                if let Some(data) = data {
                    tool_result["structuredContent"] = data.clone();
                }
                tool_result
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(is_error: bool) -> ToolResult {
        ToolResult {
            call_id: "toolu_01A2B3C4D5E6F7".to_owned(),
            name: "read_file".to_owned(),
            text: "using System;".to_owned(),
            data: None,
            model_data: None,
            is_error,
            marks_errors: true,
        }
    }

    #[test]
    fn each_vendor_gets_its_own_format() {
        let (success, failure) = (result(false), result(true));
        assert_eq!(
            RenderFormat::Anthropic.render_results(&[success.clone(), failure.clone()]),
            json!([
                {"type": "tool_result", "tool_use_id": "toolu_01A2B3C4D5E6F7", "content": "using System;"},
                {"type": "tool_result", "tool_use_id": "toolu_01A2B3C4D5E6F7", "content": "using System;", "is_error": true},
            ])
        );
        assert_eq!(
            RenderFormat::OpenaiChat.render_results(std::slice::from_ref(&success))[0],
            json!({"role": "tool", "tool_call_id": "toolu_01A2B3C4D5E6F7", "content": "using System;"})
        );
        assert_eq!(
            RenderFormat::OpenaiResponses.render_results(std::slice::from_ref(&success))[0]["type"],
            "function_call_output"
        );

        let gemini = RenderFormat::Gemini.render_results(&[success.clone(), failure.clone()]);
        assert_eq!(gemini[0]["functionResponse"]["response"]["output"], "using System;");
        assert_eq!(gemini[1]["functionResponse"]["response"]["error"], "using System;");

        let with_data = ToolResult { data: Some(json!({"a": 1})), ..success };
        let mcp = RenderFormat::Mcp.render_results(&[with_data, failure]);
        assert_eq!(mcp[0]["structuredContent"], json!({"a": 1}));
        assert_eq!((&mcp[0]["isError"], &mcp[1]["isError"]), (&false.into(), &true.into()));
    }
}
