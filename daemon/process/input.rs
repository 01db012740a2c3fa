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

use crate::daemon::sys::readiness::watch_writes;

/// Bytes that may wait for the command.
pub(crate) const QUEUE_BYTES: u32 = 1 << 20;
/// Writes that may wait at one time: each holds its bytes in memory.
const WAITING_AT_MOST: usize = 16;
/// Writes that are remembered, to know one that is repeated.
const REMEMBERED: usize = 1024;
/// The character that means the end of the input to a terminal's reader (termios(3), VEOF).
const END_OF_TRANSMISSION: u8 = 4;

/// The queue.
#[derive(Debug)]
pub(crate) struct Input {
    queue: Mutex<Queue>,
    /// Room in it, in bytes. Closed when nothing more can be given.
    room: Semaphore,
    filled: Notify,
    /// Places for writes that wait.
    places: Semaphore,
    /// Writes are taken one after the other, whole.
    past: AsyncMutex<VecDeque<Past>>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Waiting>,
    /// Bytes that were ever accepted.
    accepted: u64,
    ended: bool,
}

#[derive(Debug, Default)]
struct Waiting {
    data: Bytes,
    /// Bytes of room that it gives back when it is written.
    holds: usize,
}

/// A write that was accepted.
#[derive(Debug)]
struct Past {
    id: String,
    content: u64,
    accepted: u64,
}

/// What is to be written.
#[derive(Debug)]
pub(crate) struct Write {
    /// By which it is known when it is repeated; none where that is empty.
    pub(crate) id: String,
    /// The bytes, at most [`QUEUE_BYTES`].
    pub(crate) data: Bytes,
    /// Whether nothing comes behind them.
    pub(crate) ends: bool,
}

/// Why nothing was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WriteError {
    /// The input was ended, or the command reads no more.
    #[error("the command's standard input is closed")]
    Closed,
    /// Too many writes wait already.
    #[error("{WAITING_AT_MOST} writes wait for this process already")]
    TooMany,
    /// The id was that of another write.
    #[error("another write had this id")]
    Reused,
}

/// The end of the command's input that the daemon writes to.
#[derive(Debug)]
pub(super) struct Feed {
    to: Option<AsyncFd<OwnedFd>>,
    is_terminal: bool,
    /// What is being written.
    current: Waiting,
    /// Whether the last byte written ended a line, as a terminal's reader sees it.
    at_line_start: bool,
}

// === impl Input ===

impl Input {
    /// A queue that begins with `first`; nothing can be added to it if it ends with that.
    pub(crate) fn new(first: Bytes, ends: bool) -> Self {
        let room = Semaphore::new(QUEUE_BYTES as usize);
        if ends {
            room.close();
        }
        let accepted = first.len() as u64;
        let first = Some(first).filter(|first| !first.is_empty());
        let waiting = first.map(|data| Waiting { data, holds: 0 });
        Self {
            queue: Mutex::new(Queue {
                waiting: waiting.into_iter().collect(),
                accepted,
                ended: ends,
            }),
            room,
            filled: Notify::new(),
            places: Semaphore::new(WAITING_AT_MOST),
            past: AsyncMutex::default(),
        }
    }

    /// Takes a write, whole, as soon as there is room for it and those before it are in. Answers how
    /// many bytes were accepted so far. Where the caller goes away before, nothing was taken.
    pub(crate) async fn write(&self, write: Write) -> Result<u64, WriteError> {
        let _place = self.places.try_acquire().map_err(|_| WriteError::TooMany)?;
        let content = write.content();
        let mut past = self.past.lock().await;
        let known = past.iter().find(|past| past.id == write.id);
        if let Some(known) = known.filter(|_| !write.id.is_empty()) {
            return if known.content == content {
                Ok(known.accepted)
            } else {
                Err(WriteError::Reused)
            };
        }
        let bytes = u32::try_from(write.data.len()).unwrap_or(u32::MAX);
        let room =
            self.room.acquire_many(bytes.min(QUEUE_BYTES)).await.map_err(|_| WriteError::Closed)?;
        let accepted = {
            let mut queue = self.queue();
            queue.accepted += u64::from(bytes);
            if !write.data.is_empty() {
                queue.waiting.push_back(Waiting { holds: write.data.len(), data: write.data });
            }
            queue.ended |= write.ends;
            queue.accepted
        };
        room.forget();
        if write.ends {
            self.room.close();
        }
        self.filled.notify_one();
        if !write.id.is_empty() {
            if past.len() >= REMEMBERED {
                past.pop_front();
            }
            let id = write.id;
            past.push_back(Past { id, content, accepted });
        }
        Ok(accepted)
    }

    /// Nothing more can be given: the command reads no more, or is over.
    pub(super) fn close(&self) {
        self.room.close();
        let mut queue = self.queue();
        queue.waiting.clear();
        queue.ended = true;
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write {
    fn content(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.data.hash(&mut hasher);
        self.ends.hash(&mut hasher);
        hasher.finish()
    }
}

// === impl Feed ===

impl Feed {
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
            to: Some(watch_writes(to)?),
            is_terminal,
            current: Waiting::default(),
            at_line_start: true,
        })
    }

    /// Waits until something can be written to the command, and writes it. Never ready once its
    /// input has ended. May be cancelled: nothing is lost, nor written twice.
    pub(super) async fn advance(&mut self, input: &Input) {
        let Some(to) = &self.to else {
            return std::future::pending().await;
        };
        while self.current.data.is_empty() {
            let (next, ended) = {
                let mut queue = input.queue();
                (queue.waiting.pop_front(), queue.ended)
            };
            match next {
                Some(next) => self.current = next,
                None if ended => return self.end(),
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
                let Waiting { data, holds } = &mut self.current;
                let last = bytes.checked_sub(1).and_then(|at| data.get(at));
                self.at_line_start = matches!(last, Some(b'\n' | b'\r' | &END_OF_TRANSMISSION));
                data.advance(bytes);
                if data.is_empty() {
                    // What is being written still counts: then no more than the queue's bytes wait.
                    input.room.add_permits(std::mem::take(holds));
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => {
                self.to = None;
                input.close();
            }
        }
    }

    /// Ends the command's input: closes a pipe, and types what means the end to a terminal's reader,
    /// once more where a line was begun.
    fn end(&mut self) {
        if self.is_terminal {
            let twice = [END_OF_TRANSMISSION; 2];
            self.is_terminal = false;
            let count = if self.at_line_start { 1 } else { 2 };
            self.current.data = Bytes::copy_from_slice(twice.get(..count).unwrap_or_default());
        } else {
            self.to = None;
        }
    }
}
