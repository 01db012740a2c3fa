//! Adapts schemas to a vendor's subset of JSON Schema. Unsupported keywords move to descriptions,
//! so that the model still sees them.

use serde_json::{Map, Value};

/// Unsupported keywords to drop. The daemon checks `additionalProperties` itself; the others say
/// nothing about values.
const DROPPED_KEYWORDS: [&str; 4] = ["additionalProperties", "title", "$schema", "$comment"];

/// Formats of strings that strict schemas of several vendors support.
pub(super) const STRICT_FORMATS: [&str; 9] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"];

pub(super) fn is_listed_format(formats: &[&str], format: &Value) -> bool {
    format.as_str().is_some_and(|format| formats.contains(&format))
}

/// Replaces `oneOf` by `anyOf`, which more vendors support, in a schema and those in it.
pub(super) fn one_of_to_any_of(schema: &mut Map<String, Value>) {
    if !schema.contains_key("anyOf")
        && let Some(choices) = schema.remove("oneOf")
    {
        schema.insert("anyOf".to_owned(), choices);
    }
    for_each_subschema(schema, &mut one_of_to_any_of);
}

/// Visits the schemas that are directly in a schema.
pub(super) fn for_each_subschema(
    schema: &mut Map<String, Value>,
    visit: &mut impl FnMut(&mut Map<String, Value>),
) {
    for (keyword, value) in schema {
        match (keyword.as_str(), value) {
            ("properties" | "$defs", Value::Object(inner)) => {
                let inner = inner.values_mut().filter_map(Value::as_object_mut);
                inner.for_each(&mut *visit);
            }
            ("items" | "additionalProperties", Value::Object(inner)) => visit(inner),
            ("anyOf" | "allOf" | "oneOf", Value::Array(inner)) => {
                let inner = inner.iter_mut().filter_map(Value::as_object_mut);
                inner.for_each(&mut *visit);
            }
            _ => {}
        }
    }
}

/// Moves unsupported keywords to the description, in a schema and those in it.
pub(super) fn move_unsupported_to_description(
    schema: &mut Map<String, Value>,
    is_supported: &impl Fn(&str, &Value) -> bool,
) {
    for_each_subschema(schema, &mut |inner| move_unsupported_to_description(inner, is_supported));

    let mut moved = Vec::new();
    let keywords = std::mem::take(schema);
    for (keyword, value) in keywords {
        if is_supported(&keyword, &value) {
            schema.insert(keyword, value);
        } else if !DROPPED_KEYWORDS.contains(&keyword.as_str()) {
            moved.push(format!("{keyword}: {value}"));
        }
    }

    if moved.is_empty() {
        return;
    }

    let moved = format!("{{{}}}", moved.join(", "));
    let description = match schema.get("description").and_then(Value::as_str) {
        Some(description) if !description.is_empty() => format!("{description}\n\n{moved}"),
        _ => moved,
    };
    schema.insert("description".to_owned(), description.into());
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn unsupported_limits_move_to_descriptions() {
        let mut schema = json!({
            "type": "object",
            "properties": {"list": {
                "type": "array",
                "description": "Some.",
                "items": {"type": "string", "maxLength": 3},
                "maxItems": 2,
            }},
        });
        let is_supported = |keyword: &str, _: &Value| !keyword.starts_with("max");
        move_unsupported_to_description(schema.as_object_mut().unwrap(), &is_supported);
        assert_eq!(
            schema,
            json!({
                "type": "object",
                "properties": {"list": {
                    "type": "array",
                    "description": "Some.\n\n{maxItems: 2}",
                    "items": {"type": "string", "description": "{maxLength: 3}"},
                }},
            })
        );
    }
}
