//! Writing to standard output and standard error. Nothing here panics when the reader is gone, as
//! `println!` does.

use std::io::{self, Write as _};

use serde_json::Value;

use crate::{cli_error::CliError, escape};

/// Writes to standard output.
pub(crate) fn write_stdout(bytes: &[u8]) -> Result<(), CliError> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(CliError::Output)
}

/// Writes what a command wrote to its standard error. There is nowhere to say that it cannot be
/// written.
pub(crate) fn write_stderr(bytes: &[u8]) {
    io::stderr().lock().write_all(bytes).ok();
}

/// Writes one JSON value and a line ending to standard output.
pub(crate) fn write_json(value: &Value) -> Result<(), CliError> {
    write_stdout(format!("{}\n", escape::json(&value.to_string())).as_bytes())
}

/// Writes something of our own to standard error. It is for people, wherever it ends up, and may hold
/// what others chose: only its first line begins as ours do.
pub(crate) fn note(text: &str) {
    write_stderr(format_note(text).as_bytes());
}

/// As it is written.
pub(crate) fn format_note(text: &str) -> String {
    format!("jig: {}\n", escape::text(text).replace('\n', "\n  "))
}

/// Says that ignore files were too large to count whole, if there were such.
pub(crate) fn note_truncated_ignore_files(count: u32) {
    if count > 0 {
        note(&format!(
            "ignore files that are too large to count whole, so that more was looked at than they say: {count}"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_only_text() {
        assert_eq!(format_note("a"), "jig: a\n");
        assert_eq!(format_note("a\x1b[2J\njig: b"), "jig: a\\033[2J\n  jig: b\n");
    }
}
