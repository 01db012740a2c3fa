//! Tools for the Model Context Protocol (`Tool` of revision 2026-07-28). Revision 2025-06-18 has
//! the same fields.

use serde_json::{Value, json};

use crate::daemon::catalog::definition::ToolDefinition;

/// A tool with all hints. Clients assume the worst for a missing one.
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
