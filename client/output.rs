//! Writes to standard output and standard error. In contrast to `println!`, nothing here panics if
//! the reader has gone.

use std::io::{self, Write as _};

use serde_json::Value;

use crate::{cli_error::CliError, escape};

pub(crate) fn write_stdout(bytes: &[u8]) -> Result<(), CliError> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(CliError::Output)
}

/// Writes to standard error. Ignores errors, because nothing can report them.
pub(crate) fn write_stderr(bytes: &[u8]) {
    io::stderr().lock().write_all(bytes).ok();
}

/// Writes one JSON value and a line ending to standard output.
pub(crate) fn write_json(value: &Value) -> Result<(), CliError> {
    write_stdout(format!("{}\n", escape::json(&value.to_string())).as_bytes())
}

/// Prints a message of jig to standard error.
///
/// It may contain untrusted text, so it is escaped, and only its first line begins with `jig: `.
pub(crate) fn note(text: &str) {
    write_stderr(format_note(text).as_bytes());
}

pub(crate) fn format_note(text: &str) -> String {
    format!("jig: {}\n", escape::text(text).replace('\n', "\n  "))
}

/// Warns about ignore files that were too large to be read completely.
pub(crate) fn note_truncated_ignore_files(count: u32) {
    if count > 0 {
        note(&format!(
            "{count} ignore files are too large to be read completely, so files that they exclude may be included"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_escaped() {
        assert_eq!(format_note("a"), "jig: a\n");
        assert_eq!(format_note("a\x1b[2J\njig: b"), "jig: a\\033[2J\n  jig: b\n");
    }
}
