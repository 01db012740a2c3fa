//! Tools for OpenAI: of Chat Completions, which all who imitate it take, and of Responses, whose schemas are
//! strict: then the model cannot answer with anything else.

use serde_json::{Map, Value, json};

use super::{
    described::{FORMATS, describe, is_one_of},
    entries::entries,
};
use crate::daemon::catalog::{definition::Definition, schema::or_null};

/// One tool of Chat Completions (`ChatCompletionFunctionTool`), not strict: the schema as it is.
pub(super) fn chat(tool: &Definition) -> Value {
    json!({
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.input,
        },
    })
}

/// Keywords with which a schema is made of others, or says what values are not: these are for tools of the
/// configuration only, and what becomes of them in a strict schema is not worth finding out.
const COMPOSED: [&str; 12] = [
    "$ref",
    "$defs",
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "if",
    "patternProperties",
    "propertyNames",
    "dependentSchemas",
    "prefixItems",
    "unevaluatedProperties",
];

/// One tool of Responses (`FunctionTool`). Strict, unless it has objects in it whose fields are not known.
pub(super) fn responses(tool: &Definition) -> Value {
    let strict = strict(&tool.input);
    json!({
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "strict": strict.is_some(),
        "parameters": strict.unwrap_or_else(|| tool.input.clone()),
    })
}

/// The schema in the part of JSON Schema that is strict: all properties are required, those that need not be
/// given may be null, there are no others, and what cannot be said is described.
fn strict(schema: &Map<String, Value>) -> Option<Map<String, Value>> {
    let mut schema = closed(schema)?;
    describe(&mut schema, &is_kept);
    Some(schema)
}

fn closed(schema: &Map<String, Value>) -> Option<Map<String, Value>> {
    let is_composed = COMPOSED.iter().any(|keyword| schema.contains_key(*keyword));
    // Others may be given, of which nothing is known.
    let is_open = schema
        .get("additionalProperties")
        .is_some_and(|others| *others == true);
    if is_composed || is_open {
        return None;
    }
    let mut schema = schema.clone();
    if let Some(Value::Object(items)) = schema.get("items") {
        let items = closed(items)?;
        schema.insert("items".to_owned(), items.into());
    }
    if schema.get("type").is_none_or(|kind| kind != "object") {
        return Some(schema);
    }
    if let Some(Value::Object(values)) = schema.get("additionalProperties") {
        return Some(entries(values, &schema));
    }
    let properties = schema.get("properties").and_then(Value::as_object)?;
    let required: Vec<_> = schema
        .get("required")
        .and_then(Value::as_array)
        .map(|names| names.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default();
    let mut all = Map::new();
    for (name, property) in properties {
        let property = closed(property.as_object()?)?;
        let property = match required.contains(&name.as_str()) {
            true => property,
            false => or_null(property),
        };
        all.insert(name.clone(), property.into());
    }
    let names: Vec<_> = all.keys().cloned().collect();
    schema.insert("required".to_owned(), names.into());
    schema.insert("properties".to_owned(), all.into());
    schema.insert("additionalProperties".to_owned(), false.into());
    Some(schema)
}

/// What strict schemas may say (Structured Outputs, "Supported schemas").
fn is_kept(keyword: &str, value: &Value) -> bool {
    match keyword {
        "format" => is_one_of(&FORMATS, value),
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
