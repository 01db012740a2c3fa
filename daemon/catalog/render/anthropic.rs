//! Tools for Anthropic's Messages API (`Tool`). Uses the subset of JSON Schema that the SDK's
//! strict schemas use (`transform_schema`), on which the models are trained. The rest moves to
//! descriptions, as in the SDK.

use serde_json::{Map, Value, json};

use super::downgrade::{
    STRICT_FORMATS, for_each_subschema, is_listed_format, move_unsupported_to_description,
    one_of_to_any_of,
};
use crate::daemon::catalog::definition::ToolDefinition;

pub(super) fn tool(tool: &ToolDefinition) -> Value {
    let mut schema = tool.input_schema.clone();
    one_of_to_any_of(&mut schema);
    move_unsupported_to_description(&mut schema, &is_supported);
    split_type_unions(&mut schema);
    json!({
        "name": tool.name,
        "description": tool.description,
        "input_schema": schema,
    })
}

/// Replaces a union of types by `anyOf`, as the SDK does, in a schema and those in it.
fn split_type_unions(schema: &mut Map<String, Value>) {
    for_each_subschema(schema, &mut split_type_unions);
    let Some(Value::Array(kinds)) = schema.get("type").cloned() else {
        return;
    };

    let mut rest = std::mem::take(schema);
    rest.remove("type");
    for keyword in ["description", "default"] {
        if let Some(value) = rest.remove(keyword) {
            schema.insert(keyword.to_owned(), value);
        }
    }

    let choices = kinds.into_iter().map(|kind| {
        let mut choice = if kind == "null" { Map::new() } else { rest.clone() };
        choice.insert("type".to_owned(), kind);
        Value::Object(choice)
    });
    schema.insert("anyOf".to_owned(), choices.collect());
}

fn is_supported(keyword: &str, value: &Value) -> bool {
    match keyword {
        "format" => is_listed_format(&STRICT_FORMATS, value) || value == "uri",
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
        | "default"
        | "anyOf"
        | "allOf"
        | "$defs"
        | "$ref" => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_becomes_any_of() {
        let mut schema = json!({"oneOf": [{"type": "string"}, {"oneOf": [{"type": "null"}]}]});
        one_of_to_any_of(schema.as_object_mut().unwrap());
        let choices = json!([{"type": "string"}, {"anyOf": [{"type": "null"}]}]);
        assert_eq!(schema, json!({ "anyOf": choices }));
    }

    #[test]
    fn type_union_becomes_any_of() {
        let mut schema = json!({
            "type": "object",
            "properties": {"n": {"type": ["array", "null"], "items": {"type": "string"}, "description": "N."}},
        });
        split_type_unions(schema.as_object_mut().unwrap());
        let choices = json!([{"type": "array", "items": {"type": "string"}}, {"type": "null"}]);
        assert_eq!(schema["properties"]["n"], json!({"description": "N.", "anyOf": choices}));
    }
}
