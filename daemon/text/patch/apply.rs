//! The hunks of a file on its text.

use super::{
    hunk::{Ending, Hunk, Line, Role},
    misfit::Name,
    search::{Check, Found, Search, Text},
};
use crate::daemon::error::Error;

/// Most bytes that end a line.
const ENDING: usize = 2;

/// A text with all hunks on it.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Applied {
    pub(super) content: Vec<u8>,
    /// Most context lines that were ignored at an end of a hunk.
    pub(super) fuzz: usize,
    /// Most lines by which a hunk lay away from where the patch said.
    pub(super) offset: usize,
}

/// Where a hunk fits: the lines of it that count, and of the text.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// The first line of the text.
    at: usize,
    /// Lines of context that are ignored at the begin and at the end.
    ignored: (usize, usize),
    fuzz: usize,
}

/// The new text, as far as it is known.
#[derive(Debug)]
struct Output<'t> {
    text: &'t Text<'t>,
    content: Vec<u8>,
    /// Whether all its lines end with carriage returns.
    is_windows: bool,
    /// Lines of the old text that are done with.
    done: usize,
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
    check: Check<'_>,
) -> Result<Applied, Error> {
    let text = Text::split(content, path)?;
    let search = Search::new(&text, hunks, check);
    let added = hunks.iter().flat_map(|hunk| &hunk.lines);
    let added = added.filter(|line| line.role == Role::Added);
    let added: usize = added.map(|line| line.text.len() + ENDING).sum();
    let mut output = Output {
        text: &text,
        content: Vec::with_capacity(content.len() + added),
        is_windows: text.is_windows(),
        done: 0,
        line_end: 0,
    };
    let mut applied = Applied::default();
    // How far away the last hunk lay: the next will, too.
    let mut moved = 0_isize;
    for (index, hunk) in hunks.iter().enumerate() {
        if index % 64 == 0 {
            check()?;
        }
        let name = Name { path, number: index + 1, line: hunk.line };
        let place = find(&search, &text, hunk, output.done, moved, max_fuzz, name)?;
        if let Some(said) = hunk.place {
            let begin = place.at.saturating_sub(place.ignored.0);
            moved = begin.cast_signed() - said.cast_signed();
            applied.offset = applied.offset.max(moved.unsigned_abs());
        }
        applied.fuzz = applied.fuzz.max(place.fuzz);
        output.apply(hunk, place);
    }
    output.copy_until(text.len());
    applied.content = output.content;
    Ok(applied)
}

/// Looks for the place of a hunk, with as little fuzz as possible.
fn find(
    search: &Search<'_, '_>,
    text: &Text<'_>,
    hunk: &Hunk<'_>,
    floor: usize,
    moved: isize,
    max_fuzz: usize,
    name: Name<'_>,
) -> Result<Place, Error> {
    let near = hunk.place.map(|place| place.saturating_add_signed(moved).max(floor));
    let wanted = search.numbers(hunk);
    if wanted.is_empty() {
        let at = near.unwrap_or(0);
        // Without a line to go by, only a header that says it exactly, or an empty file, will do.
        return match text.len() == 0 || hunk.only_adds && near.is_some() && at <= text.len() {
            true => Ok(Place { at: at.min(text.len()), ignored: (0, 0), fuzz: 0 }),
            false => Err(name.placeless(text, at)),
        };
    }
    let is_context = |line: &&Line<'_>| line.role == Role::Context;
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
            Found::At(at) => return Ok(Place { at, ignored, fuzz }),
            Found::Several(one, other) => return Err(name.several(text, one, other)),
            Found::Nowhere => {}
        }
    }
    let near = match near {
        Some(near) => near,
        None => search.first_of(&wanted, floor)?.unwrap_or(0),
    };
    let at = near.min(text.len());
    Err(name.nowhere(hunk, text, at, search.first_difference(&wanted, at)))
}

impl Output<'_> {
    fn apply(&mut self, hunk: &Hunk<'_>, place: Place) {
        self.copy_until(place.at);
        let Place { ignored, .. } = place;
        let lines = hunk.lines.get(ignored.0..hunk.lines.len() - ignored.1).unwrap_or_default();
        let removed = |line: &&Line<'_>| line.role != Role::Added;
        let old: Vec<Ending> = lines.iter().filter(removed).map(|line| line.ending).collect();
        let there = |index| self.text.line(place.at + index).map(|(_, ending)| ending);
        // The patch was made from lines that end as these do. The end of the file is looked at
        // below.
        let differs = |(index, ending): (usize, &Ending)| {
            let there = there(index).unwrap_or(Ending::Newline);
            (*ending == Ending::CarriageReturn) != (there == Ending::CarriageReturn)
                && there != Ending::Nothing
        };
        let foreign = old.iter().enumerate().any(differs);
        let end = place.at + old.len();
        for line in lines {
            match line.role {
                Role::Context => self.copy_until(self.done + 1),
                Role::Removed => self.done += 1,
                Role::Added => {
                    let is_kept = match line.ending {
                        Ending::CarriageReturn => !foreign,
                        // Without a line to compare with, the carriage return may be left out.
                        Ending::Newline => !(foreign || old.is_empty() && self.is_windows),
                        Ending::Nothing => false,
                    };
                    let ending = match is_kept {
                        true => line.ending,
                        false => self.ending_here().unwrap_or(line.ending),
                    };
                    self.add(line.text.as_bytes(), ending);
                }
            }
        }
        let last_new = lines.iter().rfind(|line| line.role != Role::Removed);
        let last_new = match last_new {
            Some(line) if line.role == Role::Added && end >= self.text.len() => line.ending,
            _ => return,
        };
        // Whether the new last line has a newline: as the patch says, if it knows how the old one
        // ended.
        let says_none = last_new == Ending::Nothing;
        let last_old = self.text.len().checked_sub(1);
        let last_old = last_old.and_then(|last| self.text.line(last));
        let had_none = last_old.is_some_and(|(_, ending)| ending == Ending::Nothing);
        let is_known = match old.last() {
            Some(ending) => (*ending == Ending::Nothing) == had_none,
            None => says_none || !had_none,
        };
        if if is_known { says_none } else { had_none } {
            self.content.truncate(self.line_end);
        }
    }

    /// Copies lines of the old text as they are.
    fn copy_until(&mut self, line: usize) {
        let lines = self.text.lines(self.done, line);
        if !lines.is_empty() {
            self.finish_line();
            self.content.extend_from_slice(lines);
        }
        self.done = line;
    }

    fn add(&mut self, line: &[u8], ending: Ending) {
        self.finish_line();
        self.content.extend_from_slice(line);
        self.line_end = self.content.len();
        self.content.extend_from_slice(match ending {
            Ending::CarriageReturn => b"\r\n",
            Ending::Newline | Ending::Nothing => b"\n",
        });
    }

    /// Ends a line that was the last of the old text and is not of the new.
    fn finish_line(&mut self) {
        if !self.content.is_empty() && !self.content.ends_with(b"\n") {
            self.content.extend_from_slice(match self.ending_here() {
                Some(Ending::CarriageReturn) => b"\r\n",
                Some(Ending::Newline | Ending::Nothing) | None => b"\n",
            });
        }
    }

    /// How lines of the old text end around here.
    fn ending_here(&self) -> Option<Ending> {
        [self.done.checked_sub(1), Some(self.done), Some(0)]
            .into_iter()
            .flatten()
            .filter_map(|at| self.text.line(at))
            .map(|(_, ending)| ending)
            .find(|ending| *ending != Ending::Nothing)
    }
}
