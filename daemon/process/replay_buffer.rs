//! The output of a command for attached clients: a bounded ring of numbered chunks, and the position
//! of each reader.
//!
//! Backpressure: the daemon reads the command no faster than its fastest reader. A reader that falls
//! behind the others is waited for briefly, since those may be about to stop, and then gets a gap.
//! If the command may run without readers, a reader that takes nothing for
//! [`READER_STALL_TIMEOUT`] no longer holds it up.

mod chunk;

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use tokio::{sync::Notify, time::timeout_at};

pub(crate) use self::chunk::OutputChunk;
use self::chunk::StreamOffsets;
use crate::daemon::store::session::StreamName;

/// How long a reader may take nothing, with output to take, before the command continues without it.
pub(super) const READER_STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the command waits for readers that fall behind others. A reader can be ahead only
/// because its transport buffers are still empty.
const SLOW_READER_GRACE: Duration = Duration::from_secs(1);
/// Time between the starts of two such waits. Slow readers therefore hold up the others and the
/// command for at most a tenth of the time.
const SLOW_READER_GRACE_INTERVAL: Duration = Duration::from_secs(10);
/// How long a slow reader may take nothing before the wait for it ends.
const SLOW_READER_PROGRESS_TIMEOUT: Duration = Duration::from_millis(100);
/// Many small chunks must not cost more than a few large ones.
const MAX_REPLAY_CHUNKS: usize = 16 * 1024;

/// The chunks and their readers. `E` describes how the command ended.
#[derive(Debug)]
pub(crate) struct ReplayBuffer<E> {
    state: Mutex<ReplayState<E>>,
    /// Signalled when something was added.
    appended: Notify,
    /// Signalled when a reader has read or left.
    consumed: Notify,
    max_replay_bytes: usize,
    /// How long to wait for a reader that takes nothing; forever if none.
    stall_timeout: Option<Duration>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum OutputEvent<E> {
    /// The command was executed. Comes once, and first.
    Started,
    Chunk(OutputChunk),
    /// The output up to here has been dropped.
    Gap(OutputGap),
    /// The command has ended. Comes once, and last.
    End(E),
}

/// Output that a reader has missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutputGap {
    /// Number of the next chunk.
    pub(crate) next_sequence: u64,
    /// Offset of the next byte of standard output.
    pub(crate) stdout_offset: u64,
    /// Offset of the next byte of standard error.
    pub(crate) stderr_offset: u64,
}

/// Where a reader begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct OutputPosition {
    /// Number of the last chunk that the reader has; 0 for none.
    pub(crate) after_sequence: u64,
    /// Bytes of standard output that the reader has, in whatever chunks.
    pub(crate) stdout_offset: u64,
    /// Bytes of standard error that the reader has, in whatever chunks.
    pub(crate) stderr_offset: u64,
}

#[derive(Debug)]
struct ReplayState<E> {
    retained: VecDeque<RetainedChunk>,
    next_sequence: u64,
    /// Bytes written since the start.
    written: StreamOffsets,
    /// Bytes that have been dropped.
    dropped: StreamOffsets,
    started: bool,
    end_value: Option<E>,
    readers: HashMap<u64, ReaderProgress>,
    next_reader: u64,
    /// Start of the last [`SLOW_READER_GRACE`].
    grace_started: Option<Instant>,
}

#[derive(Debug)]
struct RetainedChunk {
    chunk: OutputChunk,
    /// Bytes of both streams up to the end of this chunk.
    end_offset: u64,
}

#[derive(Debug, Clone, Copy)]
struct ReaderProgress {
    /// Number of the reader's next chunk.
    next_sequence: u64,
    /// Bytes of both streams before that chunk.
    position: u64,
    /// When the reader last took something or had everything.
    last_progress: Instant,
    /// Whether the reader has had everything at some time.
    was_caught_up: bool,
}

/// A reader's position. Remove it with [`ReplayBuffer::remove_reader`].
#[derive(Debug)]
pub(crate) struct ReaderCursor {
    reader_id: u64,
    next_sequence: u64,
    /// Bytes of each stream that were delivered, or that the reader had before.
    delivered: StreamOffsets,
    start_delivered: bool,
    end_delivered: bool,
}

