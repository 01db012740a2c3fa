//! The parameters of a call in the forms that policy decisions need. These are the texts that rules
//! match, a pattern for a new rule, and names and values for people.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "kinds of values that are written as numbers, in enums of another crate"
)]

use std::collections::HashMap;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use prost_reflect::{
    DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MapKey, ReflectMessage as _,
    SerializeOptions, Value,
};
use serde_json::{Map, Value as Json};

use super::rules::{MessageRules, size_placeholder};

/// Longest pattern suggested for a new rule; rules accept no longer one.
pub(super) const MAX_PATTERN_BYTES: usize = 16 << 10;
/// Matches any string in JSON.
const ANY_STRING_PATTERN: &str = r#""(?:[^"\\]|\\.)*""#;
/// Matches any other value that is neither a list nor an object.
const ANY_SCALAR_PATTERN: &str = r"[^,\[\]{}]*";

/// The parameters of a call, for policy decisions.
#[derive(Debug, Clone)]
pub(crate) struct PolicyView {
    /// The texts that rules match. The first is the primary one. They contain secrets, so they are
    /// never stored.
    pub(crate) texts: Vec<PolicyText>,
    /// A regular expression for the first text that matches any content of files. `None` if it
    /// would be too long, or if the call has secret parameters. People cannot see those, and the
    /// rule would allow any.
    pub(crate) pattern: Option<String>,
    /// Names and values for people, in the order of the contract. Without secrets and content of
    /// files.
    pub(crate) display_params: Vec<(String, String)>,
}

/// The parameters as compact JSON. Names are those of the contract, sorted at every level. Enum
/// values have no prefix. Bytes are in base64.
#[derive(Debug, Clone)]
pub(crate) struct PolicyText {
    pub(crate) text: String,
    /// Whether a rule that allows may match it. Rules that ask or deny match any text.
    pub(crate) may_allow: bool,
}

impl PolicyText {
    /// The texts that rules match for a call whose parameters are JSON.
    ///
    /// The first text is `explicit`. Rules that ask or deny also match the parameters as `read`, with
    /// paths normalized by `normalize_path`, with and without defaults. Otherwise another spelling
    /// would evade the rule.
    pub(crate) fn from_json(
        explicit: &Map<String, Json>,
        read: &Map<String, Json>,
        normalize_path: impl Fn(&str) -> Option<String>,
    ) -> Vec<Self> {
        let render_read = |include: &dyn Fn(&str) -> bool| {
            let fields = read
                .iter()
                .filter(|(name, _)| include(name))
                .map(|(name, value)| (name.clone(), normalize_value(value, &normalize_path)));
            Json::Object(fields.collect()).to_string()
        };

        let text = Json::Object(explicit.clone()).to_string();
        let mut texts = vec![Self {
            // A path with `..` may lead elsewhere than it seems.
            may_allow: !text.contains(".."),
            text,
        }];

        for text in [render_read(&|name| explicit.contains_key(name)), render_read(&|_| true)] {
            if texts.iter().all(|known| known.text != text) {
                texts.push(Self { text, may_allow: false });
            }
        }
        texts
    }
}

/// A value in canonical form: normalized paths, and whole numbers without a fraction.
pub(super) fn normalize_value(
    value: &Json,
    normalize_path: &impl Fn(&str) -> Option<String>,
) -> Json {
    // 2^53 - 1
    const MAX_EXACT_INTEGER: f64 = 9_007_199_254_740_991.0;
    match value {
        Json::String(text) => normalize_path(text).unwrap_or_else(|| text.clone()).into(),
        Json::Number(number) => {
            let whole = number
                .as_f64()
                .filter(|_| number.is_f64())
                .filter(|whole| whole.fract() == 0.0 && whole.abs() <= MAX_EXACT_INTEGER)
                .and_then(|whole| format!("{whole:.0}").parse::<i64>().ok());
            whole.map_or_else(|| value.clone(), Json::from)
        }
        Json::Array(items) => {
            items.iter().map(|item| normalize_value(item, normalize_path)).collect()
        }
        Json::Object(fields) => {
            let fields = fields
                .iter()
                .map(|(name, value)| (name.clone(), normalize_value(value, normalize_path)));
            Json::Object(fields.collect())
        }
        Json::Null | Json::Bool(_) => value.clone(),
    }
}

/// The canonical form of a text field, if it differs from the given form.
#[derive(Debug)]
pub(crate) struct CanonicalText {
    pub(crate) field: &'static str,
    pub(crate) text: String,
    /// Whether a path in it has a `..` component.
    pub(crate) has_parent_component: bool,
}

/// Fields with values that replace the given ones.
type FieldOverrides = Vec<(FieldDescriptor, Value)>;

/// Writes the text and the pattern together.
struct PolicyTextWriter {
    text: String,
    /// `None` once it is too long, or if a secret makes it impossible.
    pattern: Option<String>,
}

