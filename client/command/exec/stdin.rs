//! Reads standard input in a thread of its own, because a read cannot be cancelled.
//!
//! The thread also detects escape commands, so that they work even if the command or the daemon
//! accepts no input.

use std::{
    io::{self, Read as _},
    thread,
};

use tokio::sync::mpsc;

use super::escape_keys::{EscapeCommand, EscapeParser};

/// Maximum bytes per read. A terminal returns at most 4 KiB.
pub(super) const MAX_PART_BYTES: usize = 64 * 1024;
/// Parts of a file or pipe in the queue.
const MAX_QUEUED_PARTS: usize = 2;
/// Parts of a terminal in the queue, where a part may be a single key. Escape keys after so many
/// parts are not detected. Without the limit, a paste would be held in memory completely.
const MAX_QUEUED_KEY_PARTS: usize = 4096;
/// Escape commands in the queue. They are taken at once.
const MAX_QUEUED_COMMANDS: usize = 16;

/// Standard input, split into data and escape commands.
#[derive(Debug)]
pub(super) struct LocalStdin {
    /// Data for the command. The channel closes at the end of the input.
    pub(super) parts: mpsc::Receiver<LocalStdinPart>,
    /// Escape commands, as soon as they are typed.
    pub(super) commands: mpsc::Receiver<EscapeCommand>,
}

/// A part of the input.
#[derive(Debug)]
pub(super) enum LocalStdinPart {
    Data(Vec<u8>),
    /// Reading failed.
    ReadFailed(io::Error),
    /// The user detached, after typing the earlier parts.
    Detach,
}

/// Starts to read standard input. `is_raw`: whether it is a raw terminal with escape keys.
pub(super) fn spawn_stdin_reader(is_raw: bool) -> LocalStdin {
    let capacity = if is_raw { MAX_QUEUED_KEY_PARTS } else { MAX_QUEUED_PARTS };
    let (sender, parts) = mpsc::channel(capacity);
    let (command_sender, commands) = mpsc::channel(MAX_QUEUED_COMMANDS);
    // Not joined: the process ends the thread.
    thread::spawn(move || {
        let last = forward_parts(is_raw, &sender, &command_sender).err();
        // The receiver is gone if the session has ended.
        last.and_then(|part| sender.blocking_send(part).err());
    });
    LocalStdin { parts, commands }
}

/// Reads and queues parts until the end of the input. A final part is returned as an error.
fn forward_parts(
    is_raw: bool,
    parts: &mpsc::Sender<LocalStdinPart>,
    commands: &mpsc::Sender<EscapeCommand>,
) -> Result<(), LocalStdinPart> {
    let mut stdin = io::stdin().lock();
    let mut buffer = vec![0; MAX_PART_BYTES];
    let mut parser = EscapeParser::LineStart;
    loop {
        let bytes = match stdin.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(LocalStdinPart::ReadFailed(error)),
        };
        let read = buffer.get(..bytes).unwrap_or_default();

        let mut detaches = false;
        let data = if is_raw {
            let parsed = parser.parse(read);
            for command in parsed.commands {
                detaches |= command == EscapeCommand::Detach;
                if commands.blocking_send(command).is_err() {
                    return Ok(());
                }
            }
            parsed.bytes
        } else {
            read.to_vec()
        };

        if !data.is_empty() && parts.blocking_send(LocalStdinPart::Data(data)).is_err() {
            return Ok(());
        }
        if detaches {
            return Err(LocalStdinPart::Detach);
        }
    }
}
