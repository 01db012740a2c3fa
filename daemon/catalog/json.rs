//! Converts messages from and to JSON: parameters by name, and responses.
//!
//! Reading reports every field that does not fit, up to [`MAX_VIOLATIONS`].

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "kinds of values that never fit, in enums of another crate"
)]

use std::collections::HashMap;

use base64::{
    Engine as _,
    alphabet::{STANDARD, URL_SAFE},
    engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig},
};
use prost_reflect::{
    DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MapKey, MessageDescriptor,
    SerializeOptions, Value,
};
use serde_json::{Map, Number, Value as Json};

use super::{
    rules::{FieldSpec, MessageRules},
    suggest::unknown_parameter_message,
};
use crate::daemon::error::{Error, MAX_VIOLATIONS, Violation};

/// Accepts both alphabets, with and without padding, as ProtoJSON requires.
const LENIENT_BASE64: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);

/// Reads `parameters` as a message with these rules.
///
/// Numbers may be given as strings. Null counts as missing. If a value does not fit, the error also
/// contains the violations of rules by the other fields.
pub(super) fn read(
    rules: &MessageRules,
    parameters: &Map<String, Json>,
) -> Result<DynamicMessage, Vec<Violation>> {
    let mut reader = JsonMessageReader { violations: Vec::new() };
    let message = reader.message(rules.message(), Some(rules), parameters, "");
    let mut violations = reader.violations;
    if violations.is_empty() {
        return Ok(message);
    }

    let mut others = rules.violations(&message);
    others.retain(|other| {
        !violations.iter().any(|reported| is_same_or_within(&reported.field, &other.field))
    });
    violations.append(&mut others);
    Err(violations)
}

/// Reads a message without rules of its fields, as [`read`] does.
pub(crate) fn read_json_message(
    descriptor: &MessageDescriptor,
    fields: &Map<String, Json>,
) -> Result<DynamicMessage, Vec<Violation>> {
    let mut reader = JsonMessageReader { violations: Vec::new() };
    let message = reader.message(descriptor, None, fields, "");
    if reader.violations.is_empty() { Ok(message) } else { Err(reader.violations) }
}

