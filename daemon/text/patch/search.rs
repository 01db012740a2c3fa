//! Where the lines of a hunk stand in a text: nearest to where they should, or in one place only.

use std::{cell::OnceCell, collections::HashMap};

use super::hunk::{Ending, Hunk};
use crate::daemon::error::{Error, Reason};

/// Most lines of a file that a patch changes: some bytes of memory are needed for each.
const MOST_LINES: usize = 10_000_000;
/// Number of a line that no hunk holds.
const UNKNOWN: u32 = u32::MAX;
/// Lines compared, at most, between two questions whether to go on.
const LINES_PER_CHECK: usize = 1 << 20;

/// Asked from time to time during long work; its error ends it.
pub(crate) type Check<'a> = &'a dyn Fn() -> Result<(), Error>;

/// A text, line by line.
#[derive(Debug)]
pub(super) struct Text<'t> {
    content: &'t [u8],
    /// Where each line begins, and the end of the last.
    starts: Vec<usize>,
}

/// Where the lines of hunks stand in a text.
pub(super) struct Search<'t, 'p> {
    numbers: HashMap<&'p [u8], u32>,
    /// The number of each line of the text; lines that differ in their ending only have the same.
    text: Vec<u32>,
    /// The lines that have a number, in order. Hunks that stand where they say need it not.
    places: OnceCell<Vec<Vec<usize>>>,
    check: Check<'t>,
}

/// A place, or why there is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    At(usize),
    Nowhere,
    /// These two are equally good.
    Several(usize, usize),
}

impl<'t> Text<'t> {
    /// Finds the lines of a file whose path is for messages.
    pub(super) fn split(content: &'t [u8], path: &str) -> Result<Self, Error> {
        let count = memchr::memchr_iter(b'\n', content).count();
        if count > MOST_LINES {
            return Err(Error::new(
                Reason::FileTooLarge,
                format!("{path:?} has {count} lines: files of up to {MOST_LINES} can be patched"),
            )
            .with("path", path));
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
    pub(super) fn line(&self, at: usize) -> Option<(&'t [u8], Ending)> {
        let line = self
            .content
            .get(*self.starts.get(at)?..*self.starts.get(at + 1)?)?;
        Some(match line.strip_suffix(b"\n") {
            None => (line, Ending::Nothing),
            Some(line) => match line.strip_suffix(b"\r") {
                None => (line, Ending::Newline),
                Some(line) => (line, Ending::CarriageReturn),
            },
        })
    }

    /// Whether all lines end with carriage returns.
    pub(super) fn is_windows(&self) -> bool {
        (0..self.len()).all(|at| {
            self.line(at)
                .is_some_and(|(_, ending)| ending != Ending::Newline)
        })
    }

    /// The lines from `from` to before `to`, as they are.
    pub(super) fn lines(&self, from: usize, to: usize) -> &'t [u8] {
        let start = |at: usize| self.starts.get(at).copied().unwrap_or(self.content.len());
        self.content.get(start(from)..start(to)).unwrap_or_default()
    }
}

impl<'t, 'p> Search<'t, 'p> {
    /// Prepares for looking for the hunks in the text.
    pub(super) fn new(
        text: &Text<'_>,
        hunks: &'p [Hunk<'_>],
        check: Check<'t>,
    ) -> Result<Self, Error> {
        let mut numbers: HashMap<&[u8], u32> = HashMap::new();
        let mut next = 0;
        for line in hunks.iter().flat_map(Hunk::old_lines) {
            numbers.entry(line.text.as_bytes()).or_insert_with(|| {
                next += 1;
                next - 1
            });
        }
        check()?;
        let mut found = Vec::with_capacity(text.len());
        for at in 0..text.len() {
            if at.is_multiple_of(LINES_PER_CHECK) {
                check()?;
            }
            let known = text.line(at).and_then(|(line, _)| numbers.get(line));
            found.push(known.copied().unwrap_or(UNKNOWN));
        }
        Ok(Self {
            numbers,
            text: found,
            places: OnceCell::new(),
            check,
        })
    }

    /// The numbers of the old lines of a hunk.
    pub(super) fn numbers(&self, hunk: &Hunk<'_>) -> Vec<u32> {
        hunk.old_lines()
            .map(|line| self.number(line.text.as_bytes()))
            .collect()
    }

