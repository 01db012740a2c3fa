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

use super::rules::{Rules, size_text};

/// Longest pattern that is made of a call: a rule has no longer one.
pub(super) const LONGEST_PATTERN: usize = 16 << 10;
/// What matches any text in JSON.
const ANY_TEXT: &str = r#""(?:[^"\\]|\\.)*""#;
/// What matches any other value that is neither a list nor an object.
const ANY_VALUE: &str = r"[^,\[\]{}]*";

/// The parameters of a call.
#[derive(Debug, Clone)]
pub(crate) struct Told {
    /// What rules are compared with; the first is what else is told of. They hold what may be secret: never
    /// to be kept.
    pub(crate) texts: Vec<Text>,
    /// A regular expression for the first text, whatever its values are that follow from the content of a
    /// file. None where it would be too long, or the call has what may be secret: nobody has seen that, and
    /// a rule would let any in.
    pub(crate) pattern: Option<String>,
    /// Names and values for people, in the order of the contract, without what may be secret and without
    /// the content of files.
    pub(crate) shown: Vec<(String, String)>,
}

/// Compact JSON of the parameters: names as in the contract, sorted at every level, values of enums without
/// their prefix, bytes in base64.
#[derive(Debug, Clone)]
pub(crate) struct Text {
    /// The JSON.
    pub(crate) text: String,
    /// Whether a rule that allows may go by it: one that asks or denies goes by any.
    pub(crate) may_allow: bool,
}

