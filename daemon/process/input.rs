//! The standard input of a command while it runs: a bounded queue, filled by calls and emptied as
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

/// Bytes in the queue.
pub(crate) const MAX_QUEUED_INPUT_BYTES: u32 = 1 << 20;
/// Writes that wait at one time. Each holds its bytes in memory.
const MAX_PENDING_WRITES: usize = 16;
/// Accepted writes whose ids are stored, to detect repeated ones.
const MAX_REMEMBERED_WRITES: usize = 1024;
/// Ends the input of a terminal's reader (termios(3), VEOF).
const END_OF_TRANSMISSION: u8 = 4;

#[derive(Debug)]
pub(crate) struct InputQueue {
    state: Mutex<InputState>,
    /// Free bytes of the queue. Closed once no more input is accepted.
    free_bytes: Semaphore,
    filled: Notify,
    /// Limits the writes that wait.
    write_permits: Semaphore,
    /// Locked during a write, so that writes are accepted one after the other.
    accepted_writes: AsyncMutex<VecDeque<AcceptedWrite>>,
}

#[derive(Debug, Default)]
struct InputState {
    pending: VecDeque<PendingInput>,
    /// Total since the start.
    accepted_bytes: u64,
    ended: bool,
}

#[derive(Debug, Default)]
struct PendingInput {
    data: Bytes,
    /// Bytes of the queue's capacity to release once it is written.
    reserved_bytes: usize,
}

#[derive(Debug)]
struct AcceptedWrite {
    id: String,
    content_hash: u64,
    accepted_bytes: u64,
}

#[derive(Debug)]
pub(crate) struct InputWrite {
    /// Identifies a repeated write. Empty for writes that are not deduplicated.
    pub(crate) id: String,
    /// At most [`MAX_QUEUED_INPUT_BYTES`].
    pub(crate) data: Bytes,
    /// True to close the input after these bytes.
    pub(crate) ends_input: bool,
}

/// Why a write was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum InputWriteError {
    /// A write has ended the input, or the command has closed it.
    #[error("the command's standard input is closed")]
    Closed,
    #[error("{MAX_PENDING_WRITES} writes to this process are pending already")]
    TooManyPending,
    #[error("another write had this id")]
    IdReused,
}

/// The daemon's end of the command's standard input.
#[derive(Debug)]
pub(super) struct InputFeed {
    writer: Option<AsyncFd<OwnedFd>>,
    is_terminal: bool,
    /// The input being written.
    current: PendingInput,
    /// Whether the last byte written ended a line for a terminal's reader.
    at_line_start: bool,
}

impl InputQueue {
    /// Creates a queue that starts with `first`. With `ends`, it accepts nothing more.
    pub(crate) fn new(first: Bytes, ends: bool) -> Self {
        let free_bytes = Semaphore::new(MAX_QUEUED_INPUT_BYTES as usize);
        if ends {
            free_bytes.close();
        }

        let accepted_bytes = first.len() as u64;
        let first = Some(first).filter(|first| !first.is_empty());
        let pending = first.map(|data| PendingInput { data, reserved_bytes: 0 });
        Self {
            state: Mutex::new(InputState {
                pending: pending.into_iter().collect(),
                accepted_bytes,
                ended: ends,
            }),
            free_bytes,
            filled: Notify::new(),
            write_permits: Semaphore::new(MAX_PENDING_WRITES),
            accepted_writes: AsyncMutex::default(),
        }
    }

