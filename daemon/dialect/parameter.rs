//! Parameters of the tools of a dialect: what models are told of them, and how what models send is read.

use std::{borrow::Cow, time::Duration};

use serde_json::{Map, Value as Json, json};

use crate::daemon::{
    catalog::{JSON_MAP, json_entries, parse_number, suggest},
    error::{Error, MAX_VIOLATIONS, Violation},
};

/// Longest value that is told.
pub(super) const MAX_DISPLAYED_BYTES: usize = 1024;

/// A parameter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ParameterSpec {
    /// Its name.
    pub(crate) name: &'static str,
    /// What models are told of it; empty where the dialect's document says nothing.
    pub(crate) description: &'static str,
    /// What it may be.
    pub(crate) kind: ParameterKind,
    /// Whether it must be given.
    pub(crate) is_required: bool,
    /// What it is where it is not given.
    pub(crate) default: Option<ParameterDefault>,
    /// Whether only its size is told of it: it may be secret, or is what a file is to hold.
    pub(crate) is_redacted: bool,
}

/// What a parameter may be.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ParameterKind {
    /// A text.
    String,
    /// One of these texts.
    Enum(&'static [&'static str]),
    /// A whole number from the first to the second.
    Integer(i64, i64),
    /// A number, with a fraction or without, from the first to the second.
    Number(f64, f64),
    /// True or false.
    Bool,
    /// Texts.
    StringList,
    /// Whole numbers.
    IntegerList,
    /// Texts by name.
    StringMap,
    /// Objects of these.
    ObjectList(&'static [ParameterSpec]),
    /// One object of these.
    Object(&'static [ParameterSpec]),
}

/// What a parameter is where it is not given.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ParameterDefault {
    /// This text.
    String(&'static str),
    /// This number.
    Integer(i64),
    /// This flag.
    Bool(bool),
}

/// What becomes of parameters that a tool does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnknownParams {
    /// They are left out of account.
    Ignore,
    /// They are told, with the one that was probably meant.
    Reject,
}

/// Parameters that fit.
#[derive(Debug, Clone)]
pub(crate) struct DialectParams(Map<String, Json>);

// === impl Parameter ===

impl ParameterSpec {
    /// A parameter that need not be given.
    pub(crate) const fn new(
        name: &'static str,
        kind: ParameterKind,
        description: &'static str,
    ) -> Self {
        Self { name, description, kind, is_required: false, default: None, is_redacted: false }
    }

    /// The same, which must be given.
    pub(crate) const fn required(self) -> Self {
        Self { is_required: true, ..self }
    }

    /// The same, of which only the size is told.
    pub(crate) const fn redacted(self) -> Self {
        Self { is_redacted: true, ..self }
    }

    /// The same, with a default.
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

/// JSON Schema of an object with these parameters.
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
            Self::Integer(least, most) => {
                let mut schema = json!({"type": "integer"});
                if least != i64::MIN {
                    schema["minimum"] = least.into();
                }
                if most != i64::MAX {
                    schema["maximum"] = most.into();
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
            Self::ObjectList(of) => json!({"type": "array", "items": object_schema(of, is_closed)}),
            Self::Object(of) => object_schema(of, is_closed).into(),
        }
    }

