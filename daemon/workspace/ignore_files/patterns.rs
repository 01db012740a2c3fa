//! The patterns of one ignore file.
//!
//! Most lines, above all of a file that some program has written, name one file, one directory or
//! an ending (`*.o`). Those stand in a sorted table that takes a few bytes a line and is searched
//! in no time. The others are compiled by ripgrep's matcher, which makes up to 500 times as much of
//! them. What they mean is the same: the last line that matches decides.

use std::{cmp::Reverse, path::Path};

use ignore::{
    Match,
    gitignore::{Gitignore, GitignoreBuilder},
};

use super::super::cancel::CancelToken;
use crate::daemon::error::Error;

/// Lines that are compiled at once, and between two looks at the time. All lines of a large file
/// together would be too large for the matcher.
const MAX_LINES_PER_COMPILE: usize = 256;

/// The patterns of one file.
#[derive(Debug, Default)]
pub(super) struct IgnorePatterns {
    text: Vec<u8>,
    /// Sorted by what they match.
    literals: Vec<LiteralPattern>,
    /// In their order.
    wildcards: Vec<CompiledPatterns>,
    /// Bytes of the lines that are compiled.
    pub(super) wildcard_bytes: usize,
    /// Whether lines are missing: there was no room for them, or they are too large for the matcher.
    pub(super) is_truncated: bool,
}

/// A line without wildcards but for that before an ending.
#[derive(Debug, Clone, Copy)]
struct LiteralPattern {
    kind: LiteralKind,
    /// Where in the text stands what it matches.
    start: u32,
    end: u32,
    line: u32,
    directory_only: bool,
    is_negated: bool,
}

/// What a line names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum LiteralKind {
    /// Everything of this name.
    Name,
    /// One path.
    Path,
    /// Everything whose name ends so, from its last dot on.
    Extension,
}

/// Lines with wildcards.
#[derive(Debug)]
struct CompiledPatterns {
    last_line: u32,
    matcher: Gitignore,
}

/// What a line with wildcards is compiled from.
#[derive(Debug, Clone, Copy)]
struct WildcardLine<'t> {
    line: u32,
    text: &'t str,
}

impl IgnorePatterns {
    /// Understands the text of a file, of which lines with wildcards may take up `room` bytes; the
    /// others of these do not count. A line that is no pattern says nothing, as in git.
    pub(super) fn parse(text: Vec<u8>, room: usize, cancel: &CancelToken) -> Result<Self, Error> {
        let mut patterns = Self::default();
        let mut wild = Vec::new();
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
                if let Some(plain) = LiteralPattern::parse(line, start, number) {
                    patterns.literals.push(plain);
                } else if !line.is_empty() && !line.starts_with('#') {
                    let bytes = patterns.wildcard_bytes + line.len();
                    if bytes > room {
                        patterns.is_truncated = true;
                    } else {
                        patterns.wildcard_bytes = bytes;
                        wild.push(WildcardLine { line: number, text: line });
                    }
                }
            }
            start += end + 1;
        }
        for together in wild.chunks(MAX_LINES_PER_COMPILE) {
            patterns.compile(together, cancel)?;
        }
        patterns.sort_literals(&text);
        patterns.text = text;
        Ok(patterns)
    }

    /// Compiles lines together, or half of them at a time where they are too large.
    fn compile(&mut self, lines: &[WildcardLine<'_>], cancel: &CancelToken) -> Result<(), Error> {
        cancel.check()?;
        let mut builder = GitignoreBuilder::new("");
        for line in lines {
            // Where it comes from is what a match tells.
            let _understood = builder.add_line(Some(line.line.to_string().into()), line.text);
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

    /// Sorts the plain lines. Of those that match the same, the last one counts.
    fn sort_literals(&mut self, text: &[u8]) {
        let key = |plain: &LiteralPattern| (plain.kind, plain.key(text), plain.directory_only);
        self.literals
            .sort_unstable_by(|a, b| (key(a), Reverse(a.line)).cmp(&(key(b), Reverse(b.line))));
        self.literals.dedup_by(|later, first| key(later) == key(first));
        self.literals.shrink_to_fit();
    }

    /// What the last line that matches says about `path`: whether it is left out.
    pub(super) fn is_ignored(&self, path: &[u8], is_directory: bool) -> Option<bool> {
        let slash = memchr::memrchr(b'/', path);
        let name = slash.map_or(path, |slash| &path[slash + 1..]);
        let ending = memchr::memrchr(b'.', name).map(|dot| &name[dot..]);
        let plain = [
            self.find(LiteralKind::Name, name, is_directory),
            self.find(LiteralKind::Path, path, is_directory),
            ending.and_then(|ending| self.find(LiteralKind::Extension, ending, is_directory)),
        ];
        let plain = plain.into_iter().flatten().max_by_key(|plain| plain.line);
        let line = plain.map_or(0, |plain| plain.line);
        let later = self.wildcards.iter().rev();
        let compiled = later
            .take_while(|compiled| compiled.last_line > line)
            .find_map(|compiled| compiled.find(path, is_directory))
            .filter(|(found, _)| *found > line);
        compiled.map(|(_, left_out)| left_out).or(plain.map(|plain| !plain.is_negated))
    }

    fn find(&self, kind: LiteralKind, key: &[u8], is_directory: bool) -> Option<&LiteralPattern> {
        let wanted = (kind, key);
        let of = |plain: &LiteralPattern| (plain.kind, plain.key(&self.text));
        let first = self.literals.partition_point(|plain| of(plain) < wanted);
        self.literals[first..]
            .iter()
            .take_while(|plain| of(plain) == wanted)
            .filter(|plain| is_directory || !plain.directory_only)
            .max_by_key(|plain| plain.line)
    }
}

impl LiteralPattern {
    /// Understands a line that stands at `start`, if it has no wildcards.
    fn parse(line: &str, start: usize, number: u32) -> Option<Self> {
        let line = line.trim_end();
        if line.starts_with('#') {
            return None;
        }
        let (takes_in, rest) = match line.strip_prefix('!') {
            Some(rest) => (true, rest),
            None => (false, line),
        };
        let (is_anchored, rest) = match rest.strip_prefix('/') {
            Some(rest) => (true, rest),
            None => (false, rest),
        };
        let (is_only_directory, key) = match rest.strip_suffix('/') {
            Some(key) => (true, key),
            None => (false, rest),
        };
        let is_path = is_anchored || key.contains('/');
        let (kind, literal) = match key.strip_prefix('*') {
            Some(ending) if !is_path && ending.starts_with('.') && !ending[1..].contains('.') => {
                (LiteralKind::Extension, ending)
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
            directory_only: is_only_directory,
            is_negated: takes_in,
        })
    }

    fn key<'t>(&self, text: &'t [u8]) -> &'t [u8] {
        text.get(self.start as usize..self.end as usize).unwrap_or_default()
    }
}

