//! What a command is to read while it runs: a bounded queue that is filled by calls and emptied as
//! the command reads.

use std::{
    collections::VecDeque,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io,
    os::fd::OwnedFd,
    sync::{Mutex, MutexGuard, PoisonError},
};

use bytes::{Buf as _, Bytes};
use rustix::io::ioctl_fionbio;
use tokio::{
    io::unix::AsyncFd,
    sync::{Mutex as AsyncMutex, Notify, Semaphore},
};

use crate::daemon::sys::readiness::watch_writable;

/// Bytes that may wait for the command.
pub(crate) const MAX_QUEUED_INPUT_BYTES: u32 = 1 << 20;
/// Writes that may wait at one time: each holds its bytes in memory.
const MAX_PENDING_WRITES: usize = 16;
/// Writes that are remembered, to know one that is repeated.
const MAX_REMEMBERED_WRITES: usize = 1024;
/// The character that means the end of the input to a terminal's reader (termios(3), VEOF).
const END_OF_TRANSMISSION: u8 = 4;

/// The queue.
#[derive(Debug)]
pub(crate) struct InputQueue {
    state: Mutex<InputState>,
    /// Room in it, in bytes. Closed when nothing more can be given.
    free_bytes: Semaphore,
    filled: Notify,
    /// Places for writes that wait.
    write_permits: Semaphore,
    /// Writes are taken one after the other, whole.
    accepted_writes: AsyncMutex<VecDeque<AcceptedWrite>>,
}

#[derive(Debug, Default)]
struct InputState {
    pending: VecDeque<PendingInput>,
    /// Bytes that were ever accepted.
    accepted_bytes: u64,
    ended: bool,
}

#[derive(Debug, Default)]
struct PendingInput {
    data: Bytes,
    /// Bytes of room that it gives back when it is written.
    reserved_bytes: usize,
}

/// A write that was accepted.
#[derive(Debug)]
struct AcceptedWrite {
    id: String,
    content_hash: u64,
    accepted_bytes: u64,
}

/// What is to be written.
#[derive(Debug)]
pub(crate) struct InputWrite {
    /// By which it is known when it is repeated; none where that is empty.
    pub(crate) id: String,
    /// The bytes, at most [`QUEUE_BYTES`].
    pub(crate) data: Bytes,
    /// Whether nothing comes behind them.
    pub(crate) ends_input: bool,
}

/// Why nothing was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InputWriteError {
    /// The input was ended, or the command reads no more.
    #[error("the command's standard input is closed")]
    Closed,
    /// Too many writes wait already.
    #[error("{MAX_PENDING_WRITES} writes wait for this process already")]
    TooManyPending,
    /// The id was that of another write.
    #[error("another write had this id")]
    IdReused,
}

/// The end of the command's input that the daemon writes to.
#[derive(Debug)]
pub(super) struct InputFeed {
    writer: Option<AsyncFd<OwnedFd>>,
    is_terminal: bool,
    /// What is being written.
    current: PendingInput,
    /// Whether the last byte written ended a line, as a terminal's reader sees it.
    at_line_start: bool,
}

// === impl Input ===

impl InputQueue {
    /// A queue that begins with `first`; nothing can be added to it if it ends with that.
    pub(crate) fn new(first: Bytes, ends: bool) -> Self {
        let room = Semaphore::new(MAX_QUEUED_INPUT_BYTES as usize);
        if ends {
            room.close();
        }
        let accepted = first.len() as u64;
        let first = Some(first).filter(|first| !first.is_empty());
        let waiting = first.map(|data| PendingInput { data, reserved_bytes: 0 });
        Self {
            state: Mutex::new(InputState {
                pending: waiting.into_iter().collect(),
                accepted_bytes: accepted,
                ended: ends,
            }),
            free_bytes: room,
            filled: Notify::new(),
            write_permits: Semaphore::new(MAX_PENDING_WRITES),
            accepted_writes: AsyncMutex::default(),
        }
    }

