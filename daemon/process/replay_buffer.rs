//! What a command writes, kept for those who watch it: a bounded ring of numbered chunks, and where
//! each reader has got to.
//!
//! A reader that is slower than the command is waited for, as far as it is the fastest of all: the
//! command is read no faster than somebody takes it. A reader that falls behind the others is waited
//! for a moment, as those may be about to stop, and then learns what it has missed. Where the command
//! is to go on without readers, one that takes nothing for [`PATIENCE`] is not waited for any more.

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

/// How long a reader may take nothing while there is something for it, before the command goes on
/// without it.
pub(super) const READER_STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// How long readers that fall behind others are waited for: those others may be about to stop, having
/// taken at once what there is room for on the way to them.
const SLOW_READER_GRACE: Duration = Duration::from_secs(1);
/// From when on that begins, how long until it can begin again: whatever readers do, the others and the
/// command are held up for no more than a tenth of the time.
const SLOW_READER_GRACE_INTERVAL: Duration = Duration::from_secs(10);
/// How long one that is waited for so may take nothing.
const SLOW_READER_PROGRESS_TIMEOUT: Duration = Duration::from_millis(100);
/// Most chunks that are kept, so that many small ones cost no more than few large ones.
const MAX_RETAINED_CHUNKS: usize = 16 * 1024;

/// The chunks, and who reads them. `E` is how it ends.
#[derive(Debug)]
pub(crate) struct ReplayBuffer<E> {
    state: Mutex<ReplayState<E>>,
    /// Something was added.
    appended: Notify,
    /// Something was read, or somebody left.
    consumed: Notify,
    max_retained_bytes: usize,
    /// How long a reader that takes nothing is waited for; for ever if none.
    stall_timeout: Option<Duration>,
}

/// What a reader gets.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum OutputEvent<E> {
    /// The command was executed. Comes once, and first.
    Started,
    /// It wrote something.
    Chunk(OutputChunk),
    /// What it wrote up to here is not kept any more.
    Gap(OutputGap),
    /// It is over. Comes once, and last.
    End(E),
}

/// What a reader has missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OutputGap {
    /// Number of the next chunk.
    pub(crate) next_sequence: u64,
    /// Position in standard output of the next byte that comes of it.
    pub(crate) stdout_offset: u64,
    /// Position in standard error of the next byte that comes of it.
    pub(crate) stderr_offset: u64,
}

/// Where a reader begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct OutputPosition {
    /// Number of the last chunk that it has; 0 for none.
    pub(crate) after_sequence: u64,
    /// Bytes of standard output that it has, whatever their chunks.
    pub(crate) stdout_offset: u64,
    /// Bytes of standard error that it has, whatever their chunks.
    pub(crate) stderr_offset: u64,
}

#[derive(Debug)]
struct ReplayState<E> {
    retained: VecDeque<RetainedChunk>,
    /// Number of the next chunk.
    next_sequence: u64,
    /// Bytes of both streams that were written.
    written: StreamOffsets,
    /// Bytes of both streams that are not kept any more.
    dropped: StreamOffsets,
    started: bool,
    end_value: Option<E>,
    readers: HashMap<u64, ReaderProgress>,
    next_reader: u64,
    /// When [`ALLOWANCE`] began last.
    grace_started: Option<Instant>,
}

#[derive(Debug)]
struct RetainedChunk {
    chunk: OutputChunk,
    /// Bytes of both streams that were written up to its end.
    end_offset: u64,
}

/// Where a reader has got to.
#[derive(Debug, Clone, Copy)]
struct ReaderProgress {
    /// Number of the chunk that it is to get next.
    next_sequence: u64,
    /// Bytes of both streams that were written up to there.
    position: u64,
    /// When it last had all there was, or took something.
    last_progress: Instant,
    /// Whether it has had all there was at some time.
    was_caught_up: bool,
}

/// A reader's place. Given back with [`Transcript::leave`].
#[derive(Debug)]
pub(crate) struct ReaderCursor {
    reader_id: u64,
    next_sequence: u64,
    /// What it has of each stream, as far as it has said so.
    delivered: StreamOffsets,
    start_delivered: bool,
    end_delivered: bool,
}

/// A position lies behind this, which is all that was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PositionBeyondEnd(pub(super) OutputPosition);

/// Who may be waited for.
#[derive(Debug, PartialEq, Eq)]
enum Backpressure {
    /// There is room.
    Released,
    /// Readers are behind; the last of them is given up at this time, if ever.
    HeldUntil(Option<Instant>),
}

