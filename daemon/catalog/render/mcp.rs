//! Tools as the Model Context Protocol lists them (revision 2026-07-28, `Tool`; the fields are those of 2025-06-18, too).

use serde_json::{Value, json};

use crate::daemon::catalog::definition::ToolDefinition;

/// One tool. All hints are given: clients assume the worst of one that is not.
pub(super) fn tool(tool: &ToolDefinition) -> Value {
    let mut rendered = json!({
        "name": tool.name,
        "description": tool.description,
        "inputSchema": tool.input_schema,
        "annotations": {
            "readOnlyHint": tool.hints.read_only,
            "destructiveHint": tool.hints.destructive,
            "idempotentHint": tool.hints.idempotent,
            "openWorldHint": tool.hints.open_world,
        },
    });
    if !tool.title.is_empty() {
        rendered["title"] = tool.title.as_str().into();
    }
    if let Some(output) = &tool.output_schema {
        rendered["outputSchema"] = output.clone().into();
    }
    rendered
}
