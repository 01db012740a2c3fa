//! Locates the parts of a JSON object or array in its text, and replaces one of them without
//! touching the others.
//!
//! `serde_json` parses one level at a time. It checks the levels below without storing them and
//! without recursion, however deep they are.

use std::{fmt, ops::Range};

use serde::{
    Deserializer as _,
    de::{Error as _, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Error, value::RawValue};

use super::python_json::to_json;

/// A member of an object or an element of an array, as text.
#[derive(Debug, Clone)]
pub(super) struct JsonEntry<'a> {
    /// Key with its quotes. `None` in an array.
    pub(super) key: Option<&'a str>,
    pub(super) value: &'a str,
    /// Range in the text of the container, including the key.
    pub(super) range: Range<usize>,
}

/// One level of an object or array.
#[derive(Debug)]
pub(super) struct JsonContainer<'a> {
    text: &'a str,
    entries: Vec<JsonEntry<'a>>,
}

/// White space of an object or array, and the separator of keys and values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct JsonLayout {
    /// Before the first entry.
    pub(super) open: String,
    /// After each comma.
    pub(super) separator: String,
    /// After the last entry.
    pub(super) close: String,
    /// The colon with the white space around it.
    pub(super) colon: String,
}

/// A replacement of a range of a text.
#[derive(Debug)]
pub(super) struct TextSplice {
    range: Range<usize>,
    replacement: String,
}

impl TextSplice {
    /// Returns the text with the range replaced.
    pub(super) fn apply(&self, text: &str) -> String {
        let (before, after) = (&text[..self.range.start], &text[self.range.end..]);
        [before, &self.replacement, after].concat()
    }
}

/// Calls `take` with each entry of the object or array `text`.
pub(super) fn for_each_entry<'a>(
    text: &'a str,
    take: impl FnMut(JsonEntry<'a>) -> Result<(), String>,
) -> Result<(), Error> {
    let json = to_json(text);
    let mut reader = serde_json::Deserializer::from_str(&json);
    reader.deserialize_any(EntryVisitor { text, json: &json, take })?;
    reader.end()
}

/// Visits the entries of one level.
#[derive(Debug)]
struct EntryVisitor<'a, 'j, F> {
    text: &'a str,
    /// `text` as standard JSON, with the same offsets.
    json: &'j str,
    take: F,
}

impl<'a, 'j, F: FnMut(JsonEntry<'a>) -> Result<(), String>> EntryVisitor<'a, 'j, F> {
    fn entry(&mut self, key: Option<&'j RawValue>, value: &'j RawValue) -> Result<(), String> {
        let range = |entry: &RawValue| {
            let start = entry.get().as_ptr().addr() - self.json.as_ptr().addr();
            start..start + entry.get().len()
        };
        let (key, value) = (key.map(range), range(value));
        let start = key.as_ref().map_or(value.start, |key| key.start);
        (self.take)(JsonEntry {
            range: start..value.end,
            key: key.map(|key| &self.text[key]),
            value: &self.text[value],
        })
    }
}

impl<'a, 'j, F: FnMut(JsonEntry<'a>) -> Result<(), String>> Visitor<'j>
    for EntryVisitor<'a, 'j, F>
{
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or an array")
    }

    fn visit_seq<A: SeqAccess<'j>>(mut self, mut elements: A) -> Result<(), A::Error> {
        while let Some(value) = elements.next_element()? {
            self.entry(None, value).map_err(A::Error::custom)?;
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'j>>(mut self, mut members: A) -> Result<(), A::Error> {
        while let Some((key, value)) = members.next_entry()? {
            self.entry(Some(key), value).map_err(A::Error::custom)?;
        }
        Ok(())
    }
}

impl<'a> JsonContainer<'a> {
    /// Locates the entries of the object or array `text`. Fails for more than `max_entries`.
    pub(super) fn parse(text: &'a str, max_entries: usize) -> Result<Self, Error> {
        let mut entries = Vec::new();
        for_each_entry(text, |entry| {
            if entries.len() == max_entries {
                return Err(format!("more than {max_entries} fields or elements"));
            }
            entries.push(entry);
            Ok(())
        })?;
        Ok(Self { text, entries })
    }