impl<E: Clone> ReplayBuffer<E> {
    /// An empty one that keeps at most `keep_bytes`, and waits so long for readers.
    pub(super) fn new(keep_bytes: usize, patience: Option<Duration>) -> Self {
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
            max_retained_bytes: keep_bytes,
            stall_timeout: patience,
        }
    }

    /// The command was executed.
    pub(crate) fn mark_started(&self) {
        self.state().started = true;
        self.appended.notify_waiters();
    }

    /// Waits until the command was executed, or it is over without. May be cancelled.
    pub(crate) async fn wait_until_started(&self) {
        loop {
            let mut added = std::pin::pin!(self.appended.notified());
            // What is added from here on wakes it.
            added.as_mut().enable();
            {
                let state = self.state();
                if state.started || state.end_value.is_some() {
                    return;
                }
            }
            added.await;
        }
    }

    /// Adds what the command wrote to `stream`. The oldest chunks make room.
    pub(crate) fn push(&self, stream: StreamName, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let mut state = self.state();
        let (now, before) = (Instant::now(), state.written.total());
        for reader in state.readers.values_mut() {
            if reader.position == before {
                // It had all there was.
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
        let end = state.written.total();
        state.retained.push_back(RetainedChunk { chunk, end_offset: end });
        while state.retained_bytes() > self.max_retained_bytes as u64
            || state.retained.len() > MAX_RETAINED_CHUNKS
        {
            let Some(RetainedChunk { chunk, .. }) = state.retained.pop_front() else {
                break;
            };
            *state.dropped.get_mut(chunk.stream) += chunk.data.len() as u64;
        }
        drop(state);
        self.appended.notify_waiters();
    }

    /// It is over. Whatever is said later is not heard.
    pub(crate) fn mark_ended(&self, end: E) {
        self.state().end_value.get_or_insert(end);
        self.appended.notify_waiters();
        self.consumed.notify_waiters();
    }

    /// How it ended, if it has.
    pub(crate) fn end_value(&self) -> Option<E> {
        self.state().end_value.clone()
    }

    /// Whether the command was executed.
    pub(crate) fn has_started(&self) -> bool {
        self.state().started
    }

    /// Number of the last chunk.
    pub(crate) fn last_sequence(&self) -> u64 {
        self.state().next_sequence - 1
    }

    /// Bytes in memory.
    pub(crate) fn retained_bytes(&self) -> u64 {
        self.state().retained_bytes()
    }

    /// Waits until what comes next may be read from the command: until all readers that are waited for
    /// are close enough behind. May be cancelled.
    pub(crate) async fn wait_for_capacity(&self) {
        loop {
            let taken = self.consumed.notified();
            let room =
                self.state().backpressure(self.max_lag_bytes(), self.stall_timeout, Instant::now());
            match room {
                Backpressure::Released => return,
                Backpressure::HeldUntil(None) => taken.await,
                Backpressure::HeldUntil(Some(instant)) => {
                    // Either is a reason to look again.
                    let _either = timeout_at(instant.into(), taken).await;
                }
            }
        }
    }

    /// Whether [`Transcript::room`] would not wait.
    pub(crate) fn has_capacity(&self) -> bool {
        self.state().backpressure(self.max_lag_bytes(), self.stall_timeout, Instant::now())
            == Backpressure::Released
    }

    /// How far readers that are waited for may be behind: not so far that one could miss something before
    /// it is its turn.
    fn max_lag_bytes(&self) -> u64 {
        self.max_retained_bytes as u64 / 2
    }

    /// Drops all that is kept, for want of memory: whoever has not read it meets a gap.
    pub(super) fn drop_retained(&self) {
        let mut state = self.state();
        state.retained = VecDeque::new();
        state.dropped = state.written;
    }

    /// Puts another ending in the place of the one that there is.
    pub(super) fn replace_end_value(&self, replace: impl FnOnce(&E) -> E) {
        let mut state = self.state();
        state.end_value = state.end_value.as_ref().map(replace);
    }

    /// Begins to read behind `position`.
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
        let id = state.next_reader;
        state.next_reader += 1;
        let next = position.after_sequence + 1;
        let progress = ReaderProgress {
            next_sequence: next,
            position: state.end_offset_of(position.after_sequence),
            last_progress: Instant::now(),
            was_caught_up: false,
        };
        state.readers.insert(id, progress);
        Ok(ReaderCursor {
            reader_id: id,
            next_sequence: next,
            delivered: StreamOffsets {
                stdout: position.stdout_offset,
                stderr: position.stderr_offset,
            },
            start_delivered: false,
            end_delivered: false,
        })
    }

    /// How many read.
    pub(crate) fn reader_count(&self) -> usize {
        self.state().readers.len()
    }

    /// Stops reading. Answers how many others go on.
    pub(crate) fn remove_reader(&self, place: &ReaderCursor) -> usize {
        let mut state = self.state();
        state.readers.remove(&place.reader_id);
        let left = state.readers.len();
        drop(state);
        self.consumed.notify_waiters();
        left
    }

    /// Waits for what comes next. Answers nothing behind the end. May be cancelled: nothing is lost.
    pub(crate) async fn next_event(&self, place: &mut ReaderCursor) -> Option<OutputEvent<E>> {
        if place.end_delivered {
            return None;
        }
        loop {
            let added = self.appended.notified();
            let event = self.state().next_event(place);
            if let Some(event) = event {
                self.consumed.notify_waiters();
                return Some(event);
            }
            added.await;
        }
    }

    fn state(&self) -> MutexGuard<'_, ReplayState<E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<E: Clone> ReplayState<E> {
    fn first_retained_sequence(&self) -> u64 {
        self.retained.front().map_or(self.next_sequence, |kept| kept.chunk.sequence)
    }

    fn retained_bytes(&self) -> u64 {
        self.written.total() - self.dropped.total()
    }

    fn retained_chunk(&self, sequence: u64) -> Option<&RetainedChunk> {
        let index = sequence.checked_sub(self.first_retained_sequence())?;
        self.retained.get(usize::try_from(index).ok()?)
    }

    /// Bytes of both streams that were written up to the end of a chunk, or that are not kept any
    /// more.
    fn end_offset_of(&self, sequence: u64) -> u64 {
        self.retained_chunk(sequence).map_or(self.dropped.total(), |kept| kept.end_offset)
    }

    fn next_event(&mut self, place: &mut ReaderCursor) -> Option<OutputEvent<E>> {
        if self.started && !place.start_delivered {
            place.start_delivered = true;
            return Some(OutputEvent::Started);
        }
        let event = loop {
            let first = self.first_retained_sequence();
            if place.next_sequence < first {
                place.next_sequence = first;
                let (has, dropped) = (place.delivered, self.dropped);
                place.delivered = StreamOffsets {
                    stdout: has.stdout.max(dropped.stdout),
                    stderr: has.stderr.max(dropped.stderr),
                };
                // What it has already is no loss to it.
                if place.delivered != has {
                    break Some(OutputEvent::Gap(OutputGap {
                        next_sequence: first,
                        stdout_offset: place.delivered.stdout,
                        stderr_offset: place.delivered.stderr,
                    }));
                }
            }
            let Some(RetainedChunk { chunk, .. }) = self.retained_chunk(place.next_sequence) else {
                break None;
            };
            place.next_sequence += 1;
            let has = place.delivered.get_mut(chunk.stream);
            if let Some(chunk) = chunk.after_offset(*has) {
                *has = chunk.offset + chunk.data.len() as u64;
                break Some(OutputEvent::Chunk(chunk));
            }
        };
        let position = self.end_offset_of(place.next_sequence - 1);
        if let Some(progress) = self.readers.get_mut(&place.reader_id) {
            progress.next_sequence = place.next_sequence;
            progress.position = position;
            progress.last_progress = Instant::now();
        }
        if event.is_none() && self.end_value.is_some() {
            place.end_delivered = true;
            return self.end_value.clone().map(OutputEvent::End);
        }
        event
    }

    /// Whether all readers that are waited for are less than `window` bytes behind, and not too many
    /// chunks.
    fn backpressure(
        &mut self,
        window: u64,
        patience: Option<Duration>,
        now: Instant,
    ) -> Backpressure {
        if self.end_value.is_some() || self.readers.is_empty() {
            return Backpressure::Released;
        }
        let (written, dropped, next) =
            (self.written.total(), self.dropped.total(), self.next_sequence);
        let is_close = |reader: &ReaderProgress| {
            let chunks = next.saturating_sub(reader.next_sequence);
            written - reader.position < window && chunks < MAX_RETAINED_CHUNKS as u64 / 2
        };
        let given_up = if self.readers.values().any(is_close) {
            let behind = self.readers.values().filter(|reader| {
                // One that has missed something has lost already what it could be waited for.
                reader.was_caught_up && !is_close(reader) && reader.position >= dropped
            });
            let moves_until =
                behind.map(|reader| reader.last_progress + SLOW_READER_PROGRESS_TIMEOUT).max();
            moves_until.map(|until| until.min(self.slow_reader_deadline(now)))
        } else if let Some(patience) = patience {
            let until = self.readers.values().map(|reader| reader.last_progress + patience);
            until.max()
        } else {
            return Backpressure::HeldUntil(None);
        };
        match given_up {
            Some(until) if until > now => Backpressure::HeldUntil(Some(until)),
            Some(_) | None => Backpressure::Released,
        }
    }

    /// Until when readers that have fallen behind others are waited for.
    fn slow_reader_deadline(&mut self, now: Instant) -> Instant {
        let begun = self.grace_started.filter(|begun| now < *begun + SLOW_READER_GRACE_INTERVAL);
        *self.grace_started.insert(begun.unwrap_or(now)) + SLOW_READER_GRACE
    }
}

#[cfg(test)]
mod tests;
