//! JSON and `google.protobuf.Struct`, the message that stands for it: one into the other.

use prost_types::{ListValue, Struct, Value, value::Kind};
use serde_json::{Map, Value as Json};

/// JSON as a message. Numbers become doubles: those beyond 2^53 are rounded.
pub(crate) fn json_to_struct(fields: Map<String, Json>) -> Struct {
    let fields = fields.into_iter();
    Struct { fields: fields.map(|(name, json)| (name, json_to_value(json))).collect() }
}

fn json_to_value(json: Json) -> Value {
    let kind = match json {
        Json::Null => Kind::NullValue(0),
        Json::Bool(flag) => Kind::BoolValue(flag),
        Json::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or(f64::NAN)),
        Json::String(text) => Kind::StringValue(text),
        Json::Array(items) => {
            Kind::ListValue(ListValue { values: items.into_iter().map(json_to_value).collect() })
        }
        Json::Object(fields) => Kind::StructValue(json_to_struct(fields)),
    };
    Value { kind: Some(kind) }
}

/// The JSON that a message stands for, or the places in it, below that of the message itself, of numbers
/// that JSON does not have.
pub(crate) fn struct_to_json(
    structure: Struct,
    path: &str,
) -> Result<Map<String, Json>, Vec<String>> {
    let mut non_finite = Vec::new();
    let fields = struct_fields_to_json(structure, path, &mut non_finite);
    match non_finite.is_empty() {
        true => Ok(fields),
        false => Err(non_finite),
    }
}

fn struct_fields_to_json(
    structure: Struct,
    path: &str,
    non_finite: &mut Vec<String>,
) -> Map<String, Json> {
    let fields = structure.fields.into_iter();
    fields
        .map(|(name, value)| {
            let value = value_to_json(value, &format!("{path}.{name}"), non_finite);
            (name, value)
        })
        .collect()
}

fn value_to_json(value: Value, path: &str, non_finite: &mut Vec<String>) -> Json {
    match value.kind {
        None | Some(Kind::NullValue(_)) => Json::Null,
        Some(Kind::BoolValue(flag)) => flag.into(),
        Some(Kind::NumberValue(number)) => {
            if !number.is_finite() {
                non_finite.push(path.to_owned());
            }
            exact_integer(number).map_or_else(|| number.into(), Json::from)
        }
        Some(Kind::StringValue(text)) => text.into(),
        Some(Kind::ListValue(list)) => {
            let values = list.values.into_iter().enumerate();
            values
                .map(|(index, value)| value_to_json(value, &format!("{path}[{index}]"), non_finite))
                .collect()
        }
        Some(Kind::StructValue(fields)) => {
            Json::Object(struct_fields_to_json(fields, path, non_finite))
        }
    }
}

/// A number without a fraction, as JSON text has it: the message has one kind of numbers only.
fn exact_integer(number: f64) -> Option<i64> {
    const MAX_EXACT_INTEGER: f64 = 9_007_199_254_740_991.0; // 2^53 - 1
    let is_whole = number.fract() == 0.0 && number.abs() <= MAX_EXACT_INTEGER;
    is_whole.then(|| format!("{number:.0}").parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn json_survives_being_a_message() {
        let json =
            json!({"a": [1.5, null, "x", {"b": false}], "c": {}, "d": 7, "e": -3, "f": 1e300});
        let json = json.as_object().expect("an object");
        assert_eq!(struct_to_json(json_to_struct(json.clone()), "it"), Ok(json.clone()));
    }

    #[test]
    fn numbers_that_json_does_not_have_are_named() {
        let number = |number| Value { kind: Some(Kind::NumberValue(number)) };
        let list = Kind::ListValue(ListValue { values: vec![number(1.0), number(f64::INFINITY)] });
        let message = Struct {
            fields: [
                ("a".to_owned(), number(f64::NAN)),
                ("b".to_owned(), Value { kind: Some(list) }),
                ("c".to_owned(), number(-0.0)),
            ]
            .into(),
        };
        let strange = struct_to_json(message, "params").unwrap_err();
        assert_eq!(strange, ["params.a", "params.b[1]"]);
    }
}