    pub(super) fn text(&self) -> &'a str {
        self.text
    }

    pub(super) fn entries(&self) -> &[JsonEntry<'a>] {
        &self.entries
    }

    /// Returns the index of the member with this key. Of duplicates the last counts, as in Python.
    pub(super) fn position(&self, key: &str) -> Option<usize> {
        self.entries.iter().rposition(|entry| entry.has_key(key))
    }

    /// Returns the value of the member with this key.
    pub(super) fn get(&self, key: &str) -> Option<&'a str> {
        self.position(key).map(|index| self.entries[index].value)
    }

    /// Replaces the value of an entry.
    pub(super) fn replace(&self, index: usize, value: &str) -> TextSplice {
        let entry = &self.entries[index];
        TextSplice {
            range: entry.range.end - entry.value.len()..entry.range.end,
            replacement: value.to_owned(),
        }
    }

    /// Removes an entry with its comma.
    pub(super) fn remove(&self, index: usize) -> TextSplice {
        let entry = &self.entries[index].range;
        // The white space before the entry remains for the one that follows.
        let range = match (self.entries.get(index + 1), index.checked_sub(1)) {
            (Some(next), _) => entry.start..next.range.start,
            (None, Some(before)) => self.entries[before].range.end..entry.end,
            (None, None) => 1..self.text.len() - 1,
        };
        TextSplice { range, replacement: String::new() }
    }

    /// Returns the text without all members with this key. `None` if there is none.
    pub(super) fn without(&self, key: &str) -> Option<String> {
        let (first, last) = (self.entries.first()?, self.entries.last()?);
        if !self.entries.iter().any(|entry| entry.has_key(key)) {
            return None;
        }

        let mut text = self.text[..first.range.start].to_owned();
        let (mut is_first, mut before) = (true, first.range.start);
        for entry in &self.entries {
            if !entry.has_key(key) {
                let from = if is_first { entry.range.start } else { before };
                text.push_str(&self.text[from..entry.range.end]);
                is_first = false;
            }
            before = entry.range.end;
        }
        text.push_str(&self.text[last.range.end..]);
        Some(text)
    }

    /// Inserts an entry before the one at `index`, or at the end. Uses `layout` where too few
    /// entries show the layout.
    pub(super) fn insert(&self, index: usize, entry: &str, layout: &JsonLayout) -> TextSplice {
        let Some(last) = self.entries.last() else {
            return TextSplice {
                range: 1..self.text.len() - 1,
                replacement: [&layout.open, entry, &layout.close].concat(),
            };
        };
        let (at, replacement) = match self.entries.get(index) {
            Some(next) => (next.range.start, [entry, ",", &layout.separator].concat()),
            None => (last.range.end, [",", &layout.separator, entry].concat()),
        };
        TextSplice { range: at..at, replacement }
    }
}

impl JsonEntry<'_> {
    /// Whether the entry has this key, with or without escapes.
    pub(super) fn has_key(&self, key: &str) -> bool {
        let Some(written) = self.key else {
            return false;
        };
        let plain = written.get(1..written.len() - 1).unwrap_or_default();
        plain == key || plain.contains('\\') && parse_string(written).as_deref() == Some(key)
    }
}

impl JsonLayout {
    /// Detects the layout of the object or array `text`. `fallback` supplies what it does not show.
    pub(super) fn detect(text: &str, fallback: &Self) -> Self {
        let (mut first, mut second, mut last) = (None, None, None);
        let result = for_each_entry(text, |entry| {
            if first.is_none() {
                first = Some(entry.clone());
            } else if second.is_none() {
                second = Some(entry.clone());
            }
            last = Some(entry);
            Ok(())
        });
        match (result, &first, &last) {
            (Ok(()), Some(first), Some(last)) => {
                Self::from_entries(text, first, second.as_ref(), last, fallback)
            }
            _ => fallback.clone(),
        }
    }

