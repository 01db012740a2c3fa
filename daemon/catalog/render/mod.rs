//! Tools as model vendors want them: one file for each vendor.

mod anthropic;
mod described;
mod entries;
mod gemini;
mod json_schema;
mod mcp;
mod openai;
pub(crate) mod result;

use serde_json::Value;

use super::definition::Definition;

/// A way to write tools down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    /// JSON Schema (draft 2020-12), of no vendor.
    JsonSchema,
    /// OpenAI's Chat Completions, and all who imitate it.
    OpenaiChat,
    /// OpenAI's Responses, strict where the tool allows it.
    OpenaiResponses,
    /// Anthropic's Messages.
    Anthropic,
    /// Google's Gemini.
    Gemini,
    /// The Model Context Protocol.
    Mcp,
    /// Functions of OpenAI without a wrapper.
    Function,
}

impl Format {
    /// The value of `tools` in a request of the vendor's.
    pub(crate) fn render(self, tools: &[Definition]) -> Value {
        match self {
            Self::JsonSchema => each(tools, json_schema::tool),
            Self::OpenaiChat => each(tools, openai::chat),
            Self::OpenaiResponses => each(tools, openai::responses),
            Self::Anthropic => each(tools, anthropic::tool),
            Self::Gemini => gemini::tools(tools),
            Self::Mcp => each(tools, mcp::tool),
            Self::Function => each(tools, openai::function),
        }
    }
}

fn each(tools: &[Definition], tool: impl Fn(&Definition) -> Value) -> Value {
    tools.iter().map(tool).collect()
}
