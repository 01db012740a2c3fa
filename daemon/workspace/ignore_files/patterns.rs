//! The patterns of one ignore file.
//!
//! Most lines, above all in generated files, name one file, one directory or an extension (`*.o`).
//! These are stored in a sorted table, at a few bytes per line. The other lines are compiled by
//! ripgrep's matcher, which takes up to 500 times the space. The semantics are the same for both:
//! the last line that matches decides.

use std::{cmp::Reverse, path::Path};

use ignore::{
    Match,
    gitignore::{Gitignore, GitignoreBuilder},
};

use super::super::cancel::CancelToken;
use crate::daemon::error::Error;

/// Lines compiled at once, between two cancellation checks. All lines of a large file together
/// would exceed the limits of the matcher.
const MAX_LINES_PER_COMPILE: usize = 256;

/// The patterns of one file.
#[derive(Debug, Default)]
pub(super) struct IgnorePatterns {
    text: Vec<u8>,
    /// Sorted by kind and key.
    literals: Vec<LiteralPattern>,
    /// In the order of their lines.
    wildcards: Vec<CompiledPatterns>,
    /// Size of the compiled lines.
    pub(super) wildcard_bytes: usize,
    /// Whether lines were omitted, for lack of budget or because they are too large for the
    /// matcher.
    pub(super) is_truncated: bool,
}

/// A line without wildcards, except for the one before an extension.
#[derive(Debug, Clone, Copy)]
struct LiteralPattern {
    kind: LiteralKind,
    /// Range of the key in the text.
    start: u32,
    end: u32,
    line: u32,
    directory_only: bool,
    is_negated: bool,
}

/// What a literal pattern matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum LiteralKind {
    /// All entries with this name.
    Name,
    /// One path.
    Path,
    /// All entries whose name has this extension, the part from its last dot on.
    Extension,
}

/// Compiled lines with wildcards.
#[derive(Debug)]
struct CompiledPatterns {
    last_line: u32,
    matcher: Gitignore,
}

/// A line with wildcards.
#[derive(Debug, Clone, Copy)]
struct WildcardLine<'t> {
    line: u32,
    text: &'t str,
}

impl IgnorePatterns {
    /// Parses the text of a file. Lines with wildcards beyond `wildcard_budget` bytes are omitted.
    /// Lines that are not valid patterns are ignored, as in git.
    pub(super) fn parse(
        text: Vec<u8>,
        wildcard_budget: usize,
        cancel: &CancelToken,
    ) -> Result<Self, Error> {
        let mut patterns = Self::default();
        let mut wildcard_lines = Vec::new();
        let mut start = if text.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
        let mut number = 0_u32;
        while let Some(rest) = text.get(start..).filter(|rest| !rest.is_empty()) {
            if number.is_multiple_of(4096) {
                cancel.check()?;
            }
            number += 1;

            let end = memchr::memchr(b'\n', rest).unwrap_or(rest.len());
            if let Ok(line) = str::from_utf8(&rest[..end]) {
                let line = line.strip_suffix('\r').unwrap_or(line);
                if let Some(literal) = LiteralPattern::parse(line, start, number) {
                    patterns.literals.push(literal);
                } else if !line.is_empty() && !line.starts_with('#') {
                    let bytes = patterns.wildcard_bytes + line.len();
                    if bytes > wildcard_budget {
                        patterns.is_truncated = true;
                    } else {
                        patterns.wildcard_bytes = bytes;
                        wildcard_lines.push(WildcardLine { line: number, text: line });
                    }
                }
            }
            start += end + 1;
        }

        for lines in wildcard_lines.chunks(MAX_LINES_PER_COMPILE) {
            patterns.compile(lines, cancel)?;
        }
        patterns.sort_literals(&text);
        patterns.text = text;
        Ok(patterns)
    }

