//! Collects the matches of one file, with their context.

use std::{collections::VecDeque, io, ops::Range};

use grep_matcher::Matcher as _;
use grep_searcher::{Searcher, Sink, SinkContext, SinkMatch};

use super::{
    cancellable_reader::CancellableReader,
    pattern::{SearchOptions, SearchPattern},
};
use crate::daemon::workspace::cancel::CancelToken;

/// Returned part of a line.
const MAX_LINE_BYTES: usize = 2000;
/// Returned part of the lines that one match spans.
const MAX_MATCH_BYTES: usize = 8 * MAX_LINE_BYTES;
/// Marks the place where a line was cut.
const ELLIPSIS: &str = "\u{2026}";
/// Bytes after a match that can decide whether it is one, such as the character of a word boundary.
/// ripgrep uses the same number.
const MAX_LOOK_AHEAD_BYTES: usize = 128;
/// Approximate cost of a match, and of each line around it, in addition to the text.
const ENTRY_OVERHEAD_BYTES: usize = 16;

#[derive(Debug)]
pub(crate) struct Match {
    /// First line, counted from 1.
    pub(crate) line: u64,
    /// First byte in that line, counted from 1.
    pub(crate) column: u64,
    /// The line, or all lines of the match.
    pub(crate) content: String,
    /// Context lines before the match.
    pub(crate) before: Vec<String>,
    /// Context lines after the match.
    pub(crate) after: Vec<String>,
}

impl Match {
    /// Approximate size in a response.
    pub(super) fn encoded_size(&self) -> usize {
        let context = self.before.iter().chain(&self.after);
        let context_bytes: usize = context.map(|line| line.len() + ENTRY_OVERHEAD_BYTES).sum();
        self.content.len() + context_bytes + ENTRY_OVERHEAD_BYTES
    }
}

/// The matches of one file.
#[derive(Debug)]
pub(super) struct FileMatches {
    /// Number of all matches.
    pub(super) total: u64,
    /// The first matches.
    pub(super) matches: Vec<Match>,
    /// Size of the first matches.
    pub(super) bytes: usize,
}

/// Receives the matches of one file from the engine.
#[derive(Debug)]
pub(super) struct MatchCollector<'a> {
    options: &'a SearchOptions,
    pattern: &'a SearchPattern,
    cancel: &'a CancelToken,
    /// Whether matches are collected, or only counted.
    collects: bool,
    total: u64,
    matches: Vec<Match>,
    bytes: usize,
    /// The last lines from the engine, with their numbers, as many as precede a match.
    recent_lines: VecDeque<(u64, String)>,
    /// Last lines of the matches that still receive context. These are the last of `matches`.
    awaiting_context: VecDeque<u64>,
}

impl<'a> MatchCollector<'a> {
    pub(super) fn new(options: &'a SearchOptions, cancel: &'a CancelToken, collects: bool) -> Self {
        Self::with_pattern(options, &options.pattern, cancel, collects)
    }

    /// Uses a thread's own clone of the pattern.
    pub(super) fn with_pattern(
        options: &'a SearchOptions,
        pattern: &'a SearchPattern,
        cancel: &'a CancelToken,
        collects: bool,
    ) -> Self {
        Self {
            options,
            pattern,
            cancel,
            collects,
            total: 0,
            matches: Vec::new(),
            bytes: 0,
            recent_lines: VecDeque::new(),
            awaiting_context: VecDeque::new(),
        }
    }

    /// Searches a file. After an error, the collector keeps the matches before it.
    pub(super) fn search(
        &mut self,
        searcher: &mut Searcher,
        content: CancellableReader<'_>,
    ) -> io::Result<()> {
        let pattern = self.pattern;
        searcher.search_reader(pattern.matcher(), content, self)
    }

    /// Ends the file: returns its matches, with the context after the last one.
    pub(super) fn finish(mut self) -> FileMatches {
        self.bytes = self.matches.iter().map(Match::encoded_size).sum();
        FileMatches { total: self.total, matches: self.matches, bytes: self.bytes }
    }

    /// Adds a line without a match, or a line of a match, to the context of matches around it.
    fn add_context_line(&mut self, number: u64, line: &[u8]) {
        let context = self.options.context_lines as u64;
        while let Some(last) = self.awaiting_context.front()
            && last + context < number
        {
            self.awaiting_context.pop_front();
        }

        let text = clip_line(line, 0..0, MAX_LINE_BYTES);
        let first = self.matches.len() - self.awaiting_context.len();
        for item in self.matches.iter_mut().skip(first) {
            item.after.push(text.clone());
            self.bytes += text.len() + ENTRY_OVERHEAD_BYTES;
        }

        while !self.recent_lines.is_empty() && self.recent_lines.len() >= self.options.context_lines
        {
            self.recent_lines.pop_front();
        }
        self.recent_lines.push_back((number, text));
    }

    /// Whether the limit for collected matches is reached.
    fn is_full(&self) -> bool {
        self.matches.len() >= self.options.max_matches || self.bytes > self.options.max_bytes
    }

