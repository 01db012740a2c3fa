//! Truncates responses to the default limit of gRPC clients, 4 MiB per message.

use std::{
    borrow::Cow,
    io::{self, Write},
    iter,
};

use serde::{
    Serialize, Serializer,
    ser::{SerializeMap as _, SerializeSeq as _},
};
use serde_json::{Map, Value, json};

/// Limit on `data` and `text` together. With the rest of the message, less than 4 MiB.
const MAX_DATA_AND_TEXT_BYTES: usize = 15 << 18;
/// Limit on `data`. The default output of every tool fits. What remains for `text` fits the default
/// output of a command on both streams.
const MAX_DATA_BYTES: usize = 14 << 18;
/// The field that marks a truncated object.
const TRUNCATED_FIELD: &str = "truncated";
/// Lowest limit on a text. Each limit that is tried is a quarter lower than the one before.
const MIN_TEXT_LIMIT_BYTES: usize = 1 << 10;
/// Limits on lists that are tried if shorter texts are not enough.
const LIST_LIMITS_ITEMS: [usize; 5] = [20_000, 5000, 1000, 100, 10];
/// Overhead of an encoded value apart from its text, at most.
const VALUE_OVERHEAD_BYTES: usize = 16;
/// Length of the mark in a truncated text, without the hint, at most.
const MAX_MARK_BYTES: usize = 64;

/// Limits on texts and lists, and the hint of truncated texts.
#[derive(Debug, Clone, Copy)]
struct TruncationPlan<'r> {
    max_text_bytes: usize,
    max_list_items: usize,
    rest_hint: &'r str,
}

/// Truncates `data` until it fits. Returns whether it fitted before. `rest_hint` says where the
/// rest of a text is.
pub(super) fn truncate_to_fit(data: &mut Map<String, Value>, rest_hint: &str) -> bool {
    let Some(plan) = TruncationPlan::for_data(data, rest_hint) else {
        return true;
    };

    plan.truncate_fields(data);
    if let Some(Value::Bool(is_truncated)) = data.get_mut(TRUNCATED_FIELD) {
        *is_truncated = true;
    }
    false
}

/// Returns the JSON of `object`, truncated to the space next to `data`, and whether it is complete.
pub(super) fn text_beside_data(
    object: &Map<String, Value>,
    data: &Map<String, Value>,
    rest_hint: &str,
) -> (String, bool) {
    let max_bytes = text_budget_beside(data, rest_hint);
    match json_if_fits(object, max_bytes) {
        Some(text) => (text, true),
        None => (truncated_json(object, max_bytes, rest_hint), false),
    }
}

/// Truncates an object to `max_bytes` of JSON.
fn truncated_json(data: &Map<String, Value>, max_bytes: usize, rest_hint: &str) -> String {
    let json = TruncationPlan::candidates(max_bytes, rest_hint)
        .find_map(|plan| json_if_fits(&TruncatedObject { data, plan }, max_bytes));
    json.unwrap_or_else(|| json!({ TRUNCATED_FIELD: true }).to_string())
}

/// Truncates an object to `max_bytes` of JSON, and sets its field `truncated`. Texts keep their
/// beginnings and ends, lists their first items. Returns `None` if the object fits.
pub(crate) fn truncate_object(
    data: &Map<String, Value>,
    max_bytes: usize,
    rest_hint: &str,
) -> Option<Map<String, Value>> {
    if json_if_fits(data, max_bytes).is_some() {
        return None;
    }
    serde_json::from_str(&truncated_json(data, max_bytes, rest_hint)).ok()
}

/// Truncates a text to `max_bytes` of JSON. It keeps its beginning and its end.
pub(crate) fn truncate_text_to_json_bytes(text: &str, max_bytes: usize, rest_hint: &str) -> String {
    if json_if_fits(&text, max_bytes).is_some() {
        return text.to_owned();
    }

    TruncationPlan::candidates(max_bytes, rest_hint)
        .map(|plan| truncate_text(text, plan.max_text_bytes, false, rest_hint))
        .find(|truncated| json_if_fits(truncated, max_bytes).is_some())
        .unwrap_or_default()
        .into_owned()
}

/// Truncates a text to the space next to `data`. Returns it, and whether it is complete.
pub(super) fn truncate_text_beside_data(
    text: String,
    data: Option<&Map<String, Value>>,
    rest_hint: &str,
) -> (String, bool) {
    let max_bytes = data.map_or(MAX_DATA_BYTES, |data| text_budget_beside(data, rest_hint));
    if text.len() <= max_bytes {
        return (text, true);
    }

    let mark_bytes = MAX_MARK_BYTES + rest_hint.len();
    (truncate_text(&text, max_bytes - mark_bytes, false, rest_hint).into_owned(), false)
}