impl PolicyView {
    /// The view of `message`, which has these rules.
    ///
    /// `normalize_path` normalizes a path of the workspace. `canonical` is the canonical form of a
    /// text field.
    ///
    /// Rules match the parameters in several forms: as given, with normalized paths, with the
    /// canonical text, and with the defaults that policies include. A rule that allows never
    /// matches a form without those defaults, with the canonical text, or with a path that has
    /// `..`, which may lead elsewhere than it seems.
    pub(super) fn new(
        rules: &MessageRules,
        message: &DynamicMessage,
        normalize_path: impl Fn(&str) -> Option<String>,
        canonical: Option<CanonicalText>,
    ) -> Self {
        let defaults: FieldOverrides = rules.policy_defaults(message);
        let mut paths = FieldOverrides::new();
        let mut has_parent_component = false;
        for (field, given) in rules.explicit_paths(message) {
            if let Some(normalized) = normalize_path(&given).filter(|path| *path != given) {
                has_parent_component |= given.split('/').any(|name| name == "..");
                paths.push((field.clone(), Value::String(normalized)));
            }
        }
        let all: FieldOverrides = defaults.iter().chain(&paths).cloned().collect();

        let mut writer = PolicyTextWriter::new(Some("^".to_owned()));
        writer.message(Some(rules), message, &all);
        writer.pattern("$");
        let may_allow = canonical.as_ref().is_none_or(|canonical| !canonical.has_parent_component);
        if !may_allow {
            writer.pattern = None;
        }
        let mut texts = vec![PolicyText { text: writer.text, may_allow }];
        let mut add = |overrides: &FieldOverrides, may_allow| {
            let mut writer = PolicyTextWriter::new(None);
            writer.message(Some(rules), message, overrides);
            texts.push(PolicyText { text: writer.text, may_allow });
        };

        if !paths.is_empty() {
            add(&defaults, may_allow && !has_parent_component);
        }
        if !defaults.is_empty() {
            add(&FieldOverrides::new(), false);
            if !paths.is_empty() {
                add(&paths, false);
            }
        }
        if let Some(CanonicalText { field, text, .. }) = canonical
            && let Some(field) = message.descriptor().get_field_by_name(field)
        {
            let canonical = (field, Value::String(text));
            add(&all.into_iter().chain([canonical]).collect(), false);
        }

        Self {
            texts,
            pattern: writer.pattern,
            display_params: display_params(rules, message, &defaults),
        }
    }
}

impl PolicyTextWriter {
    fn new(pattern: Option<String>) -> Self {
        Self { text: String::new(), pattern }
    }

    /// Writes text that the pattern matches literally.
    fn literal(&mut self, text: &str) {
        self.text.push_str(text);
        // A text that is too long is not even escaped.
        if text.len() > MAX_PATTERN_BYTES {
            self.pattern = None;
        }
        if self.pattern.is_some() {
            self.pattern(&regex::escape(text));
        }
    }

    fn pattern(&mut self, more: &str) {
        if let Some(pattern) = &mut self.pattern {
            pattern.push_str(more);
            if pattern.len() > MAX_PATTERN_BYTES {
                self.pattern = None;
            }
        }
    }

    /// Writes a scalar. The pattern matches `any` instead if `is_wildcard`.
    fn scalar(&mut self, value: &str, any: &str, is_wildcard: bool) {
        if is_wildcard {
            self.text.push_str(value);
            self.pattern(any);
        } else {
            self.literal(value);
        }
    }

    fn string(&mut self, text: &str, is_wildcard: bool) {
        self.scalar(&Json::from(text).to_string(), ANY_STRING_PATTERN, is_wildcard);
    }

    fn message(
        &mut self,
        rules: Option<&MessageRules>,
        message: &DynamicMessage,
        overrides: &FieldOverrides,
    ) {
        let is_not_overridden =
            |field: &FieldDescriptor| !overrides.iter().any(|(other, _)| other == field);
        let given = message.fields().filter(|(field, _)| is_not_overridden(field));
        let overridden = overrides.iter().map(|(field, value)| (field.clone(), value));
        let mut fields: Vec<_> = given.chain(overridden).collect();
        fields.sort_by(|(one, _), (other, _)| one.name().cmp(other.name()));

        self.literal("{");
        for (index, (field, value)) in fields.into_iter().enumerate() {
            self.literal(if index > 0 { ",\"" } else { "\"" });
            self.literal(field.name());
            self.literal("\":");
            let field_spec = rules.and_then(|rules| rules.field(&field));
            if field_spec.is_some_and(|field_spec| field_spec.rules.sensitive) {
                self.pattern = None;
            }
            let is_wildcard = field_spec.is_some_and(|field_spec| {
                field_spec.rules.file_content || field_spec.rules.policy_wildcard
            });
            let inner = field_spec.and_then(|field_spec| field_spec.inner.as_ref());
            self.value(value, &field.kind(), inner, is_wildcard);
        }
        self.literal("}");
    }

