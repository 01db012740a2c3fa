//! Tools with all known properties, for clients that convert them to other formats.

use serde_json::{Value, json};

use crate::daemon::catalog::definition::{ToolDefinition, risk_name};

pub(super) fn tool(tool: &ToolDefinition) -> Value {
    let mut rendered = json!({
        "name": tool.name,
        "description": tool.description,
        "input_schema": tool.input_schema,
        "read_only": tool.hints.read_only,
        "destructive": tool.hints.destructive,
        "idempotent": tool.hints.idempotent,
        "open_world": tool.hints.open_world,
        "risk": risk_name(tool.risk),
        "requires_approval": tool.requires_approval,
    });
    if !tool.title.is_empty() {
        rendered["title"] = tool.title.as_str().into();
    }
    if let Some(output) = &tool.output_schema {
        rendered["output_schema"] = output.clone().into();
    }
    rendered
}