    /// Accepts a write as a whole, after earlier writes and once the queue has space. Returns the
    /// total of accepted bytes. If the future is dropped, nothing was accepted.
    pub(crate) async fn write(&self, write: InputWrite) -> Result<u64, InputWriteError> {
        let _permit =
            self.write_permits.try_acquire().map_err(|_| InputWriteError::TooManyPending)?;
        let content_hash = write.content_hash();
        let mut accepted_writes = self.accepted_writes.lock().await;

        let repeated = accepted_writes.iter().find(|accepted| accepted.id == write.id);
        if let Some(repeated) = repeated.filter(|_| !write.id.is_empty()) {
            return if repeated.content_hash == content_hash {
                Ok(repeated.accepted_bytes)
            } else {
                Err(InputWriteError::IdReused)
            };
        }

        let bytes = u32::try_from(write.data.len()).unwrap_or(u32::MAX);
        let reservation = self
            .free_bytes
            .acquire_many(bytes.min(MAX_QUEUED_INPUT_BYTES))
            .await
            .map_err(|_| InputWriteError::Closed)?;
        let accepted_bytes = {
            let mut state = self.state();
            state.accepted_bytes += u64::from(bytes);
            if !write.data.is_empty() {
                state
                    .pending
                    .push_back(PendingInput { reserved_bytes: write.data.len(), data: write.data });
            }
            state.ended |= write.ends_input;
            state.accepted_bytes
        };
        // Released when the bytes are written.
        reservation.forget();
        if write.ends_input {
            self.free_bytes.close();
        }
        self.filled.notify_one();

        if !write.id.is_empty() {
            if accepted_writes.len() >= MAX_REMEMBERED_WRITES {
                accepted_writes.pop_front();
            }
            accepted_writes.push_back(AcceptedWrite { id: write.id, content_hash, accepted_bytes });
        }
        Ok(accepted_bytes)
    }

    /// Closes the queue and drops its content: the command has closed its input, or has ended.
    pub(super) fn close(&self) {
        self.free_bytes.close();
        let mut state = self.state();
        state.pending.clear();
        state.ended = true;
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

impl InputFeed {
    /// Feeds the command through a pipe. `writer` is its writable end.
    pub(super) fn to_pipe(writer: OwnedFd) -> io::Result<Self> {
        Self::new(writer, false)
    }

    /// Feeds the command through a terminal. `writer` is the daemon's end.
    pub(super) fn to_terminal(writer: OwnedFd) -> io::Result<Self> {
        Self::new(writer, true)
    }

    fn new(writer: OwnedFd, is_terminal: bool) -> io::Result<Self> {
        ioctl_fionbio(&writer, true)?;
        Ok(Self {
            writer: Some(watch_writable(writer)?),
            is_terminal,
            current: PendingInput::default(),
            at_line_start: true,
        })
    }

    /// Waits until the command's input is writable, and writes queued bytes. Never completes once
    /// the input has ended. Cancel safe: no byte is lost or written twice.
    pub(super) async fn write_some(&mut self, input: &InputQueue) {
        let Some(writer) = &self.writer else {
            return std::future::pending().await;
        };
        while self.current.data.is_empty() {
            let (next, ended) = {
                let mut state = input.state();
                (state.pending.pop_front(), state.ended)
            };
            match next {
                Some(next) => self.current = next,
                None if ended => return self.end_input(),
                None => input.filled.notified().await,
            }
        }

        let written = match writer.writable().await {
            Ok(mut guard) => {
                match guard.try_io(|writer| Ok(rustix::io::write(writer, &self.current.data)?)) {
                    Ok(written) => written,
                    Err(_would_block) => return,
                }
            }
            Err(error) => Err(error),
        };

        match written {
            Ok(bytes) => {
                let PendingInput { data, reserved_bytes } = &mut self.current;
                let last = bytes.checked_sub(1).and_then(|index| data.get(index));
                self.at_line_start = matches!(last, Some(b'\n' | b'\r' | &END_OF_TRANSMISSION));
                data.advance(bytes);
                if data.is_empty() {
                    // Not before: the current input counts towards the queue's capacity.
                    input.free_bytes.add_permits(std::mem::take(reserved_bytes));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => {
                self.writer = None;
                input.close();
            }
        }
    }

    /// Ends the command's input: closes a pipe, or sends VEOF to a terminal's reader; twice, if a
    /// line is incomplete.
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
