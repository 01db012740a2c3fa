//! The matches of one file, with the lines around them.

use std::{collections::VecDeque, io, ops::Range};

use grep_matcher::Matcher as _;
use grep_searcher::{Searcher, Sink, SinkContext, SinkMatch};

use super::{
    cancellable_reader::CancellableReader,
    pattern::{SearchOptions, SearchPattern},
};
use crate::daemon::workspace::cancel::CancelToken;

/// Most bytes that are kept of a line.
const MAX_LINE_BYTES: usize = 2000;
/// Most bytes that are kept of the lines that one match spans.
const MAX_MATCH_BYTES: usize = 8 * MAX_LINE_BYTES;
/// Stands for what was cut off.
const ELLIPSIS: &str = "\u{2026}";
/// Bytes behind a match that decide whether it is one, such as the character of a word boundary: as
/// many as ripgrep looks at.
const LOOK_AHEAD_BYTES: usize = 128;
/// Bytes that a match and each of its lines take in a message beyond their own, about.
const ENTRY_OVERHEAD_BYTES: usize = 16;

/// A match.
#[derive(Debug)]
pub(crate) struct Match {
    /// Line at which it begins, counted from 1.
    pub(crate) line: u64,
    /// Byte of that line at which it begins, counted from 1.
    pub(crate) column: u64,
    /// The line or lines.
    pub(crate) content: String,
    /// Lines before it.
    pub(crate) before: Vec<String>,
    /// Lines after it.
    pub(crate) after: Vec<String>,
}

impl Match {
    /// Bytes that it takes in an answer.
    pub(super) fn encoded_size(&self) -> usize {
        let around = self.before.iter().chain(&self.after);
        let around: usize = around.map(|line| line.len() + ENTRY_OVERHEAD_BYTES).sum();
        self.content.len() + around + ENTRY_OVERHEAD_BYTES
    }
}

/// What was found in a file.
#[derive(Debug)]
pub(super) struct FileMatches {
    /// Matches.
    pub(super) total: u64,
    /// The first ones.
    pub(super) matches: Vec<Match>,
    /// Bytes that these take.
    pub(super) bytes: usize,
}

/// Takes what the engine finds in one file.
#[derive(Debug)]
pub(super) struct MatchCollector<'a> {
    options: &'a SearchOptions,
    pattern: &'a SearchPattern,
    cancel: &'a CancelToken,
    /// Whether matches are kept and not only counted.
    collects: bool,
    total: u64,
    matches: Vec<Match>,
    bytes: usize,
    /// The last lines that the engine gave, numbered: no more than come before a match.
    recent_lines: VecDeque<(u64, String)>,
    /// Last lines of the matches that still wait for lines after them: those at the end of `hits`.
    awaiting_context: VecDeque<u64>,
}

impl<'a> MatchCollector<'a> {
    /// Of a file.
    pub(super) fn new(wish: &'a SearchOptions, cancel: &'a CancelToken, keeps: bool) -> Self {
        Self::with_pattern(wish, &wish.pattern, cancel, keeps)
    }

    /// Of a file, by a thread that has its own clone of the pattern.
    pub(super) fn with_pattern(
        wish: &'a SearchOptions,
        pattern: &'a SearchPattern,
        cancel: &'a CancelToken,
        keeps: bool,
    ) -> Self {
        Self {
            options: wish,
            pattern,
            cancel,
            collects: keeps,
            total: 0,
            matches: Vec::new(),
            bytes: 0,
            recent_lines: VecDeque::new(),
            awaiting_context: VecDeque::new(),
        }
    }

    /// Searches the file. After an error, what was found before it stays.
    pub(super) fn search(
        &mut self,
        searcher: &mut Searcher,
        content: CancellableReader<'_>,
    ) -> io::Result<()> {
        let pattern = self.pattern;
        searcher.search_reader(pattern.matcher(), content, self)
    }

    /// What was found.
    pub(super) fn finish(mut self) -> FileMatches {
        self.bytes = self.matches.iter().map(Match::encoded_size).sum();
        FileMatches { total: self.total, matches: self.matches, bytes: self.bytes }
    }

    /// A line that is no match, or one of a match, for the matches around it.
    fn add_context_line(&mut self, number: u64, line: &[u8]) {
        let context = self.options.context_lines as u64;
        while let Some(last) = self.awaiting_context.front()
            && last + context < number
        {
            self.awaiting_context.pop_front();
        }
        let text = clip_line(line, 0..0, MAX_LINE_BYTES);
        let first = self.matches.len() - self.awaiting_context.len();
        for hit in self.matches.iter_mut().skip(first) {
            hit.after.push(text.clone());
            self.bytes += text.len() + ENTRY_OVERHEAD_BYTES;
        }
        while !self.recent_lines.is_empty() && self.recent_lines.len() >= self.options.context_lines
        {
            self.recent_lines.pop_front();
        }
        self.recent_lines.push_back((number, text));
    }

