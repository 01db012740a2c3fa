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
const BOTH: usize = 15 << 18;
/// Most bytes of `data`. What a tool answers by default fits, and what a command may write to both its streams by
/// default fits into what that leaves to `text`.
const DATA_BYTES: usize = 14 << 18;
/// What says that something is left out, of an answer and of the text that stands for it.
const TRUNCATED: &str = "truncated";
/// Shortest limit of a text, where texts are cut. Longer limits that are tried are a quarter apart.
const SHORTEST: usize = 1 << 10;
/// Longest lists that are left where that is not enough.
const LONGEST_LISTS: [usize; 5] = [20_000, 5000, 1000, 100, 10];
/// What a value takes beside its text, at most.
const AROUND: usize = 16;
/// Most bytes of the mark in a text that is cut, beside what the mark says of the rest.
const MARK: usize = 64;

/// Where texts and lists are cut, and what marks say of the rest of a text.
#[derive(Debug, Clone, Copy)]
struct Cut<'r> {
    longest_text: usize,
    longest_list: usize,
    rest: &'r str,
}

/// Cuts what is too long, until all of it fits. Returns whether it did anyway. `rest` says where the rest of a text is.
pub(super) fn fit(data: &mut Map<String, Value>, rest: &str) -> bool {
    let Some(cut) = Cut::of(data, rest) else {
        return true;
    };
    cut.fields(data);
    if let Some(Value::Bool(is_truncated)) = data.get_mut(TRUNCATED) {
        *is_truncated = true;
    }
    false
}

/// The JSON of `shown`, as far as there is room for it beside `data`; and whether that is all of it.
pub(super) fn text_of(
    shown: &Map<String, Value>,
    data: &Map<String, Value>,
    rest: &str,
) -> (String, bool) {
    let room = room_beside(data, rest);
    if let Some(text) = json_within(shown, room) {
        return (text, true);
    }
    (json_cut(shown, room, rest), false)
}

/// The JSON of what is left of an object when it is cut to so many bytes of JSON.
fn json_cut(data: &Map<String, Value>, most: usize, rest: &str) -> String {
    let text = Cut::all(most, rest).find_map(|cut| json_within(&Shortened { data, cut }, most));
    text.unwrap_or_else(|| json!({ TRUNCATED: true }).to_string())
}

/// An object whose JSON has at most so many bytes: texts keep their beginnings and ends, lists their first elements,
/// and `truncated` says so. None where all of it has no more.
pub(crate) fn shortened(
    data: &Map<String, Value>,
    most: usize,
    rest: &str,
) -> Option<Map<String, Value>> {
    if json_within(data, most).is_some() {
        return None;
    }
    serde_json::from_str(&json_cut(data, most, rest)).ok()
}

/// A text, or its beginning and its end, that has at most so many bytes as JSON.
pub(crate) fn shortened_text(text: &str, most: usize, rest: &str) -> String {
    if json_within(&text, most).is_some() {
        return text.to_owned();
    }
    let cuts = Cut::all(most, rest).map(|cut| cut_text(text, cut.longest_text, false, rest));
    let fitting = cuts.into_iter().find(|cut| json_within(cut, most).is_some());
    fitting.unwrap_or_default().into_owned()
}

/// A text, or its beginning and its end, where there is no room for all of it beside `data`; and whether that is all
/// of it.
pub(super) fn within(
    text: String,
    data: Option<&Map<String, Value>>,
    rest: &str,
) -> (String, bool) {
    let most = data.map_or(DATA_BYTES, |data| room_beside(data, rest));
    let mark = MARK + rest.len();
    match text.len() > most {
        true => (cut_text(&text, most - mark, false, rest).into_owned(), false),
        false => (text, true),
    }
}

/// Most bytes of the text that goes along with `data`.
fn room_beside(data: &Map<String, Value>, rest: &str) -> usize {
    let size = match Cut::of(data, rest) {
        Some(cut) => cut.size_of_fields(data),
        None => size_of_fields(data),
    };
    BOTH - size.min(DATA_BYTES)
}

/// The JSON of this, if it is no longer.
fn json_within(value: &impl Serialize, most: usize) -> Option<String> {
    let mut written = Within { bytes: Vec::new(), most };
    serde_json::to_writer(&mut written, value).ok()?;
    String::from_utf8(written.bytes).ok()
}

