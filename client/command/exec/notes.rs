//! What is told beside the command's own output while it runs.

use std::thread;

use super::terminal;
use crate::output;

/// Tells something on standard error, by a thread of its own: nothing is held up by who does not read.
pub(super) fn note_in_background(text: &str) {
    let bytes = format_note(text);
    thread::spawn(move || output::write_stderr(&bytes));
}

/// A note of our own. On a terminal that was handed over, a line ends only where a carriage return
/// says so.
pub(super) fn format_note(text: &str) -> Vec<u8> {
    let note = output::format_note(text);
    let note = if terminal::is_terminal_raw() { note.replace('\n', "\r\n") } else { note };
    note.into_bytes()
}
