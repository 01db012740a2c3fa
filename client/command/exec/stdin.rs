//! What is typed or piped in on this side, read by a thread of its own: reading cannot be cancelled.
//! It also looks for what is meant for this side, so that this is found however long the command, or
//! the daemon, takes nothing.

use std::{
    io::{self, Read as _},
    thread,
};

use tokio::sync::mpsc;

use super::escape_keys::{EscapeCommand, EscapeParser};

/// Bytes read at a time. A terminal gives 4 KiB at most.
pub(super) const MAX_PART_BYTES: usize = 64 * 1024;
/// Parts of a file or pipe that are read ahead.
const MAX_QUEUED_PARTS: usize = 2;
/// Parts of a terminal that are read ahead, where a part may be a single key. Behind so many the way
/// out is not found any more; without an end, a paste would be held here whole.
const MAX_QUEUED_KEY_PARTS: usize = 4096;
/// Commands to this side that wait: they are taken at once.
const MAX_QUEUED_COMMANDS: usize = 16;

/// What is read.
#[derive(Debug)]
pub(super) struct LocalStdin {
    /// What goes to the command. The end of the parts is the end of the input.
    pub(super) parts: mpsc::Receiver<LocalStdinPart>,
    /// What is for this side, as soon as it was typed.
    pub(super) commands: mpsc::Receiver<EscapeCommand>,
}

/// A part of the input.
#[derive(Debug)]
pub(super) enum LocalStdinPart {
    /// Bytes.
    Data(Vec<u8>),
    /// It cannot be read any more.
    ReadFailed(io::Error),
    /// Who types leaves, having typed what came before.
    Leave,
}

/// Begins to read standard input: keys, where it is a terminal that was handed over.
pub(super) fn spawn_stdin_reader(are_keys: bool) -> LocalStdin {
    let ahead = if are_keys { MAX_QUEUED_KEY_PARTS } else { MAX_QUEUED_PARTS };
    let (sender, parts) = mpsc::channel(ahead);
    let (told, commands) = mpsc::channel(MAX_QUEUED_COMMANDS);
    // It ends with the process, when nobody types any more.
    thread::spawn(move || {
        let last = forward_parts(are_keys, &sender, &told).err();
        // Nobody listens where the session has ended.
        last.and_then(|part| sender.blocking_send(part).err());
    });
    LocalStdin { parts, commands }
}

/// Passes on what is read until its end, or until something else comes last.
fn forward_parts(
    are_keys: bool,
    parts: &mpsc::Sender<LocalStdinPart>,
    told: &mpsc::Sender<EscapeCommand>,
) -> Result<(), LocalStdinPart> {
    let mut stdin = io::stdin().lock();
    let mut buffer = vec![0; MAX_PART_BYTES];
    let mut keys = EscapeParser::LineStart;
    loop {
        let bytes = match stdin.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(LocalStdinPart::ReadFailed(error)),
        };
        let read = buffer.get(..bytes).unwrap_or_default();
        let mut leaves = false;
        let data = if are_keys {
            let passed = keys.parse(read);
            for command in passed.commands {
                leaves |= command == EscapeCommand::Leave;
                if told.blocking_send(command).is_err() {
                    return Ok(());
                }
            }
            passed.bytes
        } else {
            read.to_vec()
        };
        if !data.is_empty() && parts.blocking_send(LocalStdinPart::Data(data)).is_err() {
            return Ok(());
        }
        if leaves {
            return Err(LocalStdinPart::Leave);
        }
    }
}
