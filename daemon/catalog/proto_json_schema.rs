//! JSON Schema of messages as protobuf writes them in JSON (ProtoJSON,
//! <https://protobuf.dev/programming-guides/json/>). The schemas that models see are in [`schema`].
//!
//! [`schema`]: super::schema

use std::collections::BTreeMap;

use prost_reflect::{
    DescriptorPool, FieldDescriptor, Kind, MessageDescriptor, MethodDescriptor, ServiceDescriptor,
};
use serde_json::{Map, Value as Json, json};

use super::{
    comments::ProtoComments,
    rules::MessageRules,
    schema::{insert_count_bounds, insert_value_bounds},
};
use crate::api::v1::FieldRules;

/// Schemas of messages, by their full names.
#[derive(Debug)]
pub(crate) struct MessageSchemas<'a> {
    pool: &'a DescriptorPool,
    comments: ProtoComments,
    schemas: BTreeMap<String, Json>,
}

impl<'a> MessageSchemas<'a> {
    pub(crate) fn new(pool: &'a DescriptorPool) -> Self {
        Self { pool, comments: ProtoComments::from_pool(pool), schemas: BTreeMap::new() }
    }

    /// The comment of a service.
    pub(crate) fn service_comment(&self, service: &ServiceDescriptor) -> &str {
        self.comments.service(service)
    }

    /// The comment of a method.
    pub(crate) fn method_comment(&self, method: &MethodDescriptor) -> &str {
        self.comments.method(method)
    }

    /// A reference to the schema of a message. The first one adds the schema, and those of the
    /// messages in it.
    pub(crate) fn reference(&mut self, message: &MessageDescriptor) -> Json {
        if let Some(schema) = well_known_schema(message.full_name()) {
            return schema;
        }
        let name = message.full_name();
        if !self.schemas.contains_key(name) {
            // A message may contain itself.
            self.schemas.insert(name.to_owned(), Json::Null);
            let schema = self.message_schema(message);
            self.schemas.insert(name.to_owned(), schema);
        }
        json!({ "$ref": format!("#/components/schemas/{name}") })
    }

    /// All schemas that were added.
    pub(crate) fn into_schemas(self) -> Map<String, Json> {
        self.schemas.into_iter().collect()
    }

    fn message_schema(&mut self, message: &MessageDescriptor) -> Json {
        let rules = MessageRules::from_descriptor(self.pool, message);
        let mut properties = Map::new();
        let mut required = Vec::new();
        for field in message.fields() {
            let field_rules = rules.field(&field).map(|field_spec| &field_spec.rules);
            let schema = self.field_schema(&field, field_rules);
            properties.insert(field.json_name().to_owned(), schema.into());
            if field_rules.is_some_and(|rules| rules.required) {
                required.push(Json::from(field.json_name()));
            }
        }

        let mut schema = Map::from_iter([
            ("type".to_owned(), "object".into()),
            ("properties".to_owned(), properties.into()),
        ]);
        let comment = self.comments.message(message);
        if !comment.is_empty() {
            schema.insert("description".to_owned(), comment.into());
        }
        if !required.is_empty() {
            schema.insert("required".to_owned(), required.into());
        }
        schema.into()
    }

    fn field_schema(
        &mut self,
        field: &FieldDescriptor,
        rules: Option<&FieldRules>,
    ) -> Map<String, Json> {
        let entry = field.is_map().then(|| field.kind().as_message().cloned()).flatten();
        let kind = entry.map_or_else(|| field.kind(), |entry| entry.map_entry_value_field().kind());
        let mut schema = self.value_schema(&kind);
        if let Some(rules) = rules {
            insert_value_bounds(&mut schema, &kind, rules);
        }
        if field.is_map() {
            schema = object(json!({"type": "object", "additionalProperties": schema}));
        } else if field.is_list() {
            schema = object(json!({"type": "array", "items": schema}));
        }
        if let Some(rules) = rules {
            insert_count_bounds(&mut schema, field, rules);
        }

        let comment = self.comments.field(field);
        if !comment.is_empty() {
            schema.insert("description".to_owned(), comment.into());
        }
        schema
    }

    /// The schema of a single value, or of an element of a list or map.
    fn value_schema(&mut self, kind: &Kind) -> Map<String, Json> {
        object(match kind {
            Kind::Bool => json!({"type": "boolean"}),
            Kind::Double => json!({"type": "number", "format": "double"}),
            Kind::Float => json!({"type": "number", "format": "float"}),
            Kind::Uint32 | Kind::Fixed32 => json!({"type": "integer", "minimum": 0}),
            Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => {
                json!({"type": "integer", "format": "int32"})
            }
            // Responses have strings. Requests may have numbers.
            Kind::Uint64 | Kind::Fixed64 | Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => {
                json!({"type": ["string", "integer"], "format": "int64"})
            }
            Kind::String => json!({"type": "string"}),
            Kind::Bytes => json!({"type": "string", "contentEncoding": "base64"}),
            Kind::Enum(values) => {
                let names: Vec<_> = values.values().map(|value| value.name().to_owned()).collect();
                json!({"type": "string", "enum": names})
            }
            Kind::Message(message) => self.reference(message),
        })
    }
}

/// The schema of a message that has a JSON form of its own.
fn well_known_schema(name: &str) -> Option<Json> {
    Some(match name.strip_prefix("google.protobuf.")? {
        "Timestamp" => json!({"type": "string", "format": "date-time"}),
        "Duration" => json!({"type": "string", "pattern": "^-?[0-9]+(\\.[0-9]{1,9})?s$"}),
        "FieldMask" => json!({"type": "string"}),
        "Struct" | "Empty" => json!({"type": "object"}),
        "ListValue" => json!({"type": "array"}),
        "Value" => json!({}),
        "Any" => json!({
            "type": "object", "properties": {"@type": {"type": "string"}}, "required": ["@type"],
        }),
        _ => return None,
    })
}

fn object(json: Json) -> Map<String, Json> {
    json.as_object().cloned().unwrap_or_default()
}