/// Whether `field` is `other` or within it. Then `other` is missing from the message.
fn is_same_or_within(field: &str, other: &str) -> bool {
    let rest = field.strip_prefix(other);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// Writes a message, including zero values of fields without presence. Omits absent fields with
/// presence.
pub(crate) fn write(message: &DynamicMessage) -> Result<Map<String, Json>, Error> {
    let options = SerializeOptions::new()
        .use_proto_field_name(true)
        .stringify_64_bit_integers(false)
        .skip_default_fields(false);

    let json = message
        .serialize_with_options(serde_json::value::Serializer, &options)
        .map_err(Error::internal)?;

    let Json::Object(mut fields) = json else {
        return Err(Error::internal("a message is no JSON object"));
    };
    fields.values_mut().for_each(write_whole_numbers);
    Ok(fields)
}

/// Writes whole doubles without a fraction. A `google.protobuf.Struct` stores all numbers as
/// doubles.
pub(crate) fn write_whole_numbers(value: &mut Json) {
    match value {
        // An integer above 2^53 would lose digits as a double.
        Json::Number(number) if number.is_f64() => {
            let whole = number
                .as_f64()
                .filter(|number| number.fract() == 0.0)
                .and_then(|number| format!("{number:.0}").parse::<i64>().ok());
            if let Some(whole) = whole {
                *value = whole.into();
            }
        }
        Json::Array(items) => items.iter_mut().for_each(write_whole_numbers),
        Json::Object(fields) => fields.values_mut().for_each(write_whole_numbers),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => {}
    }
}

/// The accepted forms of a map, for error texts.
pub(crate) const MAP_EXPECTED: &str = "an object, or a list of entries that have a key and a value, and nothing else, and no key twice";

/// Converts a list of `{"key": …, "value": …}` to an object. Each key may appear only once.
pub(crate) fn map_from_entries(list: &[Json]) -> Option<Map<String, Json>> {
    let mut entries = Map::new();
    for entry in list {
        let entry = entry.as_object().filter(|entry| entry.len() == 2)?;
        let key = entry.get("key")?.as_str()?;
        let value = entry.get("value")?.clone();
        if entries.insert(key.to_owned(), value).is_some() {
            return None;
        }
    }
    Some(entries)
}

struct JsonMessageReader {
    violations: Vec<Violation>,
}

impl JsonMessageReader {
    fn message(
        &mut self,
        descriptor: &MessageDescriptor,
        rules: Option<&MessageRules>,
        fields: &Map<String, Json>,
        prefix: &str,
    ) -> DynamicMessage {
        let mut message = DynamicMessage::new(descriptor.clone());
        for (name, value) in fields {
            if self.is_full() {
                break;
            }

            let path = format!("{prefix}{name}");
            let field = descriptor
                .get_field_by_name(name)
                .or_else(|| descriptor.get_field_by_json_name(name));
            match field {
                None => {
                    let fields: Vec<_> = descriptor.fields().collect();
                    let known: Vec<_> = fields.iter().map(FieldDescriptor::name).collect();
                    let text = unknown_parameter_message(name, &known);
                    self.report(&path, text);
                }
                Some(field) if value.is_null() || is_unspecified_enum(&field, value) => {}
                Some(field) if message.has_field(&field) => {
                    self.report(&path, format!("is given twice, also as {}", field.name()));
                }
                Some(field) if let Some(other) = other_of_oneof(&message, &field) => {
                    self.report(&path, format!("excludes {}: give one of them", other.name()));
                }
                Some(field) => {
                    let field_spec = rules.and_then(|rules| rules.field(&field));
                    if let Some(value) = self.field(&field, field_spec, value, &path) {
                        message.set_field(&field, value);
                    }
                }
            }
        }
        message
    }

    fn field(
        &mut self,
        field: &FieldDescriptor,
        field_spec: Option<&FieldSpec>,
        value: &Json,
        path: &str,
    ) -> Option<Value> {
        if field.is_map() {
            let Kind::Message(entry) = field.kind() else {
                return None;
            };

            // Strict schemas can only express a map as a list of its entries.
            let listed = value.as_array().and_then(|list| map_from_entries(list));
            let Some(entries) = value.as_object().or(listed.as_ref()) else {
                return self.report_type_mismatch(path, MAP_EXPECTED, value);
            };

            let kind = entry.map_entry_value_field().kind();
            let before = self.violations.len();
            let mut read = HashMap::with_capacity(entries.len());
            for (key, value) in entries {
                if self.is_full() {
                    return None;
                }
                let path = format!("{path}[{key:?}]");
                if let Some(value) = self.value(&kind, field_spec, value, &path) {
                    read.insert(MapKey::String(key.clone()), value);
                }
            }

            return (self.violations.len() == before).then_some(Value::Map(read));
        }
        if field.is_list() {
            let Json::Array(items) = value else {
                return self.report_type_mismatch(path, "an array", value);
            };

            let before = self.violations.len();
            let kind = field.kind();
            let mut read = Vec::with_capacity(items.len());
            for (index, item) in items.iter().enumerate() {
                if self.is_full() {
                    return None;
                }
                read.extend(self.value(&kind, field_spec, item, &format!("{path}[{index}]")));
            }
            return (self.violations.len() == before).then_some(Value::List(read));
        }
        self.value(&field.kind(), field_spec, value, path)
    }

    fn value(
        &mut self,
        kind: &Kind,
        field_spec: Option<&FieldSpec>,
        value: &Json,
        path: &str,
    ) -> Option<Value> {
        let read = match (kind, value) {
            (Kind::String, Json::String(text)) => Some(Value::String(text.clone())),
            (Kind::Bool, Json::Bool(flag)) => Some(Value::Bool(*flag)),
            (Kind::Bool, Json::String(text)) => text.parse().ok().map(Value::Bool),
            (Kind::Bytes, Json::String(text)) => {
                decode_base64(text).map(|bytes| Value::Bytes(bytes.into()))
            }
            (Kind::Int32 | Kind::Sint32 | Kind::Sfixed32, _) => {
                read_integer(value).and_then(|number| number.try_into().ok().map(Value::I32))
            }
            (Kind::Int64 | Kind::Sint64 | Kind::Sfixed64, _) => {
                read_integer(value).and_then(|number| number.try_into().ok().map(Value::I64))
            }
            (Kind::Uint32 | Kind::Fixed32, _) => {
                read_integer(value).and_then(|number| number.try_into().ok().map(Value::U32))
            }
            (Kind::Uint64 | Kind::Fixed64, _) => {
                read_integer(value).and_then(|number| number.try_into().ok().map(Value::U64))
            }
            (Kind::Double, Json::Number(number)) => number.as_f64().map(Value::F64),
            (Kind::Enum(values), Json::String(_) | Json::Number(_)) => {
                return self.enum_number(values, value, path);
            }
            // These have forms of their own, such as "1.5s".
            (Kind::Message(descriptor), _) if descriptor.package_name() == "google.protobuf" => {
                DynamicMessage::deserialize(descriptor.clone(), value).ok().map(Value::Message)
            }
            (Kind::Message(descriptor), Json::Object(fields)) => {
                let before = self.violations.len();
                let rules = field_spec.and_then(|field| field.inner.as_ref());
                let message = self.message(descriptor, rules, fields, &format!("{path}."));
                if self.violations.len() > before {
                    return None;
                }
                Some(Value::Message(message))
            }
            _ => None,
        };

        read.or_else(|| self.report_misfit(kind, field_spec, value, path))
    }

    fn enum_number(&mut self, values: &EnumDescriptor, value: &Json, path: &str) -> Option<Value> {
        let number = enum_value(values, value);
        if number.is_none() {
            let names: Vec<_> = values
                .values()
                .skip(1)
                .map(|value| unprefixed_name(values, value.name()).to_owned())
                .collect();
            self.report(path, format!("is {value}; it must be one of {}", names.join(", ")));
        }
        number.map(Value::EnumNumber)
    }

    /// Reports a value of the wrong type, or an integer outside the range.
    fn report_misfit(
        &mut self,
        kind: &Kind,
        field_spec: Option<&FieldSpec>,
        value: &Json,
        path: &str,
    ) -> Option<Value> {
        if let (Kind::Bytes, Json::String(_)) = (kind, value) {
            self.report(path, "is no valid base64".to_owned());
            return None;
        }
        let Some((min, max)) = integer_range(kind, field_spec) else {
            return self.report_type_mismatch(path, expected_type(kind), value);
        };
        let expected = format!("a whole number from {min} to {max}");
        // Numbers may be given as strings.
        let number = match value {
            Json::Number(number) => Some(number.clone()),
            Json::String(text) => parse_number(text),
            _ => None,
        };
        let Some(number) = number else {
            return self.report_type_mismatch(path, &expected, value);
        };
        self.report(path, format!("is {number}; it must be {expected}"));
        None
    }

    fn report_type_mismatch<T>(&mut self, path: &str, expected: &str, value: &Json) -> Option<T> {
        let actual = match value {
            Json::Null => "null",
            Json::Bool(_) => "a boolean",
            Json::Number(_) => "a number",
            Json::String(_) => "a string",
            Json::Array(_) => "an array",
            Json::Object(_) => "an object",
        };
        // Without the value: it may be a secret in the wrong field.
        self.report(path, format!("must be {expected}; this is {actual}"));
        None
    }

    fn report(&mut self, path: &str, text: String) {
        self.violations.push(Violation::new(path, text));
    }

    /// Whether there are as many violations as an error reports.
    fn is_full(&self) -> bool {
        self.violations.len() > MAX_VIOLATIONS
    }
}

fn expected_type(kind: &Kind) -> &'static str {
    match kind {
        Kind::String => "a string",
        Kind::Bool => "true or false",
        Kind::Bytes => "a string in base64",
        Kind::Enum(_) => "the name or number of a value",
        Kind::Message(message) => match message.full_name() {
            "google.protobuf.Timestamp" => "a time such as \"2026-01-02T03:04:05Z\"",
            "google.protobuf.Duration" => "a duration such as \"1.5s\"",
            _ => "an object",
        },
        _ => "a number",
    }
}

