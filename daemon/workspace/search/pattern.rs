//! Compiles the query of a search, and holds its limits.

use grep_regex::{ErrorKind, RegexMatcher, RegexMatcherBuilder};

use crate::daemon::error::{Error, Reason};

/// Size of a compiled expression. In the worst case, a search takes this times the length of a
/// line. Cancellation is checked only between lines.
const MAX_REGEX_BYTES: usize = 2 << 20;
/// Size of the lazy DFA of the expression, per thread.
const MAX_DFA_CACHE_BYTES: usize = 16 << 20;

/// The query of a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SearchQuery<'a> {
    /// A literal string or a regular expression.
    pub(crate) text: &'a str,
    pub(crate) is_regex: bool,
    pub(crate) case_sensitive: bool,
    /// Whether a match may span lines.
    pub(crate) multiline: bool,
}

/// A compiled query. Each clone has its own caches.
#[derive(Debug, Clone)]
pub(crate) struct SearchPattern {
    matcher: RegexMatcher,
    multiline: bool,
}

impl SearchPattern {
    /// Compiles a query with the syntax of ripgrep.
    pub(crate) fn new(query: SearchQuery<'_>) -> Result<Self, Error> {
        let mut builder = RegexMatcherBuilder::new();
        builder
            .multi_line(true)
            .unicode(true)
            .octal(false)
            .fixed_strings(!query.is_regex)
            .case_insensitive(!query.case_sensitive)
            .size_limit(MAX_REGEX_BYTES)
            .dfa_size_limit(MAX_DFA_CACHE_BYTES)
            // Files that contain NUL are binary, and are not searched.
            .ban_byte(Some(b'\0'));
        if !query.multiline {
            builder.line_terminator(Some(b'\n'));
        }
        let matcher = builder.build(query.text).map_err(|error| {
            let problem = if let ErrorKind::NotAllowed(_) = error.kind() {
                "it contains a line ending, which requires `multiline`".into()
            } else {
                error.to_string()
            };
            Error::new(Reason::InvalidRegex, format!("the query is not valid: {problem}"))
        })?;
        Ok(Self { matcher, multiline: query.multiline })
    }

    pub(super) fn is_multiline(&self) -> bool {
        self.multiline
    }

    pub(super) fn matcher(&self) -> &RegexMatcher {
        &self.matcher
    }
}

/// A query and the limits of its results.
#[derive(Debug)]
pub(crate) struct SearchOptions {
    pub(crate) pattern: SearchPattern,
    /// Lines to return before and after each match.
    pub(crate) context_lines: usize,
    pub(crate) max_matches: usize,
    /// Limit for the returned lines. One match is returned even if it exceeds it.
    pub(crate) max_bytes: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_explain_invalid_queries() {
        let query = |text, is_regex, multiline| {
            SearchPattern::new(SearchQuery { text, is_regex, case_sensitive: false, multiline })
        };
        let deep = "(".repeat(1000) + &")".repeat(1000);
        for (text, is_regex, multiline, problem) in [
            ("(", true, false, "unclosed group"),
            ("a{2,1}", true, false, "repetition"),
            ("\\p{Nothing}", true, false, "Unicode property"),
            ("(\\w{1000}){1000}", true, false, "size limit"),
            (&deep, true, false, "nest"),
            ("a\\nb", true, false, "`multiline`"),
            ("a\nb", false, false, "`multiline`"),
            ("a\0b", false, false, "impossible to match"),
            ("(?-u)\\x00", true, true, "impossible to match"),
            ("(?<=a)b", true, false, "look-around"),
        ] {
            let error = query(text, is_regex, multiline).unwrap_err();
            assert_eq!(error.reason, Reason::InvalidRegex, "{text:.20}");
            assert!(error.message.contains(problem), "{text:.20}: {error}");
        }
        for (text, is_regex, multiline) in [
            ("(", false, false),
            ("\u{1f600}\u{e9}", false, false),
            ("a\nb", false, true),
            ("a\\nb", true, true),
            ("^\\s*$", true, false),
            ("[^x]", true, false),
            ("\\w{20}", true, false),
            ("\\b\\w+\\s*=\\s*\\w+\\(.*\\)\\b", true, false),
            ("(?:\\d{1,3}\\.){3}\\d{1,3}", true, true),
            ("[0-9a-f]{64}", true, false),
        ] {
            query(text, is_regex, multiline).unwrap();
        }
    }
}