/// A requested position is after this one, the end of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PositionBeyondEnd(pub(super) OutputPosition);

/// Whether the command must wait for readers.
#[derive(Debug, PartialEq, Eq)]
enum Backpressure {
    Released,
    /// Readers lag behind. With a time, the command continues then.
    HeldUntil(Option<Instant>),
}

impl<E: Clone> ReplayBuffer<E> {
    /// Creates an empty buffer of at most `max_replay_bytes`.
    pub(super) fn new(max_replay_bytes: usize, stall_timeout: Option<Duration>) -> Self {
        Self {
            state: Mutex::new(ReplayState {
                retained: VecDeque::new(),
                next_sequence: 1,
                written: StreamOffsets::default(),
                dropped: StreamOffsets::default(),
                started: false,
                end_value: None,
                readers: HashMap::new(),
                next_reader: 0,
                grace_started: None,
            }),
            appended: Notify::new(),
            consumed: Notify::new(),
            max_replay_bytes,
            stall_timeout,
        }
    }

    /// Records that the command was executed.
    pub(crate) fn mark_started(&self) {
        self.state().started = true;
        self.appended.notify_waiters();
    }

    /// Waits until the command was executed, or has ended without that. Cancel safe.
    pub(crate) async fn wait_until_started(&self) {
        loop {
            let mut appended = std::pin::pin!(self.appended.notified());
            // From here on, an append wakes this task.
            appended.as_mut().enable();
            {
                let state = self.state();
                if state.started || state.end_value.is_some() {
                    return;
                }
            }
            appended.await;
        }
    }

    /// Appends output of the command. Drops the oldest chunks beyond the limits.
    pub(crate) fn push(&self, stream: StreamName, data: &[u8]) {
        if data.is_empty() {
            return;
        }

        let mut state = self.state();
        let (now, before) = (Instant::now(), state.written.total());
        for reader in state.readers.values_mut() {
            if reader.position == before {
                // The reader had everything.
                reader.last_progress = now;
                reader.was_caught_up = true;
            }
        }

        let chunk = OutputChunk {
            sequence: state.next_sequence,
            stream,
            offset: *state.written.get_mut(stream),
            data: Bytes::copy_from_slice(data),
        };

        state.started = true;
        state.next_sequence += 1;
        *state.written.get_mut(stream) += data.len() as u64;

        let end_offset = state.written.total();
        state.retained.push_back(RetainedChunk { chunk, end_offset });
        while state.replay_bytes() > self.max_replay_bytes as u64
            || state.retained.len() > MAX_REPLAY_CHUNKS
        {
            let Some(RetainedChunk { chunk, .. }) = state.retained.pop_front() else {
                break;
            };
            *state.dropped.get_mut(chunk.stream) += chunk.data.len() as u64;
        }

        drop(state);
        self.appended.notify_waiters();
    }

    /// Records the end of the command. Later calls have no effect.
    pub(crate) fn mark_ended(&self, end: E) {
        self.state().end_value.get_or_insert(end);
        self.appended.notify_waiters();
        self.consumed.notify_waiters();
    }

    /// Returns how the command ended, if it has.
    pub(crate) fn end_value(&self) -> Option<E> {
        self.state().end_value.clone()
    }

    /// Whether the command was executed.
    pub(crate) fn has_started(&self) -> bool {
        self.state().started
    }

    /// Returns the number of the last chunk.
    pub(crate) fn last_sequence(&self) -> u64 {
        self.state().next_sequence - 1
    }

    /// Returns the bytes held in memory.
    pub(crate) fn replay_bytes(&self) -> u64 {
        self.state().replay_bytes()
    }

