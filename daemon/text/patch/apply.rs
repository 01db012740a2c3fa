//! The hunks of a file on its text.

use super::{
    hunk::{Hunk, HunkLine, LineEnding, LineRole},
    locate::{CancelCheck, HunkLocator, HunkPosition, TextLines},
    mismatch::HunkRef,
};
use crate::daemon::error::Error;

/// Most bytes that end a line.
const MAX_LINE_ENDING_BYTES: usize = 2;

/// A text with all hunks on it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct AppliedHunks {
    pub(super) content: Vec<u8>,
    /// Most context lines that were ignored at an end of a hunk.
    pub(super) fuzz: usize,
    /// Most lines by which a hunk lay away from where the patch said.
    pub(super) offset: usize,
}

/// Where a hunk fits: the lines of it that count, and of the text.
#[derive(Debug, Clone, Copy)]
struct HunkPlacement {
    /// The first line of the text.
    first_line: usize,
    /// Lines of context that are ignored at the begin and at the end.
    ignored_context: (usize, usize),
    fuzz: usize,
}

/// The new text, as far as it is known.
#[derive(Debug)]
struct PatchedText<'t> {
    text: &'t TextLines<'t>,
    content: Vec<u8>,
    /// Whether all its lines end with carriage returns.
    is_crlf: bool,
    /// Lines of the old text that are done with.
    copied_lines: usize,
    /// Bytes of it up to the ending of the line that was added last.
    line_end: usize,
}