    /// Compiles lines together, or in halves if they are too large.
    fn compile(&mut self, lines: &[WildcardLine<'_>], cancel: &CancelToken) -> Result<(), Error> {
        cancel.check()?;
        let mut builder = GitignoreBuilder::new("");
        for line in lines {
            // A match reports this source, from which `CompiledPatterns::find` reads the line.
            let _is_valid = builder.add_line(Some(line.line.to_string().into()), line.text);
        }
        match (builder.build(), lines) {
            (Ok(matcher), [.., last]) if !matcher.is_empty() => {
                self.wildcards.push(CompiledPatterns { last_line: last.line, matcher })
            }
            (Ok(_), _) => {}
            (Err(_), [_, _, ..]) => {
                let (first, second) = lines.split_at(lines.len() / 2);
                self.compile(first, cancel)?;
                self.compile(second, cancel)?;
            }
            (Err(_), _) => self.is_truncated = true,
        }
        Ok(())
    }

    /// Sorts the literal lines, and keeps the last of equal ones.
    fn sort_literals(&mut self, text: &[u8]) {
        let key =
            |literal: &LiteralPattern| (literal.kind, literal.key(text), literal.directory_only);
        self.literals
            .sort_unstable_by(|a, b| (key(a), Reverse(a.line)).cmp(&(key(b), Reverse(b.line))));
        self.literals.dedup_by(|later, first| key(later) == key(first));
        self.literals.shrink_to_fit();
    }

    /// Whether `path` is ignored, according to the last line that matches. `None` if none does.
    pub(super) fn is_ignored(&self, path: &[u8], is_directory: bool) -> Option<bool> {
        let slash = memchr::memrchr(b'/', path);
        let name = slash.map_or(path, |slash| &path[slash + 1..]);
        let extension = memchr::memrchr(b'.', name).map(|dot| &name[dot..]);
        let literals = [
            self.find(LiteralKind::Name, name, is_directory),
            self.find(LiteralKind::Path, path, is_directory),
            extension.and_then(|key| self.find(LiteralKind::Extension, key, is_directory)),
        ];
        let literal = literals.into_iter().flatten().max_by_key(|literal| literal.line);

        // Only wildcards in later lines take precedence.
        let line = literal.map_or(0, |literal| literal.line);
        let wildcard = self
            .wildcards
            .iter()
            .rev()
            .take_while(|compiled| compiled.last_line > line)
            .find_map(|compiled| compiled.find(path, is_directory))
            .filter(|(found, _)| *found > line);
        wildcard.map(|(_, is_ignored)| is_ignored).or(literal.map(|literal| !literal.is_negated))
    }

    fn find(&self, kind: LiteralKind, key: &[u8], is_directory: bool) -> Option<&LiteralPattern> {
        let wanted = (kind, key);
        let key_of = |literal: &LiteralPattern| (literal.kind, literal.key(&self.text));
        let first = self.literals.partition_point(|literal| key_of(literal) < wanted);
        self.literals[first..]
            .iter()
            .take_while(|literal| key_of(literal) == wanted)
            .filter(|literal| is_directory || !literal.directory_only)
            .max_by_key(|literal| literal.line)
    }
}

impl LiteralPattern {
    /// Parses a line at offset `start`. `None` if it has wildcards.
    fn parse(line: &str, start: usize, number: u32) -> Option<Self> {
        let line = line.trim_end();
        if line.starts_with('#') {
            return None;
        }

        let (is_negated, rest) = match line.strip_prefix('!') {
            Some(rest) => (true, rest),
            None => (false, line),
        };
        let (is_anchored, rest) = match rest.strip_prefix('/') {
            Some(rest) => (true, rest),
            None => (false, rest),
        };
        let (directory_only, key) = match rest.strip_suffix('/') {
            Some(key) => (true, key),
            None => (false, rest),
        };

        let is_path = is_anchored || key.contains('/');
        let (kind, literal) = match key.strip_prefix('*') {
            Some(name) if !is_path && name.starts_with('.') && !name[1..].contains('.') => {
                (LiteralKind::Extension, name)
            }
            _ if is_path => (LiteralKind::Path, key),
            _ => (LiteralKind::Name, key),
        };

        if literal.is_empty() || literal.contains(['*', '?', '[', ']', '{', '}', '\\']) {
            return None;
        }
        let start = start + line.len() - rest.len() + key.len() - literal.len();
        Some(Self {
            kind,
            start: u32::try_from(start).ok()?,
            end: u32::try_from(start + literal.len()).ok()?,
            line: number,
            directory_only,
            is_negated,
        })
    }

    fn key<'t>(&self, text: &'t [u8]) -> &'t [u8] {
        text.get(self.start as usize..self.end as usize).unwrap_or_default()
    }
}

impl CompiledPatterns {
    /// Returns the last line that matches, and whether it ignores the path.
    fn find(&self, path: &[u8], is_directory: bool) -> Option<(u32, bool)> {
        use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};

