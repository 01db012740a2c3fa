//! Parameters that come by their names, as JSON text or as the message that stands for it: bounded, and
//! each name once.

use std::{
    cell::{Cell, RefCell},
    fmt,
};

use prost_types::{Struct, Value as Wrapped, value::Kind};
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::{
    api::json_struct::try_struct_to_json,
    daemon::{
        catalog::MAX_PARAM_VALUES,
        error::{MAX_VIOLATIONS, Violation},
    },
};

/// Bytes of memory that each of them takes, about, with its name.
const STRUCT_VALUE_OVERHEAD_BYTES: usize = 128;

/// Bytes that such a message takes in memory, about, beside those of its texts: a small one can hold much.
pub(crate) fn struct_overhead_bytes(structure: &Struct) -> usize {
    let mut left = MAX_PARAM_VALUES;
    // As far as they are counted.
    let _fits = structure.fields.values().all(|value| count_values(value, &mut left));
    (MAX_PARAM_VALUES - left) * STRUCT_VALUE_OVERHEAD_BYTES
}

/// The fields of a request that have them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ParamsFieldNames {
    /// As a message.
    pub(crate) message: &'static str,
    /// As JSON text.
    pub(crate) json_text: &'static str,
}

/// Of all requests but those of batches.
pub(crate) const PARAMS_FIELDS: ParamsFieldNames =
    ParamsFieldNames { message: "params", json_text: "params_json" };

/// Parameters as they came.
#[derive(Debug)]
pub(crate) struct RawParams {
    message: Option<Struct>,
    text: String,
    fields: ParamsFieldNames,
}

impl RawParams {
    /// Those of a request; what it does not have is empty.
    pub(crate) fn new(structure: Option<Struct>, text: String, fields: ParamsFieldNames) -> Self {
        Self { message: structure, text, fields }
    }

    /// That they are given twice.
    pub(crate) fn conflict_violations(&self) -> Vec<Violation> {
        if self.message.is_none() || self.text.is_empty() {
            return Vec::new();
        }
        [self.fields.message, self.fields.json_text]
            .map(|field| Violation::new(field, "must not be given both: give one of them"))
            .into()
    }

    /// What they say.
    pub(crate) fn parse(self) -> Result<Map<String, Value>, Vec<Violation>> {
        match (self.message, self.text.as_str()) {
            (Some(structure), _) => parse_struct(structure, self.fields.message),
            (None, "") => Ok(Map::new()),
            (None, text) => parse_json(text, self.fields),
        }
    }
}

/// The parameters that a message holds.
fn parse_struct(structure: Struct, field: &str) -> Result<Map<String, Value>, Vec<Violation>> {
    let mut left = MAX_PARAM_VALUES;
    let mut values = structure.fields.values();
    if !values.all(|value| count_values(value, &mut left)) {
        return Err(vec![Violation::new(field, too_many_values_text())]);
    }
    try_struct_to_json(structure, field).map_err(|places| {
        let places = places.into_iter().take(MAX_VIOLATIONS + 1);
        places.map(|place| Violation::new(place, "must be a finite number")).collect()
    })
}

/// The parameters that a text holds.
fn parse_json(text: &str, fields: ParamsFieldNames) -> Result<Map<String, Value>, Vec<Violation>> {
    let found = ParamsParseState {
        field: fields.message,
        values_left: Cell::new(MAX_PARAM_VALUES),
        duplicate_names: RefCell::new(Vec::new()),
    };
    let refused = |text: String| Err(vec![Violation::new(fields.json_text, text)]);
    let mut reader = serde_json::Deserializer::from_str(text);
    let root = ParamsVisitor { state: &found, path: None };
    let read = root.deserialize(&mut reader);
    match read.and_then(|read| reader.end().map(|()| read)) {
        Ok(Value::Object(params)) => match found.duplicate_names.into_inner() {
            twice if twice.is_empty() => Ok(params),
            twice => Err(twice),
        },
        Ok(_) => refused("must be a JSON object".to_owned()),
        Err(_) if found.values_left.get() == 0 => refused(too_many_values_text()),
        // Not the text: it may hold secrets.
        Err(error) => {
            refused(format!("is no JSON: line {}, column {}", error.line(), error.column()))
        }
    }
}