    fn add_match(&mut self, found: &SinkMatch<'_>, line: u64) {
        let context = self.options.context_lines as u64;
        let range = found.bytes_range_in_buffer();
        let lines = found.bytes();
        let buffer = found.buffer();
        // The engine reports lines. A second search in them finds the match itself.
        let haystack = if self.pattern.is_multiline() {
            buffer.get(..range.end.saturating_add(MAX_LOOK_AHEAD_BYTES)).unwrap_or(buffer)
        } else {
            let newline = usize::from(lines.ends_with(b"\n"));
            buffer.get(..range.end - newline).unwrap_or(buffer)
        };
        let matched = match self.pattern.matcher().find_at(haystack, range.start) {
            Ok(Some(found)) if found.start() < range.end => {
                found.start() - range.start..found.end().min(range.end) - range.start
            }
            _ => 0..0,
        };

        let max_bytes = if self.pattern.is_multiline() { MAX_MATCH_BYTES } else { MAX_LINE_BYTES };
        let item = Match {
            line,
            column: matched.start as u64 + 1,
            content: clip_line(lines, matched, max_bytes),
            before: self
                .recent_lines
                .iter()
                .filter(|(number, _)| number + context >= line)
                .map(|(_, text)| text.clone())
                .collect(),
            after: Vec::new(),
        };
        self.bytes += item.encoded_size();
        self.matches.push(item);
    }
}

impl Sink for MatchCollector<'_> {
    type Error = io::Error;

    fn matched(&mut self, _searcher: &Searcher, found: &SinkMatch<'_>) -> io::Result<bool> {
        if self.cancel.is_cancelled() {
            return Ok(false);
        }
        self.total += 1;
        if !self.collects {
            return Ok(true);
        }

        let line = found.line_number().unwrap_or(1);
        let has_room = !self.is_full();
        if has_room {
            self.add_match(found, line);
        }
        let mut last = line;
        if self.options.context_lines > 0 {
            // The lines of the match are context of the matches before it, but not of itself.
            let own = if has_room { self.matches.pop() } else { None };
            // Of many lines, only those at both ends can be near another match.
            let (count, ends) = (found.lines().count(), self.options.context_lines);
            for (index, text) in found.lines().enumerate() {
                last = line + index as u64;
                if index < ends || index + ends >= count {
                    self.add_context_line(last, text);
                }
            }
            self.matches.extend(own);
            if has_room {
                self.awaiting_context.push_back(last);
            }
        }
        if !has_room && self.awaiting_context.is_empty() {
            self.collects = false;
        }
        Ok(true)
    }

    fn context(&mut self, _searcher: &Searcher, found: &SinkContext<'_>) -> io::Result<bool> {
        if self.collects {
            self.add_context_line(found.line_number().unwrap_or(1), found.bytes());
        }
        Ok(!self.cancel.is_cancelled())
    }
}

/// Decodes a line without its ending. Cuts it to `max_bytes` around the range `focus`.
fn clip_line(line: &[u8], focus: Range<usize>, max_bytes: usize) -> String {
    let line = trim_line_ending(line);
    if line.len() <= max_bytes {
        return String::from_utf8_lossy(line).into_owned();
    }

    let focus = focus.start.min(line.len())..focus.end.min(line.len());
    let margin = max_bytes.saturating_sub(focus.len()) / 2;
    let mut start = focus.start.saturating_sub(margin).min(line.len() - max_bytes);
    let mut end = start + max_bytes;
    // A character has up to three continuation bytes. The cut must not be before one.
    let is_continuation = |at: usize| line.get(at).is_some_and(|byte| byte & 0xc0 == 0x80);
    for _ in 0..3 {
        start += usize::from(start > 0 && is_continuation(start));
        end -= usize::from(is_continuation(end));
    }

    let text = String::from_utf8_lossy(line.get(start..end).unwrap_or_default());
    let before = if start > 0 { ELLIPSIS } else { "" };
    let after = if end < line.len() { ELLIPSIS } else { "" };
    format!("{before}{text}{after}")
}

fn trim_line_ending(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_cut_around_the_match_at_character_boundaries() {
        let long = "\u{e9}".repeat(1000) + "match" + &"\u{1f600}".repeat(1000);
        let at = 2000..2005;
        let cut = clip_line(long.as_bytes(), at.clone(), 100);
        assert!(cut.starts_with("\u{2026}\u{e9}") && cut.ends_with("\u{1f600}\u{2026}"));
        assert!(cut.contains("match") && !cut.contains('\u{fffd}') && cut.len() <= 106);
        for max_bytes in 10..40 {
            let cut = clip_line(long.as_bytes(), at.clone(), max_bytes);
            assert!(cut.contains("match") && !cut.contains('\u{fffd}'), "{max_bytes}");
        }
        for (line, focus, max_bytes, expected) in [
            ("short\r\n", 0..5, 5, "short"),
            ("short\r", 0..5, 5, "short"),
            ("\n", 0..0, 5, ""),
            ("0123456789", 0..1, 4, "0123\u{2026}"),
            ("0123456789", 9..10, 4, "\u{2026}6789"),
            ("0123456789", 5..6, 4, "\u{2026}4567\u{2026}"),
            ("0123456789", 2..9, 4, "\u{2026}2345\u{2026}"),
            ("0123456789", 70..90, 4, "\u{2026}6789"),
        ] {
            assert_eq!(clip_line(line.as_bytes(), focus, max_bytes), expected);
        }
        assert_eq!(clip_line(b"a\xffb", 0..0, 9), "a\u{fffd}b");
        assert_eq!(clip_line(&[0x80; 20], 0..0, 9).chars().next_back(), Some('\u{2026}'));
    }
}
