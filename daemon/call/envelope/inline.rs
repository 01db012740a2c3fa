//! How much of an answer goes along in an envelope: clients take messages of 4 MiB unless they say otherwise.

use std::io::{self, Write};

use serde_json::{Map, Value};

/// Most bytes of `data`: with `text` and what surrounds both, less than 4 MiB. What a tool answers by default
/// fits.
const DATA_BYTES: usize = 7 << 19;
/// Most bytes of `text`: what a command may write to both its streams by default fits. It is for models, who
/// can read no more.
const TEXT_BYTES: usize = 256 << 10;
/// Longest texts that are left where all of it would be too much: as long as fit.
const LONGEST_TEXTS: [usize; 5] = [3 << 20, 1 << 20, 256 << 10, 16 << 10, 1 << 10];
/// Longest lists that are left where that is not enough.
const LONGEST_LISTS: [usize; 5] = [20_000, 5000, 1000, 100, 10];
/// What a value takes beside its text, at most.
const AROUND: usize = 16;

/// Cuts what is too long, until all of it fits. Answers whether it did anyway.
pub(super) fn fit(data: &mut Map<String, Value>) -> bool {
    if size_of_fields(data) <= DATA_BYTES {
        return true;
    }
    let texts = LONGEST_TEXTS.map(|text| (text, usize::MAX));
    let shortest = LONGEST_TEXTS.into_iter().min().unwrap_or_default();
    let lists = LONGEST_LISTS.map(|list| (shortest, list));
    for (text, list) in texts.into_iter().chain(lists) {
        for value in data.values_mut() {
            cut(value, text, list);
        }
        if size_of_fields(data) <= DATA_BYTES {
            break;
        }
    }
    false
}

/// The JSON of `data`, or its beginning; and whether that is all of it.
pub(super) fn text_of(data: &Map<String, Value>) -> (String, bool) {
    let mut text = Beginning(Vec::new());
    let is_all = serde_json::to_writer(&mut text, data).is_ok();
    let mut text = String::from_utf8(text.0).unwrap_or_else(|error| {
        // Cut within a character.
        let end = error.utf8_error().valid_up_to();
        let mut bytes = error.into_bytes();
        bytes.truncate(end);
        String::from_utf8(bytes).unwrap_or_default()
    });
    if !is_all {
        text.push_str(" … (cut here; `data` has more)");
    }
    (text, is_all)
}

/// A text, or its beginning; and whether that is all of it. Where it `is_alone`, without `data`, more of it fits.
pub(super) fn beginning(mut text: String, is_alone: bool) -> (String, bool) {
    let most = if is_alone { DATA_BYTES } else { TEXT_BYTES };
    if text.len() <= most {
        return (text, true);
    }
    let end = text.floor_char_boundary(most);
    let left_out = text.len() - end;
    text.truncate(end);
    text.push_str(&format!(" … ({left_out} bytes left out)"));
    (text, false)
}

fn cut(value: &mut Value, longest_text: usize, longest_list: usize) {
    match value {
        Value::String(text) if text.len() > longest_text => {
            let end = text.floor_char_boundary(longest_text);
            let left_out = text.len() - end;
            text.truncate(end);
            text.push_str(&format!(" … ({left_out} bytes left out)"));
            text.shrink_to_fit();
        }
        Value::Array(items) => {
            items.truncate(longest_list);
            for item in items {
                cut(item, longest_text, longest_list);
            }
        }
        Value::Object(fields) => {
            for field in fields.values_mut() {
                cut(field, longest_text, longest_list);
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// Bytes of the message that stands for a value.
fn size(value: &Value) -> usize {
    AROUND
        + match value {
            Value::String(text) => text.len(),
            Value::Array(items) => items.iter().map(size).sum(),
            Value::Object(fields) => size_of_fields(fields),
            Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        }
}

/// Bytes of the message that stands for these.
pub(in crate::daemon::call) fn size_of_fields(fields: &Map<String, Value>) -> usize {
    let fields = fields.iter();
    fields
        .map(|(name, value)| AROUND + name.len() + size(value))
        .sum()
}

/// The first bytes of what is written.
struct Beginning(Vec<u8>);

impl Write for Beginning {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = TEXT_BYTES - self.0.len();
        let fitting = bytes.get(..room).unwrap_or(bytes);
        self.0.extend_from_slice(fitting);
        match fitting.len() < bytes.len() {
            true => Err(io::ErrorKind::WriteZero.into()),
            false => Ok(bytes.len()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use serde_json::json;

    use super::*;
    use crate::daemon::call::structure::structure;

    #[test]
    fn all_that_is_answered_fits_into_a_message() {
        let many: Vec<_> = (0..100_000).map(|n| format!("a/file/{n:040}")).collect();
        let lines = vec![json!({ "content": "x".repeat(2000) }); 10_000];
        for (data, fits) in [
            (json!({"content": "x".repeat(3 << 20), "size": 1}), true),
            (json!({"content": "x".repeat(10 << 20)}), false),
            (json!({"content": "\u{1}".repeat(10 << 20)}), false),
            (json!({"content": "é".repeat(5 << 20)}), false),
            (json!({ "files": many }), false),
            (json!({ "matches": lines }), false),
            (
                json!({"stdout": "x".repeat(100 << 10), "stderr": "y"}),
                true,
            ),
        ] {
            let mut data = data.as_object().unwrap().clone();
            assert_eq!(fit(&mut data), fits);
            let (text, is_all) = text_of(&data);
            assert!(is_all || text.ends_with("more)"));
            assert!(text.len() < TEXT_BYTES + 100);
            let message = structure(data.clone()).encoded_len();
            assert!(message + text.len() < 4_000_000, "{message}");
            // And not much less than could be.
            assert!(fits || message > 100_000, "{message}");
        }
        let (text, is_all) = text_of(json!({"a": 1}).as_object().unwrap());
        assert_eq!((text.as_str(), is_all), ("{\"a\":1}", true));
    }
}