    /// Whether no more matches are kept.
    fn is_full(&self) -> bool {
        self.matches.len() >= self.options.max_matches || self.bytes > self.options.max_bytes
    }

    fn add_match(&mut self, found: &SinkMatch<'_>, line: u64) {
        let context = self.options.context_lines as u64;
        let in_buffer = found.bytes_range_in_buffer();
        let whole = found.bytes();
        let end = in_buffer.end;
        let buffer = found.buffer();
        let buffer = if self.pattern.is_multiline() {
            buffer.get(..end.saturating_add(LOOK_AHEAD_BYTES)).unwrap_or(buffer)
        } else {
            let ending = usize::from(whole.ends_with(b"\n"));
            buffer.get(..end - ending).unwrap_or(buffer)
        };
        let within = match self.pattern.matcher().find_at(buffer, in_buffer.start) {
            Ok(Some(found)) if found.start() < end => {
                found.start() - in_buffer.start..found.end().min(end) - in_buffer.start
            }
            _ => 0..0,
        };
        let most = if self.pattern.is_multiline() { MAX_MATCH_BYTES } else { MAX_LINE_BYTES };
        let hit = Match {
            line,
            column: within.start as u64 + 1,
            content: clip_line(whole, within, most),
            before: self
                .recent_lines
                .iter()
                .filter(|(number, _)| number + context >= line)
                .map(|(_, text)| text.clone())
                .collect(),
            after: Vec::new(),
        };
        self.bytes += hit.encoded_size();
        self.matches.push(hit);
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
        let keeps = !self.is_full();
        if keeps {
            self.add_match(found, line);
        }
        let mut last = line;
        if self.options.context_lines > 0 {
            // The match itself comes after those before it, but not after itself.
            let own = if keeps { self.matches.pop() } else { None };
            // Of many lines, only those at the ends can be near another match.
            let (count, ends) = (found.lines().count(), self.options.context_lines);
            for (index, text) in found.lines().enumerate() {
                last = line + index as u64;
                if index < ends || index + ends >= count {
                    self.add_context_line(last, text);
                }
            }
            self.matches.extend(own);
            if keeps {
                self.awaiting_context.push_back(last);
            }
        }
        if !keeps && self.awaiting_context.is_empty() {
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

/// A line as text, without its ending. A long one is cut around what matters in it.
fn clip_line(line: &[u8], around: Range<usize>, most: usize) -> String {
    let line = trim_line_ending(line);
    if line.len() <= most {
        return String::from_utf8_lossy(line).into_owned();
    }
    let around = around.start.min(line.len())..around.end.min(line.len());
    let spare = most.saturating_sub(around.len()) / 2;
    let mut start = around.start.saturating_sub(spare).min(line.len() - most);
    let mut end = start + most;
    // Characters stay whole: up to three bytes go on with one that begins before.
    let goes_on = |at: usize| line.get(at).is_some_and(|byte| byte & 0xc0 == 0x80);
    for _ in 0..3 {
        start += usize::from(start > 0 && goes_on(start));
        end -= usize::from(goes_on(end));
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
    fn long_lines_are_cut_around_the_match_between_characters() {
        let long = "\u{e9}".repeat(1000) + "match" + &"\u{1f600}".repeat(1000);
        let at = 2000..2005;
        let cut = clip_line(long.as_bytes(), at.clone(), 100);
        assert!(cut.starts_with("\u{2026}\u{e9}") && cut.ends_with("\u{1f600}\u{2026}"));
        assert!(cut.contains("match") && !cut.contains('\u{fffd}') && cut.len() <= 106);
        for most in 10..40 {
            let cut = clip_line(long.as_bytes(), at.clone(), most);
            assert!(cut.contains("match") && !cut.contains('\u{fffd}'), "{most}");
        }
        for (line, around, most, expected) in [
            ("short\r\n", 0..5, 5, "short"),
            ("short\r", 0..5, 5, "short"),
            ("\n", 0..0, 5, ""),
            ("0123456789", 0..1, 4, "0123\u{2026}"),
            ("0123456789", 9..10, 4, "\u{2026}6789"),
            ("0123456789", 5..6, 4, "\u{2026}4567\u{2026}"),
            ("0123456789", 2..9, 4, "\u{2026}2345\u{2026}"),
            ("0123456789", 70..90, 4, "\u{2026}6789"),
        ] {
            assert_eq!(clip_line(line.as_bytes(), around, most), expected);
        }
        assert_eq!(clip_line(b"a\xffb", 0..0, 9), "a\u{fffd}b");
        assert_eq!(clip_line(&[0x80; 20], 0..0, 9).chars().next_back(), Some('\u{2026}'));
    }
}
