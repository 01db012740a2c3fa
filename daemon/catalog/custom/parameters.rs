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
        json::{MAP_EXPECTED, map_from_entries, parse_number},
        policy_text::{MAX_PATTERN_BYTES, PolicyText, PolicyView, json_to_text, normalize_value},
        redact::truncate_params,
        suggest,
    },
    error::{Error, MAX_VIOLATIONS, Violation},
};

/// Most comparisons of a byte with a part of a schema where all that is wrong is told: beyond, the first of it.
const MAX_EXHAUSTIVE_VALIDATION_WORK: usize = 4 << 20;
/// What is said to be wrong where it is no parameter, but all of them together.
const ALL_PARAMS_FIELD: &str = "parameters";

impl CustomTool {
    /// The parameters, so many bytes, as its schema has them: numbers and flags that were given as texts are read, null
    /// is as good as not given where the schema knows no null, and what was not given is what the schema says.
    pub(super) fn read_params(
        &self,
        given: &Map<String, Json>,
        bytes: usize,
    ) -> Result<Map<String, Json>, Error> {
        let params = Json::Object(coerce_fields(given, &self.config.schema.fields));
        if self.validator.is_valid(&params) {
            let mut violations = Vec::new();
            let schema = Json::Object(self.config.schema.fields.clone());
            report_rounded_integers(&params, &schema, "", &mut violations);
            return match params {
                Json::Object(params) if violations.is_empty() => Ok(params),
                _ => Err(Error::invalid(violations)),
            };
        }
        let mut violations = Vec::new();
        // All that is wrong is found before any of it is told.
        if bytes.saturating_mul(self.validation_cost()) <= MAX_EXHAUSTIVE_VALIDATION_WORK {
            let errors = self.validator.iter_errors(&params);
            for error in errors.take(MAX_VIOLATIONS + 1) {
                self.push_violations(&error, &mut violations);
            }
        } else if let Err(error) = self.validator.validate(&params) {
            self.push_violations(&error, &mut violations);
        }
        violations.truncate(MAX_VIOLATIONS + 1);
        Err(Error::invalid(violations))
    }

    fn push_violations(&self, error: &ValidationError<'_>, violations: &mut Vec<Violation>) {
        let place = violation_path(error);
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
                    true => self.param_names().collect(),
                    false => Vec::new(),
                };
                for name in unexpected.iter().take(MAX_VIOLATIONS) {
                    let text = match place.is_empty() {
                        true => suggest::unknown_parameter_message(name, &known),
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
                    ("object", true) => format!("must be {MAP_EXPECTED}"),
                    _ => format!("must be of type {wanted}"),
                };
                violations.push(Violation::new(&place, wanted));
            }
            // What the value is may be long, or secret.
            _ => {
                let text = error.masked_with("the value").to_string();
                let place = if place.is_empty() { ALL_PARAMS_FIELD } else { &place };
                violations.push(Violation::new(place, text));
            }
        }
    }

    /// What was given, and what that was read as.
    pub(super) fn policy_view(
        &self,
        given: &Map<String, Json>,
        read: &Map<String, Json>,
        normalize_path: impl Fn(&str) -> Option<String>,
    ) -> PolicyView {
        let given: Map<_, _> = given
            .iter()
            .filter(|(_, value)| !value.is_null())
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        let has_secret = given.keys().any(|name| self.is_write_only(name));
        let shown = given.iter().map(|(name, value)| {
            let text = json_to_text(value.clone());
            let text = match self.is_write_only(name) {
                true => size_placeholder(&text),
                false => text,
            };
            (name.clone(), text)
        });
        let shown = shown.collect();
        let texts = PolicyText::from_json(&given, read, normalize_path);
        let as_given = texts.first().filter(|text| text.may_allow && !has_secret);
        let pattern = as_given.map(|text| format!("^{}$", regex::escape(&text.text)));
        PolicyView {
            pattern: pattern.filter(|pattern| pattern.len() <= MAX_PATTERN_BYTES),
            texts,
            display_params: shown,
        }
    }

    /// What a record has of the parameters.
    pub(super) fn redacted_params(&self, given: &Map<String, Json>) -> Json {
        let fields = given.iter().map(|(name, value)| {
            let value = match self.is_write_only(name) {
                true => size_placeholder(&json_to_text(value.clone())).into(),
                false => value.clone(),
            };
            (name.clone(), value)
        });
        truncate_params(Json::Object(fields.collect()))
    }

    pub(super) fn param_names(&self) -> impl Iterator<Item = &str> {
        let properties = self.config.properties().into_iter().flatten();
        properties.map(|(name, _)| name.as_str())
    }

    fn is_write_only(&self, name: &str) -> bool {
        self.write_only_params.contains(name)
    }
}

