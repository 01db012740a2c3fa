//! What to say about a hunk that does not fit: its place, and what stands there instead.

use super::{
    hunk::{Hunk, HunkLine, LineEnding, LineRole},
    locate::TextLines,
    patch_lines::quote_line,
};
use crate::daemon::error::{Error, Reason};

/// Most lines of the file to show.
const MAX_SHOWN_LINES: usize = 8;

/// A hunk, as messages name it.
#[derive(Debug, Clone, Copy)]
pub(super) struct HunkRef<'a> {
    /// Path of the file.
    pub(super) path: &'a str,
    /// Which hunk of the file, counted from 1.
    pub(super) number: usize,
    /// Where in the patch.
    pub(super) line: usize,
}

impl HunkRef<'_> {
    /// A hunk that fits nowhere. `at` is where it should have stood, and `difference` which of its
    /// old lines is the first that does not stand there.
    pub(super) fn not_found_error(
        &self,
        hunk: &Hunk<'_>,
        text: &TextLines<'_>,
        at: usize,
        difference: Option<usize>,
    ) -> Error {
        let first = at.min(text.len());
        let mut message = match is_already_applied(hunk, text, first) {
            true => "the lines that it makes are there already: leave it out".to_owned(),
            false => "no place in the file has the lines that it keeps and removes".to_owned(),
        };
        if let Some(index) = difference
            && let Some(line) = hunk.old_lines().nth(index)
        {
            let there = match text.line(first + index) {
                Some((there, _)) => quote_line(&String::from_utf8_lossy(there)),
                None => "the end of the file".to_owned(),
            };
            message.push_str(&format!(
                "; it wants {} where line {} is {there}",
                quote_line(line.text),
                first + index + 1,
            ));
        }
        // The first difference among what is shown.
        let from = first + difference.unwrap_or(0).saturating_sub(MAX_SHOWN_LINES / 2);
        self.error(format!("{message}. {}", excerpt(text, from)))
    }

    /// A hunk that fits in two places.
    pub(super) fn ambiguous_error(&self, text: &TextLines<'_>, one: usize, other: usize) -> Error {
        self.error(format!(
            "it fits equally well at lines {} and {}: give it more lines of context, or the right line number in its header. {}",
            one + 1,
            other + 1,
            excerpt(text, one),
        ))
    }

    /// A hunk that says nowhere where it belongs.
    pub(super) fn no_position_error(&self, text: &TextLines<'_>, at: usize) -> Error {
        self.error(format!(
            "it only adds lines, and there is no such place in the file: give it lines of context. {}",
            excerpt(text, at)
        ))
    }

    fn error(&self, problem: String) -> Error {
        let Self { path, number, line } = self;
        Error::new(
            Reason::PatchHunkFail,
            format!("hunk {number} of {path:?} (line {line} of the patch) does not fit: {problem}"),
        )
        .with_metadata("path", *path)
        .with_metadata("hunk", number.to_string())
    }
}

/// Whether the new lines of a hunk stand here.
fn is_already_applied(hunk: &Hunk<'_>, text: &TextLines<'_>, at: usize) -> bool {
    let new = hunk.lines.iter().filter(|line| line.role != LineRole::Removed);
    let adds = hunk.lines.iter().any(|line| line.role == LineRole::Added);
    let stands = |(index, line): (usize, &HunkLine<'_>)| {
        let there = text.line(at + index);
        there.is_some_and(|(there, _)| there == line.text.as_bytes())
    };
    adds && new.enumerate().all(stands)
}

/// Lines of a file, with their numbers.
pub(super) fn excerpt(text: &TextLines<'_>, from: usize) -> String {
    let count = text.len();
    if count == 0 {
        return "The file is empty".to_owned();
    }
    let from = from.min(count.saturating_sub(MAX_SHOWN_LINES / 2));
    let to = (from + MAX_SHOWN_LINES).min(count);
    let mut message = format!("Lines {} to {to} of {count} are:", from + 1);
    for at in from..to {
        let (line, _) = text.line(at).unwrap_or((&[], LineEnding::EndOfFile));
        let line = quote_line(&String::from_utf8_lossy(line));
        message.push_str(&format!("\n{}: {line}", at + 1));
    }
    message
}
