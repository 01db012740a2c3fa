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

pub(crate) use self::chunk::Chunk;
use self::chunk::PerStream;
use crate::daemon::store::session::StreamName;

/// How long a reader may take nothing while there is something for it, before the command goes on
/// without it.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// How long readers that fall behind others are waited for: those others may be about to stop, having
/// taken at once what there is room for on the way to them.
const ALLOWANCE: Duration = Duration::from_secs(1);
/// From when on that begins, how long until it can begin again: whatever readers do, the others and the
/// command are held up for no more than a tenth of the time.
const ALLOWED_EVERY: Duration = Duration::from_secs(10);
/// How long one that is waited for so may take nothing.
const MOVES_WITHIN: Duration = Duration::from_millis(100);
/// Most chunks that are kept, so that many small ones cost no more than few large ones.
const CHUNKS_AT_MOST: usize = 16 * 1024;

/// The chunks, and who reads them. `E` is how it ends.
#[derive(Debug)]
pub(crate) struct Transcript<E> {
    state: Mutex<State<E>>,
    /// Something was added.
    added: Notify,
    /// Something was read, or somebody left.
    taken: Notify,
    keep_bytes: usize,
    /// How long a reader that takes nothing is waited for; for ever if none.
    patience: Option<Duration>,
}

/// What a reader gets.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event<E> {
    /// The command was executed. Comes once, and first.
    Started,
    /// It wrote something.
    Chunk(Chunk),
    /// What it wrote up to here is not kept any more.
    Gap(Gap),
    /// It is over. Comes once, and last.
    End(E),
}

/// What a reader has missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gap {
    /// Number of the next chunk.
    pub(crate) next_sequence: u64,
    /// Position in standard output of the next byte that comes of it.
    pub(crate) stdout_offset: u64,
    /// Position in standard error of the next byte that comes of it.
    pub(crate) stderr_offset: u64,
}

/// Where a reader begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Position {
    /// Number of the last chunk that it has; 0 for none.
    pub(crate) after_sequence: u64,
    /// Bytes of standard output that it has, whatever their chunks.
    pub(crate) stdout_offset: u64,
    /// Bytes of standard error that it has, whatever their chunks.
    pub(crate) stderr_offset: u64,
}

#[derive(Debug)]
struct State<E> {
    kept: VecDeque<Kept>,
    /// Number of the next chunk.
    next: u64,
    /// Bytes of both streams that were written.
    written: PerStream,
    /// Bytes of both streams that are not kept any more.
    dropped: PerStream,
    started: bool,
    end: Option<E>,
    readers: HashMap<u64, Progress>,
    next_reader: u64,
    /// When [`ALLOWANCE`] began last.
    allowed: Option<Instant>,
}

#[derive(Debug)]
struct Kept {
    chunk: Chunk,
    /// Bytes of both streams that were written up to its end.
    end: u64,
}

/// Where a reader has got to.
#[derive(Debug, Clone, Copy)]
struct Progress {
    /// Number of the chunk that it is to get next.
    next: u64,
    /// Bytes of both streams that were written up to there.
    position: u64,
    /// When it last had all there was, or took something.
    moved: Instant,
    /// Whether it has had all there was at some time.
    has_kept_up: bool,
}

/// A reader's place. Given back with [`Transcript::leave`].
#[derive(Debug)]
pub(crate) struct Place {
    id: u64,
    next: u64,
    /// What it has of each stream, as far as it has said so.
    has: PerStream,
    told_start: bool,
    told_end: bool,
}

/// A position lies behind this, which is all that was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Beyond(pub(super) Position);

/// Who may be waited for.
#[derive(Debug, PartialEq, Eq)]
enum Room {
    /// There is room.
    Free,
    /// Readers are behind; the last of them is given up at this time, if ever.
    Until(Option<Instant>),
}

impl<E: Clone> Transcript<E> {
    /// An empty one that keeps at most `keep_bytes`, and waits so long for readers.
    pub(super) fn new(keep_bytes: usize, patience: Option<Duration>) -> Self {
        Self {
            state: Mutex::new(State {
                kept: VecDeque::new(),
                next: 1,
                written: PerStream::default(),
                dropped: PerStream::default(),
                started: false,
                end: None,
                readers: HashMap::new(),
                next_reader: 0,
                allowed: None,
            }),
            added: Notify::new(),
            taken: Notify::new(),
            keep_bytes,
            patience,
        }
    }

