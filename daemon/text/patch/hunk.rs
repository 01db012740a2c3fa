//! The hunks of a file: their headers, which may be wrong, and their lines, which count.

use super::patch_lines::{PatchLines, parse_error, quote_line};
use crate::daemon::error::Error;

/// A hunk.
#[derive(Debug)]
pub(super) struct Hunk<'p> {
    /// The line of the patch at which it begins, counted from 1.
    pub(super) line: usize,
    /// Where its first old line stands, counted from 0; none where the header does not say.
    pub(super) expected_line: Option<usize>,
    /// Whether its header says that it only adds lines.
    pub(super) is_insert_only: bool,
    /// Its lines.
    pub(super) lines: Vec<HunkLine<'p>>,
}

/// A line of a hunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HunkLine<'p> {
    pub(super) role: LineRole,
    pub(super) ending: LineEnding,
    pub(super) text: &'p str,
}

/// What a line is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineRole {
    Context,
    Removed,
    Added,
}

/// What a line ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineEnding {
    Lf,
    CrLf,
    /// The end of the file.
    EndOfFile,
}

/// What the header of a hunk says, where it says something.
#[derive(Debug, Clone, Copy)]
struct HunkHeader {
    old_start: usize,
    old_count: usize,
    new_count: usize,
}

impl Hunk<'_> {
    /// The lines that must be there.
    pub(super) fn old_lines(&self) -> impl DoubleEndedIterator<Item = &HunkLine<'_>> {
        self.lines.iter().filter(|line| line.role != LineRole::Added)
    }
}

/// Reads the hunk whose header is the line `at`, and answers the line that follows it. `windows`
/// says that the lines of the patch themselves end with carriage returns.
pub(super) fn read_hunk<'p>(
    lines: &PatchLines<'p>,
    at: usize,
    windows: bool,
) -> Result<(Hunk<'p>, usize), Error> {
    let header = lines.get(at);
    if header.starts_with("@@@") {
        let problem = "this is the diff of a merge: make one against a single parent";
        return Err(parse_error(at, problem));
    }
    let ranges = parse_header(header);
    // A header that is right settles what could be a line of the hunk or the next file's header.
    let counted = ranges.and_then(|ranges| read_by_counts(lines, at + 1, ranges, windows));
    let (body, next) = match counted {
        Some(found) => found,
        None => read_by_prefix(lines, at + 1, windows)?,
    };
    if body.is_empty() {
        return Err(parse_error(at, "this hunk has no lines"));
    }
    let only_adds = ranges.is_some_and(|ranges| ranges.old_count == 0);
    let has_old = body.iter().any(|line| line.role != LineRole::Added);
    let place = ranges.map(|ranges| match only_adds && !has_old {
        // It stands behind the line that it names.
        true => ranges.old_start,
        false => ranges.old_start.saturating_sub(1),
    });
    let hunk = Hunk { line: at + 1, expected_line: place, is_insert_only: only_adds, lines: body };
    Ok((hunk, next))
}

/// Reads as many lines as the header says. None when they are not there, or when there are more.
fn read_by_counts<'p>(
    lines: &PatchLines<'p>,
    from: usize,
    ranges: HunkHeader,
    windows: bool,
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
            let line = parse_line(raw, windows)?;
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

/// Whether what follows a hunk looks like more of it.
fn more_follows(lines: &PatchLines<'_>, mut at: usize) -> bool {
    let belongs = |at| {
        lines.get(at).starts_with([' ', '+', '-'])
            && !lines.is_file_header(at)
            && !lines.is_mail_signature(at)
    };
    if belongs(at) {
        return true;
    }
    while at < lines.len() && lines.get(at).is_empty() {
        at += 1;
    }
    // A list may follow it; what is added is not given up lightly.
    while belongs(at) {
        if lines.get(at).starts_with('+') {
            return true;
        }
        at += 1;
    }
    false
}

/// Reads lines as long as they look like a hunk's.
fn read_by_prefix<'p>(
    lines: &PatchLines<'p>,
    from: usize,
    windows: bool,
) -> Result<(Vec<HunkLine<'p>>, usize), Error> {
    let mut body: Vec<HunkLine<'p>> = Vec::new();
    // Empty lines since the last line that has a sign before it.
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
                None => return Err(parse_error(at, "no line of the hunk stands before this")),
            }
        } else if let Some(line) = parse_line(raw, windows) {
            empty = if text.is_empty() { empty + 1 } else { 0 };
            body.push(line);
        } else if empty > 0 {
            break;
        } else {
            let problem =
                format!("{} is in a hunk and begins with none of blank, + and -", quote_line(text));
            return Err(parse_error(at, problem));
        }
        at += 1;
    }
    // They stand between the hunk and what follows it.
    body.truncate(body.len() - empty);
    Ok((body, at))
}

/// Whether a line ends a hunk.
fn ends_hunk(text: &str) -> bool {
    const HUNK_END_PREFIXES: &[&str] =
        &["@@", "diff ", "Index: ", "```", "~~~", "***", "From ", "Only in "];
    HUNK_END_PREFIXES.iter().any(|end| text.starts_with(end))
}

/// Understands a line of a hunk.
fn parse_line(raw: &str, windows: bool) -> Option<HunkLine<'_>> {
    let (line, ending) = match raw.strip_suffix('\r') {
        Some(line) if windows => (line, LineEnding::Lf),
        Some(line) => (line, LineEnding::CrLf),
        None => (raw, LineEnding::Lf),
    };
    let role = match line.as_bytes().first() {
        // An empty line whose blank somebody took off.
        None | Some(b' ') => LineRole::Context,
        Some(b'-') => LineRole::Removed,
        Some(b'+') => LineRole::Added,
        Some(_) => return None,
    };
    let text = line.get(1..).unwrap_or_default();
    Some(HunkLine { role, ending, text })
}

/// Notes that no newline follows a line, given as it stands in the patch.
fn mark_no_newline<'p>(line: &mut HunkLine<'p>, raw: Option<&'p str>) {
    // Without a newline, a carriage return is a character like any other.
    if line.ending == LineEnding::CrLf
        && let Some(text) = raw.and_then(|raw| raw.get(1..))
    {
        line.text = text;
    }
    line.ending = LineEnding::EndOfFile;
}

/// Reads `@@ -1,2 +3,4 @@`.
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
    // More lines than that no file has; adding to it does not overflow.
    let number = |text: &str| text.parse::<u32>().ok()?.try_into().ok();
    match text.split_once(',') {
        Some((start, count)) => Some((number(start)?, number(count)?)),
        None => Some((number(text)?, 1)),
    }
}