/// Returns the space for `text` next to `data`, in bytes.
fn text_budget_beside(data: &Map<String, Value>, rest_hint: &str) -> usize {
    let size = match TruncationPlan::for_data(data, rest_hint) {
        Some(plan) => plan.encoded_size_of_fields(data),
        None => encoded_size_of_fields(data),
    };
    MAX_DATA_AND_TEXT_BYTES - size.min(MAX_DATA_BYTES)
}

/// Returns the JSON of `value` if it has at most `max_bytes`.
fn json_if_fits(value: &impl Serialize, max_bytes: usize) -> Option<String> {
    let mut writer = SizeCappedWriter { bytes: Vec::new(), max_bytes };
    serde_json::to_writer(&mut writer, value).ok()?;
    String::from_utf8(writer.bytes).ok()
}

/// Truncates a text to its beginning and its end, with a mark between them that counts the bytes
/// left out.
///
/// Base64 must stay decodable: it keeps only its beginning, in whole groups of four, without a
/// mark.
fn truncate_text<'t>(
    text: &'t str,
    max_bytes: usize,
    is_base64: bool,
    rest_hint: &str,
) -> Cow<'t, str> {
    if text.len() <= max_bytes {
        return text.into();
    }
    if is_base64 {
        return text.get(..max_bytes / 4 * 4).unwrap_or_default().into();
    }

    let head_end = text.floor_char_boundary(max_bytes / 2);
    let tail_start = text.ceil_char_boundary(text.len() - max_bytes / 2);
    let left_out = tail_start - head_end;
    let head = text.get(..head_end).unwrap_or_default();
    let tail = text.get(tail_start..).unwrap_or_default();
    format!("{head}\n[jig: {left_out} bytes left out{rest_hint}]\n{tail}").into()
}

/// Whether the texts of an object are Base64, according to its field `encoding`.
fn is_base64(fields: &Map<String, Value>) -> bool {
    let encoding = fields.get("encoding").and_then(Value::as_str);
    encoding.is_some_and(|encoding| encoding.to_lowercase().ends_with("base64"))
}

impl<'r> TruncationPlan<'r> {
    /// Returns the plans that are tried for `max_bytes`, from the longest result to the shortest.
    fn candidates(max_bytes: usize, rest_hint: &'r str) -> impl Iterator<Item = Self> {
        let shorter =
            |limit: &usize| Some(limit / 4 * 3).filter(|next| *next > MIN_TEXT_LIMIT_BYTES);
        let text_plans = iter::successors(Some(max_bytes.max(MIN_TEXT_LIMIT_BYTES)), shorter)
            .chain([MIN_TEXT_LIMIT_BYTES])
            .map(move |max_text_bytes| Self {
                max_text_bytes,
                max_list_items: usize::MAX,
                rest_hint,
            });
        let list_plans = LIST_LIMITS_ITEMS.map(|max_list_items| Self {
            max_text_bytes: MIN_TEXT_LIMIT_BYTES,
            max_list_items,
            rest_hint,
        });
        text_plans.chain(list_plans)
    }

    /// Returns the first plan that makes `data` fit, or `None` if it fits as it is.
    fn for_data(data: &Map<String, Value>, rest_hint: &'r str) -> Option<Self> {
        if encoded_size_of_fields(data) <= MAX_DATA_BYTES {
            return None;
        }

        let mut last = None;
        for plan in Self::candidates(MAX_DATA_BYTES, rest_hint) {
            last = Some(plan);
            if plan.encoded_size_of_fields(data) <= MAX_DATA_BYTES {
                break;
            }
        }
        last
    }

    fn truncate_fields(self, fields: &mut Map<String, Value>) {
        let is_base64 = is_base64(fields);
        for value in fields.values_mut() {
            self.truncate_value(value, is_base64);
        }
    }