    /// Detects the layout of a parsed object or array.
    pub(super) fn of_container(parts: &JsonContainer<'_>, fallback: &Self) -> Self {
        match (parts.entries.first(), parts.entries.last()) {
            (Some(first), Some(last)) => {
                Self::from_entries(parts.text, first, parts.entries.get(1), last, fallback)
            }
            _ => fallback.clone(),
        }
    }

    fn from_entries(
        text: &str,
        first: &JsonEntry<'_>,
        second: Option<&JsonEntry<'_>>,
        last: &JsonEntry<'_>,
        fallback: &Self,
    ) -> Self {
        let between = |from: usize, to: usize| text.get(from..to).unwrap_or_default().to_owned();
        let open = between(1, first.range.start);
        let separator = match second {
            Some(second) => {
                let gap = between(first.range.end, second.range.start);
                gap.split_once(',').map_or("", |(_, gap)| gap).to_owned()
            }
            None if open.contains('\n') => open.clone(),
            None if fallback.separator.contains('\n') => " ".to_owned(),
            None => fallback.separator.clone(),
        };

        let colon = match first.key {
            Some(key) => {
                between(first.range.start + key.len(), first.range.end - first.value.len())
            }
            None => fallback.colon.clone(),
        };
        Self { open, separator, close: between(last.range.end, text.len() - 1), colon }
    }

    /// Returns the layout of a container inside one with this layout. `unit` is the indentation of
    /// one level.
    pub(super) fn nested(&self, unit: &str) -> Self {
        if !self.separator.contains('\n') {
            return Self { open: String::new(), close: String::new(), ..self.clone() };
        }
        let inner = [&self.separator, unit].concat();
        Self {
            open: inner.clone(),
            separator: inner,
            close: self.separator.clone(),
            colon: self.colon.clone(),
        }
    }

    /// Formats an array of JSON values.
    pub(super) fn array(&self, elements: &[String]) -> String {
        match elements {
            [] => "[]".to_owned(),
            elements => {
                let elements = elements.join(&[",", &self.separator].concat());
                ["[", &self.open, &elements, &self.close, "]"].concat()
            }
        }
    }

    /// Formats an object of JSON values.
    pub(super) fn object(&self, members: &[(&str, String)]) -> String {
        let members: Vec<String> =
            members.iter().map(|(key, value)| self.member(key, value)).collect();
        let members = members.join(&[",", &self.separator].concat());
        ["{", &self.open, &members, &self.close, "}"].concat()
    }

    /// Formats a member of an object. The key must not need escapes.
    pub(super) fn member(&self, key: &str, value: &str) -> String {
        ["\"", key, "\"", &self.colon, value].concat()
    }
}

/// Decodes a JSON string. Unpaired surrogates, which JSON can express and Rust strings cannot,
/// become U+FFFD.
pub(super) fn parse_string(json: &str) -> Option<String> {
    struct LossyStringVisitor;
    impl Visitor<'_> for LossyStringVisitor {
        type Value = String;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a string")
        }

        fn visit_bytes<E>(self, bytes: &[u8]) -> Result<String, E> {
            Ok(String::from_utf8_lossy(bytes).into_owned())
        }
    }
    serde_json::Deserializer::from_str(json).deserialize_bytes(LossyStringVisitor).ok()
}

/// Decodes nbformat's multiline text: one string or an array of strings. Returns at most
/// `max_bytes`, and whether the text is longer.
pub(super) fn parse_multiline_text(json: &str, max_bytes: usize) -> (String, bool) {
    let (mut text, mut truncated) = (String::new(), false);
    let mut add = |entry: String| {
        let end = entry.floor_char_boundary(max_bytes - text.len());
        truncated |= end < entry.len();
        text.push_str(&entry[..end]);
        !truncated
    };
    if json.starts_with('[') {
        let _ended_early = for_each_entry(json, |entry| {
            if parse_string(entry.value).is_none_or(&mut add) { Ok(()) } else { Err(String::new()) }
        });
    } else if let Some(text) = parse_string(json) {
        add(text);
    }
    (text, truncated)
}