    /// Takes a write, whole, as soon as there is room for it and those before it are in. Answers how
    /// many bytes were accepted so far. Where the caller goes away before, nothing was taken.
    pub(crate) async fn write(&self, write: InputWrite) -> Result<u64, InputWriteError> {
        let _place =
            self.write_permits.try_acquire().map_err(|_| InputWriteError::TooManyPending)?;
        let content = write.content_hash();
        let mut past = self.accepted_writes.lock().await;
        let known = past.iter().find(|past| past.id == write.id);
        if let Some(known) = known.filter(|_| !write.id.is_empty()) {
            return if known.content_hash == content {
                Ok(known.accepted_bytes)
            } else {
                Err(InputWriteError::IdReused)
            };
        }
        let bytes = u32::try_from(write.data.len()).unwrap_or(u32::MAX);
        let room = self
            .free_bytes
            .acquire_many(bytes.min(MAX_QUEUED_INPUT_BYTES))
            .await
            .map_err(|_| InputWriteError::Closed)?;
        let accepted = {
            let mut queue = self.state();
            queue.accepted_bytes += u64::from(bytes);
            if !write.data.is_empty() {
                queue
                    .pending
                    .push_back(PendingInput { reserved_bytes: write.data.len(), data: write.data });
            }
            queue.ended |= write.ends_input;
            queue.accepted_bytes
        };
        room.forget();
        if write.ends_input {
            self.free_bytes.close();
        }
        self.filled.notify_one();
        if !write.id.is_empty() {
            if past.len() >= MAX_REMEMBERED_WRITES {
                past.pop_front();
            }
            let id = write.id;
            past.push_back(AcceptedWrite { id, content_hash: content, accepted_bytes: accepted });
        }
        Ok(accepted)
    }

    /// Nothing more can be given: the command reads no more, or is over.
    pub(super) fn close(&self) {
        self.free_bytes.close();
        let mut queue = self.state();
        queue.pending.clear();
        queue.ended = true;
    }

    fn state(&self) -> MutexGuard<'_, InputState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InputWrite {
    fn content_hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.data.hash(&mut hasher);
        self.ends_input.hash(&mut hasher);
        hasher.finish()
    }
}

// === impl Feed ===

impl InputFeed {
    /// Feeds the command through a pipe, of which `to` is the end that is written to.
    pub(super) fn to_pipe(to: OwnedFd) -> io::Result<Self> {
        Self::new(to, false)
    }

    /// Feeds the command through a terminal, of which `to` is the other end.
    pub(super) fn to_terminal(to: OwnedFd) -> io::Result<Self> {
        Self::new(to, true)
    }

    fn new(to: OwnedFd, is_terminal: bool) -> io::Result<Self> {
        ioctl_fionbio(&to, true)?;
        Ok(Self {
            writer: Some(watch_writable(to)?),
            is_terminal,
            current: PendingInput::default(),
            at_line_start: true,
        })
    }

    /// Waits until something can be written to the command, and writes it. Never ready once its
    /// input has ended. May be cancelled: nothing is lost, nor written twice.
    pub(super) async fn write_some(&mut self, input: &InputQueue) {
        let Some(to) = &self.writer else {
            return std::future::pending().await;
        };
        while self.current.data.is_empty() {
            let (next, ended) = {
                let mut queue = input.state();
                (queue.pending.pop_front(), queue.ended)
            };
            match next {
                Some(next) => self.current = next,
                None if ended => return self.end_input(),
                None => input.filled.notified().await,
            }
        }
        let written = match to.writable().await {
            Ok(mut guard) => {
                match guard.try_io(|to| Ok(rustix::io::write(to, &self.current.data)?)) {
                    Ok(written) => written,
                    Err(_would_block) => return,
                }
            }
            Err(error) => Err(error),
        };
        match written {
            Ok(bytes) => {
                let PendingInput { data, reserved_bytes: holds } = &mut self.current;
                let last = bytes.checked_sub(1).and_then(|at| data.get(at));
                self.at_line_start = matches!(last, Some(b'\n' | b'\r' | &END_OF_TRANSMISSION));
                data.advance(bytes);
                if data.is_empty() {
                    // What is being written still counts: then no more than the queue's bytes wait.
                    input.free_bytes.add_permits(std::mem::take(holds));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => {
                self.writer = None;
                input.close();
            }
        }
    }

    /// Ends the command's input: closes a pipe, and types what means the end to a terminal's reader,
    /// once more where a line was begun.
    fn end_input(&mut self) {
        if self.is_terminal {
            let twice = [END_OF_TRANSMISSION; 2];
            self.is_terminal = false;
            let count = if self.at_line_start { 1 } else { 2 };
            self.current.data = Bytes::copy_from_slice(twice.get(..count).unwrap_or_default());
        } else {
            self.writer = None;
        }
    }
}
