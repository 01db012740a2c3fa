//! The parameters of a call for those who decide about it: as a text that rules are compared with, as a
//! pattern for it and its like, and as people read them.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "kinds of values that are written as numbers, in enums of another crate"
)]

use base64::{Engine as _, prelude::BASE64_STANDARD};
use prost_reflect::{
    DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MapKey, ReflectMessage as _,
    SerializeOptions, Value,
};
use serde_json::{Map, Value as Json};

use super::rules::{MessageRules, size_placeholder};

/// Longest pattern that is made of a call: a rule has no longer one.
pub(super) const MAX_PATTERN_BYTES: usize = 16 << 10;
/// What matches any text in JSON.
const ANY_STRING_PATTERN: &str = r#""(?:[^"\\]|\\.)*""#;
/// What matches any other value that is neither a list nor an object.
const ANY_SCALAR_PATTERN: &str = r"[^,\[\]{}]*";

/// The parameters of a call.
#[derive(Debug, Clone)]
pub(crate) struct PolicyView {
    /// What rules are compared with; the first is what else is told of. They hold what may be secret: never
    /// to be kept.
    pub(crate) texts: Vec<PolicyText>,
    /// A regular expression for the first text, whatever its values are that follow from the content of a
    /// file. None where it would be too long, or the call has what may be secret: nobody has seen that, and
    /// a rule would let any in.
    pub(crate) pattern: Option<String>,
    /// Names and values for people, in the order of the contract, without what may be secret and without
    /// the content of files.
    pub(crate) display_params: Vec<(String, String)>,
}

/// Compact JSON of the parameters: names as in the contract, sorted at every level, values of enums without
/// their prefix, bytes in base64.
#[derive(Debug, Clone)]
pub(crate) struct PolicyText {
    /// The JSON.
    pub(crate) text: String,
    /// Whether a rule that allows may go by it: one that asks or denies goes by any.
    pub(crate) may_allow: bool,
}

impl PolicyText {
    /// What rules are compared with of a call whose parameters are JSON: what was `given`, and for those that ask
    /// or deny, what that is `read` as, without detours of what are paths (`plain` says how one reads), with and
    /// without what is there although it was not given. Otherwise another spelling would do.
    pub(crate) fn from_json(
        given: &Map<String, Json>,
        read: &Map<String, Json>,
        normalize_path: impl Fn(&str) -> Option<String>,
    ) -> Vec<Self> {
        let read = |include: &dyn Fn(&str) -> bool| {
            let fields = read.iter().filter(|(name, _)| include(name));
            let fields =
                fields.map(|(name, value)| (name.clone(), normalize_value(value, &normalize_path)));
            Json::Object(fields.collect()).to_string()
        };
        let text = Json::Object(given.clone()).to_string();
        let mut texts = vec![Self {
            // What leads back may end somewhere else than it seems to.
            may_allow: !text.contains(".."),
            text,
        }];
        for text in [read(&|name| given.contains_key(name)), read(&|_| true)] {
            if texts.iter().all(|known| known.text != text) {
                texts.push(Self { text, may_allow: false });
            }
        }
        texts
    }
}

/// A value as it is told: paths without detours, and whole numbers as such.
pub(super) fn normalize_value(
    value: &Json,
    normalize_path: &impl Fn(&str) -> Option<String>,
) -> Json {
    const MAX_EXACT_INTEGER: f64 = 9_007_199_254_740_991.0; // 2^53 - 1
    match value {
        Json::String(text) => normalize_path(text).unwrap_or_else(|| text.clone()).into(),
        Json::Number(number) => {
            let whole = number.as_f64().filter(|_| number.is_f64());
            let whole =
                whole.filter(|whole| whole.fract() == 0.0 && whole.abs() <= MAX_EXACT_INTEGER);
            let whole = whole.and_then(|whole| format!("{whole:.0}").parse::<i64>().ok());
            whole.map_or_else(|| value.clone(), Json::from)
        }
        Json::Array(items) => {
            items.iter().map(|item| normalize_value(item, normalize_path)).collect()
        }
        Json::Object(fields) => {
            let fields = fields.iter();
            let fields =
                fields.map(|(name, value)| (name.clone(), normalize_value(value, normalize_path)));
            Json::Object(fields.collect())
        }
        Json::Null | Json::Bool(_) => value.clone(),
    }
}

/// A text of a request as it reads once it is understood, where that is not as it was given.
#[derive(Debug)]
pub(crate) struct CanonicalText {
    /// The field that has it.
    pub(crate) field: &'static str,
    /// What it reads.
    pub(crate) text: String,
    /// Whether a path in it leads back.
    pub(crate) has_parent_component: bool,
}

/// Fields as they are told in place of what was given.
type FieldOverrides = Vec<(FieldDescriptor, Value)>;

/// The text and the pattern, as they are written.
struct PolicyTextWriter {
    text: String,
    /// None once it is too long, or where it would say less than was seen.
    pattern: Option<String>,
}

