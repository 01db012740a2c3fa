//! How much of an answer goes along in an envelope: clients take messages of 4 MiB unless they say otherwise.

use std::{
    borrow::Cow,
    io::{self, Write},
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
/// Longest texts that are left where all of it would be too much: as long as fit.
const LONGEST_TEXTS: [usize; 8] = [
    12 << 18,
    6 << 18,
    3 << 18,
    3 << 17,
    3 << 16,
    3 << 14,
    3 << 12,
    1 << 10,
];
/// The shortest of them.
const SHORTEST: usize = 1 << 10;
/// Longest lists that are left where that is not enough.
const LONGEST_LISTS: [usize; 5] = [20_000, 5000, 1000, 100, 10];
/// What a value takes beside its text, at most.
const AROUND: usize = 16;
/// What is said at the end of a text that is cut, at most.
const MARK: usize = 64;

/// Where texts and lists are cut.
#[derive(Debug, Clone, Copy)]
struct Cut {
    longest_text: usize,
    longest_list: usize,
}

/// Cuts what is too long, until all of it fits. Answers whether it did anyway.
pub(super) fn fit(data: &mut Map<String, Value>) -> bool {
    let Some(cut) = Cut::of(data) else {
        return true;
    };
    cut.fields(data);
    if let Some(Value::Bool(is_truncated)) = data.get_mut(TRUNCATED) {
        *is_truncated = true;
    }
    false
}

/// The JSON of `data`, before that is made to fit; where both together are too much, of what is left of it when it is
/// cut, which says so. And whether that is all of it.
pub(super) fn text_of(data: &Map<String, Value>) -> (String, bool) {
    let room = room_beside(data);
    if let Some(text) = json_within(data, room) {
        return (text, true);
    }
    let text = Cut::all().find_map(|cut| json_within(&Shortened { data, cut }, room));
    let nothing = || json!({ TRUNCATED: true }).to_string();
    (text.unwrap_or_else(nothing), false)
}

/// A text, or its beginning, where there is no room for all of it beside `data`; and whether that is all of it.
pub(super) fn beginning(text: String, data: Option<&Map<String, Value>>) -> (String, bool) {
    let most = data.map_or(DATA_BYTES, room_beside);
    match text.len() > most {
        true => (cut_text(&text, most - MARK, false).into_owned(), false),
        false => (text, true),
    }
}

/// Most bytes of the text that goes along with `data`.
fn room_beside(data: &Map<String, Value>) -> usize {
    let size = match Cut::of(data) {
        Some(cut) => cut.size_of_fields(data),
        None => size_of_fields(data),
    };
    BOTH - size.min(DATA_BYTES)
}

/// The JSON of this, if it is no longer.
fn json_within(value: &impl Serialize, most: usize) -> Option<String> {
    let mut written = Within {
        bytes: Vec::new(),
        most,
    };
    serde_json::to_writer(&mut written, value).ok()?;
    String::from_utf8(written.bytes).ok()
}

/// A text, or its beginning and a mark that says how much is left out. Base64 is to be read on its own: there is no
/// mark in it, and no part of a group of four.
fn cut_text(text: &str, longest: usize, is_base64: bool) -> Cow<'_, str> {
    if text.len() <= longest {
        return text.into();
    }
    let longest = if is_base64 { longest / 4 * 4 } else { longest };
    let (shown, left_out) = text.split_at(text.floor_char_boundary(longest));
    match is_base64 {
        true => shown.into(),
        false => format!("{shown} … ({} bytes left out)", left_out.len()).into(),
    }
}

/// Whether the texts of an object are Base64, as it says itself.
fn is_base64(fields: &Map<String, Value>) -> bool {
    let encoding = fields.get("encoding").and_then(Value::as_str);
    encoding.is_some_and(|encoding| encoding.to_lowercase().ends_with("base64"))
}

impl Cut {
    /// All that are tried, one after the other.
    fn all() -> impl Iterator<Item = Self> {
        let texts = LONGEST_TEXTS.map(|longest_text| Self {
            longest_text,
            longest_list: usize::MAX,
        });
        let lists = LONGEST_LISTS.map(|longest_list| Self {
            longest_text: SHORTEST,
            longest_list,
        });
        texts.into_iter().chain(lists)
    }

    /// What has `data` fit, if it does not anyway.
    fn of(data: &Map<String, Value>) -> Option<Self> {
        if size_of_fields(data) <= DATA_BYTES {
            return None;
        }
        let mut last = None;
        for cut in Self::all() {
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
                *text = cut_text(text, self.longest_text, is_base64).into_owned();
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
                Value::String(text) => text.len().min(self.longest_text.saturating_add(MARK)),
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
        fields
            .map(|(name, value)| AROUND + name.len() + self.size(value))
            .sum()
    }
}

/// Bytes of the message that stands for these.
pub(in crate::daemon::call) fn size_of_fields(fields: &Map<String, Value>) -> usize {
    let nothing = Cut {
        longest_text: usize::MAX,
        longest_list: usize::MAX,
    };
    nothing.size_of_fields(fields)
}

/// What is left of an answer, which says that it is not all.
struct Shortened<'a> {
    data: &'a Map<String, Value>,
    cut: Cut,
}

