//! Parameters of custom tools: validation, texts for policy rules, and redaction for records.
//! Validation is as lenient as for the canonical tools.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "other kinds of violations, in an enum of another crate"
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

/// Most comparisons of a byte with a part of the schema for which all violations are reported.
/// Beyond it, only the first is.
const MAX_EXHAUSTIVE_COMPARISONS: usize = 4 << 20;
/// Field of a violation that concerns no single parameter.
const ALL_PARAMS_FIELD: &str = "parameters";

impl CustomTool {
    /// Validates the parameters against the schema and fills in defaults. `bytes` is their size.
    ///
    /// Reads numbers and flags given as strings. Treats null as missing if the schema does not
    /// allow it.
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
        // Collecting all violations walks the whole schema, so only small requests get that.
        if bytes.saturating_mul(self.validation_cost()) <= MAX_EXHAUSTIVE_COMPARISONS {
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
        let path = violation_path(error);
        let path_of = |name: &str| {
            if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
        };

        match error.kind() {
            ValidationErrorKind::Required { property } => {
                let name = property.as_str().unwrap_or_default();
                violations.push(Violation::new(path_of(name), "is required"));
            }
            ValidationErrorKind::AdditionalProperties { unexpected } => {
                let is_top_level = path.is_empty();
                let known: Vec<_> =
                    if is_top_level { self.param_names().collect() } else { Vec::new() };
                for name in unexpected.iter().take(MAX_VIOLATIONS) {
                    let text = if is_top_level {
                        suggest::unknown_parameter_message(name, &known)
                    } else {
                        "is unknown".to_owned()
                    };
                    violations.push(Violation::new(path_of(name), text));
                }
            }
            ValidationErrorKind::Type { kind } => {
                violations.push(Violation::new(&path, type_message(kind, error.instance())));
            }
            // Masks the value, which may be long or secret.
            _ => {
                let text = error.masked_with("the value").to_string();
                let path = if path.is_empty() { ALL_PARAMS_FIELD } else { &path };
                violations.push(Violation::new(path, text));
            }
        }
    }

    /// The parameters as policy rules match them: `given` by the caller, and as validated in
    /// `read`.
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
        let display_params = given
            .iter()
            .map(|(name, value)| {
                let text = json_to_text(value.clone());
                let text = if self.is_write_only(name) { size_placeholder(&text) } else { text };
                (name.clone(), text)
            })
            .collect();

        let texts = PolicyText::from_json(&given, read, normalize_path);
        let given_text = texts.first().filter(|text| text.may_allow && !has_secret);
        let pattern = given_text
            .map(|text| format!("^{}$", regex::escape(&text.text)))
            .filter(|pattern| pattern.len() <= MAX_PATTERN_BYTES);
        PolicyView { pattern, texts, display_params }
    }

    /// The given parameters, for a record.
    pub(super) fn redacted_params(&self, given: &Map<String, Json>) -> Json {
        let fields = given.iter().map(|(name, value)| {
            let value = if self.is_write_only(name) {
                size_placeholder(&json_to_text(value.clone())).into()
            } else {
                value.clone()
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

/// Describes the type that `value` does not have.
fn type_message(kind: &TypeKind, value: &Json) -> String {
    let expected = match kind {
        TypeKind::Single(kind) => kind.to_string(),
        TypeKind::Multiple(kinds) => {
            let kinds: Vec<_> = kinds.iter().map(|kind| kind.to_string()).collect();
            kinds.join(" or ")
        }
    };
    match (expected.as_str(), value.is_array()) {
        ("object", true) => format!("must be {MAP_EXPECTED}"),
        _ => format!("must be of type {expected}"),
    }
}

/// The path of the invalid value, such as `files[0].name`.
fn violation_path(error: &ValidationError<'_>) -> String {
    let mut path = String::new();
    for segment in error.instance_path() {
        match segment {
            LocationSegment::Property(name) if path.is_empty() => path.push_str(&name),
            // Writing to a `String` cannot fail.
            LocationSegment::Property(name) => {
                let _written = write!(path, ".{name}");
            }
            LocationSegment::Index(index) => {
                let _written = write!(path, "[{index}]");
            }
        }
    }
    path
}

/// The fields of an object, coerced to its schema, with defaults filled in.
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
        let is_missing = value.is_null() && schema.is_some_and(|schema| !allows_null(schema));
        if !is_missing {
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

/// Coerces a value to its schema. A number or a flag may be given as a string. A map may be given
/// as the list of entries that strict schemas make of it.
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
            let flag = text
                .trim()
                .to_lowercase()
                .parse()
                .ok()
                .filter(|_: &bool| has_type(schema, "boolean"));
            match (number, flag) {
                (Some(number), _) => normalize_numbers(&number.into()),
                (None, Some(flag)) => flag.into(),
                (None, None) => value.clone(),
            }
        }
        _ => normalize_numbers(value),
    }
}

/// Writes `1.0` as `1`: the same number, in the form that programs expect.
fn normalize_numbers(value: &Json) -> Json {
    normalize_value(value, &|_: &str| None)
}

/// Reports integers that a JSON parser has rounded because they are too large. The command would
/// get a different number.
fn report_rounded_integers(
    value: &Json,
    schema: &Json,
    path: &str,
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
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                report_rounded_integers(value, schema.unwrap_or(&Json::Null), &path, violations);
            }
        }
        Json::Array(items) => {
            let schema = schema.get("items").unwrap_or(&Json::Null);
            for (index, item) in items.iter().enumerate() {
                report_rounded_integers(item, schema, &format!("{path}[{index}]"), violations);
            }
        }
        Json::Number(number) if number.is_f64() && has_type(schema, "integer") => {
            let text = "must be an integer of at most 64 bits";
            violations.push(Violation::new(path, text));
        }
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => {}
    }
}

/// Whether a schema allows null.
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

/// Whether the schema's `type` includes `kind`.
fn has_type(schema: &Json, kind: &str) -> bool {
    match schema.get("type") {
        Some(Json::String(one)) => one == kind,
        Some(Json::Array(kinds)) => kinds.iter().any(|one| one == kind),
        _ => false,
    }
}
