//! Where the parts of a JSON object or array are in its text, and changing one of them without
//! touching the others.
//!
//! `serde_json` does the reading, one level at a time: what is below a part is checked but not kept,
//! and without recursion, however deep it is.

use std::{fmt, ops::Range};

use serde::{
    Deserializer as _,
    de::{Error as _, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Error, value::RawValue};

use super::python_json::to_json;

/// A member of an object or an element of an array, as it is written.
#[derive(Debug, Clone)]
pub(super) struct JsonEntry<'a> {
    /// Its key with the quotes; none in an array.
    pub(super) key: Option<&'a str>,
    /// Its value.
    pub(super) value: &'a str,
    /// Where it is in the text, key included.
    pub(super) range: Range<usize>,
}

/// An object or array, one level of it.
#[derive(Debug)]
pub(super) struct JsonContainer<'a> {
    text: &'a str,
    entries: Vec<JsonEntry<'a>>,
}

/// White space of an object or array, and what is between its keys and values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct JsonLayout {
    /// Before the first part.
    pub(super) open: String,
    /// Behind each comma.
    pub(super) separator: String,
    /// Behind the last part.
    pub(super) close: String,
    /// The colon and what is around it.
    pub(super) colon: String,
}

/// A range of a text, and what comes in its place.
#[derive(Debug)]
pub(super) struct TextSplice {
    range: Range<usize>,
    replacement: String,
}

impl TextSplice {
    /// The text with the change.
    pub(super) fn apply(&self, text: &str) -> String {
        let (before, after) = (&text[..self.range.start], &text[self.range.end..]);
        [before, &self.replacement, after].concat()
    }
}

/// Calls `take` with each part of the object or array that `text` is.
pub(super) fn for_each_entry<'a>(
    text: &'a str,
    take: impl FnMut(JsonEntry<'a>) -> Result<(), String>,
) -> Result<(), Error> {
    let json = to_json(text);
    let mut reader = serde_json::Deserializer::from_str(&json);
    reader.deserialize_any(EntryVisitor { text, json: &json, take })?;
    reader.end()
}

/// Visits one level.
#[derive(Debug)]
struct EntryVisitor<'a, 'j, F> {
    text: &'a str,
    /// The same as JSON, each part where it is in the text.
    json: &'j str,
    take: F,
}

impl<'a, 'j, F: FnMut(JsonEntry<'a>) -> Result<(), String>> EntryVisitor<'a, 'j, F> {
    fn entry(&mut self, key: Option<&'j RawValue>, value: &'j RawValue) -> Result<(), String> {
        let range = |part: &RawValue| {
            let start = part.get().as_ptr().addr() - self.json.as_ptr().addr();
            start..start + part.get().len()
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
    /// The parts of the object or array that `text` is, when there are no more than `most`.
    pub(super) fn parse(text: &'a str, most: usize) -> Result<Self, Error> {
        let mut list = Vec::new();
        for_each_entry(text, |part| {
            if list.len() == most {
                return Err(format!("more than {most} fields or elements"));
            }
            list.push(part);
            Ok(())
        })?;
        Ok(Self { text, entries: list })
    }

    /// The object or array itself.
    pub(super) fn text(&self) -> &'a str {
        self.text
    }

    /// All of them, in order.
    pub(super) fn entries(&self) -> &[JsonEntry<'a>] {
        &self.entries
    }

    /// Index of the member with this key. Of several, the last one counts, as for Python.
    pub(super) fn position(&self, key: &str) -> Option<usize> {
        self.entries.iter().rposition(|part| part.has_key(key))
    }

    /// Value of the member with this key.
    pub(super) fn get(&self, key: &str) -> Option<&'a str> {
        self.position(key).map(|index| self.entries[index].value)
    }

    /// Puts another value in the place of a part's.
    pub(super) fn replace(&self, index: usize, value: &str) -> TextSplice {
        let part = &self.entries[index];
        TextSplice {
            range: part.range.end - part.value.len()..part.range.end,
            replacement: value.to_owned(),
        }
    }

    /// Takes a part out, with its comma.
    pub(super) fn remove(&self, index: usize) -> TextSplice {
        let part = &self.entries[index].range;
        // The white space of the part itself stays for the one that takes its place.
        let range = match (self.entries.get(index + 1), index.checked_sub(1)) {
            (Some(next), _) => part.start..next.range.start,
            (None, Some(before)) => self.entries[before].range.end..part.end,
            (None, None) => 1..self.text.len() - 1,
        };
        TextSplice { range, replacement: String::new() }
    }

    /// The text without the members that have this key, however many; none when there are none.
    pub(super) fn without(&self, key: &str) -> Option<String> {
        let (first, last) = (self.entries.first()?, self.entries.last()?);
        if !self.entries.iter().any(|part| part.has_key(key)) {
            return None;
        }
        let mut text = self.text[..first.range.start].to_owned();
        let (mut is_first, mut before) = (true, first.range.start);
        for part in &self.entries {
            if !part.has_key(key) {
                let from = if is_first { part.range.start } else { before };
                text.push_str(&self.text[from..part.range.end]);
                is_first = false;
            }
            before = part.range.end;
        }
        text.push_str(&self.text[last.range.end..]);
        Some(text)
    }

    /// Puts a part before the one at `index`, or at the end. `layout` says how, where there are too
    /// few others to tell.
    pub(super) fn insert(&self, index: usize, part: &str, layout: &JsonLayout) -> TextSplice {
        let Some(last) = self.entries.last() else {
            return TextSplice {
                range: 1..self.text.len() - 1,
                replacement: [&layout.open, part, &layout.close].concat(),
            };
        };
        let (at, with) = match self.entries.get(index) {
            Some(next) => (next.range.start, [part, ",", &layout.separator].concat()),
            None => (last.range.end, [",", &layout.separator, part].concat()),
        };
        TextSplice { range: at..at, replacement: with }
    }
}