    /// Reads a value, which may be written as another kind of the same meaning.
    fn read(self, value: &Json, place: &str, reader: &mut DialectParamsReader) -> Option<Json> {
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
            (Self::Integer(least, most), Json::Number(_) | Json::String(_)) => {
                let number = read_integer(value);
                if let Some(number) = number.filter(|number| !(least..=most).contains(number)) {
                    let range = match most {
                        i64::MAX => format!("at least {least}"),
                        _ => format!("from {least} to {most}"),
                    };
                    reader.report(place, format!("is {number}; it must be {range}"));
                    return None;
                }
                number.map(Json::from)
            }
            (Self::Number(least, most), Json::Number(_) | Json::String(_)) => {
                let number = read_number(value);
                if let Some(number) = number.filter(|number| !(least..=most).contains(number)) {
                    let text = format!("is {number}; it must be from {least} to {most}");
                    reader.report(place, text);
                    return None;
                }
                number.map(Json::from)
            }
            (Self::Bool, Json::Bool(flag)) => Some((*flag).into()),
            (Self::Bool, Json::String(text)) => {
                text.to_lowercase().parse::<bool>().ok().map(Json::from)
            }
            (Self::StringList, Json::Array(items)) => {
                let texts = items.iter().enumerate();
                let texts = texts.map(|(index, item)| {
                    Self::String.read(item, &format!("{place}[{index}]"), reader)
                });
                return texts.collect::<Option<Vec<_>>>().map(Json::from);
            }
            (Self::IntegerList, Json::Array(items)) => {
                let items = items.iter().enumerate();
                let numbers = items.map(|(index, item)| {
                    let place = format!("{place}[{index}]");
                    Self::Integer(i64::MIN, i64::MAX).read(item, &place, reader)
                });
                return numbers.collect::<Option<Vec<_>>>().map(Json::from);
            }
            (Self::StringMap, Json::Array(list)) => match json_entries(list) {
                Some(entries) => return self.read(&entries.into(), place, reader),
                None => None,
            },
            (Self::StringMap, Json::Object(entries)) => {
                let entries = entries.iter().map(|(key, value)| {
                    let value = match value {
                        // What variables hold is text, whatever it looks like.
                        Json::Number(number) => Some(Json::from(number.to_string())),
                        Json::Null
                        | Json::Bool(_)
                        | Json::String(_)
                        | Json::Array(_)
                        | Json::Object(_) => {
                            Self::String.read(value, &format!("{place}[{key:?}]"), reader)
                        }
                    };
                    Some((key.clone(), value?))
                });
                return entries.collect::<Option<Map<_, _>>>().map(Json::from);
            }
            (Self::ObjectList(of), Json::Array(items)) => {
                let objects = items.iter().enumerate();
                let objects = objects.map(|(index, item)| {
                    Self::Object(of).read(item, &format!("{place}[{index}]"), reader)
                });
                return objects.collect::<Option<Vec<_>>>().map(Json::from);
            }
            (Self::Object(of), Json::Object(fields)) => {
                return Some(reader.fields(of, fields, &format!("{place}.")).into());
            }
            _ => None,
        };
        if read.is_none() {
            reader.report(
                place,
                format!(
                    "must be {}; this is {}",
                    self.describe_expected(value),
                    self.describe_value(value)
                ),
            );
        }
        read
    }

    /// What was given instead: of a number that is not whole the number itself.
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
            Self::StringMap if value.is_array() => JSON_MAP.into(),
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

// === impl Params ===

impl DialectParams {
    /// Reads what was given, and fills in defaults. Everything that does not fit is told.
    pub(crate) fn read(
        parameters: &'static [ParameterSpec],
        unknown: UnknownParams,
        given: Map<String, Json>,
    ) -> Result<Self, Error> {
        let mut reader = DialectParamsReader { unknown, violations: Vec::new() };
        let read = reader.fields(parameters, &given, "");
        match reader.violations.is_empty() {
            true => Ok(Self(read)),
            false => Err(Error::invalid(reader.violations)),
        }
    }

    /// All of them.
    pub(crate) fn into_fields(self) -> Map<String, Json> {
        self.0
    }

    /// A text, if it was given or has a default.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).and_then(Json::as_str)
    }

    /// A text that is there: it was required, or has a default.
    pub(crate) fn str(&self, name: &str) -> &str {
        self.text(name).unwrap_or_default()
    }

    /// A whole number.
    pub(crate) fn integer(&self, name: &str) -> Option<i64> {
        self.0.get(name).and_then(Json::as_i64)
    }

    /// A number of seconds.
    pub(crate) fn seconds(&self, name: &str) -> Duration {
        let number = self.0.get(name).and_then(Json::as_f64);
        Duration::try_from_secs_f64(number.unwrap_or_default()).unwrap_or(Duration::MAX)
    }

    /// A flag; false where it was not given.
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.0.get(name).and_then(Json::as_bool).unwrap_or_default()
    }

    /// Whatever it is, taken out; null where it was not given.
    pub(crate) fn take(&mut self, name: &str) -> Json {
        self.0.remove(name).unwrap_or_default()
    }

    /// Whole numbers.
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
    fn fields(
        &mut self,
        parameters: &[ParameterSpec],
        given: &Map<String, Json>,
        prefix: &str,
    ) -> Map<String, Json> {
        let mut read = Map::new();
        for parameter in parameters {
            let place = format!("{prefix}{}", parameter.name);
            match given.get(parameter.name) {
                // As good as not given: so strict schemas have it.
                None | Some(Json::Null) => match parameter.default {
                    Some(default) => {
                        read.insert(parameter.name.to_owned(), default.json());
                    }
                    None if parameter.is_required => {
                        self.report(&place, "must be given".to_owned())
                    }
                    None => {}
                },
                Some(value) => {
                    if let Some(value) = parameter.kind.read(value, &place, self) {
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

    fn report(&mut self, place: &str, text: String) {
        if self.violations.len() <= MAX_VIOLATIONS {
            self.violations.push(Violation::new(place, text));
        }
    }
}

fn read_integer(value: &Json) -> Option<i64> {
    const MAX_EXACT_INTEGER: f64 = 9_007_199_254_740_991.0; // 2^53 - 1: what is beyond may be another, rounded
    match value {
        Json::Number(number) => number.as_i64().or_else(|| {
            let number = number
                .as_f64()
                .filter(|number| number.fract() == 0.0 && number.abs() <= MAX_EXACT_INTEGER)?;
            format!("{number:.0}").parse().ok()
        }),
        // `1.0` stands for 1 also where it is a text.
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