fn size_placeholder(text: &str) -> String {
    format!("<{} bytes>", text.len())
}

/// Where in the parameters something is wrong: `files[0].name`.
fn violation_path(error: &ValidationError<'_>) -> String {
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
fn coerce_fields(given: &Map<String, Json>, schema: &Map<String, Json>) -> Map<String, Json> {
    let properties = schema.get("properties").and_then(Json::as_object);
    let others = schema.get("additionalProperties");
    let schema_of = |name: &str| {
        let named = properties.and_then(|properties| properties.get(name));
        named.or(others.filter(|others| others.is_object()))
    };
    let mut fields = Map::new();
    for (name, value) in given {
        let schema = schema_of(name);
        let is_left_out = value.is_null() && schema.is_some_and(|schema| !allows_null(schema));
        if !is_left_out {
            let value = schema
                .map_or_else(|| normalize_numbers(value), |schema| coerce_value(value, schema));
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
fn coerce_value(value: &Json, schema: &Json) -> Json {
    match (value, schema.as_object()) {
        (Json::Object(given), Some(schema)) => coerce_fields(given, schema).into(),
        (Json::Array(items), Some(schema)) => {
            if schema.get("additionalProperties").is_some_and(Json::is_object)
                && let Some(entries) = map_from_entries(items)
            {
                return coerce_fields(&entries, schema).into();
            }
            match schema.get("items") {
                Some(schema) => items.iter().map(|item| coerce_value(item, schema)).collect(),
                None => normalize_numbers(value),
            }
        }
        (Json::String(text), Some(_)) if !has_type(schema, "string") => {
            let is_number = has_type(schema, "number") || has_type(schema, "integer");
            let number = parse_number(text).filter(|_| is_number);
            let flag = text.trim().to_lowercase().parse().ok();
            let flag = flag.filter(|_: &bool| has_type(schema, "boolean"));
            match (number, flag) {
                (Some(number), _) => normalize_numbers(&number.into()),
                (None, Some(flag)) => flag.into(),
                (None, None) => value.clone(),
            }
        }
        _ => normalize_numbers(value),
    }
}

/// A number without a fraction is the same with one that is 0, and no program wants that.
fn normalize_numbers(value: &Json) -> Json {
    normalize_value(value, &|_: &str| None)
}

/// Finds whole numbers that are none any more: who reads JSON rounds those that are too large, and a command would
/// be given another one.
fn report_rounded_integers(
    value: &Json,
    schema: &Json,
    place: &str,
    violations: &mut Vec<Violation>,
) {
    if violations.len() > MAX_VIOLATIONS {
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
                report_rounded_integers(value, schema.unwrap_or(&Json::Null), &place, violations);
            }
        }
        Json::Array(items) => {
            let schema = schema.get("items").unwrap_or(&Json::Null);
            for (index, item) in items.iter().enumerate() {
                report_rounded_integers(item, schema, &format!("{place}[{index}]"), violations);
            }
        }
        Json::Number(number) if number.is_f64() && has_type(schema, "integer") => {
            let text = "is too large to be passed on as it is: the most are 64 bits";
            violations.push(Violation::new(place, text));
        }
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => {}
    }
}

/// Whether a schema knows null.
fn allows_null(schema: &Json) -> bool {
    let Some(keywords) = schema.as_object() else {
        return schema != &Json::Bool(false);
    };
    keywords.iter().all(|(keyword, value)| match (keyword.as_str(), value) {
        ("type", _) => has_type(schema, "null"),
        ("const", value) => value.is_null(),
        ("enum", Json::Array(values)) => values.iter().any(Json::is_null),
        ("anyOf" | "oneOf", Json::Array(choices)) => choices.iter().any(allows_null),
        ("allOf", Json::Array(all)) => all.iter().all(allows_null),
        _ => true,
    })
}

/// Whether a schema names this type.
fn has_type(schema: &Json, kind: &str) -> bool {
    match schema.get("type") {
        Some(Json::String(one)) => one == kind,
        Some(Json::Array(kinds)) => kinds.iter().any(|one| one == kind),
        _ => false,
    }
}