    /// Waits until more output may be read from the command: until no reader lags too far behind.
    /// Cancel safe.
    pub(crate) async fn wait_for_capacity(&self) {
        loop {
            let consumed = self.consumed.notified();
            let backpressure =
                self.state().backpressure(self.max_lag_bytes(), self.stall_timeout, Instant::now());
            match backpressure {
                Backpressure::Released => return,
                Backpressure::HeldUntil(None) => consumed.await,
                Backpressure::HeldUntil(Some(instant)) => {
                    // Checks again in either case.
                    let _consumed_or_elapsed = timeout_at(instant.into(), consumed).await;
                }
            }
        }
    }

    /// Whether [`Self::wait_for_capacity`] would not wait.
    pub(crate) fn has_capacity(&self) -> bool {
        self.state().backpressure(self.max_lag_bytes(), self.stall_timeout, Instant::now())
            == Backpressure::Released
    }

    /// Returns how far a reader may lag before the command waits for it. Half of the buffer, so that
    /// the reader loses nothing until then.
    fn max_lag_bytes(&self) -> u64 {
        self.max_replay_bytes as u64 / 2
    }

    /// Drops all retained output to free memory. Readers that have not read it get a gap.
    pub(super) fn drop_retained(&self) {
        let mut state = self.state();
        state.retained = VecDeque::new();
        state.dropped = state.written;
    }

    /// Replaces the end value, if there is one.
    pub(super) fn replace_end_value(&self, replace: impl FnOnce(&E) -> E) {
        let mut state = self.state();
        state.end_value = state.end_value.as_ref().map(replace);
    }

    /// Adds a reader that starts after `position`.
    pub(super) fn add_reader(
        &self,
        position: OutputPosition,
    ) -> Result<ReaderCursor, PositionBeyondEnd> {
        let mut state = self.state();

        let written = OutputPosition {
            after_sequence: state.next_sequence - 1,
            stdout_offset: state.written.stdout,
            stderr_offset: state.written.stderr,
        };
        if position.after_sequence > written.after_sequence
            || position.stdout_offset > written.stdout_offset
            || position.stderr_offset > written.stderr_offset
        {
            return Err(PositionBeyondEnd(written));
        }

        let reader_id = state.next_reader;
        state.next_reader += 1;
        let next_sequence = position.after_sequence + 1;
        let progress = ReaderProgress {
            next_sequence,
            position: state.end_offset_of(position.after_sequence),
            last_progress: Instant::now(),
            was_caught_up: false,
        };
        state.readers.insert(reader_id, progress);
        Ok(ReaderCursor {
            reader_id,
            next_sequence,
            delivered: StreamOffsets {
                stdout: position.stdout_offset,
                stderr: position.stderr_offset,
            },
            start_delivered: false,
            end_delivered: false,
        })
    }

    pub(crate) fn reader_count(&self) -> usize {
        self.state().readers.len()
    }

    /// Removes a reader. Returns how many others remain.
    pub(crate) fn remove_reader(&self, cursor: &ReaderCursor) -> usize {
        let mut state = self.state();
        state.readers.remove(&cursor.reader_id);
        let remaining = state.readers.len();
        drop(state);
        self.consumed.notify_waiters();
        remaining
    }

    /// Waits for the next event. Returns `None` after [`OutputEvent::End`]. Cancel safe.
    pub(crate) async fn next_event(&self, cursor: &mut ReaderCursor) -> Option<OutputEvent<E>> {
        if cursor.end_delivered {
            return None;
        }
        loop {
            let appended = self.appended.notified();
            let event = self.state().next_event(cursor);
            if let Some(event) = event {
                self.consumed.notify_waiters();
                return Some(event);
            }
            appended.await;
        }
    }

    fn state(&self) -> MutexGuard<'_, ReplayState<E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<E: Clone> ReplayState<E> {
    fn first_retained_sequence(&self) -> u64 {
        self.retained.front().map_or(self.next_sequence, |retained| retained.chunk.sequence)
    }

    fn replay_bytes(&self) -> u64 {
        self.written.total() - self.dropped.total()
    }

    fn retained_chunk(&self, sequence: u64) -> Option<&RetainedChunk> {
        let index = sequence.checked_sub(self.first_retained_sequence())?;
        self.retained.get(usize::try_from(index).ok()?)
    }