/// What is left of a part of it.
struct Part<'a> {
    value: &'a Value,
    cut: Cut,
    is_base64: bool,
}

impl<'a> Shortened<'a> {
    fn parts(
        fields: &'a Map<String, Value>,
        cut: Cut,
    ) -> impl Iterator<Item = (&'a String, Part<'a>)> {
        let is_base64 = is_base64(fields);
        let part = move |value| Part {
            value,
            cut,
            is_base64,
        };
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
        let Self {
            value,
            cut,
            is_base64,
        } = *self;
        match value {
            Value::String(text) => {
                serializer.serialize_str(&cut_text(text, cut.longest_text, is_base64))
            }
            Value::Array(items) => {
                let mut seq = serializer.serialize_seq(None)?;
                for value in items.iter().take(cut.longest_list) {
                    seq.serialize_element(&Part {
                        value,
                        cut,
                        is_base64: false,
                    })?;
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
            (
                json!({"content": "x".repeat(1 << 20), "size": 1}),
                true,
                true,
            ),
            (
                json!({"content": "x".repeat(3 << 20), "size": 1}),
                true,
                false,
            ),
            (json!({"content": "x".repeat(10 << 20)}), false, false),
            (json!({"content": "\u{1}".repeat(10 << 20)}), false, false),
            (json!({"content": "é".repeat(5 << 20)}), false, false),
            (
                json!({"content": "\n".repeat(1 << 20), "size": 1}),
                true,
                true,
            ),
            (json!({ "files": few }), true, true),
            (json!({ "files": many }), false, false),
            (json!({ "matches": lines }), false, false),
            (
                json!({"stdout": "x".repeat(100 << 10), "stderr": "y"}),
                true,
                true,
            ),
        ] {
            let mut data = data.as_object().unwrap().clone();
            let (text, is_all) = text_of(&data);
            assert_eq!(is_all, is_said);
            assert_eq!(fit(&mut data), fits);
            let said: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(
                said[TRUNCATED],
                if is_all { Value::Null } else { true.into() }
            );
            assert!(!is_all || said.as_object() == Some(&data));
            let message = structure(data.clone()).encoded_len();
            assert!(
                message + text.len() < 4_000_000,
                "{message}, {}",
                text.len()
            );
            // And not much less than could be.
            assert!(is_all || text.len() > 50_000, "{}", text.len());
            assert!(fits || message > 100_000, "{message}");
        }
        let (text, is_all) = text_of(json!({"a": 1}).as_object().unwrap());
        assert_eq!((text.as_str(), is_all), ("{\"a\":1}", true));
    }

    #[test]
    fn what_is_left_out_is_counted_once() {
        let long = 10 << 20;
        let mut data = json!({"content": "x".repeat(long)});
        let data = data.as_object_mut().unwrap();
        let (text, _) = text_of(data);
        fit(data);
        let said: Value = serde_json::from_str(&text).unwrap();
        for content in [&data["content"], &said["content"]] {
            let (shown, mark) = content.as_str().unwrap().split_once(" … ").unwrap();
            assert_eq!(mark, format!("({} bytes left out)", long - shown.len()));
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
        let (text, is_all) = text_of(data);
        assert!(!fit(data) && !is_all);
        assert_eq!(data[TRUNCATED], true);
        let said: Value = serde_json::from_str(&text).unwrap();
        for content in [&data["content"], &said["content"]] {
            let content = content.as_str().unwrap();
            assert_eq!(content, "QUJD".repeat(content.len() / 4));
        }
        // Others that are cut have no such field.
        let mut other = json!({"content": "x".repeat(4 << 20)});
        let other = other.as_object_mut().unwrap();
        assert!(!fit(other) && !other.contains_key(TRUNCATED));
    }

    #[test]
    fn texts_have_the_room_that_is_left() {
        let long = "x".repeat(4 << 20);
        let small = json!({"a": 1});
        for (data, least) in [(None, 3 << 20), (small.as_object(), 3 << 20)] {
            let (text, is_all) = beginning(long.clone(), data);
            assert!(!is_all && text.len() > least && text.len() <= BOTH);
            assert!(text.ends_with(" bytes left out)"));
        }
        let (text, is_all) = beginning("x".to_owned(), None);
        assert_eq!((text.as_str(), is_all), ("x", true));
    }
}
