//! JSON Schema (draft 2020-12) of requests and responses. Its sources are their messages, field
//! rules and comments. The comments describe what a schema cannot express, such as which fields
//! exclude each other.

use prost_reflect::{FieldDescriptor, Kind, MessageDescriptor};
use serde_json::{Map, Value as Json, json};

use super::{
    comments::{ProtoComments, first_sentence},
    rules::MessageRules,
};
use crate::api::v1::{FieldRules, field_rules::DefaultValue};

/// The schema of a tool's parameters: its request.
pub(super) fn request_schema(rules: &MessageRules, comments: &ProtoComments) -> Map<String, Json> {
    message_schema(rules, comments, SchemaDirection::Request)
}

/// The schema of a tool's response.
pub(super) fn response_schema(rules: &MessageRules, comments: &ProtoComments) -> Map<String, Json> {
    message_schema(rules, comments, SchemaDirection::Response)
}

#[derive(Debug, Clone, Copy)]
enum SchemaDirection {
    Request,
    /// Fields with presence may be absent.
    Response,
}

fn message_schema(
    rules: &MessageRules,
    comments: &ProtoComments,
    direction: SchemaDirection,
) -> Map<String, Json> {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for field in rules.message().fields() {
        let field_spec = rules.field(&field);
        let field_rules = field_spec.map(|field_spec| &field_spec.rules);
        let inner = field_spec.and_then(|field_spec| field_spec.inner.as_ref());
        let mut schema = field_schema(&field, field_rules, inner, comments, direction);
        let is_required = match direction {
            SchemaDirection::Request => field_rules.is_some_and(|rules| rules.required),
            SchemaDirection::Response => !field.supports_presence(),
        };
        if is_required {
            required.push(Json::from(field.name()));
        }

        let description = match field_rules.map_or("", |rules| rules.description.as_str()) {
            "" => first_sentence(comments.field(&field)),
            description => description,
        };
        if !description.is_empty() {
            schema.insert("description".to_owned(), description.into());
        }
        properties.insert(field.name().to_owned(), schema.into());
    }

    let mut schema = into_object(json!({"type": "object", "properties": properties}));
    if !required.is_empty() {
        schema.insert("required".to_owned(), required.into());
    }
    schema.insert("additionalProperties".to_owned(), false.into());
    schema
}

fn field_schema(
    field: &FieldDescriptor,
    rules: Option<&FieldRules>,
    inner: Option<&MessageRules>,
    comments: &ProtoComments,
    direction: SchemaDirection,
) -> Map<String, Json> {
    let kind = field.kind();
    let mut schema = match (&kind, inner) {
        (Kind::Message(entry), _) if field.is_map() => {
            let values = element_schema(&entry.map_entry_value_field().kind(), rules, direction);
            into_object(json!({"type": "object", "additionalProperties": values}))
        }
        (_, Some(inner)) => message_schema(inner, comments, direction),
        _ => element_schema(&kind, rules, direction),
    };
    if field.is_list() {
        schema = into_object(json!({"type": "array", "items": schema}));
    }

    let Some(rules) = rules else { return schema };
    insert_count_bounds(&mut schema, field, rules);
    if let Some(default) = default_json(&kind, rules) {
        schema.insert("default".to_owned(), default);
    }
    schema
}

/// Adds how many elements a list or map may have, and that a required text is not empty.
pub(super) fn insert_count_bounds(
    schema: &mut Map<String, Json>,
    field: &FieldDescriptor,
    rules: &FieldRules,
) {
    let (min_keyword, max_keyword) = match (field.is_map(), field.is_list()) {
        (true, _) => ("minProperties", Some("maxProperties")),
        (_, true) => ("minItems", Some("maxItems")),
        _ => ("minLength", None),
    };
    let is_text = matches!(field.kind(), Kind::String | Kind::Bytes);
    if rules.required && (max_keyword.is_some() || is_text) {
        schema.insert(min_keyword.to_owned(), 1.into());
    }
    if let (Some(items), Some(keyword)) = (rules.max_items, max_keyword) {
        schema.insert(keyword.to_owned(), items.into());
    }
}

