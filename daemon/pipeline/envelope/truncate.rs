//! How much of an answer goes along in an envelope: clients take messages of 4 MiB unless they say otherwise.

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

/// Most bytes of `data` and `text` together: with what surrounds both, less than 4 MiB.
const MAX_DATA_AND_TEXT_BYTES: usize = 15 << 18;
/// Most bytes of `data`. What a tool answers by default fits, and what a command may write to both its streams by
/// default fits into what that leaves to `text`.
const MAX_DATA_BYTES: usize = 14 << 18;
/// What says that something is left out, of an answer and of the text that stands for it.
const TRUNCATED_FIELD: &str = "truncated";
/// Shortest limit of a text, where texts are cut. Longer limits that are tried are a quarter apart.
const MIN_TEXT_LIMIT_BYTES: usize = 1 << 10;
/// Longest lists that are left where that is not enough.
const LIST_LIMITS_ITEMS: [usize; 5] = [20_000, 5000, 1000, 100, 10];
/// What a value takes beside its text, at most.
const VALUE_OVERHEAD_BYTES: usize = 16;
/// Most bytes of the mark in a text that is cut, beside what the mark says of the rest.
const MAX_MARK_BYTES: usize = 64;

/// Where texts and lists are cut, and what marks say of the rest of a text.
#[derive(Debug, Clone, Copy)]
struct TruncationPlan<'r> {
    max_text_bytes: usize,
    max_list_items: usize,
    rest_hint: &'r str,
}

/// Cuts what is too long, until all of it fits. Returns whether it did anyway. `rest` says where the rest of a text is.
pub(super) fn truncate_to_fit(data: &mut Map<String, Value>, rest_hint: &str) -> bool {
    let Some(cut) = TruncationPlan::for_data(data, rest_hint) else {
        return true;
    };
    cut.truncate_fields(data);
    if let Some(Value::Bool(is_truncated)) = data.get_mut(TRUNCATED_FIELD) {
        *is_truncated = true;
    }
    false
}

/// The JSON of `shown`, as far as there is room for it beside `data`; and whether that is all of it.
pub(super) fn text_beside_data(
    shown: &Map<String, Value>,
    data: &Map<String, Value>,
    rest_hint: &str,
) -> (String, bool) {
    let room = text_budget_beside(data, rest_hint);
    if let Some(text) = json_if_fits(shown, room) {
        return (text, true);
    }
    (truncated_json(shown, room, rest_hint), false)
}

/// The JSON of what is left of an object when it is cut to so many bytes of JSON.
fn truncated_json(data: &Map<String, Value>, most: usize, rest_hint: &str) -> String {
    let text = TruncationPlan::candidates(most, rest_hint)
        .find_map(|cut| json_if_fits(&TruncatedObject { data, plan: cut }, most));
    text.unwrap_or_else(|| json!({ TRUNCATED_FIELD: true }).to_string())
}

/// An object whose JSON has at most so many bytes: texts keep their beginnings and ends, lists their first elements,
/// and `truncated` says so. None where all of it has no more.
pub(crate) fn truncate_object(
    data: &Map<String, Value>,
    most: usize,
    rest_hint: &str,
) -> Option<Map<String, Value>> {
    if json_if_fits(data, most).is_some() {
        return None;
    }
    serde_json::from_str(&truncated_json(data, most, rest_hint)).ok()
}

/// A text, or its beginning and its end, that has at most so many bytes as JSON.
pub(crate) fn truncate_text_to_json_bytes(text: &str, most: usize, rest_hint: &str) -> String {
    if json_if_fits(&text, most).is_some() {
        return text.to_owned();
    }
    let cuts = TruncationPlan::candidates(most, rest_hint)
        .map(|cut| truncate_text(text, cut.max_text_bytes, false, rest_hint));
    let fitting = cuts.into_iter().find(|cut| json_if_fits(cut, most).is_some());
    fitting.unwrap_or_default().into_owned()
}

/// A text, or its beginning and its end, where there is no room for all of it beside `data`; and whether that is all
/// of it.
pub(super) fn truncate_text_beside_data(
    text: String,
    data: Option<&Map<String, Value>>,
    rest_hint: &str,
) -> (String, bool) {
    let most = data.map_or(MAX_DATA_BYTES, |data| text_budget_beside(data, rest_hint));
    let mark = MAX_MARK_BYTES + rest_hint.len();
    match text.len() > most {
        true => (truncate_text(&text, most - mark, false, rest_hint).into_owned(), false),
        false => (text, true),
    }
}

/// Most bytes of the text that goes along with `data`.
fn text_budget_beside(data: &Map<String, Value>, rest_hint: &str) -> usize {
    let size = match TruncationPlan::for_data(data, rest_hint) {
        Some(cut) => cut.encoded_size_of_fields(data),
        None => encoded_size_of_fields(data),
    };
    MAX_DATA_AND_TEXT_BYTES - size.min(MAX_DATA_BYTES)
}