/// The range of an integer kind, limited by the field's rules; `None` for other kinds.
fn integer_range(kind: &Kind, field_spec: Option<&FieldSpec>) -> Option<(i128, i128)> {
    let (min, max) = match kind {
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => (i32::MIN.into(), i32::MAX.into()),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => (i64::MIN.into(), i64::MAX.into()),
        Kind::Uint32 | Kind::Fixed32 => (0, u32::MAX.into()),
        Kind::Uint64 | Kind::Fixed64 => (0, u64::MAX.into()),
        _ => return None,
    };

    let rules = field_spec.map(|field| &field.rules);
    let minimum = rules.and_then(|rules| rules.minimum).map(i128::from);
    let maximum = rules.and_then(|rules| rules.maximum).map(i128::from);
    Some((minimum.unwrap_or(min), maximum.unwrap_or(max)))
}

/// An integer. Accepts a fraction of zero, because all numbers in a `Struct` are doubles.
fn read_integer(value: &Json) -> Option<i128> {
    match value {
        Json::Number(number) => number
            .as_i64()
            .map(i128::from)
            .or_else(|| number.as_u64().map(i128::from))
            .or_else(|| number.as_f64().and_then(exact_integer)),
        Json::String(text) => {
            let digits = text.trim().parse().ok();
            digits.or_else(|| parse_number(text)?.as_f64().and_then(exact_integer))
        }
        _ => None,
    }
}

