//! What is told beside the command's own output while it runs.

use std::thread;

use super::terminal;
use crate::output;

/// Tells something on standard error, by a thread of its own: nothing is held up by who does not read.
pub(super) fn aside(text: &str) {
    let bytes = noted(text);
    thread::spawn(move || output::stderr(&bytes));
}

/// A note of our own. On a terminal that was handed over, a line ends only where a carriage return
/// says so.
pub(super) fn noted(text: &str) -> Vec<u8> {
    let note = output::noted(text);
    let note = if terminal::is_handed_over() { note.replace('\n', "\r\n") } else { note };
    note.into_bytes()
}
