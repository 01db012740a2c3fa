//! Parses the hunks of a file. Their lines count; their headers may be wrong.

use super::patch_lines::{PatchLines, parse_error, quote_line};
use crate::daemon::error::Error;

#[derive(Debug)]
pub(super) struct Hunk<'p> {
    /// Line of the patch at which it begins, counted from 1.
    pub(super) line: usize,
    /// Line of its first old line, counted from 0. `None` without a valid header.
    pub(super) expected_line: Option<usize>,
    /// Whether the header has no old lines.
    pub(super) is_insert_only: bool,
    pub(super) lines: Vec<HunkLine<'p>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HunkLine<'p> {
    pub(super) role: LineRole,
    pub(super) ending: LineEnding,
    pub(super) text: &'p str,
}

/// The role of a line in its hunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineRole {
    Context,
    Removed,
    Added,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineEnding {
    Lf,
    CrLf,
    /// No newline at the end of the file.
    EndOfFile,
}

/// The ranges in the header of a hunk.
#[derive(Debug, Clone, Copy)]
struct HunkHeader {
    old_start: usize,
    old_count: usize,
    new_count: usize,
}

impl Hunk<'_> {
    /// The context and removed lines, which the text must contain.
    pub(super) fn old_lines(&self) -> impl DoubleEndedIterator<Item = &HunkLine<'_>> {
        self.lines.iter().filter(|line| line.role != LineRole::Added)
    }
}

/// Parses the hunk whose header is the line `at`. Returns it and the line after it. `is_crlf` says
/// that the patch itself has CRLF line endings.
pub(super) fn read_hunk<'p>(
    lines: &PatchLines<'p>,
    at: usize,
    is_crlf: bool,
) -> Result<(Hunk<'p>, usize), Error> {
    let header = lines.get(at);
    if header.starts_with("@@@") {
        let problem = "this is the diff of a merge: make one against a single parent";
        return Err(parse_error(at, problem));
    }

    let ranges = parse_header(header);
    // A correct header decides whether a line belongs to the hunk or to the next file's header.
    let counted = ranges.and_then(|ranges| read_by_counts(lines, at + 1, ranges, is_crlf));
    let (body, next) = match counted {
        Some(found) => found,
        None => read_by_prefix(lines, at + 1, is_crlf)?,
    };
    if body.is_empty() {
        return Err(parse_error(at, "this hunk has no lines"));
    }

    let is_insert_only = ranges.is_some_and(|ranges| ranges.old_count == 0);
    let has_old_lines = body.iter().any(|line| line.role != LineRole::Added);
    let expected_line = ranges.map(|ranges| {
        if is_insert_only && !has_old_lines {
            // The header of an insertion names the line before it.
            ranges.old_start
        } else {
            ranges.old_start.saturating_sub(1)
        }
    });
    let hunk = Hunk { line: at + 1, expected_line, is_insert_only, lines: body };
    Ok((hunk, next))
}

/// Reads as many lines as the header announces. `None` if there are fewer or more.
fn read_by_counts<'p>(
    lines: &PatchLines<'p>,
    from: usize,
    ranges: HunkHeader,
    is_crlf: bool,
) -> Option<(Vec<HunkLine<'p>>, usize)> {
    let (mut old, mut new) = (ranges.old_count, ranges.new_count);
    let mut body: Vec<HunkLine<'p>> = Vec::new();
    let mut at = from;

    while let Some(raw) = lines.raw(at) {
        if raw.starts_with('\\') {
            mark_no_newline(body.last_mut()?, lines.raw(at - 1));
        } else if old == 0 && new == 0 {
            break;
        } else {
            let line = parse_line(raw, is_crlf)?;
            if line.role != LineRole::Added {
                old = old.checked_sub(1)?;
            }
            if line.role != LineRole::Removed {
                new = new.checked_sub(1)?;
            }
            body.push(line);
        }
        at += 1;
    }

    (old == 0 && new == 0 && !more_follows(lines, at)).then_some((body, at))
}