/// The schema of a single value, or of an element of a list or map.
fn element_schema(
    kind: &Kind,
    rules: Option<&FieldRules>,
    direction: SchemaDirection,
) -> Map<String, Json> {
    let mut schema = into_object(match kind {
        Kind::Bool => json!({"type": "boolean"}),
        Kind::Double | Kind::Float => json!({"type": "number"}),
        Kind::Uint32 | Kind::Uint64 | Kind::Fixed32 | Kind::Fixed64 => {
            json!({"type": "integer", "minimum": 0})
        }
        Kind::Int32
        | Kind::Int64
        | Kind::Sint32
        | Kind::Sint64
        | Kind::Sfixed32
        | Kind::Sfixed64 => json!({"type": "integer"}),
        Kind::String => json!({"type": "string"}),
        Kind::Bytes => json!({"type": "string", "contentEncoding": "base64"}),
        Kind::Enum(values) => {
            // The first value, `UNSPECIFIED`, may appear in responses; requests need not give it.
            let skipped = usize::from(matches!(direction, SchemaDirection::Request));
            let names: Vec<_> =
                values.values().skip(skipped).map(|value| value.name().to_owned()).collect();
            json!({"type": "string", "enum": names})
        }
        Kind::Message(message) => well_known_schema(message),
    });
    if let Some(rules) = rules {
        insert_value_bounds(&mut schema, kind, rules);
    }
    schema
}

/// Adds the bounds of a single value, or of an element of a list or map.
pub(super) fn insert_value_bounds(schema: &mut Map<String, Json>, kind: &Kind, rules: &FieldRules) {
    if let Some(min) = rules.minimum {
        schema.insert("minimum".to_owned(), min.into());
    }
    if let Some(max) = rules.maximum {
        schema.insert("maximum".to_owned(), max.into());
    }
    // A string of this many bytes has at most as many characters.
    match (kind, rules.max_bytes) {
        (Kind::String, Some(max)) => {
            schema.insert("maxLength".to_owned(), max.into());
        }
        (Kind::Bytes, Some(max)) => {
            let base64_length = u64::from(max).div_ceil(3) * 4;
            schema.insert("maxLength".to_owned(), base64_length.into());
        }
        _ => {}
    }
}

/// The schema of a message of another package, which has a JSON form of its own (ProtoJSON).
fn well_known_schema(message: &MessageDescriptor) -> Json {
    match message.full_name() {
        "google.protobuf.Timestamp" => json!({"type": "string", "format": "date-time"}),
        _ => json!({"type": "object"}),
    }
}

fn default_json(kind: &Kind, rules: &FieldRules) -> Option<Json> {
    Some(match (rules.default_value.as_ref()?, kind) {
        (DefaultValue::DefaultNumber(number), _) => (*number).into(),
        (DefaultValue::DefaultBool(flag), _) => (*flag).into(),
        (DefaultValue::DefaultText(text), _) => text.clone().into(),
    })
}

/// The schema, extended to allow null.
pub(super) fn nullable(mut schema: Map<String, Json>) -> Map<String, Json> {
    let null = Json::from("null");
    match schema.get_mut("type") {
        Some(Json::Array(kinds)) if !kinds.contains(&null) => kinds.push(null.clone()),
        Some(Json::Array(_)) | None => {}
        Some(kind) => *kind = Json::Array(vec![kind.take(), null]),
    }
    if let Some(Json::Array(values)) = schema.get_mut("enum") {
        values.push(Json::Null);
    }
    schema
}

fn into_object(json: Json) -> Map<String, Json> {
    match json {
        Json::Object(fields) => fields,
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) | Json::Array(_) => {
            Map::new()
        }
    }
}
