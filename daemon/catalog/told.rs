//! The parameters of a call for those who decide about it: as a text that rules are compared with, as a
//! pattern for it and its like, and as people read them.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "kinds of values that are written as numbers, in enums of another crate"
)]

use base64::{Engine as _, prelude::BASE64_STANDARD};
use prost_reflect::{DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MapKey, Value};
use serde_json::Value as Json;

use super::{
    recorded::beginning,
    rules::{Rules, size_text},
};

/// Longest pattern that is made of a call: a rule has no longer one.
const LONGEST_PATTERN: usize = 16 << 10;
/// Bytes of a text that people are shown where all of it would be too much.
const BEGINNING: usize = 4096;
/// What matches any text in JSON.
const ANY_TEXT: &str = r#""(?:[^"\\]|\\.)*""#;
/// What matches any other value that is neither a list nor an object.
const ANY_VALUE: &str = r"[^,\[\]{}]*";

/// The parameters of a call.
#[derive(Debug, Clone)]
pub(crate) struct Told {
    /// Compact JSON of those that were given: names as in the contract, sorted at every level, values of
    /// enums without their prefix, bytes in base64. It holds what may be secret: never to be kept.
    pub(crate) text: String,
    /// A regular expression for this text, whatever its values are that may be secret or are the content
    /// of a file. None where it would be too long.
    pub(crate) pattern: Option<String>,
    /// Names and values for people, in the order of the contract, without what may be secret and without
    /// the content of files.
    pub(crate) shown: Vec<(String, String)>,
}

/// The text and the pattern, as they are written.
struct Writer {
    text: String,
    /// None once it is too long.
    pattern: Option<String>,
}

impl Told {
    /// What `message` has, by `rules`. `shown` is what of it people are shown at once.
    pub(super) fn new(rules: &Rules, message: &DynamicMessage, shown: &Json) -> Self {
        let mut writer = Writer {
            text: String::new(),
            pattern: Some("^".to_owned()),
        };
        writer.message(Some(rules), message);
        writer.pattern("$");
        Self {
            text: writer.text,
            pattern: writer.pattern,
            shown: for_people(rules, message, shown),
        }
    }
}

impl Writer {
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

    fn message(&mut self, rules: Option<&Rules>, message: &DynamicMessage) {
        let mut fields: Vec<_> = message.fields().collect();
        fields.sort_by(|(one, _), (other, _)| one.name().cmp(other.name()));
        self.literal("{");
        for (index, (field, value)) in fields.into_iter().enumerate() {
            self.literal(if index > 0 { ",\"" } else { "\"" });
            self.literal(field.name());
            self.literal("\":");
            let known = rules.and_then(|rules| rules.field(&field));
            let open = known.is_some_and(|known| known.rules.sensitive || known.rules.payload);
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
            Value::Message(message) => self.message(rules, message),
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
                let of_values = kind
                    .as_message()
                    .map(|entry| entry.map_entry_value_field().kind());
                let mut entries: Vec<_> = entries
                    .iter()
                    .map(|(key, value)| (key_text(key), value))
                    .collect();
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

/// What people are shown, in the order of the contract, and of what is to be in a file its size only. Where it
/// is too much, the beginning of each text.
fn for_people(rules: &Rules, message: &DynamicMessage, shown: &Json) -> Vec<(String, String)> {
    let text = |value: &Json| match value {
        Json::String(text) => text.clone(),
        other => other.to_string(),
    };
    let mut fields: Vec<(FieldDescriptor, &Value)> = message.fields().collect();
    fields.sort_by_key(|(field, _)| field.number());
    let known = fields.into_iter().map(|(field, value)| {
        let known = rules.field(&field).map(|known| &known.rules);
        let (name, size) = (field.name().to_owned(), || text(&size_text(value)));
        let told = match (known, shown.get(&name), value) {
            (Some(known), _, _) if known.payload => size(),
            (_, Some(shown), _) => text(shown),
            (Some(known), None, _) if known.sensitive => size(),
            (_, None, Value::String(long)) if long.len() > BEGINNING => beginning(long, BEGINNING),
            (_, None, Value::String(short)) => short.clone(),
            (_, None, _) => size(),
        };
        (name, told)
    });
    known.collect()
}

#[cfg(test)]
mod tests {
    use regex::Regex;

    use crate::{api::v1, daemon::catalog::Catalog};

    fn told<T: prost::Message + Default>(tool: &str, request: T) -> super::Told {
        let catalog = Catalog::load().unwrap();
        let checked = catalog.tool(tool).unwrap().check(request, true);
        checked.unwrap().told.unwrap()
    }

    #[test]
    fn parameters_are_told_as_rules_want_them() {
        let told = told(
            "write_file",
            v1::WriteFileRequest {
                path: "a \"b\"\n{é}.txt".to_owned(),
                content: "x".repeat(20),
                mode: Some(v1::WriteMode::CreateNew.into()),
                file_mode: Some(0o600),
                ..v1::WriteFileRequest::default()
            },
        );
        assert_eq!(
            told.text,
            format!(
                r#"{{"content":"{}","file_mode":384,"mode":"CREATE_NEW","path":"a \"b\"\n{{é}}.txt"}}"#,
                "x".repeat(20)
            )
        );
        let shown: Vec<_> = told
            .shown
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
            .collect();
        assert_eq!(
            shown,
            [
                ("path", "a \"b\"\n{é}.txt"),
                ("content", "<20 bytes>"),
                ("mode", "WRITE_MODE_CREATE_NEW"),
                ("file_mode", "384"),
            ]
        );
    }

    #[test]
    fn the_pattern_matches_the_call_and_those_with_other_secrets() {
        let request = |command: &str, secret: &str| v1::RunRequest {
            command: Some(command.to_owned()),
            env: [("TOKEN".to_owned(), secret.to_owned())].into(),
            stdin: bytes::Bytes::copy_from_slice(secret.as_bytes()),
            ..v1::RunRequest::default()
        };
        let first = told("run", request("a.*b{2} (x|y)", "hunter2"));
        let pattern = first.pattern.unwrap();
        assert!(!pattern.contains("hunter2") && !pattern.contains("aHVudGVyMg"));
        let regex = Regex::new(&pattern).unwrap();
        assert!(regex.is_match(&first.text));
        let like = told("run", request("a.*b{2} (x|y)", "other \"\\ one")).text;
        assert!(regex.is_match(&like), "{pattern} {like}");
        let other = told("run", request("a.*b{2} (x|y); rm", "hunter2")).text;
        assert!(!regex.is_match(&other));
        assert!(
            !first
                .shown
                .iter()
                .any(|(_, value)| value.contains("hunter2"))
        );
        let large = told("run", request(&"x".repeat(20_000), ""));
        assert_eq!(large.pattern, None);
    }
}
