//! Prints notes on standard error while a command runs.

use std::thread;

use super::terminal;
use crate::output;

/// Prints a note in a thread of its own, because a slow reader may block it.
pub(super) fn note_in_background(text: &str) {
    let bytes = format_note(text);
    thread::spawn(move || output::write_stderr(&bytes));
}

/// Formats a note. On a raw terminal, lines need a carriage return.
pub(super) fn format_note(text: &str) -> Vec<u8> {
    let note = output::format_note(text);
    let note = if terminal::is_terminal_raw() { note.replace('\n', "\r\n") } else { note };
    note.into_bytes()
}
