//! Parameters of a dialect's tools: their JSON Schema, and the validation of given values.

use std::{borrow::Cow, time::Duration};

use serde_json::{Map, Value as Json, json};

use crate::daemon::{
    catalog::{MAP_EXPECTED, map_from_entries, parse_number, suggest},
    error::{Error, MAX_VIOLATIONS, Violation},
};

/// Longest value that texts for people contain.
pub(super) const MAX_DISPLAYED_BYTES: usize = 1024;

/// The definition of a parameter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ParameterSpec {
    pub(crate) name: &'static str,
    /// Description for models; empty if the source document has none.
    pub(crate) description: &'static str,
    pub(crate) kind: ParameterKind,
    pub(crate) is_required: bool,
    /// Value if the parameter is missing.
    pub(crate) default: Option<ParameterDefault>,
    /// Whether records and approval requests contain only its size. Set for secrets and for content
    /// of files.
    pub(crate) is_redacted: bool,
}

/// The type of a parameter, with its limits.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ParameterKind {
    String,
    /// One of these strings.
    Enum(&'static [&'static str]),
    /// An integer in this range, both ends included.
    Integer(i64, i64),
    /// A number in this range, both ends included.
    Number(f64, f64),
    Bool,
    StringList,
    IntegerList,
    /// An object with string values.
    StringMap,
    /// A list of objects with these fields.
    ObjectList(&'static [ParameterSpec]),
    /// An object with these fields.
    Object(&'static [ParameterSpec]),
}

/// The value of a missing parameter.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ParameterDefault {
    String(&'static str),
    Integer(i64),
    Bool(bool),
}

/// How parameters that a tool does not have are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnknownParams {
    Ignore,
    /// They are violations. The error suggests the name that was probably meant.
    Reject,
}

/// Validated parameters, with defaults filled in.
#[derive(Debug, Clone)]
pub(crate) struct DialectParams(Map<String, Json>);

// === impl ParameterSpec ===

impl ParameterSpec {
    /// An optional parameter without a default.
    pub(crate) const fn new(
        name: &'static str,
        kind: ParameterKind,
        description: &'static str,
    ) -> Self {
        Self { name, description, kind, is_required: false, default: None, is_redacted: false }
    }

    /// Makes the parameter required.
    pub(crate) const fn required(self) -> Self {
        Self { is_required: true, ..self }
    }

    /// Hides the value from records and approval requests.
    pub(crate) const fn redacted(self) -> Self {
        Self { is_redacted: true, ..self }
    }

    /// Sets the default.
    pub(crate) const fn with_default(self, default: ParameterDefault) -> Self {
        Self { default: Some(default), ..self }
    }

    fn schema(&self, is_closed: bool) -> Json {
        let mut schema = self.kind.schema(is_closed);
        if !self.description.is_empty() {
            schema["description"] = self.description.into();
        }
        if let Some(default) = self.default {
            schema["default"] = default.json();
        }
        schema
    }
}

/// JSON Schema of an object with these parameters. A closed schema allows no others.
pub(crate) fn object_schema(parameters: &[ParameterSpec], is_closed: bool) -> Map<String, Json> {
    let properties: Map<_, _> = parameters
        .iter()
        .map(|parameter| (parameter.name.to_owned(), parameter.schema(is_closed)))
        .collect();
    let required: Vec<_> = parameters
        .iter()
        .filter(|parameter| parameter.is_required)
        .map(|parameter| Json::from(parameter.name))
        .collect();

    let mut schema = Map::new();
    schema.insert("type".to_owned(), "object".into());
    schema.insert("properties".to_owned(), properties.into());
    if !required.is_empty() {
        schema.insert("required".to_owned(), required.into());
    }
    if is_closed {
        schema.insert("additionalProperties".to_owned(), false.into());
    }
    schema
}

impl ParameterKind {
    fn schema(self, is_closed: bool) -> Json {
        match self {
            Self::String => json!({"type": "string"}),
            Self::Enum(texts) => json!({"type": "string", "enum": texts}),
            Self::Integer(min, max) => {
                let mut schema = json!({"type": "integer"});
                if min != i64::MIN {
                    schema["minimum"] = min.into();
                }
                if max != i64::MAX {
                    schema["maximum"] = max.into();
                }
                schema
            }
            Self::Number(..) => json!({"type": "number"}),
            Self::Bool => json!({"type": "boolean"}),
            Self::StringList => json!({"type": "array", "items": {"type": "string"}}),
            Self::IntegerList => json!({"type": "array", "items": {"type": "integer"}}),
            Self::StringMap => {
                json!({"type": "object", "additionalProperties": {"type": "string"}})
            }
            Self::ObjectList(fields) => {
                json!({"type": "array", "items": object_schema(fields, is_closed)})
            }
            Self::Object(fields) => object_schema(fields, is_closed).into(),
        }
    }

