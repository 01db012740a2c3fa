//! The parameters of a call of a tool of the configuration: read as generously as those of the contract, told
//! to those who decide, and recorded.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "what else a value can be wrong by, in an enum of another crate"
)]

use std::fmt::Write as _;

use jsonschema::{
    ValidationError,
    error::{TypeKind, ValidationErrorKind},
    paths::LocationSegment,
};
use serde_json::{Map, Value as Json};

use super::CustomTool;
use crate::daemon::{
    catalog::{
        json::{MAP, entries_of, number_of},
        nearest,
        recorded::shortened,
        told::{LONGEST_PATTERN, Text, Told, as_text, plainly},
    },
    error::{Error, MOST_VIOLATIONS, Violation},
};

/// Most comparisons of a byte with a part of a schema where all that is wrong is told: beyond, the first of it.
const ALL_TOLD: usize = 4 << 20;
/// What is said to be wrong where it is no parameter, but all of them together.
const TOGETHER: &str = "parameters";

impl CustomTool {
    /// The parameters, so many bytes, as its schema has them: numbers and flags that were given as texts are read, null
    /// is as good as not given where the schema knows no null, and what was not given is what the schema says.
    pub(super) fn read(
        &self,
        given: &Map<String, Json>,
        bytes: usize,
    ) -> Result<Map<String, Json>, Error> {
        let params = Json::Object(fields(given, &self.written.schema.fields));
        if self.validator.is_valid(&params) {
            let mut violations = Vec::new();
            let schema = Json::Object(self.written.schema.fields.clone());
            rounded(&params, &schema, "", &mut violations);
            return match params {
                Json::Object(params) if violations.is_empty() => Ok(params),
                _ => Err(Error::invalid(violations)),
            };
        }
        let mut violations = Vec::new();
        // All that is wrong is found before any of it is told.
        if bytes.saturating_mul(self.parts()) <= ALL_TOLD {
            let errors = self.validator.iter_errors(&params);
            for error in errors.take(MOST_VIOLATIONS + 1) {
                self.tell(&error, &mut violations);
            }
        } else if let Err(error) = self.validator.validate(&params) {
            self.tell(&error, &mut violations);
        }
        violations.truncate(MOST_VIOLATIONS + 1);
        Err(Error::invalid(violations))
    }

    fn tell(&self, error: &ValidationError<'_>, violations: &mut Vec<Violation>) {
        let place = place(error);
        let within = |name: &str| match place.is_empty() {
            true => name.to_owned(),
            false => format!("{place}.{name}"),
        };
        match error.kind() {
            ValidationErrorKind::Required { property } => {
                let name = property.as_str().unwrap_or_default();
                violations.push(Violation::new(within(name), "must be given"));
            }
            ValidationErrorKind::AdditionalProperties { unexpected } => {
                let known: Vec<_> = match place.is_empty() {
                    true => self.names().collect(),
                    false => Vec::new(),
                };
                for name in unexpected.iter().take(MOST_VIOLATIONS) {
                    let text = match place.is_empty() {
                        true => nearest::unknown(name, &known),
                        false => "is not known".to_owned(),
                    };
                    violations.push(Violation::new(within(name), text));
                }
            }
            ValidationErrorKind::Type { kind } => {
                let wanted = match kind {
                    TypeKind::Single(kind) => kind.to_string(),
                    TypeKind::Multiple(kinds) => {
                        let kinds: Vec<_> = kinds.iter().map(|kind| kind.to_string()).collect();
                        kinds.join(" or ")
                    }
                };
                let wanted = match (wanted.as_str(), error.instance().is_array()) {
                    ("object", true) => format!("must be {MAP}"),
                    _ => format!("must be of type {wanted}"),
                };
                violations.push(Violation::new(&place, wanted));
            }
            // What the value is may be long, or secret.
            _ => {
                let text = error.masked_with("the value").to_string();
                let place = if place.is_empty() { TOGETHER } else { &place };
                violations.push(Violation::new(place, text));
            }
        }
    }

    /// What was given, and what that was read as.
    pub(super) fn told(
        &self,
        given: &Map<String, Json>,
        read: &Map<String, Json>,
        plain: impl Fn(&str) -> Option<String>,
    ) -> Told {
        let given: Map<_, _> = given
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        let has_secret = given.keys().any(|name| self.is_secret(name));
        let shown = given.iter().map(|(name, value)| {
            let text = as_text(value.clone());
            let text = match self.is_secret(name) {
                true => size(&text),
                false => text,
            };
            (name.clone(), text)
        });
        let shown = shown.collect();
        let texts = Text::of_json(&given, read, plain);
        let as_given = texts.first().filter(|text| text.may_allow && !has_secret);
        let pattern = as_given.map(|text| format!("^{}$", regex::escape(&text.text)));
        Told { pattern: pattern.filter(|pattern| pattern.len() <= LONGEST_PATTERN), texts, shown }
    }

    /// What a record has of the parameters.
    pub(super) fn recorded(&self, given: &Map<String, Json>) -> Json {
        let fields = given.iter().map(|(name, value)| {
            let value = match self.is_secret(name) {
                true => size(&as_text(value.clone())).into(),
                false => value.clone(),
            };
            (name.clone(), value)
        });
        shortened(Json::Object(fields.collect()))
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let properties = self.written.properties().into_iter().flatten();
        properties.map(|(name, _)| name.as_str())
    }

