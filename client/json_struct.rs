//! The JSON that a `google.protobuf.Struct` stands for.

use prost_types::{Struct, Value as WireValue, value::Kind};
use serde_json::Value;

/// Up to which all whole numbers can be told apart as doubles: 2^53.
const MAX_EXACT_INTEGER: f64 = 9_007_199_254_740_992.0;

/// As a JSON object, with whole numbers written as such.
pub(crate) fn struct_to_json(structure: &Struct) -> Value {
    let fields = structure.fields.iter();
    Value::Object(fields.map(|(name, value)| (name.clone(), value_to_json(value))).collect())
}

fn value_to_json(value: &WireValue) -> Value {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(flag)) => (*flag).into(),
        Some(Kind::StringValue(text)) => text.as_str().into(),
        Some(Kind::NumberValue(number))
            if number.fract() == 0.0 && number.abs() <= MAX_EXACT_INTEGER =>
        {
            #[expect(
                clippy::cast_possible_truncation,
                reason = "it is whole, and within the range"
            )]
            let whole = *number as i64;
            whole.into()
        }
        Some(Kind::NumberValue(number)) => (*number).into(),
        Some(Kind::ListValue(list)) => list.values.iter().map(value_to_json).collect(),
        Some(Kind::StructValue(structure)) => struct_to_json(structure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(number: f64) -> WireValue {
        WireValue { kind: Some(Kind::NumberValue(number)) }
    }

    #[test]
    fn numbers_are_what_they_were() {
        let record = Struct {
            fields: [
                ("a".to_owned(), number(200_000.0)),
                ("b".to_owned(), number(0.25)),
                ("c".to_owned(), WireValue { kind: None }),
                ("d".to_owned(), number(1e300)),
            ]
            .into(),
        };
        assert_eq!(
            struct_to_json(&record).to_string(),
            r#"{"a":200000,"b":0.25,"c":null,"d":1e+300}"#
        );
    }
}