    fn value(
        &mut self,
        value: &Value,
        kind: &Kind,
        rules: Option<&MessageRules>,
        is_wildcard: bool,
    ) {
        match value {
            Value::String(text) => self.string(text, is_wildcard),
            Value::Bytes(bytes) => self.string(&BASE64_STANDARD.encode(bytes), is_wildcard),
            Value::EnumNumber(number) => match short_enum_name(kind, *number) {
                Some(name) => self.string(&name, is_wildcard),
                None => self.scalar(&number.to_string(), ANY_SCALAR_PATTERN, is_wildcard),
            },
            Value::Message(message) => self.message(rules, message, &FieldOverrides::new()),
            Value::List(items) => self.list(items, kind, rules, is_wildcard),
            Value::Map(entries) => self.map(entries, kind, is_wildcard),
            number => {
                self.scalar(&scalar_to_json(number).to_string(), ANY_SCALAR_PATTERN, is_wildcard)
            }
        }
    }

    fn list(
        &mut self,
        items: &[Value],
        kind: &Kind,
        rules: Option<&MessageRules>,
        is_wildcard: bool,
    ) {
        self.literal("[");
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                self.literal(",");
            }
            self.value(item, kind, rules, is_wildcard);
        }
        self.literal("]");
    }

    /// Writes a map with its keys in order.
    fn map(&mut self, entries: &HashMap<MapKey, Value>, kind: &Kind, is_wildcard: bool) {
        let value_kind = kind.as_message().map(|entry| entry.map_entry_value_field().kind());
        let mut entries: Vec<_> =
            entries.iter().map(|(key, value)| (map_key_text(key), value)).collect();
        entries.sort_by(|(one, _), (other, _)| one.cmp(other));

        self.literal("{");
        for (index, (key, value)) in entries.into_iter().enumerate() {
            if index > 0 {
                self.literal(",");
            }
            self.string(&key, false);
            self.literal(":");
            self.value(value, value_kind.as_ref().unwrap_or(kind), None, is_wildcard);
        }
        self.literal("}");
    }
}

/// The name of an enum value without the common prefix.
fn short_enum_name(kind: &Kind, number: i32) -> Option<String> {
    let Kind::Enum(kind) = kind else { return None };
    let name = kind.get_value(number)?.name().to_owned();
    Some(match enum_prefix(kind) {
        Some(prefix) => name.strip_prefix(&prefix).unwrap_or(&name).to_owned(),
        None => name,
    })
}

fn enum_prefix(kind: &EnumDescriptor) -> Option<String> {
    let zero = kind.get_value(0)?;
    Some(zero.name().strip_suffix("UNSPECIFIED")?.to_owned())
}

fn map_key_text(key: &MapKey) -> String {
    match key {
        MapKey::String(text) => text.clone(),
        MapKey::Bool(flag) => flag.to_string(),
        MapKey::I32(number) => number.to_string(),
        MapKey::I64(number) => number.to_string(),
        MapKey::U32(number) => number.to_string(),
        MapKey::U64(number) => number.to_string(),
    }
}

fn scalar_to_json(value: &Value) -> Json {
    match value {
        Value::Bool(flag) => (*flag).into(),
        Value::I32(number) => (*number).into(),
        Value::I64(number) => (*number).into(),
        Value::U32(number) => (*number).into(),
        Value::U64(number) => (*number).into(),
        Value::F32(number) => f64::from(*number).into(),
        Value::F64(number) => (*number).into(),
        _ => Json::Null,
    }
}

/// The explicit fields and the defaults that policies include, in the order of the contract. Secrets
/// and content of files appear with their size only.
fn display_params(
    rules: &MessageRules,
    message: &DynamicMessage,
    defaults: &FieldOverrides,
) -> Vec<(String, String)> {
    let defaults = defaults.iter().map(|(field, value)| (field.clone(), value));
    let mut fields: Vec<(FieldDescriptor, &Value)> = message.fields().chain(defaults).collect();
    fields.sort_by_key(|(field, _)| field.number());

    fields
        .into_iter()
        .map(|(field, value)| {
            let field_rules = rules.field(&field).map(|field_spec| &field_spec.rules);
            let is_hidden = field_rules.is_some_and(|rules| rules.file_content || rules.sensitive);
            let text = match value {
                value if is_hidden => json_to_text(size_placeholder(value)),
                Value::String(text) => text.clone(),
                value => json_to_text(field_to_json(&field, value)),
            };
            (field.name().to_owned(), text)
        })
        .collect()
}

pub(super) fn json_to_text(value: Json) -> String {
    match value {
        Json::String(text) => text,
        other => other.to_string(),
    }
}

fn field_to_json(field: &FieldDescriptor, value: &Value) -> Json {
    let mut message = DynamicMessage::new(field.parent_message().clone());
    message.set_field(field, value.clone());
    let options =
        SerializeOptions::new().use_proto_field_name(true).stringify_64_bit_integers(false);

    message
        .serialize_with_options(serde_json::value::Serializer, &options)
        .ok()
        .and_then(|mut json| Some(json.get_mut(field.name())?.take()))
        .unwrap_or_else(|| size_placeholder(value))
}

#[cfg(test)]
mod tests;