impl JsonEntry<'_> {
    /// Whether it has this key, however that is written.
    pub(super) fn has_key(&self, key: &str) -> bool {
        let Some(written) = self.key else {
            return false;
        };
        let plain = written.get(1..written.len() - 1).unwrap_or_default();
        plain == key || plain.contains('\\') && parse_string(written).as_deref() == Some(key)
    }
}

impl JsonLayout {
    /// That of the object or array that `text` is; `fallback` for what cannot be seen in it.
    pub(super) fn detect(text: &str, fallback: &Self) -> Self {
        let (mut first, mut second, mut last) = (None, None, None);
        let seen = for_each_entry(text, |part| {
            if first.is_none() {
                first = Some(part.clone());
            } else if second.is_none() {
                second = Some(part.clone());
            }
            last = Some(part);
            Ok(())
        });
        match (seen, &first, &last) {
            (Ok(()), Some(first), Some(last)) => {
                Self::from_entries(text, first, second.as_ref(), last, fallback)
            }
            _ => fallback.clone(),
        }
    }

    /// That of an object or array whose parts are known.
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
        let gap = match second {
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
        Self { open, separator: gap, close: between(last.range.end, text.len() - 1), colon }
    }

    /// That of an object or array in one with this layout, where each level is indented by `unit`.
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

    /// An array of what is already JSON.
    pub(super) fn array(&self, elements: &[String]) -> String {
        match elements {
            [] => "[]".to_owned(),
            elements => {
                let elements = elements.join(&[",", &self.separator].concat());
                ["[", &self.open, &elements, &self.close, "]"].concat()
            }
        }
    }

    /// An object of what is already JSON.
    pub(super) fn object(&self, members: &[(&str, String)]) -> String {
        let members: Vec<String> =
            members.iter().map(|(key, value)| self.member(key, value)).collect();
        let members = members.join(&[",", &self.separator].concat());
        ["{", &self.open, &members, &self.close, "}"].concat()
    }

    /// A member of an object. The key is one that needs no escapes.
    pub(super) fn member(&self, key: &str, value: &str) -> String {
        ["\"", key, "\"", &self.colon, value].concat()
    }
}

/// The string that `json` is. Halves of surrogate pairs, which JSON can write and text cannot hold,
/// become U+FFFD.
pub(super) fn parse_string(json: &str) -> Option<String> {
    struct MultilineTextVisitor;
    impl Visitor<'_> for MultilineTextVisitor {
        type Value = String;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a string")
        }

        fn visit_bytes<E>(self, bytes: &[u8]) -> Result<String, E> {
            Ok(String::from_utf8_lossy(bytes).into_owned())
        }
    }
    serde_json::Deserializer::from_str(json).deserialize_bytes(MultilineTextVisitor).ok()
}

/// A text as nbformat writes it, one string or several in an array, and whether it is more than
/// `most` bytes.
pub(super) fn parse_multiline_text(json: &str, most: usize) -> (String, bool) {
    let (mut text, mut truncated) = (String::new(), false);
    let mut add = |part: String| {
        let left = most - text.len();
        let kept = part.floor_char_boundary(left);
        truncated |= kept < part.len();
        text.push_str(&part[..kept]);
        !truncated
    };
    if json.starts_with('[') {
        let _ended_early =
            for_each_entry(json, |part| match parse_string(part.value).is_none_or(&mut add) {
                true => Ok(()),
                false => Err(String::new()),
            });
    } else if let Some(text) = parse_string(json) {
        add(text);
    }
    (text, truncated)
}