    fn truncate_value(self, value: &mut Value, is_base64: bool) {
        match value {
            Value::String(text) if text.len() > self.max_text_bytes => {
                *text = truncate_text(text, self.max_text_bytes, is_base64, self.rest_hint)
                    .into_owned();
            }
            Value::Array(items) => {
                items.truncate(self.max_list_items);
                for item in items {
                    self.truncate_value(item, false);
                }
            }
            Value::Object(fields) => self.truncate_fields(fields),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    /// Returns the encoded size of the truncated value, at most.
    fn encoded_size(self, value: &Value) -> usize {
        VALUE_OVERHEAD_BYTES
            + match value {
                Value::String(text) => {
                    let mark_bytes = MAX_MARK_BYTES + self.rest_hint.len();
                    text.len().min(self.max_text_bytes.saturating_add(mark_bytes))
                }
                Value::Array(items) => {
                    let items = items.iter().take(self.max_list_items);
                    items.map(|item| self.encoded_size(item)).sum()
                }
                Value::Object(fields) => self.encoded_size_of_fields(fields),
                Value::Null | Value::Bool(_) | Value::Number(_) => 0,
            }
    }

    fn encoded_size_of_fields(self, fields: &Map<String, Value>) -> usize {
        fields
            .iter()
            .map(|(name, value)| VALUE_OVERHEAD_BYTES + name.len() + self.encoded_size(value))
            .sum()
    }
}

/// Returns the size of `fields` as a `google.protobuf.Struct`, at most.
pub(in crate::daemon::pipeline) fn encoded_size_of_fields(fields: &Map<String, Value>) -> usize {
    let unlimited =
        TruncationPlan { max_text_bytes: usize::MAX, max_list_items: usize::MAX, rest_hint: "" };
    unlimited.encoded_size_of_fields(fields)
}

/// Serializes an object truncated by `plan`, with the field `truncated`.
struct TruncatedObject<'a> {
    data: &'a Map<String, Value>,
    plan: TruncationPlan<'a>,
}

/// Serializes a value truncated by `plan`.
struct TruncatedValue<'a> {
    value: &'a Value,
    plan: TruncationPlan<'a>,
    is_base64: bool,
}

impl<'a> TruncatedObject<'a> {
    fn parts(
        fields: &'a Map<String, Value>,
        plan: TruncationPlan<'a>,
    ) -> impl Iterator<Item = (&'a String, TruncatedValue<'a>)> {
        let is_base64 = is_base64(fields);
        fields.iter().map(move |(name, value)| (name, TruncatedValue { value, plan, is_base64 }))
    }
}

impl Serialize for TruncatedObject<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, part) in Self::parts(self.data, self.plan) {
            if name != TRUNCATED_FIELD {
                map.serialize_entry(name, &part)?;
            }
        }
        map.serialize_entry(TRUNCATED_FIELD, &true)?;
        map.end()
    }
}

impl Serialize for TruncatedValue<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { value, plan, is_base64 } = *self;
        match value {
            Value::String(text) => serializer.serialize_str(&truncate_text(
                text,
                plan.max_text_bytes,
                is_base64,
                plan.rest_hint,
            )),
            Value::Array(items) => {
                let mut seq = serializer.serialize_seq(None)?;
                for value in items.iter().take(plan.max_list_items) {
                    seq.serialize_element(&TruncatedValue { value, plan, is_base64: false })?;
                }
                seq.end()
            }
            Value::Object(fields) => serializer.collect_map(TruncatedObject::parts(fields, plan)),
            Value::Null | Value::Bool(_) | Value::Number(_) => value.serialize(serializer),
        }
    }
}

/// A writer that fails beyond `max_bytes`.
struct SizeCappedWriter {
    bytes: Vec<u8>,
    max_bytes: usize,
}

