//! Requests as JSON, in all forms that the mapping permits.

use base64::{
    Engine as _,
    prelude::{BASE64_STANDARD, BASE64_STANDARD_NO_PAD, BASE64_URL_SAFE, BASE64_URL_SAFE_NO_PAD},
};
use fastrand::Rng;
use prost_reflect::{
    DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, ReflectMessage as _, Value,
};
use serde_json::{Map, Value as Json, json};

/// Larger integers have no exact double.
const EXACT_DOUBLE_LIMIT: u64 = 1 << 53;

/// A message as JSON, in a random form.
pub(super) fn random_json(message: &DynamicMessage, rng: &mut Rng) -> Map<String, Json> {
    let mut json_fields = Map::new();
    for field in message.descriptor().fields() {
        let name = match rng.u8(..4) {
            0 => field.json_name(),
            _ => field.name(),
        };

        // An error in an undecodable value reports the name that the caller used.
        let name = match message.get_field(&field).as_ref() {
            Value::EnumNumber(99) => field.name(),
            _ => name,
        };
        let json = if message.has_field(&field) {
            field_json(&field, &message.get_field(&field), rng)
        } else {
            match random_default(&field, rng) {
                Some(default) => default,
                None => continue,
            }
        };

        json_fields.insert(name.to_owned(), json);
    }

    json_fields
}

/// A value that counts as unset, or none.
fn random_default(field: &FieldDescriptor, rng: &mut Rng) -> Option<Json> {
    match (rng.u8(..6), field.kind()) {
        (0, _) => Some(Json::Null),
        (1, Kind::Enum(values)) if !field.is_list() => {
            let first = values.values().next().unwrap();
            Some(first.name().into())
        }
        (1, _) if field.is_list() => Some(json!([])),
        (1, _) if field.is_map() => Some(json!({})),
        (_, _) => None,
    }
}

fn field_json(field: &FieldDescriptor, value: &Value, rng: &mut Rng) -> Json {
    match value {
        Value::List(items) => items.iter().map(|item| value_json(field, item, rng)).collect(),
        Value::Map(entries) => {
            let entries = entries.iter().map(|(key, value)| {
                let key = key.as_str().unwrap().to_owned();
                (key, Json::from(value.as_str().unwrap()))
            });
            if rng.bool() {
                Json::Object(entries.collect())
            } else {
                entries.map(|(key, value)| json!({ "key": key, "value": value })).collect()
            }
        }
        value => value_json(field, value, rng),
    }
}

fn value_json(field: &FieldDescriptor, value: &Value, rng: &mut Rng) -> Json {
    match value {
        Value::Bool(flag) => match rng.u8(..3) {
            0 => flag.to_string().into(),
            _ => (*flag).into(),
        },
        Value::U32(number) => number_json((*number).into(), rng),
        Value::U64(number) => number_json(*number, rng),
        Value::String(text) => text.as_str().into(),
        Value::Bytes(bytes) => match rng.u8(..4) {
            0 => BASE64_STANDARD.encode(bytes),
            1 => BASE64_STANDARD_NO_PAD.encode(bytes),
            2 => BASE64_URL_SAFE.encode(bytes),
            _ => BASE64_URL_SAFE_NO_PAD.encode(bytes),
        }
        .into(),
        Value::EnumNumber(number) => {
            let Kind::Enum(values) = field.kind() else {
                panic!("{field:?}");
            };
            enum_json(&values, *number, rng)
        }
        Value::Message(message) => Json::Object(random_json(message, rng)),
        value => panic!("{value:?} has no JSON form here"),
    }
}

fn number_json(number: u64, rng: &mut Rng) -> Json {
    match rng.u8(..3) {
        0 => number.to_string().into(),
        1 if number < EXACT_DOUBLE_LIMIT => (number as f64).into(),
        _ => number.into(),
    }
}

fn enum_json(values: &EnumDescriptor, number: i32, rng: &mut Rng) -> Json {
    let Some(value) = values.get_value(number) else {
        return number.into();
    };

    // The prefix of all values' names, taken from the first.
    let first = values.get_value(0).unwrap();
    let prefix = first.name().strip_suffix("UNSPECIFIED").unwrap();

    let short = value.name().strip_prefix(prefix).unwrap();
    match rng.u8(..5) {
        0 => number.into(),
        1 => value.name().into(),
        2 => value.name().to_lowercase().into(),
        3 => short.into(),
        _ => short.to_lowercase().into(),
    }
}

/// Replaces integers without an exact double by texts, for `Struct`, whose numbers are doubles.
pub(super) fn large_integers_as_text(json: Json) -> Json {
    match json {
        Json::Number(number)
            if number.as_u64().is_some_and(|number| number >= EXACT_DOUBLE_LIMIT) =>
        {
            number.to_string().into()
        }
        Json::Array(items) => items.into_iter().map(large_integers_as_text).collect(),
        Json::Object(fields) => {
            let fields = fields.into_iter();
            Json::Object(fields.map(|(name, json)| (name, large_integers_as_text(json))).collect())
        }
        json => json,
    }
}
