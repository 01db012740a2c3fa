//! JSON as Python's `json` writes it, with `NaN`, `Infinity` and `-Infinity`. Jupyter accepts these
//! words, the JSON standard does not.

use std::borrow::Cow;

use memchr::{memchr2, memchr3, memmem};

/// Python's words for numbers that JSON does not have, and JSON numbers of the same length.
const NON_FINITE_NUMBERS: [(&str, &str); 3] =
    [("NaN", "0e0"), ("-Infinity", "-0e000000"), ("Infinity", "0e000000")];

/// Replaces each of these words, outside strings, by a number of the same length. All offsets stay
/// the same.
pub(super) fn to_json(text: &str) -> Cow<'_, str> {
    let bytes = text.as_bytes();
    if ["NaN", "Infinity"].iter().all(|word| memmem::find(bytes, word.as_bytes()).is_none()) {
        return Cow::Borrowed(text);
    }

    let (mut json, mut copied, mut at) = (String::with_capacity(text.len()), 0, 0);
    while let Some(found) = memchr3(b'"', b'N', b'I', &bytes[at..]) {
        at += found;
        if bytes[at] == b'"' {
            at = end_of_string(bytes, at + 1);
            continue;
        }
        // A sign before the word was skipped.
        let sign = usize::from(text[copied..at].ends_with('-'));
        match non_finite_at(text, at - sign) {
            Some((start, word, number)) => {
                json.push_str(&text[copied..start]);
                json.push_str(number);
                copied = start + word.len();
                at = copied;
            }
            None => at += 1,
        }
    }
    json.push_str(&text[copied..]);
    Cow::Owned(json)
}

/// Returns the word at `start`, unless it is a part of a longer word.
fn non_finite_at(text: &str, start: usize) -> Option<(usize, &'static str, &'static str)> {
    let (before, rest) = text.split_at(start);
    let (word, number) = NON_FINITE_NUMBERS.into_iter().find(|(word, _)| rest.starts_with(word))?;
    let continues_word = |character: char| {
        character.is_alphanumeric() || matches!(character, '+' | '-' | '.' | '_' | '"')
    };
    let neighbours = [before.chars().next_back(), rest[word.len()..].chars().next()];
    let stands_alone = !neighbours.into_iter().flatten().any(continues_word);
    stands_alone.then_some((start, word, number))
}

/// Returns the end of a string. `at` is an offset after its opening quote.
fn end_of_string(bytes: &[u8], mut at: usize) -> usize {
    while let Some(found) = bytes.get(at..).and_then(|rest| memchr2(b'"', b'\\', rest)) {
        at += found + 1;
        if bytes[at - 1] == b'"' {
            return at;
        }
        at += 1; // The escaped character.
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_become_numbers_of_the_same_length() {
        for (text, json) in [
            ("", ""),
            ("[NaN]", "[0e0]"),
            ("[NaN, -Infinity,Infinity]", "[0e0, -0e000000,0e000000]"),
            ("{\"a\\\"NaN\": NaN\n}", "{\"a\\\"NaN\": 0e0\n}"),
            ("[\"NaN\", \"\\\\\", NaN]", "[\"NaN\", \"\\\\\", 0e0]"),
            // Neither JSON nor Python.
            ("[-NaN]", "[-NaN]"),
            ("[1NaN, NaN1]", "[1NaN, NaN1]"),
            ("[NaNNaN, nan, Inf]", "[NaNNaN, nan, Inf]"),
            ("[--Infinity, +Infinity]", "[--Infinity, +Infinity]"),
            ("[Infinity\u{e9}]", "[Infinity\u{e9}]"),
            ("\"NaN", "\"NaN"),
            ("\"NaN\\", "\"NaN\\"),
        ] {
            assert_eq!(to_json(text), json);
        }
        let text = "[\"NaN\", \"Infinity\", 1]";
        assert_eq!(to_json(text), text);
        serde_json::from_str::<[f64; 3]>(&to_json("[NaN, Infinity, -Infinity]")).unwrap();
    }
}