/// Applies the hunks of a file, in order. Lines of the text may end otherwise than those of the
/// patch: their endings are kept then, and what is added ends as they do.
pub(super) fn apply(
    path: &str,
    content: &[u8],
    hunks: &[Hunk<'_>],
    max_fuzz: usize,
    check: CancelCheck<'_>,
) -> Result<AppliedHunks, Error> {
    let text = TextLines::split(content, path)?;
    let search = HunkLocator::new(&text, hunks, check);
    let added = hunks.iter().flat_map(|hunk| &hunk.lines);
    let added = added.filter(|line| line.role == LineRole::Added);
    let added: usize = added.map(|line| line.text.len() + MAX_LINE_ENDING_BYTES).sum();
    let mut output = PatchedText {
        text: &text,
        content: Vec::with_capacity(content.len() + added),
        is_crlf: text.is_crlf(),
        copied_lines: 0,
        line_end: 0,
    };
    let mut applied = AppliedHunks::default();
    // How far away the last hunk lay: the next will, too.
    let mut moved = 0_isize;
    for (index, hunk) in hunks.iter().enumerate() {
        if index % 64 == 0 {
            check()?;
        }
        let name = HunkRef { path, number: index + 1, line: hunk.line };
        let place =
            find_placement(&search, &text, hunk, output.copied_lines, moved, max_fuzz, name)?;
        if let Some(said) = hunk.expected_line {
            let begin = place.first_line.saturating_sub(place.ignored_context.0);
            moved = begin.cast_signed() - said.cast_signed();
            applied.offset = applied.offset.max(moved.unsigned_abs());
        }
        applied.fuzz = applied.fuzz.max(place.fuzz);
        output.apply_hunk(hunk, place);
    }
    output.copy_until(text.len());
    applied.content = output.content;
    Ok(applied)
}

/// Looks for the place of a hunk, with as little fuzz as possible.
fn find_placement(
    search: &HunkLocator<'_, '_>,
    text: &TextLines<'_>,
    hunk: &Hunk<'_>,
    floor: usize,
    moved: isize,
    max_fuzz: usize,
    name: HunkRef<'_>,
) -> Result<HunkPlacement, Error> {
    let near = hunk.expected_line.map(|place| place.saturating_add_signed(moved).max(floor));
    let wanted = search.line_ids(hunk);
    if wanted.is_empty() {
        let at = near.unwrap_or(0);
        // Without a line to go by, only a header that says it exactly, or an empty file, will do.
        return match text.len() == 0 || hunk.is_insert_only && near.is_some() && at <= text.len() {
            true => Ok(HunkPlacement {
                first_line: at.min(text.len()),
                ignored_context: (0, 0),
                fuzz: 0,
            }),
            false => Err(name.no_position_error(text, at)),
        };
    }
    let is_context = |line: &&HunkLine<'_>| line.role == LineRole::Context;
    let before = hunk.lines.iter().take_while(is_context).count();
    let behind = hunk.lines.iter().rev().take_while(is_context).count();
    let mut last = None;
    for fuzz in 0..=max_fuzz {
        let ignored = (before.min(fuzz), behind.min(fuzz));
        let core = wanted.get(ignored.0..wanted.len().saturating_sub(ignored.1));
        let core = core.unwrap_or_default();
        if core.is_empty() || last == Some(ignored) {
            break;
        }
        last = Some(ignored);
        let near = near.map(|near| near + ignored.0);
        match search.find(core, near, floor)? {
            HunkPosition::At(at) => {
                return Ok(HunkPlacement { first_line: at, ignored_context: ignored, fuzz });
            }
            HunkPosition::Ambiguous(one, other) => {
                return Err(name.ambiguous_error(text, one, other));
            }
            HunkPosition::Nowhere => {}
        }
    }
    let near = match near {
        Some(near) => near,
        None => search.first_occurrence(&wanted, floor)?.unwrap_or(0),
    };
    let at = near.min(text.len());
    Err(name.not_found_error(hunk, text, at, search.first_difference(&wanted, at)))
}

impl PatchedText<'_> {
    fn apply_hunk(&mut self, hunk: &Hunk<'_>, place: HunkPlacement) {
        self.copy_until(place.first_line);
        let HunkPlacement { ignored_context: ignored, .. } = place;
        let lines = hunk.lines.get(ignored.0..hunk.lines.len() - ignored.1).unwrap_or_default();
        let removed = |line: &&HunkLine<'_>| line.role != LineRole::Added;
        let old: Vec<LineEnding> = lines.iter().filter(removed).map(|line| line.ending).collect();
        let there = |index| self.text.line(place.first_line + index).map(|(_, ending)| ending);
        // The patch was made from lines that end as these do. The end of the file is looked at
        // below.
        let differs = |(index, ending): (usize, &LineEnding)| {
            let there = there(index).unwrap_or(LineEnding::Lf);
            (*ending == LineEnding::CrLf) != (there == LineEnding::CrLf)
                && there != LineEnding::EndOfFile
        };
        let foreign = old.iter().enumerate().any(differs);
        let end = place.first_line + old.len();
        for line in lines {
            match line.role {
                LineRole::Context => self.copy_until(self.copied_lines + 1),
                LineRole::Removed => self.copied_lines += 1,
                LineRole::Added => {
                    let is_kept = match line.ending {
                        LineEnding::CrLf => !foreign,
                        // Without a line to compare with, the carriage return may be left out.
                        LineEnding::Lf => !(foreign || old.is_empty() && self.is_crlf),
                        LineEnding::EndOfFile => false,
                    };
                    let ending = match is_kept {
                        true => line.ending,
                        false => self.nearby_ending().unwrap_or(line.ending),
                    };
                    self.add_line(line.text.as_bytes(), ending);
                }
            }
        }
        let last_new = lines.iter().rfind(|line| line.role != LineRole::Removed);
        let last_new = match last_new {
            Some(line) if line.role == LineRole::Added && end >= self.text.len() => line.ending,
            _ => return,
        };
        // Whether the new last line has a newline: as the patch says, if it knows how the old one
        // ended.
        let says_none = last_new == LineEnding::EndOfFile;
        let last_old = self.text.len().checked_sub(1);
        let last_old = last_old.and_then(|last| self.text.line(last));
        let had_none = last_old.is_some_and(|(_, ending)| ending == LineEnding::EndOfFile);
        let is_known = match old.last() {
            Some(ending) => (*ending == LineEnding::EndOfFile) == had_none,
            None => says_none || !had_none,
        };
        if if is_known { says_none } else { had_none } {
            self.content.truncate(self.line_end);
        }
    }

    /// Copies lines of the old text as they are.
    fn copy_until(&mut self, line: usize) {
        let lines = self.text.lines(self.copied_lines, line);
        if !lines.is_empty() {
            self.finish_line();
            self.content.extend_from_slice(lines);
        }
        self.copied_lines = line;
    }

    fn add_line(&mut self, line: &[u8], ending: LineEnding) {
        self.finish_line();
        self.content.extend_from_slice(line);
        self.line_end = self.content.len();
        self.content.extend_from_slice(match ending {
            LineEnding::CrLf => b"\r\n",
            LineEnding::Lf | LineEnding::EndOfFile => b"\n",
        });
    }

    /// Ends a line that was the last of the old text and is not of the new.
    fn finish_line(&mut self) {
        if !self.content.is_empty() && !self.content.ends_with(b"\n") {
            self.content.extend_from_slice(match self.nearby_ending() {
                Some(LineEnding::CrLf) => b"\r\n",
                Some(LineEnding::Lf | LineEnding::EndOfFile) | None => b"\n",
            });
        }
    }

    /// How lines of the old text end around here.
    fn nearby_ending(&self) -> Option<LineEnding> {
        [self.copied_lines.checked_sub(1), Some(self.copied_lines), Some(0)]
            .into_iter()
            .flatten()
            .filter_map(|at| self.text.line(at))
            .map(|(_, ending)| ending)
            .find(|ending| *ending != LineEnding::EndOfFile)
    }
}