    /// The command was executed.
    pub(crate) fn start(&self) {
        self.state().started = true;
        self.added.notify_waiters();
    }

    /// Waits until the command was executed, or it is over without. May be cancelled.
    pub(crate) async fn begun(&self) {
        loop {
            let mut added = std::pin::pin!(self.added.notified());
            // What is added from here on wakes it.
            added.as_mut().enable();
            {
                let state = self.state();
                if state.started || state.end.is_some() {
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
        let (now, before) = (Instant::now(), state.written.sum());
        for reader in state.readers.values_mut() {
            if reader.position == before {
                // It had all there was.
                reader.moved = now;
                reader.has_kept_up = true;
            }
        }
        let chunk = Chunk {
            sequence: state.next,
            stream,
            offset: *state.written.of(stream),
            data: Bytes::copy_from_slice(data),
        };
        state.started = true;
        state.next += 1;
        *state.written.of(stream) += data.len() as u64;
        let end = state.written.sum();
        state.kept.push_back(Kept { chunk, end });
        while state.kept_bytes() > self.keep_bytes as u64 || state.kept.len() > CHUNKS_AT_MOST {
            let Some(Kept { chunk, .. }) = state.kept.pop_front() else {
                break;
            };
            *state.dropped.of(chunk.stream) += chunk.data.len() as u64;
        }
        drop(state);
        self.added.notify_waiters();
    }

    /// It is over. Whatever is said later is not heard.
    pub(crate) fn end(&self, end: E) {
        self.state().end.get_or_insert(end);
        self.added.notify_waiters();
        self.taken.notify_waiters();
    }

    /// How it ended, if it has.
    pub(crate) fn ending(&self) -> Option<E> {
        self.state().end.clone()
    }

    /// Whether the command was executed.
    pub(crate) fn has_started(&self) -> bool {
        self.state().started
    }

    /// Number of the last chunk.
    pub(crate) fn last_sequence(&self) -> u64 {
        self.state().next - 1
    }

    /// Bytes in memory.
    pub(crate) fn kept_bytes(&self) -> u64 {
        self.state().kept_bytes()
    }

    /// Waits until what comes next may be read from the command: until all readers that are waited for
    /// are close enough behind. May be cancelled.
    pub(crate) async fn room(&self) {
        loop {
            let taken = self.taken.notified();
            let room = self.state().room(self.window(), self.patience, Instant::now());
            match room {
                Room::Free => return,
                Room::Until(None) => taken.await,
                Room::Until(Some(instant)) => {
                    // Either is a reason to look again.
                    let _either = timeout_at(instant.into(), taken).await;
                }
            }
        }
    }

    /// Whether [`Transcript::room`] would not wait.
    pub(crate) fn has_room(&self) -> bool {
        self.state().room(self.window(), self.patience, Instant::now()) == Room::Free
    }

    /// How far readers that are waited for may be behind: not so far that one could miss something before
    /// it is its turn.
    fn window(&self) -> u64 {
        self.keep_bytes as u64 / 2
    }

    /// Drops all that is kept, for want of memory: whoever has not read it meets a gap.
    pub(super) fn forget(&self) {
        let mut state = self.state();
        state.kept = VecDeque::new();
        state.dropped = state.written;
    }

    /// Puts another ending in the place of the one that there is.
    pub(super) fn replace_end(&self, replace: impl FnOnce(&E) -> E) {
        let mut state = self.state();
        state.end = state.end.as_ref().map(replace);
    }

    /// Begins to read behind `position`.
    pub(super) fn enter(&self, position: Position) -> Result<Place, Beyond> {
        let mut state = self.state();
        let written = Position {
            after_sequence: state.next - 1,
            stdout_offset: state.written.stdout,
            stderr_offset: state.written.stderr,
        };
        if position.after_sequence > written.after_sequence
            || position.stdout_offset > written.stdout_offset
            || position.stderr_offset > written.stderr_offset
        {
            return Err(Beyond(written));
        }
        let id = state.next_reader;
        state.next_reader += 1;
        let next = position.after_sequence + 1;
        let progress = Progress {
            next,
            position: state.end_of(position.after_sequence),
            moved: Instant::now(),
            has_kept_up: false,
        };
        state.readers.insert(id, progress);
        Ok(Place {
            id,
            next,
            has: PerStream { stdout: position.stdout_offset, stderr: position.stderr_offset },
            told_start: false,
            told_end: false,
        })
    }

    /// How many read.
    pub(crate) fn readers(&self) -> usize {
        self.state().readers.len()
    }

    /// Stops reading. Answers how many others go on.
    pub(crate) fn leave(&self, place: &Place) -> usize {
        let mut state = self.state();
        state.readers.remove(&place.id);
        let left = state.readers.len();
        drop(state);
        self.taken.notify_waiters();
        left
    }

    /// Waits for what comes next. Answers nothing behind the end. May be cancelled: nothing is lost.
    pub(crate) async fn next(&self, place: &mut Place) -> Option<Event<E>> {
        if place.told_end {
            return None;
        }
        loop {
            let added = self.added.notified();
            let event = self.state().next(place);
            if let Some(event) = event {
                self.taken.notify_waiters();
                return Some(event);
            }
            added.await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State<E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<E: Clone> State<E> {
    fn first_kept(&self) -> u64 {
        self.kept.front().map_or(self.next, |kept| kept.chunk.sequence)
    }

    fn kept_bytes(&self) -> u64 {
        self.written.sum() - self.dropped.sum()
    }

    fn kept(&self, sequence: u64) -> Option<&Kept> {
        let index = sequence.checked_sub(self.first_kept())?;
        self.kept.get(usize::try_from(index).ok()?)
    }

    /// Bytes of both streams that were written up to the end of a chunk, or that are not kept any
    /// more.
    fn end_of(&self, sequence: u64) -> u64 {
        self.kept(sequence).map_or(self.dropped.sum(), |kept| kept.end)
    }

    fn next(&mut self, place: &mut Place) -> Option<Event<E>> {
        if self.started && !place.told_start {
            place.told_start = true;
            return Some(Event::Started);
        }
        let event = loop {
            let first = self.first_kept();
            if place.next < first {
                place.next = first;
                let (has, dropped) = (place.has, self.dropped);
                place.has = PerStream {
                    stdout: has.stdout.max(dropped.stdout),
                    stderr: has.stderr.max(dropped.stderr),
                };
                // What it has already is no loss to it.
                if place.has != has {
                    break Some(Event::Gap(Gap {
                        next_sequence: first,
                        stdout_offset: place.has.stdout,
                        stderr_offset: place.has.stderr,
                    }));
                }
            }
            let Some(Kept { chunk, .. }) = self.kept(place.next) else {
                break None;
            };
            place.next += 1;
            let has = place.has.of(chunk.stream);
            if let Some(chunk) = chunk.behind(*has) {
                *has = chunk.offset + chunk.data.len() as u64;
                break Some(Event::Chunk(chunk));
            }
        };
        let position = self.end_of(place.next - 1);
        if let Some(progress) = self.readers.get_mut(&place.id) {
            progress.next = place.next;
            progress.position = position;
            progress.moved = Instant::now();
        }
        if event.is_none() && self.end.is_some() {
            place.told_end = true;
            return self.end.clone().map(Event::End);
        }
        event
    }

    /// Whether all readers that are waited for are less than `window` bytes behind, and not too many
    /// chunks.
    fn room(&mut self, window: u64, patience: Option<Duration>, now: Instant) -> Room {
        if self.end.is_some() || self.readers.is_empty() {
            return Room::Free;
        }
        let (written, dropped, next) = (self.written.sum(), self.dropped.sum(), self.next);
        let is_close = |reader: &Progress| {
            let chunks = next.saturating_sub(reader.next);
            written - reader.position < window && chunks < CHUNKS_AT_MOST as u64 / 2
        };
        let given_up = if self.readers.values().any(is_close) {
            let behind = self.readers.values().filter(|reader| {
                // One that has missed something has lost already what it could be waited for.
                reader.has_kept_up && !is_close(reader) && reader.position >= dropped
            });
            let moves_until = behind.map(|reader| reader.moved + MOVES_WITHIN).max();
            moves_until.map(|until| until.min(self.allowed_until(now)))
        } else if let Some(patience) = patience {
            let until = self.readers.values().map(|reader| reader.moved + patience);
            until.max()
        } else {
            return Room::Until(None);
        };
        match given_up {
            Some(until) if until > now => Room::Until(Some(until)),
            Some(_) | None => Room::Free,
        }
    }

    /// Until when readers that have fallen behind others are waited for.
    fn allowed_until(&mut self, now: Instant) -> Instant {
        let begun = self.allowed.filter(|begun| now < *begun + ALLOWED_EVERY);
        *self.allowed.insert(begun.unwrap_or(now)) + ALLOWANCE
    }
}

#[cfg(test)]
mod tests;
