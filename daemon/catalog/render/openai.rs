//! Tools for OpenAI and compatible APIs. Schemas for Chat Completions are as declared. Those for
//! Responses are strict if possible, which guarantees that the model's parameters match.

use serde_json::{Map, Value, json};

use super::{
    downgrade::{STRICT_FORMATS, is_listed_format, move_unsupported_to_description},
    map_entries::map_as_entry_list,
};
use crate::daemon::catalog::{definition::ToolDefinition, schema::nullable};

/// A tool of Chat Completions (`ChatCompletionFunctionTool`), not strict: the schema as declared.
pub(super) fn chat(tool: &ToolDefinition) -> Value {
    json!({ "type": "function", "function": function(tool) })
}

/// The function without a wrapper.
pub(super) fn function(tool: &ToolDefinition) -> Value {
    json!({
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.input_schema,
    })
}

/// A tool of Responses (`FunctionTool`). Strict, unless the schema has objects with unknown fields.
pub(super) fn responses(tool: &ToolDefinition) -> Value {
    let strict = strict_schema(&tool.input_schema);
    json!({
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "strict": strict.is_some(),
        "parameters": strict.unwrap_or_else(|| tool.input_schema.clone()),
    })
}

/// The schema in the subset that strict mode supports, or `None` if it cannot be expressed.
///
/// All properties are required; optional ones may be null. There are no others. Unsupported
/// keywords move to descriptions.
fn strict_schema(schema: &Map<String, Value>) -> Option<Map<String, Value>> {
    let mut schema = close_objects(schema)?;
    move_unsupported_to_description(&mut schema, &is_supported);
    Some(schema)
}

/// Closes all objects in a schema. `None` if the type of a value or the names of fields are
/// unknown.
fn close_objects(schema: &Map<String, Value>) -> Option<Map<String, Value>> {
    let mut schema = schema.clone();

    match single_type(&schema)? {
        "array" => {
            let items = close_objects(schema.get("items")?.as_object()?)?;
            schema.insert("items".to_owned(), items.into());
            return Some(schema);
        }
        "object" if schema.get("type").is_some_and(Value::is_string) => {}
        // A nullable object.
        "object" => return None,
        _ => return Some(schema),
    }

    let names = schema.get("properties").and_then(Value::as_object);
    match schema.get("additionalProperties") {
        None | Some(Value::Bool(false)) => {}
        Some(Value::Object(values)) if names.is_none_or(Map::is_empty) => {
            close_objects(values)?;
            return Some(map_as_entry_list(values, &schema));
        }
        Some(_) => return None,
    }

    let properties = schema.get("properties").and_then(Value::as_object)?;
    let required: Vec<_> = schema
        .get("required")
        .and_then(Value::as_array)
        .map(|names| names.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();

    let mut all = Map::new();
    for (name, property) in properties {
        let property = close_objects(property.as_object()?)?;
        let property = if required.contains(&name.as_str()) {
            property
        } else if property.contains_key("const") {
            // A constant cannot be nullable.
            return None;
        } else {
            nullable(property)
        };
        all.insert(name.clone(), property.into());
    }

    let names: Vec<_> = all.keys().cloned().collect();
    schema.insert("required".to_owned(), names.into());
    schema.insert("properties".to_owned(), all.into());
    schema.insert("additionalProperties".to_owned(), false.into());
    Some(schema)
}

/// The type of a value, without null, if it is a single type that strict schemas support.
fn single_type(schema: &Map<String, Value>) -> Option<&str> {
    const COMPOSITION_KEYWORDS: [&str; 4] = ["allOf", "anyOf", "oneOf", "not"];
    if COMPOSITION_KEYWORDS.iter().any(|keyword| schema.contains_key(*keyword)) {
        return None;
    }

    let kind = match schema.get("type")? {
        Value::String(kind) => kind,
        Value::Array(kinds) => {
            let mut kinds = kinds.iter().filter(|kind| *kind != "null");
            let kind = kinds.next()?.as_str()?;
            kinds.next().is_none().then_some(kind)?
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => return None,
    };

    let known = ["array", "boolean", "integer", "number", "object", "string"];
    known.contains(&kind).then_some(kind)
}

/// Whether strict schemas support a keyword (Structured Outputs, "Supported schemas").
fn is_supported(keyword: &str, value: &Value) -> bool {
    match keyword {
        "format" => is_listed_format(&STRICT_FORMATS, value),
        "type"
        | "properties"
        | "required"
        | "additionalProperties"
        | "items"
        | "description"
        | "enum"
        | "const"
        | "anyOf"
        | "$defs"
        | "$ref"
        | "pattern"
        | "multipleOf"
        | "minimum"
        | "maximum"
        | "exclusiveMinimum"
        | "exclusiveMaximum"
        | "minItems"
        | "maxItems" => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inexpressible_schemas_are_not_strict() {
        let strict = |property: Value| {
            let schema =
                json!({"type": "object", "properties": {"p": property}, "required": ["p"]});
            strict_schema(schema.as_object().unwrap())
        };

        for property in [
            json!({}),
            json!({"enum": ["a"]}),
            json!({"type": ["object", "null"], "properties": {}}),
            json!({"type": ["string", "integer"]}),
            json!({"type": "array"}),
            json!({"type": "array", "items": true}),
            json!({"type": "object", "additionalProperties": {}}),
            json!({"type": "object", "additionalProperties": true}),
            json!({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "string"}}),
            json!({"anyOf": [{"type": "string"}]}),
            json!({"type": "object", "properties": {"c": {"type": "string", "const": "x"}}}),
        ] {
            assert_eq!(strict(property.clone()), None, "{property}");
        }

        let property = json!({"type": "object", "properties": {"a": {"type": ["string", "null"]}}});
        let strict = strict(property).unwrap();
        let inner = &strict["properties"]["p"];
        assert_eq!(
            (&inner["additionalProperties"], &inner["required"]),
            (&json!(false), &json!(["a"]))
        );
    }
}
