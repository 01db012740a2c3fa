//! Applies the hunks of a file to its text.

use super::{
    hunk::{Hunk, HunkLine, LineEnding, LineRole},
    locate::{CancelCheck, HunkLocator, HunkPosition, TextLines},
    mismatch::HunkRef,
};
use crate::daemon::error::Error;

/// Size of a line ending.
const MAX_LINE_ENDING_BYTES: usize = 2;

/// A text with all hunks applied.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct AppliedHunks {
    pub(super) content: Vec<u8>,
    /// Maximum number of context lines ignored at an end of a hunk.
    pub(super) fuzz: usize,
    /// Maximum distance in lines of a hunk from its expected line.
    pub(super) offset: usize,
}

/// Where a hunk applies.
#[derive(Debug, Clone, Copy)]
struct HunkPlacement {
    /// First line of the text that the hunk, without ignored context, replaces.
    first_line: usize,
    /// Context lines ignored at the start and at the end of the hunk.
    ignored_context: (usize, usize),
    fuzz: usize,
}

/// The new text under construction.
#[derive(Debug)]
struct PatchedText<'t> {
    text: &'t TextLines<'t>,
    content: Vec<u8>,
    /// Whether all lines of the old text end with CRLF.
    is_crlf: bool,
    /// Lines of the old text that are copied or removed.
    copied_lines: usize,
    /// Length of `content` without the ending of the line added last.
    line_end: usize,
}