    /// Looks for lines, not before `floor`: nearest to a place, or in one place only.
    pub(super) fn find(
        &self,
        wanted: &[u32],
        near: Option<usize>,
        floor: usize,
    ) -> Result<Found, Error> {
        if let Some(near) = near
            && near >= floor
            && self.stands(wanted, near)
        {
            return Ok(Found::At(near));
        }
        let Some((index, places)) = self.rarest(wanted) else {
            return Ok(Found::Nowhere);
        };
        // Places of the rarest line, and from them those of the first.
        let first = places.partition_point(|place| *place < floor + index);
        let places = places.get(first..).unwrap_or_default();
        let start = |place: &usize| place - index;
        match near {
            Some(near) => self.nearest(wanted, near, places, start),
            None => self.only(wanted, places, start),
        }
    }

    /// First place at which one of the lines stands, not before `floor`.
    pub(super) fn first_of(&self, wanted: &[u32], floor: usize) -> Option<usize> {
        let (index, places) = wanted
            .iter()
            .enumerate()
            .map(|(index, number)| (index, self.places_of(*number)))
            .find(|(_, places)| !places.is_empty())?;
        let place = places
            .iter()
            .find(|place| **place >= floor)
            .or(places.first())?;
        Some(place.saturating_sub(index))
    }

    /// The first line that is not there, if the lines should stand here.
    pub(super) fn first_difference(&self, wanted: &[u32], at: usize) -> Option<usize> {
        let there = self.text.get(at..).unwrap_or_default();
        let same = wanted.iter().zip(there).take_while(|(a, b)| a == b).count();
        (same < wanted.len()).then_some(same)
    }

    fn nearest(
        &self,
        wanted: &[u32],
        near: usize,
        places: &[usize],
        start: impl Fn(&usize) -> usize,
    ) -> Result<Found, Error> {
        let middle = places.partition_point(|place| start(place) < near);
        let (before, behind) = places.split_at(middle);
        let mut before = before.iter().rev().map(&start).peekable();
        let mut behind = behind.iter().map(&start).peekable();
        for looked in 0.. {
            self.check_every(looked, wanted.len())?;
            let distance = match (before.peek(), behind.peek()) {
                (None, None) => break,
                (Some(place), None) => near - place,
                (None, Some(place)) => place - near,
                (Some(before), Some(behind)) => (near - before).min(behind - near),
            };
            let back = before
                .next_if(|place| near - place == distance)
                .filter(|place| self.stands(wanted, *place));
            let forth = behind
                .next_if(|place| place - near == distance)
                .filter(|place| self.stands(wanted, *place));
            match (back, forth) {
                (Some(one), Some(other)) => return Ok(Found::Several(one, other)),
                (Some(place), None) | (None, Some(place)) => return Ok(Found::At(place)),
                (None, None) => {}
            }
        }
        Ok(Found::Nowhere)
    }

    fn only(
        &self,
        wanted: &[u32],
        places: &[usize],
        start: impl Fn(&usize) -> usize,
    ) -> Result<Found, Error> {
        let mut found = None;
        for (looked, place) in places.iter().map(start).enumerate() {
            self.check_every(looked, wanted.len())?;
            if !self.stands(wanted, place) {
                continue;
            }
            match found {
                None => found = Some(place),
                Some(first) => return Ok(Found::Several(first, place)),
            }
        }
        Ok(found.map_or(Found::Nowhere, Found::At))
    }

    fn stands(&self, wanted: &[u32], at: usize) -> bool {
        let end = at.saturating_add(wanted.len());
        self.text.get(at..end) == Some(wanted)
    }

    /// The line of those wanted that stands in the fewest places, and these. None when one stands
    /// nowhere.
    fn rarest(&self, wanted: &[u32]) -> Option<(usize, &[usize])> {
        let (index, places) = wanted
            .iter()
            .enumerate()
            .map(|(index, number)| (index, self.places_of(*number)))
            .min_by_key(|(_, places)| places.len())?;
        (!places.is_empty()).then_some((index, places))
    }

    fn places_of(&self, number: u32) -> &[usize] {
        let places = self.places.get_or_init(|| {
            let mut places = vec![Vec::new(); self.numbers.len()];
            for (at, number) in self.text.iter().enumerate() {
                let place = usize::try_from(*number).ok();
                if let Some(places) = place.and_then(|number| places.get_mut(number)) {
                    places.push(at);
                }
            }
            places
        });
        let place = usize::try_from(number).ok();
        place
            .and_then(|number| places.get(number))
            .map_or(&[], Vec::as_slice)
    }

    fn number(&self, line: &[u8]) -> u32 {
        self.numbers.get(line).copied().unwrap_or(UNKNOWN)
    }

    fn check_every(&self, looked: usize, lines: usize) -> Result<(), Error> {
        if looked.is_multiple_of((LINES_PER_CHECK / (lines + 1)).max(1)) {
            (self.check)()?;
        }
        Ok(())
    }
}