    fn is_secret(&self, name: &str) -> bool {
        self.secret.contains(name)
    }
}

fn size(text: &str) -> String {
    format!("<{} bytes>", text.len())
}

/// Where in the parameters something is wrong: `files[0].name`.
fn place(error: &ValidationError<'_>) -> String {
    let mut place = String::new();
    for segment in error.instance_path() {
        match segment {
            LocationSegment::Property(name) if place.is_empty() => place.push_str(&name),
            // Writing to a text does not fail.
            LocationSegment::Property(name) => {
                let _written = write!(place, ".{name}");
            }
            LocationSegment::Index(index) => {
                let _written = write!(place, "[{index}]");
            }
        }
    }
    place
}

/// The fields of an object as its schema has them.
fn fields(given: &Map<String, Json>, schema: &Map<String, Json>) -> Map<String, Json> {
    let properties = schema.get("properties").and_then(Json::as_object);
    let others = schema.get("additionalProperties");
    let schema_of = |name: &str| {
        let named = properties.and_then(|properties| properties.get(name));
        named.or(others.filter(|others| others.is_object()))
    };
    let mut fields = Map::new();
    for (name, value) in given {
        let schema = schema_of(name);
        let is_left_out = value.is_null() && schema.is_some_and(|schema| !takes_null(schema));
        if !is_left_out {
            let value = schema.map_or_else(|| exact(value), |schema| coerced(value, schema));
            fields.insert(name.clone(), value);
        }
    }
    for (name, schema) in properties.into_iter().flatten() {
        if let (Some(default), false) = (schema.get("default"), fields.contains_key(name)) {
            fields.insert(name.clone(), default.clone());
        }
    }
    fields
}

/// A value as its schema has it: a number or a flag may be given as a text, and an object whose fields have any
/// names as the list that strict schemas make of it.
fn coerced(value: &Json, schema: &Json) -> Json {
    match (value, schema.as_object()) {
        (Json::Object(given), Some(schema)) => fields(given, schema).into(),
        (Json::Array(items), Some(schema)) => {
            if schema.get("additionalProperties").is_some_and(Json::is_object)
                && let Some(entries) = entries_of(items)
            {
                return fields(&entries, schema).into();
            }
            match schema.get("items") {
                Some(schema) => items.iter().map(|item| coerced(item, schema)).collect(),
                None => exact(value),
            }
        }
        (Json::String(text), Some(_)) if !is_one(schema, "string") => {
            let is_number = is_one(schema, "number") || is_one(schema, "integer");
            let number = number_of(text).filter(|_| is_number);
            let flag = text.trim().to_lowercase().parse().ok();
            let flag = flag.filter(|_: &bool| is_one(schema, "boolean"));
            match (number, flag) {
                (Some(number), _) => exact(&number.into()),
                (None, Some(flag)) => flag.into(),
                (None, None) => value.clone(),
            }
        }
        _ => exact(value),
    }
}

/// A number without a fraction is the same with one that is 0, and no program wants that.
fn exact(value: &Json) -> Json {
    plainly(value, &|_: &str| None)
}

/// Finds whole numbers that are none any more: who reads JSON rounds those that are too large, and a command would
/// be given another one.
fn rounded(value: &Json, schema: &Json, place: &str, violations: &mut Vec<Violation>) {
    if violations.len() > MOST_VIOLATIONS {
        return;
    }
    match value {
        Json::Object(fields) => {
            for (name, value) in fields {
                let named = schema.get("properties").and_then(|named| named.get(name));
                let schema = named.or_else(|| schema.get("additionalProperties"));
                let place = match place.is_empty() {
                    true => name.clone(),
                    false => format!("{place}.{name}"),
                };
                rounded(value, schema.unwrap_or(&Json::Null), &place, violations);
            }
        }
        Json::Array(items) => {
            let schema = schema.get("items").unwrap_or(&Json::Null);
            for (index, item) in items.iter().enumerate() {
                rounded(item, schema, &format!("{place}[{index}]"), violations);
            }
        }
        Json::Number(number) if number.is_f64() && is_one(schema, "integer") => {
            let text = "is too large to be passed on as it is: the most are 64 bits";
            violations.push(Violation::new(place, text));
        }
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => {}
    }
}

/// Whether a schema knows null.
fn takes_null(schema: &Json) -> bool {
    let Some(keywords) = schema.as_object() else {
        return schema != &Json::Bool(false);
    };
    keywords.iter().all(|(keyword, value)| match (keyword.as_str(), value) {
        ("type", _) => is_one(schema, "null"),
        ("const", value) => value.is_null(),
        ("enum", Json::Array(values)) => values.iter().any(Json::is_null),
        ("anyOf" | "oneOf", Json::Array(choices)) => choices.iter().any(takes_null),
        ("allOf", Json::Array(all)) => all.iter().all(takes_null),
        _ => true,
    })
}

/// Whether a schema names this type.
fn is_one(schema: &Json, kind: &str) -> bool {
    match schema.get("type") {
        Some(Json::String(one)) => one == kind,
        Some(Json::Array(kinds)) => kinds.iter().any(|one| one == kind),
        _ => false,
    }
}
