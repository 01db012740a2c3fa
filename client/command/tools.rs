//! `jig tools`: lists the tools that can be called by name, for people or in a vendor's format.

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use jig::{
    api::v1::{ListToolsRequest, ListToolsResponse, ToolFormat},
    client::Client,
};
use serde_json::{Value, json};

use super::{columns::align_columns, report_and_exit};
use crate::{cli_error::CliError, connection, escape, global::GlobalArgs, output};

/// List the tools that can be called by name.
///
/// With --format, print them as the `tools` parameter of a vendor's API. A daemon lists the tools
/// that the key permits.
#[derive(Debug, Args)]
pub(crate) struct ToolsArgs {
    /// Names of the tools to list. Default: all.
    #[arg(value_name = "TOOL")]
    names: Vec<String>,
    /// Dialect of the tools: `agentbench`, `anthropic`, `claude`, `cli_agent`, `dracode`,
    /// `openai` or `rauskuclaw`. Default: jig's own.
    #[arg(long, value_name = "NAME")]
    dialect: Option<String>,
    /// Output format. Default: the name and the first sentence of each description.
    #[arg(long, value_enum)]
    format: Option<ToolFormatArg>,
}

/// Output formats of tools.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum ToolFormatArg {
    JsonSchema,
    OpenaiChat,
    OpenaiResponses,
    Anthropic,
    Gemini,
    Mcp,
    Function,
}

pub(crate) fn tools(global: &GlobalArgs, args: ToolsArgs) -> ExitCode {
    let format = args.format.map(ToolFormatArg::to_proto);
    let request = ListToolsRequest {
        dialect: args.dialect.unwrap_or_default(),
        format: format.map(Into::into),
        names: args.names,
    };
    let listed = connection::call(global, async move |client: Client| {
        Ok(client.list_tools(request).await?)
    });

    let printed = listed.and_then(|listed| match (global.json, format) {
        (true, _) => output::write_json(&to_json(&listed)),
        (false, Some(_)) => {
            let line = format!("{}\n", escape::json(&listed.tools_json));
            output::write_stdout(line.as_bytes())
        }
        (false, None) => output::write_stdout(tools_list(&listed)?.as_bytes()),
    });
    report_and_exit(printed, global.json)
}

fn to_json(listed: &ListToolsResponse) -> Value {
    json!({ "tools_json": listed.tools_json, "names": listed.names })
}

/// Formats a line per tool.
fn tools_list(listed: &ListToolsResponse) -> Result<String, CliError> {
    let tools: Vec<Value> = serde_json::from_str(&listed.tools_json)
        .map_err(|error| CliError::Daemon(format!("the tools are not a JSON list: {error}")))?;
    let rows: Vec<_> = tools
        .iter()
        .map(|tool| {
            let text = |name: &str| tool.get(name).and_then(Value::as_str).unwrap_or_default();
            let first = first_sentence(text("description"));
            vec![escape::name(text("name")).into_owned(), escape::text(first).into_owned()]
        })
        .collect();
    Ok(align_columns(&rows))
}

/// Returns the text up to the first full stop before a space, or the first line.
fn first_sentence(text: &str) -> &str {
    let line = text.trim().lines().next().unwrap_or_default();
    match line.find(". ") {
        Some(end) => line.get(..=end).unwrap_or(line),
        None => line,
    }
}

impl ToolFormatArg {
    pub(super) fn to_proto(self) -> ToolFormat {
        match self {
            Self::JsonSchema => ToolFormat::JsonSchema,
            Self::OpenaiChat => ToolFormat::OpenaiChat,
            Self::OpenaiResponses => ToolFormat::OpenaiResponses,
            Self::Anthropic => ToolFormat::Anthropic,
            Self::Gemini => ToolFormat::Gemini,
            Self::Mcp => ToolFormat::Mcp,
            Self::Function => ToolFormat::Function,
        }
    }
}

#[cfg(test)]
mod tests {
    use prost_reflect::DescriptorPool;

    use super::*;

    #[test]
    fn tool_line_has_name_and_first_sentence() {
        let tools = json!([
            { "name": "run", "description": "Runs `a.b`. And more." },
            { "name": "read_file", "description": "One line\nand another" },
            { "name": "\u{1b}[2J", "description": "" },
        ]);
        let listed = ListToolsResponse { tools_json: tools.to_string(), names: Vec::new() };
        assert_eq!(
            tools_list(&listed).unwrap(),
            "run        Runs `a.b`.\nread_file  One line\n\"\\033[2J\"\n"
        );
    }

    #[test]
    fn every_field_of_the_contract_is_printed() {
        let pool = DescriptorPool::decode(jig::api::FILE_DESCRIPTOR_SET).unwrap();
        let descriptor = pool.get_message_by_name("jig.v1.ListToolsResponse").unwrap();
        let printed = to_json(&ListToolsResponse::default());
        for field in descriptor.fields() {
            assert!(printed.get(field.name()).is_some(), "{}", field.name());
        }
    }

    #[test]
    fn every_format_of_the_contract_has_a_name() {
        let named: Vec<_> = ToolFormatArg::value_variants()
            .iter()
            .map(|format| i32::from(format.to_proto()))
            .collect();
        let known: Vec<_> =
            (1..).take_while(|number| ToolFormat::try_from(*number).is_ok()).collect();
        assert_eq!(named, known);
    }
}
