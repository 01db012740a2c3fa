//! Where the lines of a hunk stand in a text: nearest to where they should, or in one place only.

use std::{cell::OnceCell, collections::HashMap};

use super::hunk::{Hunk, LineEnding};
use crate::daemon::error::{Error, Reason};

/// Most lines of a file that a patch changes: some bytes of memory are needed for each.
const MAX_FILE_LINES: usize = 10_000_000;
/// Number of a line that no hunk holds.
const UNKNOWN_LINE_ID: u32 = u32::MAX;
/// Lines compared, at most, between two questions whether to go on.
const LINES_PER_CHECK: usize = 1 << 20;

/// Asked from time to time during long work; its error ends it.
pub(crate) type CancelCheck<'a> = &'a dyn Fn() -> Result<(), Error>;

/// A text, line by line.
#[derive(Debug)]
pub(super) struct TextLines<'t> {
    content: &'t [u8],
    /// Where each line begins, and the end of the last.
    starts: Vec<usize>,
}

/// Where the lines of hunks stand in a text.
pub(super) struct HunkLocator<'t, 'p> {
    text: &'t TextLines<'t>,
    /// The number of each line of the hunks.
    line_ids: HashMap<&'p [u8], u32>,
    /// What hunks that stand where they say need not.
    index: OnceCell<LineIndex>,
    check: CancelCheck<'t>,
}

/// A text whose lines are numbered as those of the hunks are.
struct LineIndex {
    /// The number of each line of the text; lines that differ in their ending only have the same.
    line_ids: Vec<u32>,
    /// The lines that have a number, in order.
    positions: Vec<Vec<usize>>,
}

/// A place, or why there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HunkPosition {
    At(usize),
    Nowhere,
    /// These two are equally good.
    Ambiguous(usize, usize),
}

