//! Reads a session's records from a sequence number on, and continues with new ones.
//!
//! Each record comes once and in order. The reader sets the pace; nothing is buffered for it
//! except its offset in the file.

use std::{io, sync::Arc};

use serde_json::{Map, Value};
use tokio::sync::watch;

use super::session::{SequencedRecord, Session};

/// Bytes of records per read. The last record may exceed it.
const MAX_BATCH_BYTES: u64 = 64 * 1024;

/// A reading position in a session's records.
#[derive(Debug)]
pub(crate) struct Follower {
    session: Arc<Session>,
    last_written: watch::Receiver<u64>,
    next_sequence: u64,
    /// Generation of the file, and offset of the next record in it, once it was looked up.
    position: Option<(u64, u64)>,
}

#[derive(Debug, PartialEq)]
pub(crate) enum FollowerItem {
    Record {
        sequence: u64,
        record: Map<String, Value>,
    },
    /// The records before `first_sequence` have been removed.
    Gap {
        /// Number of the next record.
        first_sequence: u64,
    },
}

/// The position is after the last record, which has this sequence number.
#[derive(Debug)]
pub(crate) struct SequencePastEnd(pub(crate) u64);

impl Follower {
    /// Starts after the record `after_sequence`; with 0, at the first one.
    pub(crate) fn new(session: Arc<Session>, after_sequence: u64) -> Result<Self, SequencePastEnd> {
        let last = session.subscribe_last_sequence();
        let written = *last.borrow();
        if after_sequence > written {
            return Err(SequencePastEnd(written));
        }
        Ok(Self { last_written: last, session, next_sequence: after_sequence + 1, position: None })
    }

    /// Returns the number of the last record that was read or reported as removed.
    pub(crate) fn last_sequence(&self) -> u64 {
        self.next_sequence - 1
    }

    /// Reads the next batch of existing records. Returns nothing if all were read. Blocks.
    pub(crate) fn read(&mut self) -> io::Result<Vec<FollowerItem>> {
        let records = self.session.records();
        let offset = match self.position {
            Some((generation, offset)) if generation == records.generation() => offset,
            Some(_) | None => records.offset_of(self.next_sequence)?,
        };
        let (batch, end) = records.read_from(offset, MAX_BATCH_BYTES)?;
        self.position = Some((records.generation(), end));

        let mut items = Vec::new();
        for SequencedRecord { sequence, record } in batch {
            if sequence < self.next_sequence {
                continue; // possible only if another program has written to the file
            }
            self.push_gap(sequence, &mut items);
            items.push(FollowerItem::Record { sequence, record });
            self.next_sequence = sequence + 1;
        }

        if end == records.length() {
            // The last records may have been removed too.
            self.push_gap(records.last_sequence() + 1, &mut items);
        }
        Ok(items)
    }

    /// Waits until there is a record to read. Cancel safe.
    pub(crate) async fn wait_for_more(&mut self) {
        let next = self.next_sequence;
        // Cannot fail: `self.session` holds the sender.
        let _more = self.last_written.wait_for(|last| *last >= next).await;
    }

    fn push_gap(&mut self, first_sequence: u64, items: &mut Vec<FollowerItem>) {
        if first_sequence > self.next_sequence {
            items.push(FollowerItem::Gap { first_sequence });
            self.next_sequence = first_sequence;
        }
    }
}
