//! The regular expressions of rules.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "all that else can be wrong with a pattern, in enums of another crate"
)]

use regex::{Regex, RegexBuilder};
use regex_syntax::ast::{self, ErrorKind};

/// Longest pattern, in bytes.
pub(super) const MAX_PATTERN_BYTES: usize = 16 << 10;
/// Bytes that a pattern may have once it is compiled: the longest text by itself takes so many. Time and
/// memory grow with them, and what takes more repeats something large many times.
const MAX_COMPILED_PATTERN_BYTES: usize = 640 << 10;
/// Bytes of what is remembered while a pattern is searched for: with fewer, many are searched for much more
/// slowly.
const MAX_DFA_CACHE_BYTES: usize = 1 << 20;
/// Most braces that are taken for themselves: the pattern is read once more for each.
const MAX_LITERAL_BRACES: usize = 256;

/// A regular expression that is searched for, wherever it matches, in time that is linear in the text.
#[derive(Debug, Clone)]
pub(crate) struct RulePattern {
    source: String,
    regex: Regex,
}

impl RulePattern {
    /// Reads a pattern; what is wrong with it is told on one line.
    pub(crate) fn parse(written: &str) -> Result<Self, String> {
        if written.len() > MAX_PATTERN_BYTES {
            return Err(format!("has {} bytes; {MAX_PATTERN_BYTES} are the most", written.len()));
        }
        let regex = RegexBuilder::new(&escape_literal_braces(written)?)
            .size_limit(MAX_COMPILED_PATTERN_BYTES)
            .dfa_size_limit(MAX_DFA_CACHE_BYTES)
            .build();
        let regex = regex.map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => {
                "is too large when it is compiled: make it simpler".to_owned()
            }
            other => one_line(&other.to_string()),
        })?;
        Ok(Self { source: written.to_owned(), regex })
    }

    /// As it was written.
    pub(crate) fn as_str(&self) -> &str {
        &self.source
    }

    /// Whether it matches somewhere in `text`.
    pub(crate) fn is_match(&self, text: &str) -> bool {
        self.regex.is_match(text)
    }
}

/// The pattern with a backslash before each `{` that starts no repetition: JSON is full of them. The parser
/// itself says which these are, so that it cannot be of another mind about escapes, classes and flags.
fn escape_literal_braces(written: &str) -> Result<String, String> {
    let mut pattern = written.to_owned();
    for _ in 0..=MAX_LITERAL_BRACES {
        let error = match ast::parse::Parser::new().parse(&pattern) {
            Ok(_) => return Ok(pattern),
            Err(error) => error,
        };
        let offset = literal_brace_offset(&pattern, &error).ok_or_else(|| {
            one_line(&format!("{}: {}", error.kind(), excerpt_at_error(&pattern, &error)))
        })?;
        pattern.insert(offset, '\\');
    }
    Err(format!(
        "has more than {MAX_LITERAL_BRACES} braces that start no repetition: write them as \\{{"
    ))
}

/// Where the brace is that the parser takes for the start of a repetition, and finds none.
fn literal_brace_offset(pattern: &str, error: &ast::Error) -> Option<usize> {
    let start = error.span().start.offset;
    let (before, from) = pattern.split_at_checked(start)?;
    match error.kind() {
        ErrorKind::RepetitionMissing | ErrorKind::RepetitionCountUnclosed => {
            from.starts_with('{').then_some(start)
        }
        // What is wrong comes behind the brace then.
        ErrorKind::RepetitionCountDecimalEmpty => before.rfind('{'),
        _ => None,
    }
}

/// What the parser stumbled over.
fn excerpt_at_error(pattern: &str, error: &ast::Error) -> String {
    let rest = pattern.get(error.span().start.offset..).unwrap_or_default();
    format!("{:?}", rest.chars().take(20).collect::<String>())
}

