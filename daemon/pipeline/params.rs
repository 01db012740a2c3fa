//! Reads parameters of calls by name, as JSON text or as `google.protobuf.Struct`. Limits the
//! number of values, and rejects duplicate names.

use std::{
    cell::{Cell, RefCell},
    fmt,
};

use prost_types::{Struct, Value as ProtoValue, value::Kind};
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::{
    api::json_struct::try_struct_to_json,
    daemon::{
        catalog::MAX_PARAM_VALUES,
        error::{MAX_VIOLATIONS, Violation},
    },
};

/// Approximate memory of a value in a `Struct`, with its name.
const STRUCT_VALUE_OVERHEAD_BYTES: usize = 128;

/// Returns the approximate memory of a message apart from its texts. A short message can hold many
/// values.
pub(crate) fn struct_overhead_bytes(structure: &Struct) -> usize {
    let mut remaining = MAX_PARAM_VALUES;
    // Counts up to the limit on values.
    let _fits = structure.fields.values().all(|value| count_values(value, &mut remaining));
    (MAX_PARAM_VALUES - remaining) * STRUCT_VALUE_OVERHEAD_BYTES
}

/// The names of the request fields that hold parameters.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ParamsFieldNames {
    /// The `google.protobuf.Struct` field.
    pub(crate) structure: &'static str,
    /// The field with JSON text.
    pub(crate) json_text: &'static str,
}

/// The fields of all requests except those of batches.
pub(crate) const PARAMS_FIELDS: ParamsFieldNames =
    ParamsFieldNames { structure: "params", json_text: "params_json" };

/// Parameters as the request has them.
#[derive(Debug)]
pub(crate) struct RawParams {
    structure: Option<Struct>,
    text: String,
    fields: ParamsFieldNames,
}

impl RawParams {
    /// Takes the fields of a request. An absent `text` is empty.
    pub(crate) fn new(structure: Option<Struct>, text: String, fields: ParamsFieldNames) -> Self {
        Self { structure, text, fields }
    }

    /// Returns violations if both fields are given.
    pub(crate) fn conflict_violations(&self) -> Vec<Violation> {
        if self.structure.is_none() || self.text.is_empty() {
            return Vec::new();
        }

        [self.fields.structure, self.fields.json_text]
            .map(|field| Violation::new(field, "must not both be given: give one of them"))
            .into()
    }

    pub(crate) fn parse(self) -> Result<Map<String, Value>, Vec<Violation>> {
        match (self.structure, self.text.as_str()) {
            (Some(structure), _) => parse_struct(structure, self.fields.structure),
            (None, "") => Ok(Map::new()),
            (None, text) => parse_json(text, self.fields),
        }
    }
}

fn parse_struct(structure: Struct, field: &str) -> Result<Map<String, Value>, Vec<Violation>> {
    let mut remaining = MAX_PARAM_VALUES;
    if !structure.fields.values().all(|value| count_values(value, &mut remaining)) {
        return Err(vec![Violation::new(field, too_many_values_text())]);
    }

    try_struct_to_json(structure, field).map_err(|paths| {
        let paths = paths.into_iter().take(MAX_VIOLATIONS + 1);
        paths.map(|path| Violation::new(path, "must be a finite number")).collect()
    })
}

fn parse_json(text: &str, fields: ParamsFieldNames) -> Result<Map<String, Value>, Vec<Violation>> {
    let state = ParamsParseState {
        field: fields.structure,
        values_left: Cell::new(MAX_PARAM_VALUES),
        duplicate_names: RefCell::new(Vec::new()),
    };
    let reject = |text: String| Err(vec![Violation::new(fields.json_text, text)]);

    let mut reader = serde_json::Deserializer::from_str(text);
    let root = ParamsVisitor { state: &state, path: None };
    let read = root.deserialize(&mut reader);
    match read.and_then(|read| reader.end().map(|()| read)) {
        Ok(Value::Object(params)) => match state.duplicate_names.into_inner() {
            duplicates if duplicates.is_empty() => Ok(params),
            duplicates => Err(duplicates),
        },
        Ok(_) => reject("must be a JSON object".to_owned()),
        Err(_) if state.values_left.get() == 0 => reject(too_many_values_text()),
        // The error does not quote the text, which may contain secrets.
        Err(error) => {
            reject(format!("is not valid JSON (line {}, column {})", error.line(), error.column()))
        }
    }
}

fn too_many_values_text() -> String {
    format!(
        "has more than {MAX_PARAM_VALUES} values, counting those in lists and objects: split the call"
    )
}

