//! Reading a session's records from a number on, also those that are yet to come, each once and in
//! order, and at the pace of who reads: nothing is kept for him but his place in the file.

use std::{io, sync::Arc};

use serde_json::{Map, Value};
use tokio::sync::watch;

use super::session::{SequencedRecord, Session};

/// Bytes of records that are read at a time, but for the last one, which may be longer.
const BATCH_BYTES: u64 = 64 * 1024;

/// A place among a session's records.
#[derive(Debug)]
pub(crate) struct Follower {
    session: Arc<Session>,
    last_written: watch::Receiver<u64>,
    /// Number of the next record.
    next_sequence: u64,
    /// Which file it is in, and where, once it was looked for.
    position: Option<(u64, u64)>,
}

/// What comes next.
#[derive(Debug, PartialEq)]
pub(crate) enum FollowerItem {
    /// A record.
    Record {
        /// Its number.
        sequence: u64,
        /// All of it.
        record: Map<String, Value>,
    },
    /// Records that are not kept any more: those before this one.
    Gap {
        /// Number of the next record that comes.
        first_sequence: u64,
    },
}

/// A place behind the last record, which has this number.
#[derive(Debug)]
pub(crate) struct SequencePastEnd(pub(crate) u64);

impl Follower {
    /// The place behind the record of this number.
    pub(crate) fn new(session: Arc<Session>, after_sequence: u64) -> Result<Self, SequencePastEnd> {
        let last = session.subscribe_last_sequence();
        let written = *last.borrow();
        if after_sequence > written {
            return Err(SequencePastEnd(written));
        }
        Ok(Self { last_written: last, session, next_sequence: after_sequence + 1, position: None })
    }

    /// Number of the last record that was read, or that is not kept any more.
    pub(crate) fn last_sequence(&self) -> u64 {
        self.next_sequence - 1
    }

    /// Reads what comes next, as far as it has been written; nothing where all was read. Blocks.
    pub(crate) fn read(&mut self) -> io::Result<Vec<FollowerItem>> {
        let records = self.session.records();
        let place = match self.position {
            Some((generation, at)) if generation == records.generation() => at,
            Some(_) | None => records.offset_of(self.next_sequence)?,
        };
        let (found, end) = records.read_from(place, BATCH_BYTES)?;
        self.position = Some((records.generation(), end));
        let mut followed = Vec::new();
        for SequencedRecord { sequence, record } in found {
            if sequence < self.next_sequence {
                continue; // never, but for a file that somebody else has written to
            }
            self.push_gap(sequence, &mut followed);
            followed.push(FollowerItem::Record { sequence, record });
            self.next_sequence = sequence + 1;
        }
        if end == records.length() {
            // The last ones may be gone, too.
            self.push_gap(records.last_sequence() + 1, &mut followed);
        }
        Ok(followed)
    }

    /// Waits until there is more to be read. May be cancelled.
    pub(crate) async fn wait_for_more(&mut self) {
        let next = self.next_sequence;
        // The session, which this holds, keeps the sender.
        let _more = self.last_written.wait_for(|last| *last >= next).await;
    }

    fn push_gap(&mut self, first_sequence: u64, followed: &mut Vec<FollowerItem>) {
        if first_sequence > self.next_sequence {
            followed.push(FollowerItem::Gap { first_sequence });
            self.next_sequence = first_sequence;
        }
    }
}
