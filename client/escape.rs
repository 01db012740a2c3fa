//! Text that others chose, shown so that it is only text.
//!
//! Commands in the workspace choose the names of files and what is in them, and a terminal takes
//! some characters as orders: to move, to colour, to answer, to write what follows from right to
//! left. Those are written as escapes, `\033`, as git and `ls -b` do. Bytes that are printed as they
//! are, by `read`, `run` and `artifact`, do not come here: as with `cat`, they are what was asked
//! for.

use std::borrow::Cow;

/// A name: as it is, or as git writes it, in quotes with escapes, when it holds a character that
/// would do something else than be seen, a quote or a backslash.
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

/// Lines of text, with escapes in place of what would do something else than be seen. Tabs and line
/// endings stay.
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

/// JSON on one line, with escapes of its own: the same value.
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

/// Whether a terminal does something else with it than showing it where it stands. The two joiners
/// of letters and pictures, U+200C and U+200D, are left to them.
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
    fn lines_stay_lines() {
        for (plain, shown) in [
            ("a\tb\r\nc\\\"\n", "a\tb\r\nc\\\"\n"),
            ("\x1b]0;title\x07\n", "\\033]0;title\\a\n"),
            ("over\rwritten\r", "over\\rwritten\\r"),
        ] {
            assert_eq!(text(plain), shown);
        }
    }

    #[test]
    fn json_stays_what_it_is() {
        let value = serde_json::Value::from("\u{9b}\u{7f}\u{202e}\u{e0041}\x1b\u{e9}");
        let plain = value.to_string();
        let escaped = json(&plain);
        assert!(!escaped.contains(is_unsafe_for_terminal), "{escaped}");
        assert_eq!(serde_json::from_str::<serde_json::Value>(&escaped).unwrap(), value);
    }
}
