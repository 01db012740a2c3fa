//! JSON Schema (draft 2020-12) of requests and answers, as their messages, the rules of their fields and
//! their comments say. What cannot be said in it, such as which fields go together, is in the comments.

use prost_reflect::{Cardinality, FieldDescriptor, Kind, MessageDescriptor};
use serde_json::{Map, Value as Json, json};

use super::{
    comments::{ProtoComments, first_sentence},
    rules::MessageRules,
};
use crate::api::v1::{FieldRules, field_rules::DefaultValue};

/// The schema of the parameters of a tool: its request.
pub(super) fn request_schema(rules: &MessageRules, comments: &ProtoComments) -> Map<String, Json> {
    message_schema(rules, comments, SchemaDirection::Request)
}

/// The schema of what a tool answers.
pub(super) fn response_schema(rules: &MessageRules, comments: &ProtoComments) -> Map<String, Json> {
    message_schema(rules, comments, SchemaDirection::Response)
}

/// Which way a message goes.
#[derive(Debug, Clone, Copy)]
enum SchemaDirection {
    /// To the tool.
    Request,
    /// From it. Fields that need not be set and are not are left out.
    Response,
}

fn message_schema(
    rules: &MessageRules,
    comments: &ProtoComments,
    side: SchemaDirection,
) -> Map<String, Json> {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for field in rules.message().fields() {
        let known = rules.field(&field);
        let of_field = known.map(|known| &known.rules);
        let inner = known.and_then(|known| known.inner.as_ref());
        let mut schema = field_schema(&field, of_field, inner, comments, side);
        let is_required = match side {
            SchemaDirection::Request => of_field.is_some_and(|rules| rules.required),
            SchemaDirection::Response => !field.supports_presence(),
        };
        if is_required {
            required.push(Json::from(field.name()));
        }
        let own = of_field.map_or("", |rules| rules.description.as_str());
        let description = match own {
            "" => first_sentence(comments.field(&field)),
            own => own,
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
    side: SchemaDirection,
) -> Map<String, Json> {
    let kind = field.kind();
    let mut schema = match (&kind, inner) {
        (Kind::Message(entry), _) if field.is_map() => {
            let values = element_schema(&entry.map_entry_value_field().kind(), rules, side);
            into_object(json!({"type": "object", "additionalProperties": values}))
        }
        (_, Some(inner)) => message_schema(inner, comments, side),
        _ => element_schema(&kind, rules, side),
    };
    let is_list = field.cardinality() == Cardinality::Repeated && !field.is_map();
    if is_list {
        schema = into_object(json!({"type": "array", "items": schema}));
    }
    let Some(rules) = rules else { return schema };
    let (least, most) = match (field.is_map(), is_list) {
        (true, _) => ("minProperties", "maxProperties"),
        (_, true) => ("minItems", "maxItems"),
        _ => ("minLength", ""),
    };
    if rules.required && (is_list || field.is_map() || matches!(kind, Kind::String | Kind::Bytes)) {
        schema.insert(least.to_owned(), 1.into());
    }
    if let (Some(items), false) = (rules.max_items, most.is_empty()) {
        schema.insert(most.to_owned(), items.into());
    }
    if let Some(default) = default_json(&kind, rules) {
        schema.insert("default".to_owned(), default);
    }
    schema
}

/// One value, be it that of an element.
fn element_schema(
    kind: &Kind,
    rules: Option<&FieldRules>,
    side: SchemaDirection,
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
            // The first stands for nothing: no request needs it, and an answer may have it.
            let skipped = usize::from(matches!(side, SchemaDirection::Request));
            let names = values.values().skip(skipped);
            let names: Vec<_> = names.map(|value| value.name().to_owned()).collect();
            json!({"type": "string", "enum": names})
        }
        Kind::Message(message) => well_known_schema(message),
    });
    let Some(rules) = rules else { return schema };
    if let Some(least) = rules.minimum {
        schema.insert("minimum".to_owned(), least.into());
    }
    if let Some(most) = rules.maximum {
        schema.insert("maximum".to_owned(), most.into());
    }
    // No text of so many bytes has more characters.
    match (kind, rules.max_bytes) {
        (Kind::String, Some(most)) => {
            schema.insert("maxLength".to_owned(), most.into());
        }
        (Kind::Bytes, Some(most)) => {
            let in_base64 = u64::from(most).div_ceil(3) * 4;
            schema.insert("maxLength".to_owned(), in_base64.into());
        }
        _ => {}
    }
    schema
}

/// A message of another package, in its own JSON (ProtoJSON).
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

/// The same, or null.
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