    /// Returns the bytes of both streams up to the end of a chunk. If the chunk was dropped, the
    /// bytes of all dropped chunks.
    fn end_offset_of(&self, sequence: u64) -> u64 {
        self.retained_chunk(sequence).map_or(self.dropped.total(), |retained| retained.end_offset)
    }

    fn next_event(&mut self, cursor: &mut ReaderCursor) -> Option<OutputEvent<E>> {
        if self.started && !cursor.start_delivered {
            cursor.start_delivered = true;
            return Some(OutputEvent::Started);
        }

        let event = loop {
            let first = self.first_retained_sequence();
            if cursor.next_sequence < first {
                cursor.next_sequence = first;
                let (before, dropped) = (cursor.delivered, self.dropped);
                cursor.delivered = StreamOffsets {
                    stdout: before.stdout.max(dropped.stdout),
                    stderr: before.stderr.max(dropped.stderr),
                };
                // No gap if the reader had all dropped bytes before.
                if cursor.delivered != before {
                    break Some(OutputEvent::Gap(OutputGap {
                        next_sequence: first,
                        stdout_offset: cursor.delivered.stdout,
                        stderr_offset: cursor.delivered.stderr,
                    }));
                }
            }

            let Some(RetainedChunk { chunk, .. }) = self.retained_chunk(cursor.next_sequence)
            else {
                break None;
            };
            cursor.next_sequence += 1;
            let delivered = cursor.delivered.get_mut(chunk.stream);
            if let Some(chunk) = chunk.after_offset(*delivered) {
                *delivered = chunk.offset + chunk.data.len() as u64;
                break Some(OutputEvent::Chunk(chunk));
            }
        };

        let position = self.end_offset_of(cursor.next_sequence - 1);
        if let Some(progress) = self.readers.get_mut(&cursor.reader_id) {
            progress.next_sequence = cursor.next_sequence;
            progress.position = position;
            progress.last_progress = Instant::now();
        }

        if event.is_none() && self.end_value.is_some() {
            cursor.end_delivered = true;
            return self.end_value.clone().map(OutputEvent::End);
        }
        event
    }

    /// Decides whether the command must wait for readers. A reader lags at `max_lag` bytes, or at
    /// half of [`MAX_REPLAY_CHUNKS`].
    fn backpressure(
        &mut self,
        max_lag: u64,
        stall_timeout: Option<Duration>,
        now: Instant,
    ) -> Backpressure {
        if self.end_value.is_some() || self.readers.is_empty() {
            return Backpressure::Released;
        }

        let (written, dropped, next) =
            (self.written.total(), self.dropped.total(), self.next_sequence);
        let is_close = |reader: &ReaderProgress| {
            let chunks = next.saturating_sub(reader.next_sequence);
            written - reader.position < max_lag && chunks < MAX_REPLAY_CHUNKS as u64 / 2
        };

        let held_until = if self.readers.values().any(is_close) {
            let slow = self.readers.values().filter(|reader| {
                // Waiting is too late for a reader that has lost output already.
                reader.was_caught_up && !is_close(reader) && reader.position >= dropped
            });
            let progress_deadline =
                slow.map(|reader| reader.last_progress + SLOW_READER_PROGRESS_TIMEOUT).max();
            progress_deadline.map(|deadline| deadline.min(self.slow_reader_deadline(now)))
        } else if let Some(timeout) = stall_timeout {
            self.readers.values().map(|reader| reader.last_progress + timeout).max()
        } else {
            return Backpressure::HeldUntil(None);
        };
        match held_until {
            Some(until) if until > now => Backpressure::HeldUntil(Some(until)),
            Some(_) | None => Backpressure::Released,
        }
    }

    /// Returns when the wait for readers that have fallen behind others ends. Starts a new wait if
    /// the interval has passed.
    fn slow_reader_deadline(&mut self, now: Instant) -> Instant {
        let started =
            self.grace_started.filter(|started| now < *started + SLOW_READER_GRACE_INTERVAL);
        *self.grace_started.insert(started.unwrap_or(now)) + SLOW_READER_GRACE
    }
}

#[cfg(test)]
mod tests;