/// A text, or its beginning and its end, and between them a mark that says how much is left out. Base64 is to be read
/// on its own: of it there is the beginning, with no mark in it, and no part of a group of four.
fn cut_text<'t>(text: &'t str, longest: usize, is_base64: bool, rest: &str) -> Cow<'t, str> {
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
    format!("{head}\n[jig: {left_out} bytes left out{rest}]\n{tail}").into()
}

/// Whether the texts of an object are Base64, as it says itself.
fn is_base64(fields: &Map<String, Value>) -> bool {
    let encoding = fields.get("encoding").and_then(Value::as_str);
    encoding.is_some_and(|encoding| encoding.to_lowercase().ends_with("base64"))
}

impl<'r> Cut<'r> {
    /// All that are tried for `most` bytes, one after the other.
    fn all(most: usize, rest: &'r str) -> impl Iterator<Item = Self> {
        let shorter = |longest: &usize| Some(longest / 4 * 3).filter(|next| *next > SHORTEST);
        let texts = iter::successors(Some(most.max(SHORTEST)), shorter);
        let texts = texts.chain([SHORTEST]).map(move |longest_text| Self {
            longest_text,
            longest_list: usize::MAX,
            rest,
        });
        let lists =
            LONGEST_LISTS.map(|longest_list| Self { longest_text: SHORTEST, longest_list, rest });
        texts.chain(lists)
    }

    /// What has `data` fit, if it does not anyway.
    fn of(data: &Map<String, Value>, rest: &'r str) -> Option<Self> {
        if size_of_fields(data) <= DATA_BYTES {
            return None;
        }
        let mut last = None;
        for cut in Self::all(DATA_BYTES, rest) {
            last = Some(cut);
            if cut.size_of_fields(data) <= DATA_BYTES {
                break;
            }
        }
        last
    }

    fn fields(self, fields: &mut Map<String, Value>) {
        let is_base64 = is_base64(fields);
        for value in fields.values_mut() {
            self.value(value, is_base64);
        }
    }

    fn value(self, value: &mut Value, is_base64: bool) {
        match value {
            Value::String(text) if text.len() > self.longest_text => {
                *text = cut_text(text, self.longest_text, is_base64, self.rest).into_owned();
            }
            Value::Array(items) => {
                items.truncate(self.longest_list);
                for item in items {
                    self.value(item, false);
                }
            }
            Value::Object(fields) => self.fields(fields),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    /// Bytes of the message that stands for what is left of a value, at most.
    fn size(self, value: &Value) -> usize {
        AROUND
            + match value {
                Value::String(text) => {
                    let mark = MARK + self.rest.len();
                    text.len().min(self.longest_text.saturating_add(mark))
                }
                Value::Array(items) => {
                    let items = items.iter().take(self.longest_list);
                    items.map(|item| self.size(item)).sum()
                }
                Value::Object(fields) => self.size_of_fields(fields),
                Value::Null | Value::Bool(_) | Value::Number(_) => 0,
            }
    }

    fn size_of_fields(self, fields: &Map<String, Value>) -> usize {
        let fields = fields.iter();
        fields.map(|(name, value)| AROUND + name.len() + self.size(value)).sum()
    }
}

/// Bytes of the message that stands for these.
pub(in crate::daemon::call) fn size_of_fields(fields: &Map<String, Value>) -> usize {
    let nothing = Cut { longest_text: usize::MAX, longest_list: usize::MAX, rest: "" };
    nothing.size_of_fields(fields)
}

/// What is left of an answer, which says that it is not all.
struct Shortened<'a> {
    data: &'a Map<String, Value>,
    cut: Cut<'a>,
}

/// What is left of a part of it.
struct Part<'a> {
    value: &'a Value,
    cut: Cut<'a>,
    is_base64: bool,
}

impl<'a> Shortened<'a> {
    fn parts(
        fields: &'a Map<String, Value>,
        cut: Cut<'a>,
    ) -> impl Iterator<Item = (&'a String, Part<'a>)> {
        let is_base64 = is_base64(fields);
        let part = move |value| Part { value, cut, is_base64 };
        let fields = fields.iter();
        fields.map(move |(name, value)| (name, part(value)))
    }
}

impl Serialize for Shortened<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (name, part) in Self::parts(self.data, self.cut) {
            if name != TRUNCATED {
                map.serialize_entry(name, &part)?;
            }
        }
        map.serialize_entry(TRUNCATED, &true)?;
        map.end()
    }
}

