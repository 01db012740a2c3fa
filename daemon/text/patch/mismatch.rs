//! Errors about hunks that do not fit: the hunk, and the lines that the file has instead.

use super::{
    hunk::{Hunk, HunkLine, LineEnding, LineRole},
    locate::TextLines,
    patch_lines::quote_line,
};
use crate::daemon::error::{Error, Reason};

/// Lines of the file in an error message.
const MAX_SHOWN_LINES: usize = 8;

/// Identifies a hunk in error messages.
#[derive(Debug, Clone, Copy)]
pub(super) struct HunkRef<'a> {
    pub(super) path: &'a str,
    /// Position among the hunks of the file, counted from 1.
    pub(super) number: usize,
    /// Line of the patch, counted from 1.
    pub(super) line: usize,
}

impl HunkRef<'_> {
    /// Builds the error for a hunk that fits nowhere. `at` is the line where it is expected,
    /// `difference` the index of its first old line that differs from the text there.
    pub(super) fn not_found_error(
        &self,
        hunk: &Hunk<'_>,
        text: &TextLines<'_>,
        at: usize,
        difference: Option<usize>,
    ) -> Error {
        let first = at.min(text.len());
        let mut message = if is_already_applied(hunk, text, first) {
            "it is already applied: remove this hunk".to_owned()
        } else {
            "its context and removed lines are not in the file".to_owned()
        };

        if let Some(index) = difference
            && let Some(line) = hunk.old_lines().nth(index)
        {
            let actual = match text.line(first + index) {
                Some((actual, _)) => quote_line(&String::from_utf8_lossy(actual)),
                None => "the end of the file".to_owned(),
            };
            message.push_str(&format!(
                "; it expects {} where line {} is {actual}",
                quote_line(line.text),
                first + index + 1,
            ));
        }

        // The excerpt surrounds the first difference.
        let from = first + difference.unwrap_or(0).saturating_sub(MAX_SHOWN_LINES / 2);
        self.error(format!("{message}. {}", excerpt(text, from)))
    }

    /// Builds the error for a hunk that fits at two lines.
    pub(super) fn ambiguous_error(
        &self,
        text: &TextLines<'_>,
        first: usize,
        second: usize,
    ) -> Error {
        self.error(format!(
            "it fits equally well at lines {} and {}: add lines of context, or correct the line number in its header. {}",
            first + 1,
            second + 1,
            excerpt(text, first),
        ))
    }

    /// Builds the error for a hunk without old lines and without a usable line number.
    pub(super) fn no_position_error(&self, text: &TextLines<'_>, at: usize) -> Error {
        self.error(format!(
            "it only adds lines, and its header names no line of the file: add lines of context. {}",
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

/// Whether the text already has the hunk's new lines at this position.
fn is_already_applied(hunk: &Hunk<'_>, text: &TextLines<'_>, at: usize) -> bool {
    let new = hunk.lines.iter().filter(|line| line.role != LineRole::Removed);
    let adds = hunk.lines.iter().any(|line| line.role == LineRole::Added);
    let matches = |(index, line): (usize, &HunkLine<'_>)| {
        text.line(at + index).is_some_and(|(actual, _)| actual == line.text.as_bytes())
    };
    adds && new.enumerate().all(matches)
}

/// Formats some lines of a file, with their numbers, for an error message.
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