/// The JSON of this, if it is no longer.
fn json_if_fits(value: &impl Serialize, most: usize) -> Option<String> {
    let mut written = SizeCappedWriter { bytes: Vec::new(), max_bytes: most };
    serde_json::to_writer(&mut written, value).ok()?;
    String::from_utf8(written.bytes).ok()
}

/// A text, or its beginning and its end, and between them a mark that says how much is left out. Base64 is to be read
/// on its own: of it there is the beginning, with no mark in it, and no part of a group of four.
fn truncate_text<'t>(
    text: &'t str,
    longest: usize,
    is_base64: bool,
    rest_hint: &str,
) -> Cow<'t, str> {
    if text.len() <= longest {
        return text.into();
    }
    if is_base64 {
        return text.get(..longest / 4 * 4).unwrap_or_default().into();
    }
    let head = text.floor_char_boundary(longest / 2);
    let tail = text.ceil_char_boundary(text.len() - longest / 2);
    let left_out = tail - head;
    let (head, tail) = (text.get(..head), text.get(tail..));
    let (head, tail) = (head.unwrap_or_default(), tail.unwrap_or_default());
    format!("{head}\n[jig: {left_out} bytes left out{rest_hint}]\n{tail}").into()
}

/// Whether the texts of an object are Base64, as it says itself.
fn is_base64(fields: &Map<String, Value>) -> bool {
    let encoding = fields.get("encoding").and_then(Value::as_str);
    encoding.is_some_and(|encoding| encoding.to_lowercase().ends_with("base64"))
}

impl<'r> TruncationPlan<'r> {
    /// All that are tried for `most` bytes, one after the other.
    fn candidates(most: usize, rest: &'r str) -> impl Iterator<Item = Self> {
        let shorter =
            |longest: &usize| Some(longest / 4 * 3).filter(|next| *next > MIN_TEXT_LIMIT_BYTES);
        let texts = iter::successors(Some(most.max(MIN_TEXT_LIMIT_BYTES)), shorter);
        let texts = texts.chain([MIN_TEXT_LIMIT_BYTES]).map(move |longest_text| Self {
            max_text_bytes: longest_text,
            max_list_items: usize::MAX,
            rest_hint: rest,
        });
        let lists = LIST_LIMITS_ITEMS.map(|longest_list| Self {
            max_text_bytes: MIN_TEXT_LIMIT_BYTES,
            max_list_items: longest_list,
            rest_hint: rest,
        });
        texts.chain(lists)
    }

