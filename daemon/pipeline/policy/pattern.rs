//! Regular expressions of policy rules.

#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "the other variants of the error enums of the regex crates"
)]

use regex::{Regex, RegexBuilder};
use regex_syntax::ast::{self, ErrorKind};

pub(super) const MAX_PATTERN_BYTES: usize = 16 << 10;
/// Limit on a compiled pattern: the size of the longest literal pattern. Time and memory grow with
/// it; only patterns that repeat large parts many times exceed it.
const MAX_COMPILED_PATTERN_BYTES: usize = 640 << 10;
/// Cache of the lazy DFA. With less, many patterns match much more slowly.
const MAX_DFA_CACHE_BYTES: usize = 1 << 20;
/// Most `{` that are escaped in a pattern. Each one costs another parse of the pattern.
const MAX_LITERAL_BRACES: usize = 256;

/// A regular expression that matches anywhere in a text, in time linear in the text.
#[derive(Debug, Clone)]
pub(crate) struct RulePattern {
    source: String,
    regex: Regex,
}

impl RulePattern {
    /// Compiles a pattern. The error is one line of text.
    pub(crate) fn parse(written: &str) -> Result<Self, String> {
        if written.len() > MAX_PATTERN_BYTES {
            return Err(format!(
                "has {} bytes, at most {MAX_PATTERN_BYTES} are allowed",
                written.len()
            ));
        }

        let regex = RegexBuilder::new(&escape_literal_braces(written)?)
            .size_limit(MAX_COMPILED_PATTERN_BYTES)
            .dfa_size_limit(MAX_DFA_CACHE_BYTES)
            .build()
            .map_err(|error| match error {
                regex::Error::CompiledTooBig(_) => {
                    "is too large when compiled: make it simpler".to_owned()
                }
                other => one_line(&other.to_string()),
            })?;
        Ok(Self { source: written.to_owned(), regex })
    }

    /// Returns the pattern as it was written.
    pub(crate) fn as_str(&self) -> &str {
        &self.source
    }

    pub(crate) fn is_match(&self, text: &str) -> bool {
        self.regex.is_match(text)
    }
}

/// Escapes each `{` that starts no repetition, because patterns for JSON are full of them. The
/// parser itself finds them, so that both agree on escapes, classes and flags.
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
        "has more than {MAX_LITERAL_BRACES} braces that start no repetition: write each as \\{{"
    ))
}

/// Returns the position of the `{` that the parser rejects as the start of a repetition.
fn literal_brace_offset(pattern: &str, error: &ast::Error) -> Option<usize> {
    let start = error.span().start.offset;
    let (before, from) = pattern.split_at_checked(start)?;
    match error.kind() {
        ErrorKind::RepetitionMissing | ErrorKind::RepetitionCountUnclosed => {
            from.starts_with('{').then_some(start)
        }
        // The error points after the brace.
        ErrorKind::RepetitionCountDecimalEmpty => before.rfind('{'),
        _ => None,
    }
}

/// Returns the text at which the parser failed.
fn excerpt_at_error(pattern: &str, error: &ast::Error) -> String {
    let rest = pattern.get(error.span().start.offset..).unwrap_or_default();
    format!("{:?}", rest.chars().take(20).collect::<String>())
}

fn one_line(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brace_that_starts_no_repetition_is_literal() {
        for (written, expected) in [
            // The example of the specification (D14).
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
            // The parser takes this one for a valid repetition.
            (r#"{"a":{2}}"#, r#"\{"a":{2}}"#),
            (r#""é{": {"ü"#, r#""é\{": \{"ü"#),
            // A brace that starts a repetition, or cannot start one, is left alone.
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
    fn ordinary_patterns_compile() {
        let long = "x".repeat(MAX_PATTERN_BYTES);
        for written in [r#""path":"[^"]{0,255}""#, ".{0,100}x", &long] {
            RulePattern::parse(written).unwrap();
        }
    }

    #[test]
    fn invalid_pattern_gives_a_one_line_error() {
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
            (&long, "at most 16384"),
        ] {
            let problem = RulePattern::parse(written).unwrap_err();
            assert!(problem.contains(part), "{part}: {problem}");
            assert_eq!(problem.lines().count(), 1, "{problem}");
        }
    }

    /// Random patterns: those that the parser accepts are unchanged; the others only gain
    /// backslashes before braces.
    #[test]
    fn escaping_changes_only_literal_braces() {
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

    /// Whether `found` is `written` with backslashes added before braces.
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
                // Both have a backslash here: the added one stands after the written one.
                found.next();
            }
        }

        rest.next().is_none()
    }
}
