//! JSON and `google.protobuf.Struct`, the message that stands for it: one into the other.

use prost_types::{ListValue, Struct, Value, value::Kind};
use serde_json::{Map, Value as Json};

/// JSON as a message. Numbers become doubles: those beyond 2^53 are rounded.
pub(crate) fn structure(fields: Map<String, Json>) -> Struct {
    let fields = fields.into_iter();
    Struct {
        fields: fields.map(|(name, json)| (name, wrapped(json))).collect(),
    }
}

fn wrapped(json: Json) -> Value {
    let kind = match json {
        Json::Null => Kind::NullValue(0),
        Json::Bool(flag) => Kind::BoolValue(flag),
        Json::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or(f64::NAN)),
        Json::String(text) => Kind::StringValue(text),
        Json::Array(items) => Kind::ListValue(ListValue {
            values: items.into_iter().map(wrapped).collect(),
        }),
        Json::Object(fields) => Kind::StructValue(structure(fields)),
    };
    Value { kind: Some(kind) }
}

/// The JSON that a message stands for.
pub(crate) fn unwrapped(structure: Struct) -> Map<String, Json> {
    let fields = structure.fields.into_iter();
    fields.map(|(name, value)| (name, plain(value))).collect()
}

fn plain(value: Value) -> Json {
    match value.kind {
        None | Some(Kind::NullValue(_)) => Json::Null,
        Some(Kind::BoolValue(flag)) => flag.into(),
        Some(Kind::NumberValue(number)) => number.into(),
        Some(Kind::StringValue(text)) => text.into(),
        Some(Kind::ListValue(list)) => list.values.into_iter().map(plain).collect(),
        Some(Kind::StructValue(fields)) => Json::Object(unwrapped(fields)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn json_survives_being_a_message() {
        let json = json!({"a": [1.5, null, "x", {"b": false}], "c": {}, "d": 7.0});
        let json = json.as_object().expect("an object");
        assert_eq!(unwrapped(structure(json.clone())), *json);
    }
}