impl Write for SizeCappedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.max_bytes - self.bytes.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;
    use crate::api::json_struct::json_to_struct;

    #[test]
    fn every_response_fits_into_a_message() {
        let many: Vec<_> = (0..100_000).map(|n| format!("a/file/{n:040}")).collect();
        let few: Vec<_> = (0..30_000).map(|n| format!("a/file/{n:040}")).collect();
        let lines = vec![json!({ "content": "x".repeat(2000) }); 10_000];
        for (data, fits, is_text_complete) in [
            (json!({"content": "x".repeat(1 << 20), "size": 1}), true, true),
            (json!({"content": "x".repeat(3 << 20), "size": 1}), true, false),
            (json!({"content": "x".repeat(10 << 20)}), false, false),
            (json!({"content": "\u{1}".repeat(10 << 20)}), false, false),
            (json!({"content": "é".repeat(5 << 20)}), false, false),
            (json!({"content": "\n".repeat(1 << 20), "size": 1}), true, true),
            (json!({ "files": few }), true, true),
            (json!({ "files": many }), false, false),
            (json!({ "matches": lines }), false, false),
            (json!({"stdout": "x".repeat(100 << 10), "stderr": "y"}), true, true),
        ] {
            let mut data = data.as_object().unwrap().clone();
            let (text, is_complete) = text_beside_data(&data, &data, "");
            assert_eq!(is_complete, is_text_complete);
            assert_eq!(truncate_to_fit(&mut data, ""), fits);
            let text_json: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(
                text_json[TRUNCATED_FIELD],
                if is_complete { Value::Null } else { true.into() }
            );
            assert!(!is_complete || text_json.as_object() == Some(&data));
            let message = json_to_struct(data.clone()).encoded_len();
            assert!(message + text.len() < 4_000_000, "{message}, {}", text.len());

            // Truncation does not leave out much more than necessary.
            assert!(is_complete || text.len() > 50_000, "{}", text.len());
            assert!(fits || message > 100_000, "{message}");
        }

        let small = json!({"a": 1});
        let small = small.as_object().unwrap();
        let (text, is_complete) = text_beside_data(small, small, "");
        assert_eq!((text.as_str(), is_complete), ("{\"a\":1}", true));
    }

    #[test]
    fn bytes_left_out_are_counted_once() {
        let long = 10 << 20;
        let mut data = json!({"content": format!("{}END", "x".repeat(long - 3))});
        let data = data.as_object_mut().unwrap();
        let (text, _) = text_beside_data(data, data, ": there");
        truncate_to_fit(data, ": there");
        let text_json: Value = serde_json::from_str(&text).unwrap();

        for content in [&data["content"], &text_json["content"]] {
            let (head, tail) = content.as_str().unwrap().split_once("\n[jig: ").unwrap();
            let (mark, tail) = tail.split_once("]\n").unwrap();
            let left_out = long - head.len() - tail.len();
            assert_eq!(mark, format!("{left_out} bytes left out: there"));
            assert!(tail.ends_with("xEND") && head.len().abs_diff(tail.len()) < 4);
        }
    }

    #[test]
    fn base64_stays_base64() {
        let mut data = json!({
            "content": "QUJD".repeat(1 << 20),
            "encoding": "ENCODING_BASE64",
            "truncated": false,
        });
        let data = data.as_object_mut().unwrap();
        let (text, is_complete) = text_beside_data(data, data, "");
        assert!(!truncate_to_fit(data, "") && !is_complete);
        assert_eq!(data[TRUNCATED_FIELD], true);
        let text_json: Value = serde_json::from_str(&text).unwrap();
        for content in [&data["content"], &text_json["content"]] {
            let content = content.as_str().unwrap();
            assert_eq!(content, "QUJD".repeat(content.len() / 4));
        }

        // Truncation adds no field `truncated` to the data.
        let mut other = json!({"content": "x".repeat(4 << 20)});
        let other = other.as_object_mut().unwrap();
        assert!(!truncate_to_fit(other, "") && !other.contains_key(TRUNCATED_FIELD));
    }

    #[test]
    fn truncated_json_is_valid_and_within_the_limit() {
        for text in ["x", "\n", "\u{1}", "é", "\"", "€\\"] {
            let text = format!("a{}z", text.repeat(100_000));
            let data = json!({"stdout": &text, "exit_code": 1, "list": vec!["l"; 3]});
            for max_bytes in [12 << 10, 32 << 10] {
                let short =
                    truncate_object(data.as_object().unwrap(), max_bytes, ": there").unwrap();
                let json = Value::from(short.clone()).to_string();
                assert!(json.len() <= max_bytes && json.len() > max_bytes / 3, "{}", json.len());
                assert_eq!((&short["truncated"], &short["exit_code"]), (&true.into(), &1.into()));
                let stdout = short["stdout"].as_str().unwrap();
                assert!(stdout.starts_with('a') && stdout.ends_with('z'));
                assert!(stdout.contains(" bytes left out: there]\n"));
                let short = truncate_text_to_json_bytes(&text, max_bytes, "");
                let json = Value::from(short.as_str()).to_string();
                assert!(json.len() <= max_bytes && json.len() > max_bytes / 3, "{}", json.len());
                assert!(short.starts_with('a') && short.ends_with('z'));
            }
        }

        assert_eq!(truncate_object(json!({"a": 1}).as_object().unwrap(), 7, ""), None);
        assert_eq!(truncate_text_to_json_bytes("abc", 5, ""), "abc");
    }

    #[test]
    fn text_uses_the_space_beside_data() {
        let long = "x".repeat(4 << 20);
        let small = json!({"a": 1});
        for (data, min_bytes) in [(None, 3 << 20), (small.as_object(), 3 << 20)] {
            let (text, is_complete) = truncate_text_beside_data(long.clone(), data, "");
            assert!(
                !is_complete && text.len() > min_bytes && text.len() <= MAX_DATA_AND_TEXT_BYTES
            );
            assert!(text.contains(" bytes left out]\nx") && text.ends_with('x'));
        }
        let (text, is_complete) = truncate_text_beside_data("x".to_owned(), None, "");
        assert_eq!((text.as_str(), is_complete), ("x", true));
    }
}