        let path = Path::new(OsStr::from_bytes(path));
        let (glob, is_ignored) = match self.matcher.matched(path, is_directory) {
            Match::None => return None,
            Match::Ignore(glob) => (glob, true),
            Match::Whitelist(glob) => (glob, false),
        };
        let line = glob.from()?.to_str()?.parse().ok()?;
        Some((line, is_ignored))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> IgnorePatterns {
        IgnorePatterns::parse(text.into(), usize::MAX, &CancelToken::new()).unwrap()
    }

    /// Deterministic pseudorandom numbers (Knuth's MMIX generator).
    fn random(mut state: u64) -> impl FnMut(usize) -> usize {
        move |limit| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(state >> 33).unwrap() % limit
        }
    }

    #[test]
    fn decisions_match_those_of_ripgreps_matcher() {
        const PARTS: &[&str] = &[
            "a", "b", "a", "b", ".o", "x.o", ".", "*", "*.o", "*.", "**", "?", "[ab]", "/", "/",
            "/", "!", "#", "\\", "\\#", " ", "{a,b}", "}", "]", "a.b.o", "\u{e9}", "\t",
        ];
        const NAMES: &[&str] =
            &["a", "b", "ab", "a.o", "x.o", ".o", "a.", "#", "!", "\u{e9}", "a b", "a.b.o"];
        let mut random = random(1);
        let (mut literals, mut wildcards, mut decisions) = (0, 0, 0);
        for _ in 0..1500 {
            let lines: Vec<String> = (0..1 + random(6))
                .map(|_| (0..1 + random(4)).map(|_| PARTS[random(PARTS.len())]).collect())
                .collect();
            let ours = parse(&lines.join("\n"));
            literals += ours.literals.len();
            wildcards += ours.wildcards.len();
            let mut theirs = GitignoreBuilder::new("");
            for line in &lines {
                let _is_valid = theirs.add_line(None, line);
            }
            let theirs = theirs.build().unwrap();
            for _ in 0..20 {
                let path: Vec<&str> =
                    (0..1 + random(3)).map(|_| NAMES[random(NAMES.len())]).collect();
                let (path, is_directory) = (path.join("/"), random(2) == 0);
                let expected = match theirs.matched(&path, is_directory) {
                    Match::None => None,
                    Match::Ignore(_) => Some(true),
                    Match::Whitelist(_) => Some(false),
                };
                decisions += usize::from(expected.is_some());
                assert_eq!(
                    ours.is_ignored(path.as_bytes(), is_directory),
                    expected,
                    "{lines:?} {path:?} {is_directory}"
                );
            }
        }
        assert!(
            literals > 1000 && wildcards > 1000 && decisions > 5000,
            "{literals} {wildcards} {decisions}"
        );
    }

    #[test]
    fn large_file_takes_a_few_bytes_per_line() {
        let lines: String = (0..20_000).map(|line| format!("generated/{line}\n")).collect();
        let patterns = parse(&lines);
        assert_eq!((patterns.wildcard_bytes, patterns.is_truncated), (0, false));
        assert!(size_of::<LiteralPattern>() <= 24);
        assert_eq!(patterns.is_ignored(b"generated/19999", false), Some(true));
        assert_eq!(patterns.is_ignored(b"generated/20000", false), None);
        // Repeated lines are stored once.
        assert_eq!(parse(&"a\nb/\n*.o\n".repeat(1000)).literals.len(), 3);
    }

    #[test]
    fn lines_beyond_the_budget_are_omitted_and_the_rest_applies() {
        let patterns =
            IgnorePatterns::parse(b"a*\nb*\nc*\nd\n".to_vec(), 4, &CancelToken::new()).unwrap();
        assert!(patterns.is_truncated);
        let ignored = [b"a1", b"b1", b"c1"].map(|path| patterns.is_ignored(path, false));
        assert_eq!(ignored, [Some(true), Some(true), None]);
        assert_eq!(patterns.is_ignored(b"d", false), Some(true));
        // All lines together are too large for the matcher, then one line alone.
        let large = format!("{}\n", "?".repeat(1000)).repeat(200) + "e*\n";
        let patterns = parse(&large);
        assert!(!patterns.is_truncated && patterns.wildcards.len() > 1);
        assert_eq!(patterns.is_ignored(b"e1", false), Some(true));
        let patterns = parse(&format!("{}\ne*\n", "?".repeat(200_000)));
        assert!(patterns.is_truncated);
        assert_eq!(patterns.is_ignored(b"e1", false), Some(true));
    }
}