impl CompiledPatterns {
    /// The last line that matches, and whether it leaves out.
    fn find(&self, path: &[u8], is_directory: bool) -> Option<(u32, bool)> {
        use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};

        let path = Path::new(OsStr::from_bytes(path));
        let (glob, left_out) = match self.matcher.matched(path, is_directory) {
            Match::None => return None,
            Match::Ignore(glob) => (glob, true),
            Match::Whitelist(glob) => (glob, false),
        };
        let line = glob.from()?.to_str()?.parse().ok()?;
        Some((line, left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> IgnorePatterns {
        IgnorePatterns::parse(text.into(), usize::MAX, &CancelToken::new()).unwrap()
    }

    /// A sequence that is always the same (Knuth's MMIX generator).
    fn random(mut state: u64) -> impl FnMut(usize) -> usize {
        move |below| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(state >> 33).unwrap() % below
        }
    }

    #[test]
    fn the_same_is_left_out_as_by_ripgreps_matcher() {
        const PARTS: &[&str] = &[
            "a", "b", "a", "b", ".o", "x.o", ".", "*", "*.o", "*.", "**", "?", "[ab]", "/", "/",
            "/", "!", "#", "\\", "\\#", " ", "{a,b}", "}", "]", "a.b.o", "\u{e9}", "\t",
        ];
        const NAMES: &[&str] =
            &["a", "b", "ab", "a.o", "x.o", ".o", "a.", "#", "!", "\u{e9}", "a b", "a.b.o"];
        let mut random = random(1);
        let (mut plain, mut compiled, mut decided) = (0, 0, 0);
        for _ in 0..1500 {
            let lines: Vec<String> = (0..1 + random(6))
                .map(|_| (0..1 + random(4)).map(|_| PARTS[random(PARTS.len())]).collect())
                .collect();
            let ours = parse(&lines.join("\n"));
            plain += ours.literals.len();
            compiled += ours.wildcards.len();
            let mut theirs = GitignoreBuilder::new("");
            for line in &lines {
                let _no_pattern = theirs.add_line(None, line);
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
                decided += usize::from(expected.is_some());
                assert_eq!(
                    ours.is_ignored(path.as_bytes(), is_directory),
                    expected,
                    "{lines:?} {path:?} {is_directory}"
                );
            }
        }
        assert!(plain > 1000 && compiled > 1000 && decided > 5000, "{plain} {compiled} {decided}");
    }

    #[test]
    fn a_large_file_takes_a_few_bytes_a_line() {
        let lines: String = (0..20_000).map(|line| format!("generated/{line}\n")).collect();
        let patterns = parse(&lines);
        assert_eq!((patterns.wildcard_bytes, patterns.is_truncated), (0, false));
        assert!(size_of::<LiteralPattern>() <= 24);
        assert_eq!(patterns.is_ignored(b"generated/19999", false), Some(true));
        assert_eq!(patterns.is_ignored(b"generated/20000", false), None);
        // The same line again and again is one.
        assert_eq!(parse(&"a\nb/\n*.o\n".repeat(1000)).literals.len(), 3);
    }

    #[test]
    fn what_there_is_no_room_for_does_not_count_and_the_rest_does() {
        let patterns =
            IgnorePatterns::parse(b"a*\nb*\nc*\nd\n".to_vec(), 4, &CancelToken::new()).unwrap();
        assert!(patterns.is_truncated);
        let left_out = [b"a1", b"b1", b"c1"].map(|path| patterns.is_ignored(path, false));
        assert_eq!(left_out, [Some(true), Some(true), None]);
        assert_eq!(patterns.is_ignored(b"d", false), Some(true));
        // Together they are too large for the matcher, and one of them is by itself.
        let large = format!("{}\n", "?".repeat(1000)).repeat(200) + "e*\n";
        let patterns = parse(&large);
        assert!(!patterns.is_truncated && patterns.wildcards.len() > 1);
        assert_eq!(patterns.is_ignored(b"e1", false), Some(true));
        let patterns = parse(&format!("{}\ne*\n", "?".repeat(200_000)));
        assert!(patterns.is_truncated);
        assert_eq!(patterns.is_ignored(b"e1", false), Some(true));
    }
}
