//! Writing to standard output and standard error. Nothing here panics when the reader is gone, as
//! `println!` does.

use std::io::{self, Write as _};

use serde_json::Value;

use crate::failure::Failure;

/// Writes to standard output.
pub(crate) fn stdout(bytes: &[u8]) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    stdout
        .write_all(bytes)
        .and_then(|()| stdout.flush())
        .map_err(Failure::Output)
}

/// Writes what a command wrote to its standard error. There is nowhere to say that it cannot be
/// written.
pub(crate) fn stderr(bytes: &[u8]) {
    io::stderr().lock().write_all(bytes).ok();
}

/// Writes one JSON value and a line ending to standard output.
pub(crate) fn json(value: &Value) -> Result<(), Failure> {
    stdout(format!("{value}\n").as_bytes())
}

/// Writes a line of our own to standard error.
pub(crate) fn note(line: &str) {
    stderr(format!("jig: {line}\n").as_bytes());
}
