//! Tool definitions in the formats of model vendors, one file per vendor.

mod anthropic;
mod downgrade;
mod gemini;
mod json_schema;
mod map_entries;
mod mcp;
mod openai;
pub(crate) mod result;

use serde_json::Value;

use super::definition::ToolDefinition;

/// A format of tool definitions and results.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RenderFormat {
    /// JSON Schema (draft 2020-12), independent of a vendor.
    JsonSchema,
    /// OpenAI's Chat Completions, and compatible APIs.
    OpenaiChat,
    /// OpenAI's Responses, strict if the tool's schema allows it.
    OpenaiResponses,
    /// Anthropic's Messages.
    Anthropic,
    /// Google's Gemini.
    Gemini,
    /// The Model Context Protocol.
    Mcp,
    /// OpenAI's functions without a wrapper.
    Function,
}

impl RenderFormat {
    /// The value of `tools` in a request to the vendor.
    pub(crate) fn render(self, tools: &[ToolDefinition]) -> Value {
        match self {
            Self::JsonSchema => render_each(tools, json_schema::tool),
            Self::OpenaiChat => render_each(tools, openai::chat),
            Self::OpenaiResponses => render_each(tools, openai::responses),
            Self::Anthropic => render_each(tools, anthropic::tool),
            Self::Gemini => gemini::tools(tools),
            Self::Mcp => render_each(tools, mcp::tool),
            Self::Function => render_each(tools, openai::function),
        }
    }
}

fn render_each(tools: &[ToolDefinition], tool: impl Fn(&ToolDefinition) -> Value) -> Value {
    tools.iter().map(tool).collect()
}
