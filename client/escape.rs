//! Escapes untrusted text for output on a terminal.
//!
//! Commands in the workspace choose file names and file contents. A terminal interprets some
//! characters: it moves the cursor, changes colours, answers, or writes from right to left. These
//! characters are written as escapes (`\033`), as git and `ls -b` do. The raw output of `read`,
//! `run` and `artifact` is not escaped: like the output of `cat`, it is what the user asked for.

use std::borrow::Cow;

/// Escapes a name. A name with control characters, quotes or backslashes is quoted as git does.
pub(crate) fn name(name: &str) -> Cow<'_, str> {
    let is_plain =
        |character| !is_unsafe_for_terminal(character) && !matches!(character, '"' | '\\');
    if name.chars().all(is_plain) {
        return Cow::Borrowed(name);
    }

    let mut quoted = String::from("\"");
    for character in name.chars() {
        if is_plain(character) {
            quoted.push(character);
        } else {
            push_escape(&mut quoted, character);
        }
    }

    quoted.push('"');
    Cow::Owned(quoted)
}

/// Escapes lines of text. Tabs and line endings remain.
pub(crate) fn text(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unsafe_for_terminal) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match (character, characters.peek()) {
            ('\n' | '\t', _) | ('\r', Some('\n')) => escaped.push(character),
            (character, _) if is_unsafe_for_terminal(character) => {
                push_escape(&mut escaped, character)
            }
            (character, _) => escaped.push(character),
        }
    }
    Cow::Owned(escaped)
}

/// Escapes JSON on one line with JSON's own escapes. The value remains the same.
pub(crate) fn json(json: &str) -> Cow<'_, str> {
    if !json.contains(is_unsafe_for_terminal) {
        return Cow::Borrowed(json);
    }

    let mut escaped = String::with_capacity(json.len());
    for character in json.chars() {
        if is_unsafe_for_terminal(character) {
            for unit in character.encode_utf16(&mut [0; 2]) {
                escaped.push_str(&format!("\\u{unit:04x}"));
            }
        } else {
            escaped.push(character);
        }
    }
    Cow::Owned(escaped)
}

/// Returns whether a terminal may interpret the character instead of printing it in place. The
/// joiners U+200C and U+200D of letters and emoji are allowed.
fn is_unsafe_for_terminal(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{ad}'
                | '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'
                | '\u{200e}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

fn push_escape(text: &mut String, character: char) {
    let short = match character {
        '\x07' => "\\a",
        '\x08' => "\\b",
        '\t' => "\\t",
        '\n' => "\\n",
        '\x0b' => "\\v",
        '\x0c' => "\\f",
        '\r' => "\\r",
        '"' => "\\\"",
        '\\' => "\\\\",
        other => {
            for byte in other.encode_utf8(&mut [0; 4]).bytes() {
                text.push_str(&format!("\\{byte:03o}"));
            }
            return;
        }
    };
    text.push_str(short);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_as_git_quotes_them() {
        for (plain, shown) in [
            ("a b'c", "a b'c"),
            ("\u{e9}\u{65e5}\u{1f600}e\u{301}", "\u{e9}\u{65e5}\u{1f600}e\u{301}"),
            ("e\x1b[31mRED", r#""e\033[31mRED""#),
            ("a\nb\tc\r", r#""a\nb\tc\r""#),
            ("\x07\x08\x0b\x0c\x7f", r#""\a\b\v\f\177""#),
            (r#"a\b"c"#, r#""a\\b\"c""#),
            ("\u{9b}31m", r#""\302\23331m""#),
            ("\u{202e}txt.exe", r#""\342\200\256txt.exe""#),
            ("", ""),
        ] {
            assert_eq!(name(plain), shown);
        }
    }

    #[test]
    fn line_structure_is_preserved() {
        for (plain, shown) in [
            ("a\tb\r\nc\\\"\n", "a\tb\r\nc\\\"\n"),
            ("\x1b]0;title\x07\n", "\\033]0;title\\a\n"),
            ("over\rwritten\r", "over\\rwritten\\r"),
        ] {
            assert_eq!(text(plain), shown);
        }
    }

    #[test]
    fn escaped_json_has_the_same_value() {
        let value = serde_json::Value::from("\u{9b}\u{7f}\u{202e}\u{e0041}\x1b\u{e9}");
        let plain = value.to_string();
        let escaped = json(&plain);
        assert!(!escaped.contains(is_unsafe_for_terminal), "{escaped}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).unwrap(), value);
    }
}
