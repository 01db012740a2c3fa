//! What to look for, and how much of it.

use grep_regex::{ErrorKind, RegexMatcher, RegexMatcherBuilder};

use crate::daemon::error::{Error, Reason};

/// Most bytes that a compiled expression may take up. In the worst case a search takes this times
/// the length of a line: between two lines alone it looks at the time.
const MAX_REGEX_BYTES: usize = 2 << 20;
/// Most bytes of the tables that are made of it while it searches, in each thread.
const MAX_DFA_CACHE_BYTES: usize = 16 << 20;

/// What a request says to look for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SearchQuery<'a> {
    /// A text, or a regular expression.
    pub(crate) text: &'a str,
    /// Which of the two.
    pub(crate) is_regex: bool,
    /// Whether upper and lower case differ.
    pub(crate) case_sensitive: bool,
    /// Whether a match may span lines.
    pub(crate) multiline: bool,
}

/// What to look for, compiled. A clone has its own working memory.
#[derive(Debug, Clone)]
pub(crate) struct SearchPattern {
    matcher: RegexMatcher,
    multiline: bool,
}

impl SearchPattern {
    /// Understands a query as ripgrep does.
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
            // Files that hold it are not searched.
            .ban_byte(Some(b'\0'));
        if !query.multiline {
            builder.line_terminator(Some(b'\n'));
        }
        let matcher = builder.build(query.text).map_err(|error| {
            let problem = if let ErrorKind::NotAllowed(_) = error.kind() {
                "it holds a line ending, which only a match with `multiline` can have".into()
            } else {
                error.to_string()
            };
            Error::new(Reason::InvalidRegex, format!("the query cannot be searched for: {problem}"))
        })?;
        Ok(Self { matcher, multiline: query.multiline })
    }

    /// Whether a match may span lines.
    pub(super) fn is_multiline(&self) -> bool {
        self.multiline
    }

    /// The compiled expression.
    pub(super) fn matcher(&self) -> &RegexMatcher {
        &self.matcher
    }
}

/// What is asked of a search.
#[derive(Debug)]
pub(crate) struct SearchOptions {
    /// What to look for.
    pub(crate) pattern: SearchPattern,
    /// Lines to keep before and after each match.
    pub(crate) context_lines: usize,
    /// Most matches.
    pub(crate) max_matches: usize,
    /// Most bytes of lines, but for one match.
    pub(crate) max_bytes: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_searched_for_says_why() {
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