    /// What has `data` fit, if it does not anyway.
    fn for_data(data: &Map<String, Value>, rest: &'r str) -> Option<Self> {
        if encoded_size_of_fields(data) <= MAX_DATA_BYTES {
            return None;
        }
        let mut last = None;
        for cut in Self::candidates(MAX_DATA_BYTES, rest) {
            last = Some(cut);
            if cut.encoded_size_of_fields(data) <= MAX_DATA_BYTES {
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

    /// Bytes of the message that stands for what is left of a value, at most.
    fn encoded_size(self, value: &Value) -> usize {
        VALUE_OVERHEAD_BYTES
            + match value {
                Value::String(text) => {
                    let mark = MAX_MARK_BYTES + self.rest_hint.len();
                    text.len().min(self.max_text_bytes.saturating_add(mark))
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
        let fields = fields.iter();
        fields
            .map(|(name, value)| VALUE_OVERHEAD_BYTES + name.len() + self.encoded_size(value))
            .sum()
    }
}

/// Bytes of the message that stands for these.
pub(in crate::daemon::pipeline) fn encoded_size_of_fields(fields: &Map<String, Value>) -> usize {
    let nothing =
        TruncationPlan { max_text_bytes: usize::MAX, max_list_items: usize::MAX, rest_hint: "" };
    nothing.encoded_size_of_fields(fields)
}

/// What is left of an answer, which says that it is not all.
struct TruncatedObject<'a> {
    data: &'a Map<String, Value>,
    plan: TruncationPlan<'a>,
}

/// What is left of a part of it.
struct TruncatedValue<'a> {
    value: &'a Value,
    plan: TruncationPlan<'a>,
    is_base64: bool,
}

impl<'a> TruncatedObject<'a> {
    fn parts(
        fields: &'a Map<String, Value>,
        cut: TruncationPlan<'a>,
    ) -> impl Iterator<Item = (&'a String, TruncatedValue<'a>)> {
        let is_base64 = is_base64(fields);
        let part = move |value| TruncatedValue { value, plan: cut, is_base64 };
        let fields = fields.iter();
        fields.map(move |(name, value)| (name, part(value)))
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
        let Self { value, plan: cut, is_base64 } = *self;
        match value {
            Value::String(text) => serializer.serialize_str(&truncate_text(
                text,
                cut.max_text_bytes,
                is_base64,
                cut.rest_hint,
            )),
            Value::Array(items) => {
                let mut seq = serializer.serialize_seq(None)?;
                for value in items.iter().take(cut.max_list_items) {
                    seq.serialize_element(&TruncatedValue { value, plan: cut, is_base64: false })?;
                }
                seq.end()
            }
            Value::Object(fields) => serializer.collect_map(TruncatedObject::parts(fields, cut)),
            Value::Null | Value::Bool(_) | Value::Number(_) => value.serialize(serializer),
        }
    }
}

/// What is written, if it is no longer than this.
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
    fn all_that_is_answered_fits_into_a_message() {
        let many: Vec<_> = (0..100_000).map(|n| format!("a/file/{n:040}")).collect();
        let few: Vec<_> = (0..30_000).map(|n| format!("a/file/{n:040}")).collect();
        let lines = vec![json!({ "content": "x".repeat(2000) }); 10_000];
        for (data, fits, is_said) in [
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
            let (text, is_all) = text_beside_data(&data, &data, "");
            assert_eq!(is_all, is_said);
            assert_eq!(truncate_to_fit(&mut data, ""), fits);
            let said: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(said[TRUNCATED_FIELD], if is_all { Value::Null } else { true.into() });
            assert!(!is_all || said.as_object() == Some(&data));
            let message = json_to_struct(data.clone()).encoded_len();
            assert!(message + text.len() < 4_000_000, "{message}, {}", text.len());
            // And not much less than could be.
            assert!(is_all || text.len() > 50_000, "{}", text.len());
            assert!(fits || message > 100_000, "{message}");
        }
        let small = json!({"a": 1});
        let small = small.as_object().unwrap();
        let (text, is_all) = text_beside_data(small, small, "");
        assert_eq!((text.as_str(), is_all), ("{\"a\":1}", true));
    }

    #[test]
    fn what_is_left_out_is_counted_once() {
        let long = 10 << 20;
        let mut data = json!({"content": format!("{}END", "x".repeat(long - 3))});
        let data = data.as_object_mut().unwrap();
        let (text, _) = text_beside_data(data, data, ": there");
        truncate_to_fit(data, ": there");
        let said: Value = serde_json::from_str(&text).unwrap();
        for content in [&data["content"], &said["content"]] {
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
        let (text, is_all) = text_beside_data(data, data, "");
        assert!(!truncate_to_fit(data, "") && !is_all);
        assert_eq!(data[TRUNCATED_FIELD], true);
        let said: Value = serde_json::from_str(&text).unwrap();
        for content in [&data["content"], &said["content"]] {
            let content = content.as_str().unwrap();
            assert_eq!(content, "QUJD".repeat(content.len() / 4));
        }
        // Others that are cut have no such field.
        let mut other = json!({"content": "x".repeat(4 << 20)});
        let other = other.as_object_mut().unwrap();
        assert!(!truncate_to_fit(other, "") && !other.contains_key(TRUNCATED_FIELD));
    }

    #[test]
    fn a_bound_of_json_is_kept_and_the_json_is_whole() {
        for text in ["x", "\n", "\u{1}", "é", "\"", "€\\"] {
            let text = format!("a{}z", text.repeat(100_000));
            let data = json!({"stdout": &text, "exit_code": 1, "list": vec!["l"; 3]});
            for most in [12 << 10, 32 << 10] {
                let short = truncate_object(data.as_object().unwrap(), most, ": there").unwrap();
                let json = Value::from(short.clone()).to_string();
                assert!(json.len() <= most && json.len() > most / 3, "{}", json.len());
                assert_eq!((&short["truncated"], &short["exit_code"]), (&true.into(), &1.into()));
                let stdout = short["stdout"].as_str().unwrap();
                assert!(stdout.starts_with('a') && stdout.ends_with('z'));
                assert!(stdout.contains(" bytes left out: there]\n"));
                let short = truncate_text_to_json_bytes(&text, most, "");
                let json = Value::from(short.as_str()).to_string();
                assert!(json.len() <= most && json.len() > most / 3, "{}", json.len());
                assert!(short.starts_with('a') && short.ends_with('z'));
            }
        }
        assert_eq!(truncate_object(json!({"a": 1}).as_object().unwrap(), 7, ""), None);
        assert_eq!(truncate_text_to_json_bytes("abc", 5, ""), "abc");
    }

    #[test]
    fn texts_have_the_room_that_is_left() {
        let long = "x".repeat(4 << 20);
        let small = json!({"a": 1});
        for (data, least) in [(None, 3 << 20), (small.as_object(), 3 << 20)] {
            let (text, is_all) = truncate_text_beside_data(long.clone(), data, "");
            assert!(!is_all && text.len() > least && text.len() <= MAX_DATA_AND_TEXT_BYTES);
            assert!(text.contains(" bytes left out]\nx") && text.ends_with('x'));
        }
        let (text, is_all) = truncate_text_beside_data("x".to_owned(), None, "");
        assert_eq!((text.as_str(), is_all), ("x", true));
    }
}
