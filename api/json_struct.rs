//! Conversion between JSON objects and `google.protobuf.Struct`.
//!
//! A `Struct` stores every number as a double. Whole numbers up to 2^53 - 1 survive the round trip
//! as integers; larger ones are rounded.

use prost_types::{ListValue, Struct, Value, value::Kind};
use serde_json::{Map, Value as Json};

/// 2^53 - 1, the largest integer below which every integer is exactly one double.
const MAX_EXACT_INTEGER: f64 = 9_007_199_254_740_991.0;

/// Converts a JSON object. Numbers become doubles: integers beyond 2^53 - 1 are rounded.
pub fn json_to_struct(fields: Map<String, Json>) -> Struct {
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

/// Converts to a JSON object. NaN and infinities, which JSON lacks, become `null`.
pub fn struct_to_json(structure: Struct) -> Map<String, Json> {
    struct_fields_to_json(structure, "", &mut Vec::new())
}

/// Converts to a JSON object, and rejects NaN and infinities.
///
/// # Errors
///
/// The paths of all such numbers, for example `params.b[1]`. Each begins with `path`, the name of
/// the `Struct` itself.
pub fn try_struct_to_json(structure: Struct, path: &str) -> Result<Map<String, Json>, Vec<String>> {
    let mut non_finite = Vec::new();
    let fields = struct_fields_to_json(structure, path, &mut non_finite);

    if non_finite.is_empty() { Ok(fields) } else { Err(non_finite) }
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

/// Returns the integer that a double stands for. JSON text then has it without a fraction.
fn exact_integer(number: f64) -> Option<i64> {
    let is_exact = number.fract() == 0.0 && number.abs() <= MAX_EXACT_INTEGER;
    is_exact.then(|| format!("{number:.0}").parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn number(number: f64) -> Value {
        Value { kind: Some(Kind::NumberValue(number)) }
    }

    #[test]
    fn json_survives_the_round_trip() {
        let json =
            json!({"a": [1.5, null, "x", {"b": false}], "c": {}, "d": 7, "e": -3, "f": 1e300});
        let json = json.as_object().expect("an object");
        assert_eq!(struct_to_json(json_to_struct(json.clone())), json.clone());
    }

    #[test]
    fn numbers_keep_their_form() {
        let record = Struct {
            fields: [
                ("a".to_owned(), number(200_000.0)),
                ("b".to_owned(), number(0.25)),
                ("c".to_owned(), Value { kind: None }),
                ("d".to_owned(), number(1e300)),
            ]
            .into(),
        };
        assert_eq!(
            Json::Object(struct_to_json(record)).to_string(),
            r#"{"a":200000,"b":0.25,"c":null,"d":1e+300}"#
        );
    }

    #[test]
    fn non_finite_numbers_are_reported_by_path() {
        let list = Kind::ListValue(ListValue { values: vec![number(1.0), number(f64::INFINITY)] });
        let message = Struct {
            fields: [
                ("a".to_owned(), number(f64::NAN)),
                ("b".to_owned(), Value { kind: Some(list) }),
                ("c".to_owned(), number(-0.0)),
            ]
            .into(),
        };
        let paths = try_struct_to_json(message, "params").unwrap_err();
        assert_eq!(paths, ["params.a", "params.b[1]"]);
    }
}
