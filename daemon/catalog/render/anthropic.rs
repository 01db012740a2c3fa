//! Tools for Anthropic's Messages API (`Tool`). Of JSON Schema, its models are trained on what its SDK lets
//! through where it makes schemas strict (`transform_schema`); the rest goes into the descriptions, as there.

use serde_json::{Value, json};

use super::described::{FORMATS, describe, is_one_of};
use crate::daemon::catalog::definition::Definition;

/// One tool.
pub(super) fn tool(tool: &Definition) -> Value {
    let mut schema = tool.input.clone();
    describe(&mut schema, &is_kept);
    json!({
        "name": tool.name,
        "description": tool.description,
        "input_schema": schema,
    })
}

fn is_kept(keyword: &str, value: &Value) -> bool {
    match keyword {
        "format" => is_one_of(&FORMATS, value) || value == "uri",
        "minItems" => value.as_u64().is_some_and(|items| items <= 1),
        "type"
        | "properties"
        | "required"
        | "additionalProperties"
        | "items"
        | "description"
        | "title"
        | "enum"
        | "const"
        | "anyOf"
        | "allOf"
        | "$defs"
        | "$ref" => true,
        _ => false,
    }
}