/// Applies the hunks of a file, in order.
///
/// Lines of the text may have other endings than those of the patch. The text keeps its endings
/// then, and added lines get the same.
pub(super) fn apply(
    path: &str,
    content: &[u8],
    hunks: &[Hunk<'_>],
    max_fuzz: usize,
    check: CancelCheck<'_>,
) -> Result<AppliedHunks, Error> {
    let text = TextLines::split(content, path)?;
    let locator = HunkLocator::new(&text, hunks, check);
    let added_bytes: usize = hunks
        .iter()
        .flat_map(|hunk| &hunk.lines)
        .filter(|line| line.role == LineRole::Added)
        .map(|line| line.text.len() + MAX_LINE_ENDING_BYTES)
        .sum();
    let mut output = PatchedText {
        text: &text,
        content: Vec::with_capacity(content.len() + added_bytes),
        is_crlf: text.is_crlf(),
        copied_lines: 0,
        line_end: 0,
    };

    let mut applied = AppliedHunks::default();
    // Distance of the last hunk from its expected line. The next is likely to have the same.
    let mut shift = 0_isize;
    for (index, hunk) in hunks.iter().enumerate() {
        if index % 64 == 0 {
            check()?;
        }
        let hunk_ref = HunkRef { path, number: index + 1, line: hunk.line };
        let floor = output.copied_lines;
        let placement = find_placement(&locator, &text, hunk, floor, shift, max_fuzz, hunk_ref)?;

        if let Some(expected) = hunk.expected_line {
            let start = placement.first_line.saturating_sub(placement.ignored_context.0);
            shift = start.cast_signed() - expected.cast_signed();
            applied.offset = applied.offset.max(shift.unsigned_abs());
        }
        applied.fuzz = applied.fuzz.max(placement.fuzz);
        output.apply_hunk(hunk, placement);
    }

    output.copy_until(text.len());
    applied.content = output.content;
    Ok(applied)
}

/// Finds the placement of a hunk with the least fuzz.
fn find_placement(
    locator: &HunkLocator<'_, '_>,
    text: &TextLines<'_>,
    hunk: &Hunk<'_>,
    floor: usize,
    shift: isize,
    max_fuzz: usize,
    hunk_ref: HunkRef<'_>,
) -> Result<HunkPlacement, Error> {
    let near = hunk.expected_line.map(|line| line.saturating_add_signed(shift).max(floor));
    let wanted = locator.line_ids(hunk);
    if wanted.is_empty() {
        let at = near.unwrap_or(0);
        // Without old lines to match, the line number must be exact, or the file empty.
        let is_exact = hunk.is_insert_only && near.is_some() && at <= text.len();
        if text.len() == 0 || is_exact {
            let first_line = at.min(text.len());
            return Ok(HunkPlacement { first_line, ignored_context: (0, 0), fuzz: 0 });
        }
        return Err(hunk_ref.no_position_error(text, at));
    }

    let is_context = |line: &&HunkLine<'_>| line.role == LineRole::Context;
    let leading = hunk.lines.iter().take_while(is_context).count();
    let trailing = hunk.lines.iter().rev().take_while(is_context).count();
    let mut last = None;
    for fuzz in 0..=max_fuzz {
        let ignored = (leading.min(fuzz), trailing.min(fuzz));
        let end = wanted.len().saturating_sub(ignored.1);
        let core = wanted.get(ignored.0..end).unwrap_or_default();
        if core.is_empty() || last == Some(ignored) {
            break;
        }
        last = Some(ignored);
        let near = near.map(|near| near + ignored.0);
        match locator.find(core, near, floor)? {
            HunkPosition::At(at) => {
                return Ok(HunkPlacement { first_line: at, ignored_context: ignored, fuzz });
            }
            HunkPosition::Ambiguous(first, second) => {
                return Err(hunk_ref.ambiguous_error(text, first, second));
            }
            HunkPosition::Nowhere => {}
        }
    }

    let near = match near {
        Some(near) => near,
        None => locator.first_occurrence(&wanted, floor)?.unwrap_or(0),
    };
    let at = near.min(text.len());
    Err(hunk_ref.not_found_error(hunk, text, at, locator.first_difference(&wanted, at)))
}

impl PatchedText<'_> {
    fn apply_hunk(&mut self, hunk: &Hunk<'_>, placement: HunkPlacement) {
        let HunkPlacement { first_line, ignored_context: ignored, .. } = placement;
        self.copy_until(first_line);
        let lines = hunk.lines.get(ignored.0..hunk.lines.len() - ignored.1).unwrap_or_default();
        let old_endings: Vec<LineEnding> = lines
            .iter()
            .filter(|line| line.role != LineRole::Added)
            .map(|line| line.ending)
            .collect();

        // The endings of the patch count if its old lines end as those of the text do. The end of
        // the file is compared in `fix_last_newline`.
        let differs = |(index, ending): (usize, &LineEnding)| {
            let actual =
                self.text.line(first_line + index).map_or(LineEnding::Lf, |(_, ending)| ending);
            (*ending == LineEnding::CrLf) != (actual == LineEnding::CrLf)
                && actual != LineEnding::EndOfFile
        };
        let has_foreign_endings = old_endings.iter().enumerate().any(differs);

        for line in lines {
            match line.role {
                LineRole::Context => self.copy_until(self.copied_lines + 1),
                LineRole::Removed => self.copied_lines += 1,
                LineRole::Added => {
                    let keeps_ending = match line.ending {
                        LineEnding::CrLf => !has_foreign_endings,
                        // Without a line to compare, the patch may have lost carriage returns.
                        LineEnding::Lf => {
                            !(has_foreign_endings || old_endings.is_empty() && self.is_crlf)
                        }
                        LineEnding::EndOfFile => false,
                    };
                    let nearby = if keeps_ending { None } else { self.nearby_ending() };
                    self.add_line(line.text.as_bytes(), nearby.unwrap_or(line.ending));
                }
            }
        }

        let last_new = lines.iter().rfind(|line| line.role != LineRole::Removed);
        if let Some(line) = last_new
            && line.role == LineRole::Added
            && first_line + old_endings.len() >= self.text.len()
        {
            self.fix_last_newline(line.ending, old_endings.last());
        }
    }

    /// Removes the newline after an added last line if the new text must not have one. The patch
    /// decides that if it agrees with the old text about the old final newline. Otherwise the new
    /// text ends as the old text does.
    fn fix_last_newline(&mut self, new_ending: LineEnding, old_ending: Option<&LineEnding>) {
        let lacks_newline = new_ending == LineEnding::EndOfFile;
        let last_old = self.text.len().checked_sub(1).and_then(|last| self.text.line(last));
        let lacked_newline = last_old.is_some_and(|(_, ending)| ending == LineEnding::EndOfFile);

        let patch_decides = match old_ending {
            Some(ending) => (*ending == LineEnding::EndOfFile) == lacked_newline,
            None => lacks_newline || !lacked_newline,
        };
        if if patch_decides { lacks_newline } else { lacked_newline } {
            self.content.truncate(self.line_end);
        }
    }

    /// Copies lines of the old text until before `line`.
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

    /// Appends the newline that the last line of the old text lacks, if another line follows it.
    fn finish_line(&mut self) {
        if !self.content.is_empty() && !self.content.ends_with(b"\n") {
            self.content.extend_from_slice(match self.nearby_ending() {
                Some(LineEnding::CrLf) => b"\r\n",
                Some(LineEnding::Lf | LineEnding::EndOfFile) | None => b"\n",
            });
        }
    }

    /// Returns the ending of the nearest lines of the old text.
    fn nearby_ending(&self) -> Option<LineEnding> {
        [self.copied_lines.checked_sub(1), Some(self.copied_lines), Some(0)]
            .into_iter()
            .flatten()
            .filter_map(|at| self.text.line(at))
            .map(|(_, ending)| ending)
            .find(|ending| *ending != LineEnding::EndOfFile)
    }
}
