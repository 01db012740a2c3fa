//! Tools for Google's Gemini (`FunctionDeclaration`). Its `Schema` is a subset of OpenAPI 3.0, in
//! the spelling of Google's REST examples. Types are in lower case. Counts have 64 bits and are
//! strings.

use serde_json::{Map, Value, json};

use super::{
    downgrade::{
        for_each_subschema, is_listed_format, move_unsupported_to_description, one_of_to_any_of,
    },
    map_entries::map_as_entry_list,
};
use crate::daemon::catalog::definition::ToolDefinition;

/// Keywords of `Schema`. It knows `additionalProperties` only in some places; without the keyword
/// there are no additional properties.
const SUPPORTED_KEYWORDS: [&str; 18] = [
    "type",
    "format",
    "title",
    "description",
    "nullable",
    "enum",
    "items",
    "minItems",
    "maxItems",
    "properties",
    "required",
    "minProperties",
    "maxProperties",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "pattern",
];
/// Keywords whose values are counts.
const COUNT_KEYWORDS: [&str; 6] =
    ["minItems", "maxItems", "minProperties", "maxProperties", "minLength", "maxLength"];
/// Formats of strings.
const SUPPORTED_FORMATS: [&str; 2] = ["date-time", "enum"];

/// The declarations of all tools.
pub(super) fn tools(tools: &[ToolDefinition]) -> Value {
    let declarations: Vec<_> = tools.iter().map(declaration).collect();
    json!([{ "functionDeclarations": declarations }])
}

fn declaration(tool: &ToolDefinition) -> Value {
    let mut declaration = json!({ "name": tool.name, "description": tool.description });

    // The API rejects an object without properties, so a function without parameters omits it.
    let has_parameters = tool
        .input_schema
        .get("properties")
        .and_then(Value::as_object)
        .is_some_and(|properties| !properties.is_empty());
    if has_parameters {
        let mut schema = tool.input_schema.clone();
        one_of_to_any_of(&mut schema);
        infer_types(&mut schema);
        move_unsupported_to_description(&mut schema, &is_supported);
        to_gemini_schema(&mut schema);
        declaration["parameters"] = schema.into();
    }
    declaration
}

/// Adds a type to every schema that has none: the API rejects those. Infers it from the other
/// keywords; a schema without any becomes a string.
fn infer_types(schema: &mut Map<String, Value>) {
    for_each_subschema(schema, &mut infer_types);
    if schema.contains_key("type") || schema.contains_key("anyOf") {
        return;
    }

    let first = |keyword: &str| schema.get(keyword)?.as_array()?.iter().find(|one| !one.is_null());
    let all_of_type = || schema.get("allOf")?.as_array()?.iter().find_map(|one| one.get("type"));
    let kind = if let Some(kind) = all_of_type() {
        kind.clone()
    } else if schema.contains_key("properties") {
        "object".into()
    } else if schema.contains_key("items") {
        "array".into()
    } else {
        let value = schema.get("const").or_else(|| first("enum"));
        let kind = match value {
            Some(Value::Bool(_)) => "boolean",
            Some(Value::Number(number)) if number.is_f64() => "number",
            Some(Value::Number(_)) => "integer",
            Some(Value::Array(_)) => "array",
            Some(Value::Object(_)) => "object",
            Some(Value::Null | Value::String(_)) | None => "string",
        };
        kind.into()
    };
    schema.insert("type".to_owned(), kind);

    // A constant string is an enum with one value.
    if let Some(Value::String(text)) = schema.get("const") {
        let values = json!([text]);
        schema.remove("const");
        schema.insert("enum".to_owned(), values);
    }
}

fn is_supported(keyword: &str, value: &Value) -> bool {
    match keyword {
        "format" => is_listed_format(&SUPPORTED_FORMATS, value),
        // `to_gemini_schema` converts maps later.
        "additionalProperties" => value.is_object(),
        "default" | "anyOf" => true,
        // Enums of strings only.
        "enum" => value
            .as_array()
            .is_some_and(|values| values.iter().all(|value| value.is_string() || value.is_null())),
        "items" => value.is_object(),
        keyword => SUPPORTED_KEYWORDS.contains(&keyword),
    }
}