impl Text {
    /// What rules are compared with of a call whose parameters are JSON: what was `given`, and for those that ask
    /// or deny, what that is `read` as, without detours of what are paths (`plain` says how one reads), with and
    /// without what is there although it was not given. Otherwise another spelling would do.
    pub(crate) fn of_json(
        given: &Map<String, Json>,
        read: &Map<String, Json>,
        plain: impl Fn(&str) -> Option<String>,
    ) -> Vec<Self> {
        let read = |is_told: &dyn Fn(&str) -> bool| {
            let fields = read.iter().filter(|(name, _)| is_told(name));
            let fields = fields.map(|(name, value)| (name.clone(), plainly(value, &plain)));
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
pub(super) fn plainly(value: &Json, plain: &impl Fn(&str) -> Option<String>) -> Json {
    const EXACT: f64 = 9_007_199_254_740_991.0; // 2^53 - 1
    match value {
        Json::String(text) => plain(text).unwrap_or_else(|| text.clone()).into(),
        Json::Number(number) => {
            let whole = number.as_f64().filter(|_| number.is_f64());
            let whole = whole.filter(|whole| whole.fract() == 0.0 && whole.abs() <= EXACT);
            let whole = whole.and_then(|whole| format!("{whole:.0}").parse::<i64>().ok());
            whole.map_or_else(|| value.clone(), Json::from)
        }
        Json::Array(items) => items.iter().map(|item| plainly(item, plain)).collect(),
        Json::Object(fields) => {
            let fields = fields.iter();
            let fields = fields.map(|(name, value)| (name.clone(), plainly(value, plain)));
            Json::Object(fields.collect())
        }
        Json::Null | Json::Bool(_) => value.clone(),
    }
}

/// A text of a request as it reads once it is understood, where that is not as it was given.
#[derive(Debug)]
pub(crate) struct Reading {
    /// The field that has it.
    pub(crate) field: &'static str,
    /// What it reads.
    pub(crate) text: String,
    /// Whether a path in it leads back.
    pub(crate) leads_back: bool,
}

/// Fields as they are told in place of what was given.
type Instead = Vec<(FieldDescriptor, Value)>;

/// The text and the pattern, as they are written.
struct Writer {
    text: String,
    /// None once it is too long, or where it would say less than was seen.
    pattern: Option<String>,
}

impl Told {
    /// What `message` has, by `rules`. `plain` says how a path reads without detours, `reading` how another
    /// text does.
    ///
    /// Rules are compared with the parameters as they were given, with paths without detours, with what texts
    /// read, and with the defaults that are always told: what allows, never with less than that is told, nor
    /// with what a text reads, nor with a path that leads back, which may end somewhere else than it seems to.
    pub(super) fn new(
        rules: &Rules,
        message: &DynamicMessage,
        plain: impl Fn(&str) -> Option<String>,
        reading: Option<Reading>,
    ) -> Self {
        let defaults: Instead = rules.always_told(message);
        let mut paths = Instead::new();
        let mut leads_back = false;
        for (field, given) in rules.paths(message) {
            if let Some(plain) = plain(&given).filter(|plain| *plain != given) {
                leads_back |= given.split('/').any(|name| name == "..");
                paths.push((field.clone(), Value::String(plain)));
            }
        }
        let all: Instead = defaults.iter().chain(&paths).cloned().collect();
        let mut writer = Writer::new(Some("^".to_owned()));
        writer.message(Some(rules), message, &all);
        writer.pattern("$");
        let may_allow = reading.as_ref().is_none_or(|reading| !reading.leads_back);
        if !may_allow {
            writer.pattern = None;
        }
        let mut texts = vec![Text { text: writer.text, may_allow }];
        let mut add = |instead: &Instead, may_allow| {
            let mut writer = Writer::new(None);
            writer.message(Some(rules), message, instead);
            texts.push(Text { text: writer.text, may_allow });
        };
        if !paths.is_empty() {
            add(&defaults, may_allow && !leads_back);
        }
        if !defaults.is_empty() {
            add(&Instead::new(), false);
            if !paths.is_empty() {
                add(&paths, false);
            }
        }
        if let Some(Reading { field, text, .. }) = reading
            && let Some(field) = message.descriptor().get_field_by_name(field)
        {
            let read = (field, Value::String(text));
            add(&all.into_iter().chain([read]).collect(), false);
        }
        Self { texts, pattern: writer.pattern, shown: for_people(rules, message, &defaults) }
    }
}

impl Writer {
    fn new(pattern: Option<String>) -> Self {
        Self { text: String::new(), pattern }
    }

    /// Writes what the pattern has as it is.
    fn literal(&mut self, text: &str) {
        self.text.push_str(text);
        // Not even escaped where it would be too long anyway.
        if text.len() > LONGEST_PATTERN {
            self.pattern = None;
        }
        if self.pattern.is_some() {
            self.pattern(&regex::escape(text));
        }
    }

    fn pattern(&mut self, more: &str) {
        if let Some(pattern) = &mut self.pattern {
            pattern.push_str(more);
            if pattern.len() > LONGEST_PATTERN {
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
        self.scalar(&Json::from(text).to_string(), ANY_TEXT, open);
    }

    fn message(&mut self, rules: Option<&Rules>, message: &DynamicMessage, instead: &Instead) {
        let is_told = |field: &FieldDescriptor| !instead.iter().any(|(other, _)| other == field);
        let given = message.fields().filter(|(field, _)| is_told(field));
        let instead = instead.iter().map(|(field, value)| (field.clone(), value));
        let mut fields: Vec<_> = given.chain(instead).collect();
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

    fn value(&mut self, value: &Value, kind: &Kind, rules: Option<&Rules>, open: bool) {
        match value {
            Value::String(text) => self.string(text, open),
            Value::Bytes(bytes) => self.string(&BASE64_STANDARD.encode(bytes), open),
            Value::EnumNumber(number) => match enum_name(kind, *number) {
                Some(name) => self.string(&name, open),
                None => self.scalar(&number.to_string(), ANY_VALUE, open),
            },
            Value::Message(message) => self.message(rules, message, &Instead::new()),
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
                    entries.iter().map(|(key, value)| (key_text(key), value)).collect();
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
            number => self.scalar(&scalar(number).to_string(), ANY_VALUE, open),
        }
    }
}

/// Name of an enum's value without the prefix that all of them have.
fn enum_name(kind: &Kind, number: i32) -> Option<String> {
    let Kind::Enum(kind) = kind else { return None };
    let name = kind.get_value(number)?.name().to_owned();
    Some(match prefix(kind) {
        Some(prefix) => name.strip_prefix(&prefix).unwrap_or(&name).to_owned(),
        None => name,
    })
}

fn prefix(kind: &EnumDescriptor) -> Option<String> {
    let zero = kind.get_value(0)?;
    Some(zero.name().strip_suffix("UNSPECIFIED")?.to_owned())
}

fn key_text(key: &MapKey) -> String {
    match key {
        MapKey::String(text) => text.clone(),
        MapKey::Bool(flag) => flag.to_string(),
        MapKey::I32(number) => number.to_string(),
        MapKey::I64(number) => number.to_string(),
        MapKey::U32(number) => number.to_string(),
        MapKey::U64(number) => number.to_string(),
    }
}

fn scalar(value: &Value) -> Json {
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
fn for_people(
    rules: &Rules,
    message: &DynamicMessage,
    defaults: &Instead,
) -> Vec<(String, String)> {
    let defaults = defaults.iter().map(|(field, value)| (field.clone(), value));
    let mut fields: Vec<(FieldDescriptor, &Value)> = message.fields().chain(defaults).collect();
    fields.sort_by_key(|(field, _)| field.number());
    let told = fields.into_iter().map(|(field, value)| {
        let known = rules.field(&field).map(|known| &known.rules);
        let hidden = known.is_some_and(|known| known.payload || known.sensitive);
        let told = match value {
            value if hidden => as_text(size_text(value)),
            Value::String(text) => text.clone(),
            value => as_text(as_json(&field, value)),
        };
        (field.name().to_owned(), told)
    });
    told.collect()
}

pub(super) fn as_text(value: Json) -> String {
    match value {
        Json::String(text) => text,
        other => other.to_string(),
    }
}

fn as_json(field: &FieldDescriptor, value: &Value) -> Json {
    let mut alone = DynamicMessage::new(field.parent_message().clone());
    alone.set_field(field, value.clone());
    let options =
        SerializeOptions::new().use_proto_field_name(true).stringify_64_bit_integers(false);
    let json = alone.serialize_with_options(serde_json::value::Serializer, &options);
    let field = json.ok().and_then(|mut json| Some(json.get_mut(field.name())?.take()));
    field.unwrap_or_else(|| size_text(value))
}

#[cfg(test)]
mod tests;