fn too_many_values_text() -> String {
    format!(
        "has more than {MAX_PARAM_VALUES} values, with those in lists and objects: ask for less"
    )
}

/// Whether there are no more values than are left.
fn count_values(value: &Wrapped, left: &mut usize) -> bool {
    if *left == 0 {
        return false;
    }
    *left -= 1;
    match &value.kind {
        Some(Kind::ListValue(list)) => list.values.iter().all(|value| count_values(value, left)),
        Some(Kind::StructValue(fields)) => {
            fields.fields.values().all(|value| count_values(value, left))
        }
        _ => true,
    }
}

/// What was found in a text.
struct ParamsParseState {
    /// What the names of all of them begin with.
    field: &'static str,
    /// Values that it may still have.
    values_left: Cell<usize>,
    /// Names that are given twice.
    duplicate_names: RefCell<Vec<Violation>>,
}

/// Reads a value.
#[derive(Clone, Copy)]
struct ParamsVisitor<'a> {
    state: &'a ParamsParseState,
    /// Where it is; nothing for all of the text.
    path: Option<ParamPath<'a>>,
}

/// Where a value is.
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
        let left = self.state.values_left.get();
        if left == 0 {
            return Err(D::Error::custom("too many values"));
        }
        self.state.values_left.set(left - 1);
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
        let mut read = Vec::new();
        while let Some(item) = items.next_element_seed(self)? {
            read.push(item);
        }
        Ok(read.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut read = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            let path = ParamPath { parent: self.path.as_ref(), name: &name };
            let value =
                fields.next_value_seed(ParamsVisitor { state: self.state, path: Some(path) })?;
            let mut twice = self.state.duplicate_names.borrow_mut();
            if read.contains_key(&name) && twice.len() <= MAX_VIOLATIONS {
                let path = format!("{}.{path}", self.state.field);
                twice.push(Violation::new(path, "is given twice"));
            }
            read.insert(name, value);
        }
        Ok(Value::Object(read))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::json_struct::json_to_struct;

    fn refused(text: &str) -> Vec<(String, String)> {
        let violations = parse_json(text, PARAMS_FIELDS).unwrap_err().into_iter();
        let told = violations.map(|violation| (violation.field, violation.description));
        told.collect()
    }

    #[test]
    fn it_is_read_as_json_is() {
        let text =
            r#" {"a": [1, -2, 3.5, null, true, "x\n", 18446744073709551615], "b": {"a": {}}} "#;
        let plain: Value = serde_json::from_str(text).unwrap();
        assert_eq!(Value::Object(parse_json(text, PARAMS_FIELDS).unwrap()), plain);
        for (text, told) in [
            ("[]", "object"),
            ("3", "object"),
            ("{\"a\": secret}", "line 1, column 7"),
            ("{} {}", "no JSON"),
            ("", "no JSON"),
        ] {
            let refused = refused(text);
            let (field, description) = refused.first().unwrap();
            assert_eq!(field, "params_json");
            assert!(description.contains(told), "{text}: {description}");
            assert!(!description.contains("secret"));
        }
    }

    #[test]
    fn a_name_that_is_given_twice_is_told() {
        let told = refused(r#"{"a": 1, "b": {"c": [{"d": 1, "d": 2}], "c": 0}, "a": 2, "a": 3}"#);
        let fields: Vec<_> = told.iter().map(|(field, _)| field.as_str()).collect();
        assert_eq!(fields, ["params.b.c.d", "params.b.c", "params.a", "params.a"]);
    }

    #[test]
    fn more_values_than_any_tool_takes_are_not_read() {
        let text = |count: usize| format!("{{\"a\": {:?}}}", vec![1; count]);
        // With the list, and the object around it.
        let most = MAX_PARAM_VALUES - 2;
        assert!(parse_json(&text(most), PARAMS_FIELDS).is_ok());
        let (field, description) = refused(&text(most + 1)).remove(0);
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