impl PolicyView {
    /// What `message` has, by `rules`. `plain` says how a path reads without detours, `reading` how another
    /// text does.
    ///
    /// Rules are compared with the parameters as they were given, with paths without detours, with what texts
    /// read, and with the defaults that are always told: what allows, never with less than that is told, nor
    /// with what a text reads, nor with a path that leads back, which may end somewhere else than it seems to.
    pub(super) fn new(
        rules: &MessageRules,
        message: &DynamicMessage,
        normalize_path: impl Fn(&str) -> Option<String>,
        canonical: Option<CanonicalText>,
    ) -> Self {
        let defaults: FieldOverrides = rules.policy_defaults(message);
        let mut paths = FieldOverrides::new();
        let mut leads_back = false;
        for (field, given) in rules.explicit_paths(message) {
            if let Some(plain) = normalize_path(&given).filter(|plain| *plain != given) {
                leads_back |= given.split('/').any(|name| name == "..");
                paths.push((field.clone(), Value::String(plain)));
            }
        }
        let all: FieldOverrides = defaults.iter().chain(&paths).cloned().collect();
        let mut writer = PolicyTextWriter::new(Some("^".to_owned()));
        writer.message(Some(rules), message, &all);
        writer.pattern("$");
        let may_allow = canonical.as_ref().is_none_or(|reading| !reading.has_parent_component);
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
            add(&defaults, may_allow && !leads_back);
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
            let read = (field, Value::String(text));
            add(&all.into_iter().chain([read]).collect(), false);
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

    /// Writes what the pattern has as it is.
    fn literal(&mut self, text: &str) {
        self.text.push_str(text);
        // Not even escaped where it would be too long anyway.
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

    /// Writes a scalar, which the pattern leaves open where it is `open`.
    fn scalar(&mut self, value: &str, any: &str, open: bool) {
        if open {
            self.text.push_str(value);
            self.pattern(any);
        } else {
            self.literal(value);
        }
    }

    fn string(&mut self, text: &str, open: bool) {
        self.scalar(&Json::from(text).to_string(), ANY_STRING_PATTERN, open);
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
            let known = rules.and_then(|rules| rules.field(&field));
            if known.is_some_and(|known| known.rules.sensitive) {
                self.pattern = None;
            }
            let open = known.is_some_and(|known| known.rules.payload || known.rules.varies);
            let inner = known.and_then(|known| known.inner.as_ref());
            self.value(value, &field.kind(), inner, open);
        }
        self.literal("}");
    }

    fn value(&mut self, value: &Value, kind: &Kind, rules: Option<&MessageRules>, open: bool) {
        match value {
            Value::String(text) => self.string(text, open),
            Value::Bytes(bytes) => self.string(&BASE64_STANDARD.encode(bytes), open),
            Value::EnumNumber(number) => match short_enum_name(kind, *number) {
                Some(name) => self.string(&name, open),
                None => self.scalar(&number.to_string(), ANY_SCALAR_PATTERN, open),
            },
            Value::Message(message) => self.message(rules, message, &FieldOverrides::new()),
            Value::List(items) => {
                self.literal("[");
                for (index, item) in items.iter().enumerate() {
                    if index > 0 {
                        self.literal(",");
                    }
                    self.value(item, kind, rules, open);
                }
                self.literal("]");
            }
            Value::Map(entries) => {
                let of_values = kind.as_message().map(|entry| entry.map_entry_value_field().kind());
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
                    self.value(value, of_values.as_ref().unwrap_or(kind), None, open);
                }
                self.literal("}");
            }
            number => self.scalar(&scalar_to_json(number).to_string(), ANY_SCALAR_PATTERN, open),
        }
    }
}

/// Name of an enum's value without the prefix that all of them have.
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

/// What was given and what is always told, in the order of the contract; of what may be secret and of what is
/// to be in a file the size only.
fn display_params(
    rules: &MessageRules,
    message: &DynamicMessage,
    defaults: &FieldOverrides,
) -> Vec<(String, String)> {
    let defaults = defaults.iter().map(|(field, value)| (field.clone(), value));
    let mut fields: Vec<(FieldDescriptor, &Value)> = message.fields().chain(defaults).collect();
    fields.sort_by_key(|(field, _)| field.number());
    let displayed = fields.into_iter().map(|(field, value)| {
        let known = rules.field(&field).map(|known| &known.rules);
        let hidden = known.is_some_and(|known| known.payload || known.sensitive);
        let text = match value {
            value if hidden => json_to_text(size_placeholder(value)),
            Value::String(text) => text.clone(),
            value => json_to_text(field_to_json(&field, value)),
        };
        (field.name().to_owned(), text)
    });
    displayed.collect()
}

pub(super) fn json_to_text(value: Json) -> String {
    match value {
        Json::String(text) => text,
        other => other.to_string(),
    }
}

fn field_to_json(field: &FieldDescriptor, value: &Value) -> Json {
    let mut alone = DynamicMessage::new(field.parent_message().clone());
    alone.set_field(field, value.clone());
    let options =
        SerializeOptions::new().use_proto_field_name(true).stringify_64_bit_integers(false);
    let json = alone.serialize_with_options(serde_json::value::Serializer, &options);
    let field = json.ok().and_then(|mut json| Some(json.get_mut(field.name())?.take()));
    field.unwrap_or_else(|| size_placeholder(value))
}

#[cfg(test)]
mod tests;