impl<'t> TextLines<'t> {
    /// Finds the lines of a file whose path is for messages.
    pub(super) fn split(content: &'t [u8], path: &str) -> Result<Self, Error> {
        let count = memchr::memchr_iter(b'\n', content).count();
        if count > MAX_FILE_LINES {
            return Err(Error::new(
                Reason::FileTooLarge,
                format!(
                    "{path:?} has {count} lines: files of up to {MAX_FILE_LINES} can be patched"
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

    /// The number of lines.
    pub(super) fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// A line without its ending, counted from 0.
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

    /// Whether all lines end with carriage returns.
    pub(super) fn is_crlf(&self) -> bool {
        (0..self.len()).all(|at| self.line(at).is_some_and(|(_, ending)| ending != LineEnding::Lf))
    }

    /// The lines from `from` to before `to`, as they are.
    pub(super) fn lines(&self, from: usize, to: usize) -> &'t [u8] {
        let start = |at: usize| self.starts.get(at).copied().unwrap_or(self.content.len());
        self.content.get(start(from)..start(to)).unwrap_or_default()
    }
}

impl<'t, 'p> HunkLocator<'t, 'p> {
    /// Prepares for looking for the hunks in the text.
    pub(super) fn new(
        text: &'t TextLines<'t>,
        hunks: &'p [Hunk<'_>],
        check: CancelCheck<'t>,
    ) -> Self {
        let mut numbers: HashMap<&[u8], u32> = HashMap::new();
        let mut next = 0;
        for line in hunks.iter().flat_map(Hunk::old_lines) {
            numbers.entry(line.text.as_bytes()).or_insert_with(|| {
                next += 1;
                next - 1
            });
        }
        Self { text, line_ids: numbers, index: OnceCell::new(), check }
    }

    /// The numbers of the old lines of a hunk.
    pub(super) fn line_ids(&self, hunk: &Hunk<'_>) -> Vec<u32> {
        hunk.old_lines().map(|line| self.line_id(line.text.as_bytes())).collect()
    }

    /// Looks for lines, not before `floor`: nearest to a place, or in one place only.
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
        let Some((offset, places)) = index.rarest_line(wanted) else {
            return Ok(HunkPosition::Nowhere);
        };
        // Places of the rarest line, and from them those of the first.
        let first = places.partition_point(|place| *place < floor + offset);
        let places = places.get(first..).unwrap_or_default();
        let start = |place: &usize| place - offset;
        match near {
            Some(near) => self.find_nearest(index, wanted, near, places, start),
            None => self.find_unique(index, wanted, places.iter().map(start)),
        }
    }

    /// First place at which one of the lines stands, not before `floor`.
    pub(super) fn first_occurrence(
        &self,
        wanted: &[u32],
        floor: usize,
    ) -> Result<Option<usize>, Error> {
        let index = self.index()?;
        let found = wanted.iter().enumerate();
        let found = found
            .map(|(offset, number)| (offset, index.positions_of(*number)))
            .find(|(_, places)| !places.is_empty());
        Ok(found.and_then(|(offset, places)| {
            let behind = places.iter().find(|place| **place >= floor);
            Some(behind.or(places.first())?.saturating_sub(offset))
        }))
    }

    /// The first line that is not there, if the lines should stand here.
    pub(super) fn first_difference(&self, wanted: &[u32], at: usize) -> Option<usize> {
        let is_there = |(offset, number): (usize, &u32)| {
            let line = self.text.line(at.saturating_add(offset));
            line.is_some_and(|(line, _)| self.line_id(line) == *number)
        };
        let same = wanted.iter().enumerate().take_while(|line| is_there(*line));
        let same = same.count();
        (same < wanted.len()).then_some(same)
    }

    fn find_nearest(
        &self,
        index: &LineIndex,
        wanted: &[u32],
        near: usize,
        places: &[usize],
        start: impl Fn(&usize) -> usize,
    ) -> Result<HunkPosition, Error> {
        let middle = places.partition_point(|place| start(place) < near);
        let (before, behind) = places.split_at(middle);
        let mut before = before.iter().rev().map(&start).peekable();
        let mut behind = behind.iter().map(&start).peekable();
        for looked in 0.. {
            self.check_periodically(looked, wanted.len())?;
            let distance = match (before.peek(), behind.peek()) {
                (None, None) => break,
                (Some(place), None) => near - place,
                (None, Some(place)) => place - near,
                (Some(before), Some(behind)) => (near - before).min(behind - near),
            };
            let back = before
                .next_if(|place| near - place == distance)
                .filter(|place| index.matches_at(wanted, *place));
            let forth = behind
                .next_if(|place| place - near == distance)
                .filter(|place| index.matches_at(wanted, *place));
            match (back, forth) {
                (Some(one), Some(other)) => return Ok(HunkPosition::Ambiguous(one, other)),
                (Some(place), None) | (None, Some(place)) => return Ok(HunkPosition::At(place)),
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
        for (looked, place) in starts.enumerate() {
            self.check_periodically(looked, wanted.len())?;
            if !index.matches_at(wanted, place) {
                continue;
            }
            match found {
                None => found = Some(place),
                Some(first) => return Ok(HunkPosition::Ambiguous(first, place)),
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
        let mut text = Vec::with_capacity(self.text.len());
        let mut places = vec![Vec::new(); self.line_ids.len()];
        for at in 0..self.text.len() {
            if at.is_multiple_of(LINES_PER_CHECK) {
                (self.check)()?;
            }
            let line = self.text.line(at);
            let number = line.map_or(UNKNOWN_LINE_ID, |(line, _)| self.line_id(line));
            text.push(number);
            if let Some(places) = line_id_index(number).and_then(|slot| places.get_mut(slot)) {
                places.push(at);
            }
        }
        Ok(self.index.get_or_init(|| LineIndex { line_ids: text, positions: places }))
    }

    fn check_periodically(&self, looked: usize, lines: usize) -> Result<(), Error> {
        if looked.is_multiple_of((LINES_PER_CHECK / (lines + 1)).max(1)) {
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

    /// The line of those wanted that stands in the fewest places, and these. None when one stands
    /// nowhere.
    fn rarest_line(&self, wanted: &[u32]) -> Option<(usize, &[usize])> {
        let (offset, places) = wanted
            .iter()
            .enumerate()
            .map(|(offset, number)| (offset, self.positions_of(*number)))
            .min_by_key(|(_, places)| places.len())?;
        (!places.is_empty()).then_some((offset, places))
    }

    fn positions_of(&self, number: u32) -> &[usize] {
        let places = line_id_index(number).and_then(|slot| self.positions.get(slot));
        places.map_or(&[], Vec::as_slice)
    }
}

fn line_id_index(number: u32) -> Option<usize> {
    usize::try_from(number).ok()
}