fn one_line(text: &str) -> String {
    let lines = text.lines().map(str::trim);
    let lines: Vec<_> = lines.filter(|line| !line.is_empty()).collect();
    lines.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_brace_that_starts_no_repetition_stands_for_itself() {
        for (written, expected) in [
            // As the document has it.
            (r#"^{"path":".*\.txt"}$"#, r#"^\{"path":".*\.txt"}$"#),
            ("{", r"\{"),
            ("{}", r"\{}"),
            ("{2}", r"\{2}"),
            ("a{", r"a\{"),
            ("a{2", r"a\{2"),
            ("a{2,", r"a\{2,"),
            ("a{,2}", r"a\{,2}"),
            ("a{ }", r"a\{ }"),
            ("({2}|{3})", r"(\{2}|\{3})"),
            (r#"{"a":{"b":{}}}"#, r#"\{"a":\{"b":\{}}}"#),
            // Nobody can tell this one from two colons.
            (r#"{"a":{2}}"#, r#"\{"a":{2}}"#),
            (r#""é{": {"ü"#, r#""é\{": \{"ü"#),
            // Those that start one, or stand where none can, stay.
            ("a{2}", "a{2}"),
            ("a{2,}", "a{2,}"),
            ("a{2,3}?", "a{2,3}?"),
            (r"\{", r"\{"),
            (r"\\{2}", r"\\{2}"),
            (r"\\{x", r"\\\{x"),
            ("[{]", "[{]"),
            ("[^{}]{3}", "[^{}]{3}"),
            ("[[{]a]", "[[{]a]"),
            (r"\x{7b}{2}", r"\x{7b}{2}"),
            (r"\p{Greek}{x}", r"\p{Greek}\{x}"),
            (r"\b{start}a", r"\b{start}a"),
            ("(?x) a { 2 , 3 } # {", "(?x) a { 2 , 3 } # {"),
            ("(?x) a { b", r"(?x) a \{ b"),
        ] {
            let found = escape_literal_braces(written);
            assert_eq!(found.as_deref(), Ok(expected), "{written}");
            RulePattern::parse(written).unwrap();
        }
        let pattern = RulePattern::parse(r#"^{"path":".*\.txt"}$"#).unwrap();
        assert!(pattern.is_match(r#"{"path":"test.txt"}"#));
        assert!(!pattern.is_match(r#"{"path":"test.text"}"#));
        assert_eq!(pattern.as_str(), r#"^{"path":".*\.txt"}$"#);
    }

    #[test]
    fn what_people_write_is_not_too_large() {
        let long = "x".repeat(MAX_PATTERN_BYTES);
        for written in [r#""path":"[^"]{0,255}""#, ".{0,100}x", &long] {
            RulePattern::parse(written).unwrap();
        }
    }

    #[test]
    fn what_cannot_be_read_is_refused_on_one_line() {
        let many = "{".repeat(MAX_LITERAL_BRACES + 2);
        let long = "a".repeat(MAX_PATTERN_BYTES + 1);
        for (written, part) in [
            ("(", "unclosed group"),
            ("a{3,2}", "invalid repetition"),
            ("a{99999999999}", "decimal"),
            ("*", "missing expression"),
            ("[a", "unclosed character class"),
            (r"(a)\1", "backreferences"),
            ("(?=a)", "look-around"),
            ("(a{1000}){1000}", "too large"),
            ("a.{0,300}b.{0,300}c.{0,300}zz", "too large"),
            (&many, "more than 256 braces"),
            (&long, "16384 are the most"),
        ] {
            let problem = RulePattern::parse(written).unwrap_err();
            assert!(problem.contains(part), "{part}: {problem}");
            assert_eq!(problem.lines().count(), 1, "{problem}");
        }
    }

    /// Whatever is put together: what the parser takes is left as it is, and whatever is taken only with
    /// braces for themselves means what they say.
    #[test]
    fn nothing_else_is_changed() {
        const PARTS: [&str; 22] = [
            "{", "}", "{2}", "{2,", "{2,3}", "\"a\":", "\\", "\\{", "\\x{41}", "\\p{L}", "[", "]",
            "(", ")", "|", "a", "*", "^", "$", ",", "(?x)", "é",
        ];
        // xorshift (Marsaglia, 2003): the same sequence each time.
        let mut state = 0x9e37_79b9_u32;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state as usize
        };
        let mut changed = 0;
        for _ in 0..20_000 {
            let count = next() % 9;
            let written: String = (0..count).map(|_| PARTS[next() % PARTS.len()]).collect();
            let plain = ast::parse::Parser::new().parse(&written).is_ok();
            let Ok(found) = escape_literal_braces(&written) else {
                assert!(!plain, "{written}");
                continue;
            };
            if plain {
                assert_eq!(found, written);
            } else {
                changed += 1;
                assert!(is_escaped(&found, &written), "{found} {written}");
            }
        }
        assert!(changed > 1000, "{changed}");
    }

    /// Whether it is the same but for backslashes before braces.
    fn is_escaped(found: &str, written: &str) -> bool {
        let mut rest = written.chars().peekable();
        let mut found = found.chars().peekable();
        while let Some(character) = found.next() {
            if rest.next_if_eq(&character).is_none() {
                let is_added = character == '\\' && found.peek() == Some(&'{');
                if !is_added {
                    return false;
                }
            } else if character == '\\' && rest.peek() == Some(&'{') && found.peek() == Some(&'\\')
            {
                // Both begin alike: an added one stands behind a written one.
                found.next();
            }
        }
        rest.next().is_none()
    }
}