/// Converts a schema and those in it to Google's spelling. Null is not a type but a property of
/// other types. Maps become lists of entries, because objects need properties.
fn to_gemini_schema(schema: &mut Map<String, Value>) {
    if let Some(Value::Object(values)) = schema.get("additionalProperties") {
        *schema = map_as_entry_list(values, schema);
    }
    schema.remove("additionalProperties");

    // Every list needs a type of its items.
    if schema.get("type").is_some_and(|kind| kind == "array") && !schema.contains_key("items") {
        schema.insert("items".to_owned(), json!({"type": "string"}));
    }

    if let Some(kind) = schema.get_mut("type") {
        let kinds = kind.as_array().map_or(std::slice::from_ref(&*kind), Vec::as_slice);
        let is_nullable = kinds.iter().any(|kind| kind == "null");
        let other =
            kinds.iter().find(|kind| *kind != "null").and_then(Value::as_str).unwrap_or("null");
        *kind = other.into();
        if is_nullable {
            schema.insert("nullable".to_owned(), true.into());
        }
    }

    for keyword in COUNT_KEYWORDS {
        if let Some(count) = schema.get_mut(keyword) {
            *count = count.to_string().into();
        }
    }

    if let Some(Value::Object(inner)) = schema.get_mut("properties") {
        inner.values_mut().filter_map(Value::as_object_mut).for_each(to_gemini_schema);
    }
    if let Some(Value::Object(items)) = schema.get_mut("items") {
        to_gemini_schema(items);
    }
    if let Some(Value::Array(inner)) = schema.get_mut("anyOf") {
        inner.iter_mut().filter_map(Value::as_object_mut).for_each(to_gemini_schema);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_schema_gets_a_type() {
        let definition = |schema: Value| ToolDefinition {
            name: "x".to_owned(),
            title: String::new(),
            description: "X.".to_owned(),
            input_schema: json!({"type": "object", "properties": {"a": schema}})
                .as_object()
                .unwrap()
                .clone(),
            output_schema: None,
            hints: crate::daemon::catalog::definition::ToolHints {
                read_only: true,
                destructive: false,
                idempotent: true,
                open_world: false,
            },
            risk: crate::api::v1::Risk::ReadOnly,
            requires_approval: false,
        };

        for (schema, expected) in [
            (json!({}), json!({"type": "string"})),
            (json!({"const": "k"}), json!({"type": "string", "enum": ["k"]})),
            (json!({"const": 7}), json!({"type": "integer", "description": "{const: 7}"})),
            (
                json!({"enum": [null, 1.5]}),
                json!({"type": "number", "description": "{enum: [null,1.5]}"}),
            ),
            (json!({"enum": ["a", "b"]}), json!({"type": "string", "enum": ["a", "b"]})),
            (
                json!({"oneOf": [{"type": "string"}, {"const": true}]}),
                json!({"anyOf": [
                    {"type": "string"},
                    {"type": "boolean", "description": "{const: true}"},
                ]}),
            ),
            (
                json!({"allOf": [{"minLength": 2}, {"type": "string"}]}),
                json!({
                    "type": "string",
                    "description": "{allOf: [{\"minLength\":2,\"type\":\"string\"},{\"type\":\"string\"}]}",
                }),
            ),
            (
                json!({"properties": {"b": {}}}),
                json!({"type": "object", "properties": {"b": {"type": "string"}}}),
            ),
            (json!({"items": {}}), json!({"type": "array", "items": {"type": "string"}})),
        ] {
            let declaration = declaration(&definition(schema.clone()));
            let rendered = &declaration["parameters"]["properties"]["a"];
            assert_eq!(rendered, &expected, "{schema}");
        }
    }

    #[test]
    fn schemas_are_in_the_spelling_of_google() {
        let mut schema = json!({
            "type": "object",
            "properties": {
                "argv": {"type": "array", "items": {"type": ["string", "null"], "maxLength": 5}, "maxItems": 2},
                "env": {
                    "type": "object",
                    "description": "Variables.",
                    "additionalProperties": {"type": "string"},
                    "maxProperties": 3,
                },
                "lines": {"type": "integer", "minimum": 1},
                "any": {"type": "array"},
                "one": {"type": "string", "enum": ["a"]},
                "level": {"type": "integer", "enum": [1, 2]},
            },
        });

        move_unsupported_to_description(schema.as_object_mut().unwrap(), &is_supported);
        to_gemini_schema(schema.as_object_mut().unwrap());

        let entry = json!({
            "type": "object",
            "properties": {"key": {"type": "string"}, "value": {"type": "string"}},
            "required": ["key", "value"],
        });
        let expected = json!({
            "type": "object",
            "properties": {
                "argv": {
                    "type": "array",
                    "items": {"type": "string", "nullable": true, "maxLength": "5"},
                    "maxItems": "2",
                },
                "env": {"type": "array", "description": "Variables.", "items": entry, "maxItems": "3"},
                "lines": {"type": "integer", "minimum": 1},
                "any": {"type": "array", "items": {"type": "string"}},
                "one": {"type": "string", "enum": ["a"]},
                "level": {"type": "integer", "description": "{enum: [1,2]}"},
            },
        });
        assert_eq!(schema, expected);
    }
}
