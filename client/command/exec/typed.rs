//! What is typed or piped in on this side, read by a thread of its own: reading cannot be cancelled.
//! It also looks for what is meant for this side, so that this is found however long the command, or
//! the daemon, takes nothing.

use std::{
    io::{self, Read as _},
    thread,
};

use tokio::sync::mpsc;

use super::keys::{Command, Keys};

/// Bytes read at a time. A terminal gives 4 KiB at most.
pub(super) const PART_BYTES: usize = 64 * 1024;
/// Parts of a file or pipe that are read ahead.
const AHEAD: usize = 2;
/// Parts of a terminal that are read ahead, where a part may be a single key. Behind so many the way
/// out is not found any more; without an end, a paste would be held here whole.
const KEYS_AHEAD: usize = 4096;
/// Commands to this side that wait: they are taken at once.
const COMMANDS_AHEAD: usize = 16;

/// What is read.
#[derive(Debug)]
pub(super) struct Typed {
    /// What goes to the command. The end of the parts is the end of the input.
    pub(super) parts: mpsc::Receiver<Part>,
    /// What is for this side, as soon as it was typed.
    pub(super) commands: mpsc::Receiver<Command>,
}

/// A part of the input.
#[derive(Debug)]
pub(super) enum Part {
    /// Bytes.
    Data(Vec<u8>),
    /// It cannot be read any more.
    Fails(io::Error),
    /// Who types leaves, having typed what came before.
    Leave,
}

/// Begins to read standard input: keys, where it is a terminal that was handed over.
pub(super) fn read(are_keys: bool) -> Typed {
    let ahead = if are_keys { KEYS_AHEAD } else { AHEAD };
    let (sender, parts) = mpsc::channel(ahead);
    let (told, commands) = mpsc::channel(COMMANDS_AHEAD);
    // It ends with the process, when nobody types any more.
    thread::spawn(move || {
        let last = pass_on(are_keys, &sender, &told).err();
        // Nobody listens where the session has ended.
        last.and_then(|part| sender.blocking_send(part).err());
    });
    Typed { parts, commands }
}

/// Passes on what is read until its end, or until something else comes last.
fn pass_on(
    are_keys: bool,
    parts: &mpsc::Sender<Part>,
    told: &mpsc::Sender<Command>,
) -> Result<(), Part> {
    let mut stdin = io::stdin().lock();
    let mut buffer = vec![0; PART_BYTES];
    let mut keys = Keys::LineStart;
    loop {
        let bytes = match stdin.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(Part::Fails(error)),
        };
        let read = buffer.get(..bytes).unwrap_or_default();
        let mut leaves = false;
        let data = if are_keys {
            let passed = keys.pass(read);
            for command in passed.commands {
                leaves |= command == Command::Leave;
                if told.blocking_send(command).is_err() {
                    return Ok(());
                }
            }
            passed.bytes
        } else {
            read.to_vec()
        };
        if !data.is_empty() && parts.blocking_send(Part::Data(data)).is_err() {
            return Ok(());
        }
        if leaves {
            return Err(Part::Leave);
        }
    }
}