impl Serialize for Part<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { value, cut, is_base64 } = *self;
        match value {
            Value::String(text) => {
                serializer.serialize_str(&cut_text(text, cut.longest_text, is_base64, cut.rest))
            }
            Value::Array(items) => {
                let mut seq = serializer.serialize_seq(None)?;
                for value in items.iter().take(cut.longest_list) {
                    seq.serialize_element(&Part { value, cut, is_base64: false })?;
                }
                seq.end()
            }
            Value::Object(fields) => serializer.collect_map(Shortened::parts(fields, cut)),
            Value::Null | Value::Bool(_) | Value::Number(_) => value.serialize(serializer),
        }
    }
}

/// What is written, if it is no longer than this.
struct Within {
    bytes: Vec<u8>,
    most: usize,
}

impl Write for Within {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.most - self.bytes.len() {
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
    use crate::daemon::call::structure::structure;

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
            let (text, is_all) = text_of(&data, &data, "");
            assert_eq!(is_all, is_said);
            assert_eq!(fit(&mut data, ""), fits);
            let said: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(said[TRUNCATED], if is_all { Value::Null } else { true.into() });
            assert!(!is_all || said.as_object() == Some(&data));
            let message = structure(data.clone()).encoded_len();
            assert!(message + text.len() < 4_000_000, "{message}, {}", text.len());
            // And not much less than could be.
            assert!(is_all || text.len() > 50_000, "{}", text.len());
            assert!(fits || message > 100_000, "{message}");
        }
        let small = json!({"a": 1});
        let small = small.as_object().unwrap();
        let (text, is_all) = text_of(small, small, "");
        assert_eq!((text.as_str(), is_all), ("{\"a\":1}", true));
    }

    #[test]
    fn what_is_left_out_is_counted_once() {
        let long = 10 << 20;
        let mut data = json!({"content": format!("{}END", "x".repeat(long - 3))});
        let data = data.as_object_mut().unwrap();
        let (text, _) = text_of(data, data, ": there");
        fit(data, ": there");
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
        let (text, is_all) = text_of(data, data, "");
        assert!(!fit(data, "") && !is_all);
        assert_eq!(data[TRUNCATED], true);
        let said: Value = serde_json::from_str(&text).unwrap();
        for content in [&data["content"], &said["content"]] {
            let content = content.as_str().unwrap();
            assert_eq!(content, "QUJD".repeat(content.len() / 4));
        }
        // Others that are cut have no such field.
        let mut other = json!({"content": "x".repeat(4 << 20)});
        let other = other.as_object_mut().unwrap();
        assert!(!fit(other, "") && !other.contains_key(TRUNCATED));
    }

    #[test]
    fn a_bound_of_json_is_kept_and_the_json_is_whole() {
        for text in ["x", "\n", "\u{1}", "é", "\"", "€\\"] {
            let text = format!("a{}z", text.repeat(100_000));
            let data = json!({"stdout": &text, "exit_code": 1, "list": vec!["l"; 3]});
            for most in [12 << 10, 32 << 10] {
                let short = shortened(data.as_object().unwrap(), most, ": there").unwrap();
                let json = Value::from(short.clone()).to_string();
                assert!(json.len() <= most && json.len() > most / 3, "{}", json.len());
                assert_eq!((&short["truncated"], &short["exit_code"]), (&true.into(), &1.into()));
                let stdout = short["stdout"].as_str().unwrap();
                assert!(stdout.starts_with('a') && stdout.ends_with('z'));
                assert!(stdout.contains(" bytes left out: there]\n"));
                let short = shortened_text(&text, most, "");
                let json = Value::from(short.as_str()).to_string();
                assert!(json.len() <= most && json.len() > most / 3, "{}", json.len());
                assert!(short.starts_with('a') && short.ends_with('z'));
            }
        }
        assert_eq!(shortened(json!({"a": 1}).as_object().unwrap(), 7, ""), None);
        assert_eq!(shortened_text("abc", 5, ""), "abc");
    }

    #[test]
    fn texts_have_the_room_that_is_left() {
        let long = "x".repeat(4 << 20);
        let small = json!({"a": 1});
        for (data, least) in [(None, 3 << 20), (small.as_object(), 3 << 20)] {
            let (text, is_all) = within(long.clone(), data, "");
            assert!(!is_all && text.len() > least && text.len() <= BOTH);
            assert!(text.contains(" bytes left out]\nx") && text.ends_with('x'));
        }
        let (text, is_all) = within("x".to_owned(), None, "");
        assert_eq!((text.as_str(), is_all), ("x", true));
    }
}