/// Subtracts the values within `value` from `remaining`. Returns false if there are too many.
fn count_values(value: &ProtoValue, remaining: &mut usize) -> bool {
    if *remaining == 0 {
        return false;
    }

    *remaining -= 1;
    match &value.kind {
        Some(Kind::ListValue(list)) => {
            list.values.iter().all(|value| count_values(value, remaining))
        }
        Some(Kind::StructValue(fields)) => {
            fields.fields.values().all(|value| count_values(value, remaining))
        }
        _ => true,
    }
}

/// The state while a text is parsed.
struct ParamsParseState {
    /// Prefix of all paths in violations.
    field: &'static str,
    values_left: Cell<usize>,
    duplicate_names: RefCell<Vec<Violation>>,
}

/// Reads one value.
#[derive(Clone, Copy)]
struct ParamsVisitor<'a> {
    state: &'a ParamsParseState,
    /// The path of the value; `None` for the whole text.
    path: Option<ParamPath<'a>>,
}

/// The path of a value.
#[derive(Clone, Copy)]
struct ParamPath<'a> {
    parent: Option<&'a ParamPath<'a>>,
    name: &'a str,
}

impl fmt::Display for ParamPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.parent {
            Some(within) => write!(f, "{within}.{}", self.name),
            None => f.write_str(self.name),
        }
    }
}

impl<'de> DeserializeSeed<'de> for ParamsVisitor<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, from: D) -> Result<Value, D::Error> {
        let remaining = self.state.values_left.get();
        if remaining == 0 {
            return Err(D::Error::custom("too many values"));
        }
        self.state.values_left.set(remaining - 1);
        from.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ParamsVisitor<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
        Ok(flag.into())
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(number.into())
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_string<E>(self, text: String) -> Result<Value, E> {
        Ok(text.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = items.next_element_seed(self)? {
            values.push(value);
        }
        Ok(values.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut object = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            let path = ParamPath { parent: self.path.as_ref(), name: &name };
            let value =
                fields.next_value_seed(ParamsVisitor { state: self.state, path: Some(path) })?;

            let mut duplicates = self.state.duplicate_names.borrow_mut();
            if object.contains_key(&name) && duplicates.len() <= MAX_VIOLATIONS {
                let path = format!("{}.{path}", self.state.field);
                duplicates.push(Violation::new(path, "is given twice"));
            }
            object.insert(name, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::json_struct::json_to_struct;

    fn violations(text: &str) -> Vec<(String, String)> {
        let violations = parse_json(text, PARAMS_FIELDS).unwrap_err();
        violations.into_iter().map(|violation| (violation.field, violation.description)).collect()
    }

    #[test]
    fn text_is_read_as_json() {
        let text =
            r#" {"a": [1, -2, 3.5, null, true, "x\n", 18446744073709551615], "b": {"a": {}}} "#;
        let plain: Value = serde_json::from_str(text).unwrap();
        assert_eq!(Value::Object(parse_json(text, PARAMS_FIELDS).unwrap()), plain);
        for (text, expected) in [
            ("[]", "object"),
            ("3", "object"),
            ("{\"a\": secret}", "line 1, column 7"),
            ("{} {}", "not valid JSON"),
            ("", "not valid JSON"),
        ] {
            let violations = violations(text);
            let (field, description) = violations.first().unwrap();
            assert_eq!(field, "params_json");
            assert!(description.contains(expected), "{text}: {description}");
            assert!(!description.contains("secret"));
        }
    }

    #[test]
    fn duplicate_names_are_reported() {
        let violations =
            violations(r#"{"a": 1, "b": {"c": [{"d": 1, "d": 2}], "c": 0}, "a": 2, "a": 3}"#);
        let fields: Vec<_> = violations.iter().map(|(field, _)| field.as_str()).collect();
        assert_eq!(fields, ["params.b.c.d", "params.b.c", "params.a", "params.a"]);
    }

    #[test]
    fn too_many_values_are_rejected() {
        let text = |count: usize| format!("{{\"a\": {:?}}}", vec![1; count]);

        // The list and the object around it count too.
        let max = MAX_PARAM_VALUES - 2;
        assert!(parse_json(&text(max), PARAMS_FIELDS).is_ok());
        let (field, description) = violations(&text(max + 1)).remove(0);
        assert_eq!(field, "params_json");
        assert!(description.contains("262144"), "{description}");
        let message = |count: usize| {
            let json = json!({ "a": vec![1; count] });
            json_to_struct(json.as_object().unwrap().clone())
        };
        assert!(parse_struct(message(MAX_PARAM_VALUES - 1), "params").is_ok());
        assert_eq!(
            parse_struct(message(MAX_PARAM_VALUES), "params").unwrap_err()[0].field,
            "params"
        );
    }
}
