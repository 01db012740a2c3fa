//! Writing to standard output and standard error. Nothing here panics when the reader is gone, as
//! `println!` does.

use std::io::{self, Write as _};

use serde_json::Value;

use crate::{escape, failure::Failure};

/// Writes to standard output.
pub(crate) fn stdout(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(Failure::Output)
}

/// Writes what a command wrote to its standard error. There is nowhere to say that it cannot be
/// written.
pub(crate) fn stderr(bytes: &[u8]) {
    io::stderr().lock().write_all(bytes).ok();
}

/// Writes one JSON value and a line ending to standard output.
pub(crate) fn json(value: &Value) -> Result<(), Failure> {
    stdout(format!("{}\n", escape::json(&value.to_string())).as_bytes())
}

/// Writes something of our own to standard error. It is for people, wherever it ends up, and may hold
/// what others chose: only its first line begins as ours do.
pub(crate) fn note(text: &str) {
    stderr(noted(text).as_bytes());
}

/// As it is written.
pub(crate) fn noted(text: &str) -> String {
    format!("jig: {}\n", escape::text(text).replace('\n', "\n  "))
}

/// Says that ignore files were too large to count whole, if there were such.
pub(crate) fn ignore_files_cut(count: u32) {
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
        assert_eq!(noted("a"), "jig: a\n");
        assert_eq!(noted("a\x1b[2J\njig: b"), "jig: a\\033[2J\n  jig: b\n");
    }
}
