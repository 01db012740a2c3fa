//! Results of calls as model vendors want them back.

use serde_json::{Value, json};

use super::RenderFormat;

/// What came of one call.
#[derive(Debug, Clone)]
pub(crate) struct ToolResult {
    /// Id that the model gave the call.
    pub(crate) call_id: String,
    /// Name of the tool.
    pub(crate) name: String,
    /// What goes back to the model.
    pub(crate) text: String,
    /// The same as an object, where it is one, with all that programs get.
    pub(crate) data: Option<Value>,
    /// That object without what models do not need, where that is another one.
    pub(crate) model_data: Option<Value>,
    /// Whether it failed.
    pub(crate) is_error: bool,
    /// Whether that is to be marked, and not only to be read in the text.
    pub(crate) marks_errors: bool,
}

impl RenderFormat {
    /// The messages, or parts of one, that a request of the vendor's continues with.
    pub(crate) fn render_results(self, results: &[ToolResult]) -> Value {
        results.iter().map(|result| self.result(result)).collect()
    }

    fn result(self, result: &ToolResult) -> Value {
        let ToolResult { call_id, name, text, data, model_data: shown, is_error, marks_errors } =
            result;
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
                let payload = match (is_marked, shown.as_ref().or(data.as_ref())) {
                    (false, Some(data)) => data.clone(),
                    (true, _) | (false, None) => text.as_str().into(),
                };
                json!({ "functionResponse": { "id": call_id, "name": name, "response": { key: payload } } })
            }
            // `CallToolResult`.
            Self::Mcp => {
                let mut called = json!({
                    "content": [{ "type": "text", "text": text }],
                    "isError": is_marked,
                });
                if let Some(data) = data {
                    called["structuredContent"] = data.clone();
                }
                called
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
    fn each_vendor_has_its_shape() {
        let (well, badly) = (result(false), result(true));
        assert_eq!(
            RenderFormat::Anthropic.render_results(&[well.clone(), badly.clone()]),
            json!([
                {"type": "tool_result", "tool_use_id": "toolu_01A2B3C4D5E6F7", "content": "using System;"},
                {"type": "tool_result", "tool_use_id": "toolu_01A2B3C4D5E6F7", "content": "using System;", "is_error": true},
            ])
        );
        assert_eq!(
            RenderFormat::OpenaiChat.render_results(std::slice::from_ref(&well))[0],
            json!({"role": "tool", "tool_call_id": "toolu_01A2B3C4D5E6F7", "content": "using System;"})
        );
        assert_eq!(
            RenderFormat::OpenaiResponses.render_results(std::slice::from_ref(&well))[0]["type"],
            "function_call_output"
        );
        let gemini = RenderFormat::Gemini.render_results(&[well.clone(), badly.clone()]);
        assert_eq!(gemini[0]["functionResponse"]["response"]["output"], "using System;");
        assert_eq!(gemini[1]["functionResponse"]["response"]["error"], "using System;");
        let with_data = ToolResult { data: Some(json!({"a": 1})), ..well };
        let mcp = RenderFormat::Mcp.render_results(&[with_data, badly]);
        assert_eq!(mcp[0]["structuredContent"], json!({"a": 1}));
        assert_eq!((&mcp[0]["isError"], &mcp[1]["isError"]), (&false.into(), &true.into()));
    }
}