    /// Reads a value. Accepts it in another JSON type of the same meaning.
    fn read(self, value: &Json, path: &str, reader: &mut DialectParamsReader) -> Option<Json> {
        match (self, value) {
            (Self::StringList, Json::Array(items)) => reader.list(Self::String, items, path),
            (Self::IntegerList, Json::Array(items)) => {
                reader.list(Self::Integer(i64::MIN, i64::MAX), items, path)
            }
            (Self::ObjectList(fields), Json::Array(items)) => {
                reader.list(Self::Object(fields), items, path)
            }
            (Self::Object(fields), Json::Object(values)) => {
                Some(reader.fields(fields, values, &format!("{path}.")).into())
            }
            (Self::StringMap, Json::Object(entries)) => reader.string_map(entries, path),
            (Self::StringMap, Json::Array(list)) => match map_from_entries(list) {
                Some(entries) => self.read(&entries.into(), path, reader),
                None => reader.report_mismatch(self, value, path),
            },
            _ => self.read_scalar(value, path, reader),
        }
    }

    /// Reads a string, a number or a flag.
    fn read_scalar(
        self,
        value: &Json,
        path: &str,
        reader: &mut DialectParamsReader,
    ) -> Option<Json> {
        let read = match (self, value) {
            (Self::String, Json::String(text)) => Some(text.clone().into()),
            (Self::String, Json::Number(number)) if reader.unknown == UnknownParams::Ignore => {
                Some(number.to_string().into())
            }
            (Self::String, Json::Bool(flag)) if reader.unknown == UnknownParams::Ignore => {
                Some(flag.to_string().into())
            }
            (Self::Enum(texts), Json::String(text)) => {
                texts.contains(&text.as_str()).then(|| text.clone().into())
            }
            (Self::Integer(min, max), Json::Number(_) | Json::String(_)) => {
                let number = read_integer(value);
                if let Some(number) = number.filter(|number| !(min..=max).contains(number)) {
                    let range = match max {
                        i64::MAX => format!("at least {min}"),
                        _ => format!("from {min} to {max}"),
                    };
                    reader.report(path, format!("is {number}; it must be {range}"));
                    return None;
                }
                number.map(Json::from)
            }
            (Self::Number(min, max), Json::Number(_) | Json::String(_)) => {
                let number = read_number(value);
                if let Some(number) = number.filter(|number| !(min..=max).contains(number)) {
                    let text = format!("is {number}; it must be from {min} to {max}");
                    reader.report(path, text);
                    return None;
                }
                number.map(Json::from)
            }
            (Self::Bool, Json::Bool(flag)) => Some((*flag).into()),
            (Self::Bool, Json::String(text)) => {
                text.to_lowercase().parse::<bool>().ok().map(Json::from)
            }
            _ => None,
        };

        read.or_else(|| reader.report_mismatch(self, value, path))
    }

    /// The given value for an error text: its type, or a short value that is the mistake itself.
    fn describe_value(self, value: &Json) -> Cow<'static, str> {
        match (self, value) {
            (Self::Integer(..), Json::Number(number)) => number.to_string().into(),
            (Self::Enum(_), Json::String(text)) if text.len() <= MAX_DISPLAYED_BYTES => {
                format!("{text:?}").into()
            }
            _ => json_type_name(value).into(),
        }
    }

    fn describe_expected(self, value: &Json) -> Cow<'static, str> {
        match self {
            Self::StringMap if value.is_array() => MAP_EXPECTED.into(),
            Self::String => "a string".into(),
            Self::Enum(texts) => format!("one of {}", texts.join(", ")).into(),
            Self::Integer(..) => "a whole number".into(),
            Self::Number(..) => "a number".into(),
            Self::Bool => "true or false".into(),
            Self::StringList => "an array of strings".into(),
            Self::IntegerList => "an array of whole numbers".into(),
            Self::StringMap => "an object of strings".into(),
            Self::ObjectList(_) => "an array of objects".into(),
            Self::Object(_) => "an object".into(),
        }
    }
}

impl ParameterDefault {
    fn json(self) -> Json {
        match self {
            Self::String(text) => text.into(),
            Self::Integer(number) => number.into(),
            Self::Bool(flag) => flag.into(),
        }
    }
}

// === impl DialectParams ===

impl DialectParams {
    /// Validates the given parameters and fills in defaults. Reports all violations together.
    pub(crate) fn read(
        parameters: &'static [ParameterSpec],
        unknown: UnknownParams,
        given: Map<String, Json>,
    ) -> Result<Self, Error> {
        let mut reader = DialectParamsReader { unknown, violations: Vec::new() };
        let read = reader.fields(parameters, &given, "");
        if !reader.violations.is_empty() {
            return Err(Error::invalid(reader.violations));
        }
        Ok(Self(read))
    }

    pub(crate) fn into_fields(self) -> Map<String, Json> {
        self.0
    }