/// The number in a string. Some models write numbers as strings.
pub(crate) fn parse_number(text: &str) -> Option<Number> {
    let text = text.trim();
    let signed = || text.parse::<i64>().ok().map(Number::from);
    let unsigned = || text.parse::<u64>().ok().map(Number::from);
    let real = || text.parse().ok().and_then(Number::from_f64);
    signed().or_else(unsigned).or_else(real)
}

/// The number as an integer, if it is whole and a double represents it exactly.
fn exact_integer(number: f64) -> Option<i128> {
    // 2^53 - 1. A larger number may be the result of rounding.
    const MAX_EXACT_INTEGER: f64 = 9_007_199_254_740_991.0;
    let is_whole = number.fract() == 0.0 && number.abs() <= MAX_EXACT_INTEGER;
    is_whole.then(|| format!("{number:.0}").parse().ok()).flatten()
}

fn decode_base64(text: &str) -> Option<Vec<u8>> {
    [&STANDARD, &URL_SAFE]
        .into_iter()
        .find_map(|alphabet| GeneralPurpose::new(alphabet, LENIENT_BASE64).decode(text).ok())
}

/// The field of the message that excludes `field`, because both are of one `oneof`.
fn other_of_oneof(message: &DynamicMessage, field: &FieldDescriptor) -> Option<FieldDescriptor> {
    let oneof = field.containing_oneof()?;
    oneof.fields().find(|other| other != field && message.has_field(other))
}

/// Whether the value is the first of its enum, which counts as missing. Clients that write all
/// fields of a message send it.
fn is_unspecified_enum(field: &FieldDescriptor, value: &Json) -> bool {
    match field.kind() {
        Kind::Enum(values) if !field.is_list() => enum_value(&values, value) == Some(0),
        _ => false,
    }
}

/// The number of an enum value, given by number or by name, with or without the prefix.
fn enum_value(values: &EnumDescriptor, given: &Json) -> Option<i32> {
    let Json::String(name) = given else {
        let number = i32::try_from(read_integer(given)?).ok()?;
        return values.get_value(number).map(|value| value.number());
    };
    values
        .values()
        .find(|value| {
            let full = value.name();
            full.eq_ignore_ascii_case(name)
                || unprefixed_name(values, full).eq_ignore_ascii_case(name)
        })
        .map(|value| value.number())
}

/// The name of a value without the prefix, which is the enum's name (buf's rule set STANDARD).
fn unprefixed_name<'a>(values: &EnumDescriptor, full: &'a str) -> &'a str {
    let mut prefix = String::new();
    for (index, letter) in values.name().char_indices() {
        if letter.is_ascii_uppercase() && index > 0 {
            prefix.push('_');
        }
        prefix.push(letter.to_ascii_uppercase());
    }
    full.strip_prefix(&prefix).and_then(|rest| rest.strip_prefix('_')).unwrap_or(full)
}

#[cfg(test)]
mod random;

#[cfg(test)]
mod tests;
