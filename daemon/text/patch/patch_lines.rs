//! The lines of a patch and their numbers.

use crate::daemon::error::{Error, Reason};

/// Most lines of a patch: some bytes of memory are needed for each.
const MAX_PATCH_LINES: usize = 2_000_000;

/// The lines of a patch, without their newlines.
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
        // What follows the last newline is no line.
        if lines.last() == Some(&"") {
            lines.pop();
        }
        Ok(Self(lines))
    }

    /// A line as it stands there, counted from 0.
    pub(super) fn raw(&self, at: usize) -> Option<&'p str> {
        self.0.get(at).copied()
    }

    /// A line without the carriage return of a patch that came from Windows; empty at the end.
    pub(super) fn get(&self, at: usize) -> &'p str {
        let line = self.raw(at).unwrap_or_default();
        line.strip_suffix('\r').unwrap_or(line)
    }

    /// Whether the two lines from here on name the file before and after.
    pub(super) fn is_file_header(&self, at: usize) -> bool {
        self.get(at).starts_with("--- ") && self.get(at + 1).starts_with("+++ ")
    }

    /// Whether a mail made by `git format-patch` is signed here.
    pub(super) fn is_mail_signature(&self, at: usize) -> bool {
        let version = self.get(at + 1);
        self.get(at) == "-- "
            && version.starts_with(|first: char| first.is_ascii_digit())
            && self.get(at + 2).is_empty()
    }

    /// The number of lines.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// A patch that cannot be understood at a line, which is counted from 0.
pub(super) fn parse_error(at: usize, problem: impl std::fmt::Display) -> Error {
    let line = at + 1;
    Error::new(Reason::PatchParseError, format!("line {line} of the patch: {problem}"))
        .with_metadata("line", line.to_string())
}

/// A line for a message: quoted, and not too long.
pub(super) fn quote_line(line: &str) -> String {
    const MAX_QUOTED_BYTES: usize = 80;
    match line.char_indices().nth(MAX_QUOTED_BYTES) {
        None => format!("{line:?}"),
        Some((end, _)) => format!("{:?}…", line.get(..end).unwrap_or_default()),
    }
}