    /// A string, if it was given or has a default.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).and_then(Json::as_str)
    }

    /// A string that is required or has a default.
    pub(crate) fn str(&self, name: &str) -> &str {
        self.text(name).unwrap_or_default()
    }

    /// An integer, if it was given or has a default.
    pub(crate) fn integer(&self, name: &str) -> Option<i64> {
        self.0.get(name).and_then(Json::as_i64)
    }

    /// A duration from a number of seconds; zero if it is missing.
    pub(crate) fn seconds(&self, name: &str) -> Duration {
        let number = self.0.get(name).and_then(Json::as_f64);
        Duration::try_from_secs_f64(number.unwrap_or_default()).unwrap_or(Duration::MAX)
    }

    /// A flag; false if it is missing.
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.0.get(name).and_then(Json::as_bool).unwrap_or_default()
    }

    /// Removes a value and returns it; null if it is missing.
    pub(crate) fn take(&mut self, name: &str) -> Json {
        self.0.remove(name).unwrap_or_default()
    }

    /// A list of integers; empty if it is missing.
    pub(crate) fn integers(&self, name: &str) -> Vec<i64> {
        let numbers = self.0.get(name).and_then(Json::as_array);
        numbers.into_iter().flatten().filter_map(Json::as_i64).collect()
    }
}

struct DialectParamsReader {
    unknown: UnknownParams,
    violations: Vec<Violation>,
}

impl DialectParamsReader {
    /// Reads the fields of an object. `prefix` is the path of the object in error texts.
    fn fields(
        &mut self,
        parameters: &[ParameterSpec],
        given: &Map<String, Json>,
        prefix: &str,
    ) -> Map<String, Json> {
        let mut read = Map::new();
        for parameter in parameters {
            let path = format!("{prefix}{}", parameter.name);
            match given.get(parameter.name) {
                // Null counts as missing: strict schemas require every parameter.
                None | Some(Json::Null) => match parameter.default {
                    Some(default) => {
                        read.insert(parameter.name.to_owned(), default.json());
                    }
                    None if parameter.is_required => self.report(&path, "is required".to_owned()),
                    None => {}
                },
                Some(value) => {
                    if let Some(value) = parameter.kind.read(value, &path, self) {
                        read.insert(parameter.name.to_owned(), value);
                    }
                }
            }
        }

        if self.unknown == UnknownParams::Reject {
            let names: Vec<_> = parameters.iter().map(|parameter| parameter.name).collect();
            for name in given.keys().filter(|name| !names.contains(&name.as_str())) {
                if self.violations.len() > MAX_VIOLATIONS {
                    break;
                }
                let text = suggest::unknown_parameter_message(name, &names);
                self.report(&format!("{prefix}{name}"), text);
            }
        }
        read
    }

    /// Reads each item as `kind`. Stops at the first that does not fit.
    fn list(&mut self, kind: ParameterKind, items: &[Json], path: &str) -> Option<Json> {
        items
            .iter()
            .enumerate()
            .map(|(index, item)| kind.read(item, &format!("{path}[{index}]"), self))
            .collect::<Option<Vec<_>>>()
            .map(Json::from)
    }

    fn string_map(&mut self, entries: &Map<String, Json>, path: &str) -> Option<Json> {
        let entries = entries.iter().map(|(key, value)| {
            let value = match value {
                // Environment variables are text, even those that look like numbers.
                Json::Number(number) => Some(Json::from(number.to_string())),
                Json::Null | Json::Bool(_) | Json::String(_) | Json::Array(_) | Json::Object(_) => {
                    ParameterKind::String.read(value, &format!("{path}[{key:?}]"), self)
                }
            };
            Some((key.clone(), value?))
        });
        entries.collect::<Option<Map<_, _>>>().map(Json::from)
    }

    /// Reports a value of another type than `kind`.
    fn report_mismatch(&mut self, kind: ParameterKind, value: &Json, path: &str) -> Option<Json> {
        let (expected, given) = (kind.describe_expected(value), kind.describe_value(value));
        self.report(path, format!("must be {expected}; this is {given}"));
        None
    }

    fn report(&mut self, path: &str, text: String) {
        if self.violations.len() <= MAX_VIOLATIONS {
            self.violations.push(Violation::new(path, text));
        }
    }
}

fn read_integer(value: &Json) -> Option<i64> {
    // 2^53 - 1. A larger number may be the result of rounding.
    const MAX_EXACT_INTEGER: f64 = 9_007_199_254_740_991.0;
    match value {
        Json::Number(number) => number.as_i64().or_else(|| {
            let number = number
                .as_f64()
                .filter(|number| number.fract() == 0.0 && number.abs() <= MAX_EXACT_INTEGER)?;
            format!("{number:.0}").parse().ok()
        }),
        // `1.0` means 1, even in a string.
        Json::String(text) => read_integer(&parse_number(text)?.into()),
        Json::Null | Json::Bool(_) | Json::Array(_) | Json::Object(_) => None,
    }
}

fn read_number(value: &Json) -> Option<f64> {
    let number = match value {
        Json::Number(number) => number.as_f64(),
        Json::String(text) => parse_number(text)?.as_f64(),
        Json::Null | Json::Bool(_) | Json::Array(_) | Json::Object(_) => None,
    };
    number.filter(|number| number.is_finite())
}

fn json_type_name(value: &Json) -> &'static str {
    match value {
        Json::Null => "null",
        Json::Bool(_) => "a boolean",
        Json::Number(_) => "a number",
        Json::String(_) => "a string",
        Json::Array(_) => "an array",
        Json::Object(_) => "an object",
    }
}
