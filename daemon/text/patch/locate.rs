//! Finds the position of a hunk in a text: the nearest match to the expected line, or the only one.

use std::{cell::OnceCell, collections::HashMap};

use super::hunk::{Hunk, LineEnding};
use crate::daemon::error::{Error, Reason};

/// Lines of a file that a patch changes. Each takes some bytes of memory.
const MAX_FILE_LINES: usize = 10_000_000;
/// Number of a line that no hunk contains.
const UNKNOWN_LINE_ID: u32 = u32::MAX;
/// Line comparisons between two cancellation checks.
const LINES_PER_CHECK: usize = 1 << 20;

/// Called regularly during long work. Its error aborts the work.
pub(crate) type CancelCheck<'a> = &'a dyn Fn() -> Result<(), Error>;

/// A text, split into lines.
#[derive(Debug)]
pub(super) struct TextLines<'t> {
    content: &'t [u8],
    /// Offset of each line, then the end of the last.
    starts: Vec<usize>,
}

/// Finds hunks in a text.
pub(super) struct HunkLocator<'t, 'p> {
    text: &'t TextLines<'t>,
    /// Number of each distinct old line of the hunks.
    line_ids: HashMap<&'p [u8], u32>,
    /// Built on first use: hunks at their expected line do not need it.
    index: OnceCell<LineIndex>,
    check: CancelCheck<'t>,
}

/// The lines of a text, numbered as those of the hunks.
struct LineIndex {
    /// Number of each line of the text. Lines that differ in their endings only are equal.
    line_ids: Vec<u32>,
    /// Positions of each numbered line, in ascending order.
    positions: Vec<Vec<usize>>,
}

/// Result of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HunkPosition {
    At(usize),
    Nowhere,
    /// Two positions match equally well.
    Ambiguous(usize, usize),
}

impl<'t> TextLines<'t> {
    /// Splits the content of a file. Errors contain `path`.
    pub(super) fn split(content: &'t [u8], path: &str) -> Result<Self, Error> {
        let count = memchr::memchr_iter(b'\n', content).count();
        if count > MAX_FILE_LINES {
            return Err(Error::new(
                Reason::FileTooLarge,
                format!(
                    "{path:?} has {count} lines: patches apply to files of up to {MAX_FILE_LINES} lines"
                ),
            )
            .with_metadata("path", path));
        }
        let mut starts = Vec::with_capacity(count + 2);
        starts.push(0);
        starts.extend(memchr::memchr_iter(b'\n', content).map(|newline| newline + 1));
        if starts.last() != Some(&content.len()) {
            starts.push(content.len());
        }
        Ok(Self { content, starts })
    }

    pub(super) fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// Returns a line without its ending. Lines are counted from 0.
    pub(super) fn line(&self, at: usize) -> Option<(&'t [u8], LineEnding)> {
        let line = self.content.get(*self.starts.get(at)?..*self.starts.get(at + 1)?)?;
        Some(match line.strip_suffix(b"\n") {
            None => (line, LineEnding::EndOfFile),
            Some(line) => match line.strip_suffix(b"\r") {
                None => (line, LineEnding::Lf),
                Some(line) => (line, LineEnding::CrLf),
            },
        })
    }

    /// Whether all lines end with CRLF.
    pub(super) fn is_crlf(&self) -> bool {
        (0..self.len()).all(|at| self.line(at).is_some_and(|(_, ending)| ending != LineEnding::Lf))
    }

    /// Returns the lines from `from` until before `to`, with their endings.
    pub(super) fn lines(&self, from: usize, to: usize) -> &'t [u8] {
        let start = |at: usize| self.starts.get(at).copied().unwrap_or(self.content.len());
        self.content.get(start(from)..start(to)).unwrap_or_default()
    }
}

