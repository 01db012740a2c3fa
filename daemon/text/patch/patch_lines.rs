//! The lines of a patch, and errors that name them.

use crate::daemon::error::{Error, Reason};

/// Lines of a patch. Each takes some bytes of memory.
const MAX_PATCH_LINES: usize = 2_000_000;

/// The lines of a patch, without newlines.
#[derive(Debug)]
pub(super) struct PatchLines<'p>(Vec<&'p str>);

impl<'p> PatchLines<'p> {
    pub(super) fn split(patch: &'p str) -> Result<Self, Error> {
        if memchr::memchr_iter(b'\n', patch.as_bytes()).count() > MAX_PATCH_LINES {
            return Err(Error::new(
                Reason::PatchParseError,
                format!("the patch has more than {MAX_PATCH_LINES} lines: split it"),
            ));
        }
        let mut lines: Vec<&str> = patch.split('\n').collect();
        // No line follows the last newline.
        if lines.last() == Some(&"") {
            lines.pop();
        }
        Ok(Self(lines))
    }

    /// Returns a line with its carriage return. Lines are counted from 0.
    pub(super) fn raw(&self, at: usize) -> Option<&'p str> {
        self.0.get(at).copied()
    }

    /// Returns a line without a carriage return, which a patch from Windows has. Empty at the end.
    pub(super) fn get(&self, at: usize) -> &'p str {
        let line = self.raw(at).unwrap_or_default();
        line.strip_suffix('\r').unwrap_or(line)
    }

    /// Whether the lines `--- ` and `+++ ` of a file header start here.
    pub(super) fn is_file_header(&self, at: usize) -> bool {
        self.get(at).starts_with("--- ") && self.get(at + 1).starts_with("+++ ")
    }

    /// Whether the signature of a mail by `git format-patch` starts here.
    pub(super) fn is_mail_signature(&self, at: usize) -> bool {
        let version = self.get(at + 1);
        self.get(at) == "-- "
            && version.starts_with(|first: char| first.is_ascii_digit())
            && self.get(at + 2).is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Builds the error for a patch that cannot be parsed. `at` is the line, counted from 0.
pub(super) fn parse_error(at: usize, problem: impl std::fmt::Display) -> Error {
    let line = at + 1;
    Error::new(Reason::PatchParseError, format!("line {line} of the patch: {problem}"))
        .with_metadata("line", line.to_string())
}

/// Part of a line that an error message quotes.
const MAX_QUOTED_CHARS: usize = 80;
/// Quotes a line for a message, shortened to [`MAX_QUOTED_CHARS`].
pub(super) fn quote_line(line: &str) -> String {
    match line.char_indices().nth(MAX_QUOTED_CHARS) {
        None => format!("{line:?}"),
        Some((end, _)) => format!("{:?}…", line.get(..end).unwrap_or_default()),
    }
}