/// Whether the lines after a hunk look like a continuation of it.
fn more_follows(lines: &PatchLines<'_>, mut at: usize) -> bool {
    let looks_like_hunk = |at| {
        lines.get(at).starts_with([' ', '+', '-'])
            && !lines.is_file_header(at)
            && !lines.is_mail_signature(at)
    };
    if looks_like_hunk(at) {
        return true;
    }

    while at < lines.len() && lines.get(at).is_empty() {
        at += 1;
    }
    // A Markdown list may follow, so lines with `-` alone do not count. An added line does.
    while looks_like_hunk(at) {
        if lines.get(at).starts_with('+') {
            return true;
        }
        at += 1;
    }
    false
}

/// Reads lines as long as they look like lines of a hunk.
fn read_by_prefix<'p>(
    lines: &PatchLines<'p>,
    from: usize,
    is_crlf: bool,
) -> Result<(Vec<HunkLine<'p>>, usize), Error> {
    let mut body: Vec<HunkLine<'p>> = Vec::new();
    // Empty lines since the last line with a sign.
    let mut empty = 0;
    let mut at = from;

    while let Some(raw) = lines.raw(at) {
        let text = lines.get(at);
        let next_file = lines.is_file_header(at) && lines.get(at + 2).starts_with("@@");
        if next_file || lines.is_mail_signature(at) || ends_hunk(text) {
            break;
        }

        if raw.starts_with('\\') {
            match body.last_mut() {
                Some(last) => mark_no_newline(last, lines.raw(at - 1)),
                None => return Err(parse_error(at, "this line follows no line of a hunk")),
            }
        } else if let Some(line) = parse_line(raw, is_crlf) {
            empty = if text.is_empty() { empty + 1 } else { 0 };
            body.push(line);
        } else if empty > 0 {
            break;
        } else {
            let problem =
                format!("a line of a hunk must begin with a blank, + or -: {}", quote_line(text));
            return Err(parse_error(at, problem));
        }
        at += 1;
    }

    // Trailing empty lines separate the hunk from what follows.
    body.truncate(body.len() - empty);
    Ok((body, at))
}

/// Whether a line begins something other than a hunk line.
fn ends_hunk(text: &str) -> bool {
    const HUNK_END_PREFIXES: &[&str] =
        &["@@", "diff ", "Index: ", "```", "~~~", "***", "From ", "Only in "];
    HUNK_END_PREFIXES.iter().any(|prefix| text.starts_with(prefix))
}

/// Parses a line of a hunk. `None` if it has no sign.
fn parse_line(raw: &str, is_crlf: bool) -> Option<HunkLine<'_>> {
    let (line, ending) = match raw.strip_suffix('\r') {
        Some(line) if is_crlf => (line, LineEnding::Lf),
        Some(line) => (line, LineEnding::CrLf),
        None => (raw, LineEnding::Lf),
    };
    let role = match line.as_bytes().first() {
        // An empty context line whose blank was stripped.
        None | Some(b' ') => LineRole::Context,
        Some(b'-') => LineRole::Removed,
        Some(b'+') => LineRole::Added,
        Some(_) => return None,
    };
    let text = line.get(1..).unwrap_or_default();
    Some(HunkLine { role, ending, text })
}

/// Records that no newline follows a line. `raw` is the line in the patch.
fn mark_no_newline<'p>(line: &mut HunkLine<'p>, raw: Option<&'p str>) {
    // Without a newline, the carriage return is part of the text.
    if line.ending == LineEnding::CrLf
        && let Some(text) = raw.and_then(|raw| raw.get(1..))
    {
        line.text = text;
    }
    line.ending = LineEnding::EndOfFile;
}

/// Parses `@@ -1,2 +3,4 @@`.
fn parse_header(header: &str) -> Option<HunkHeader> {
    let rest = header.strip_prefix("@@")?.trim_start().strip_prefix('-')?;
    let (old, rest) = rest.split_once(' ')?;
    let rest = rest.trim_start().strip_prefix('+')?;
    let end = rest.find([' ', '@']).unwrap_or(rest.len());
    let (old_start, old_count) = parse_range(old)?;
    let (_, new_count) = parse_range(rest.get(..end)?)?;
    Some(HunkHeader { old_start, old_count, new_count })
}

fn parse_range(text: &str) -> Option<(usize, usize)> {
    // A `u32` suffices for any file, and sums of two do not overflow a `usize`.
    let number = |text: &str| text.parse::<u32>().ok()?.try_into().ok();
    match text.split_once(',') {
        Some((start, count)) => Some((number(start)?, number(count)?)),
        None => Some((number(text)?, 1)),
    }
}