impl<'t, 'p> HunkLocator<'t, 'p> {
    /// Numbers the old lines of the hunks.
    pub(super) fn new(
        text: &'t TextLines<'t>,
        hunks: &'p [Hunk<'_>],
        check: CancelCheck<'t>,
    ) -> Self {
        let mut line_ids: HashMap<&[u8], u32> = HashMap::new();
        let mut next = 0;
        for line in hunks.iter().flat_map(Hunk::old_lines) {
            line_ids.entry(line.text.as_bytes()).or_insert_with(|| {
                next += 1;
                next - 1
            });
        }
        Self { text, line_ids, index: OnceCell::new(), check }
    }

    /// Returns the numbers of the old lines of a hunk.
    pub(super) fn line_ids(&self, hunk: &Hunk<'_>) -> Vec<u32> {
        hunk.old_lines().map(|line| self.line_id(line.text.as_bytes())).collect()
    }

    /// Finds lines at or after `floor`: the match nearest to `near`, or without it the only match.
    pub(super) fn find(
        &self,
        wanted: &[u32],
        near: Option<usize>,
        floor: usize,
    ) -> Result<HunkPosition, Error> {
        if let Some(near) = near
            && near >= floor
            && self.first_difference(wanted, near).is_none()
        {
            return Ok(HunkPosition::At(near));
        }

        let index = self.index()?;
        let Some((offset, positions)) = index.rarest_line(wanted) else {
            return Ok(HunkPosition::Nowhere);
        };

        // The position of the rarest line gives that of the first line.
        let first = positions.partition_point(|position| *position < floor + offset);
        let positions = positions.get(first..).unwrap_or_default();
        let start = |position: &usize| position - offset;
        match near {
            Some(near) => self.find_nearest(index, wanted, near, positions, start),
            None => self.find_unique(index, wanted, positions.iter().map(start)),
        }
    }

    /// Returns where the lines would start, judged by the first of them that the text contains: by
    /// its first position from `floor` on, else by its first position.
    pub(super) fn first_occurrence(
        &self,
        wanted: &[u32],
        floor: usize,
    ) -> Result<Option<usize>, Error> {
        let index = self.index()?;
        let found = wanted
            .iter()
            .enumerate()
            .map(|(offset, line_id)| (offset, index.positions_of(*line_id)))
            .find(|(_, positions)| !positions.is_empty());
        Ok(found.and_then(|(offset, positions)| {
            let after_floor = positions.iter().find(|position| **position >= floor);
            Some(after_floor.or(positions.first())?.saturating_sub(offset))
        }))
    }

    /// Returns the index of the first wanted line that differs from the text at `at`.
    pub(super) fn first_difference(&self, wanted: &[u32], at: usize) -> Option<usize> {
        let matches = |(offset, line_id): (usize, &u32)| {
            let line = self.text.line(at.saturating_add(offset));
            line.is_some_and(|(line, _)| self.line_id(line) == *line_id)
        };
        let same = wanted.iter().enumerate().take_while(|line| matches(*line)).count();
        (same < wanted.len()).then_some(same)
    }

    fn find_nearest(
        &self,
        index: &LineIndex,
        wanted: &[u32],
        near: usize,
        positions: &[usize],
        start: impl Fn(&usize) -> usize,
    ) -> Result<HunkPosition, Error> {
        let middle = positions.partition_point(|position| start(position) < near);
        let (before, after) = positions.split_at(middle);
        let mut before = before.iter().rev().map(&start).peekable();
        let mut after = after.iter().map(&start).peekable();

        for compared in 0.. {
            self.check_periodically(compared, wanted.len())?;
            let distance = match (before.peek(), after.peek()) {
                (None, None) => break,
                (Some(position), None) => near - position,
                (None, Some(position)) => position - near,
                (Some(before), Some(after)) => (near - before).min(after - near),
            };
            let back = before
                .next_if(|position| near - position == distance)
                .filter(|position| index.matches_at(wanted, *position));
            let forth = after
                .next_if(|position| position - near == distance)
                .filter(|position| index.matches_at(wanted, *position));
            match (back, forth) {
                (Some(back), Some(forth)) => return Ok(HunkPosition::Ambiguous(back, forth)),
                (Some(position), None) | (None, Some(position)) => {
                    return Ok(HunkPosition::At(position));
                }
                (None, None) => {}
            }
        }
        Ok(HunkPosition::Nowhere)
    }

    fn find_unique(
        &self,
        index: &LineIndex,
        wanted: &[u32],
        starts: impl Iterator<Item = usize>,
    ) -> Result<HunkPosition, Error> {
        let mut found = None;
        for (compared, position) in starts.enumerate() {
            self.check_periodically(compared, wanted.len())?;
            if !index.matches_at(wanted, position) {
                continue;
            }
            match found {
                None => found = Some(position),
                Some(first) => return Ok(HunkPosition::Ambiguous(first, position)),
            }
        }
        Ok(found.map_or(HunkPosition::Nowhere, HunkPosition::At))
    }

    fn line_id(&self, line: &[u8]) -> u32 {
        self.line_ids.get(line).copied().unwrap_or(UNKNOWN_LINE_ID)
    }

    fn index(&self) -> Result<&LineIndex, Error> {
        if let Some(index) = self.index.get() {
            return Ok(index);
        }

        let mut line_ids = Vec::with_capacity(self.text.len());
        let mut positions = vec![Vec::new(); self.line_ids.len()];
        for at in 0..self.text.len() {
            if at.is_multiple_of(LINES_PER_CHECK) {
                (self.check)()?;
            }
            let line = self.text.line(at);
            let line_id = line.map_or(UNKNOWN_LINE_ID, |(line, _)| self.line_id(line));
            line_ids.push(line_id);
            if let Some(positions) = line_id_index(line_id).and_then(|id| positions.get_mut(id)) {
                positions.push(at);
            }
        }
        Ok(self.index.get_or_init(|| LineIndex { line_ids, positions }))
    }

    fn check_periodically(&self, compared: usize, lines: usize) -> Result<(), Error> {
        if compared.is_multiple_of((LINES_PER_CHECK / (lines + 1)).max(1)) {
            (self.check)()?;
        }
        Ok(())
    }
}

impl LineIndex {
    fn matches_at(&self, wanted: &[u32], at: usize) -> bool {
        let end = at.saturating_add(wanted.len());
        self.line_ids.get(at..end) == Some(wanted)
    }

    /// Returns the wanted line with the fewest positions, as its index, and these positions. `None`
    /// if a wanted line has no position.
    fn rarest_line(&self, wanted: &[u32]) -> Option<(usize, &[usize])> {
        let (offset, positions) = wanted
            .iter()
            .enumerate()
            .map(|(offset, line_id)| (offset, self.positions_of(*line_id)))
            .min_by_key(|(_, positions)| positions.len())?;
        (!positions.is_empty()).then_some((offset, positions))
    }

    fn positions_of(&self, line_id: u32) -> &[usize] {
        let positions = line_id_index(line_id).and_then(|index| self.positions.get(index));
        positions.map_or(&[], Vec::as_slice)
    }
}

fn line_id_index(line_id: u32) -> Option<usize> {
    usize::try_from(line_id).ok()
}
