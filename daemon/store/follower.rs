//! Reading a session's records from a number on, also those that are yet to come, each once and in
//! order, and at the pace of who reads: nothing is kept for him but his place in the file.

use std::{io, sync::Arc};

use serde_json::{Map, Value};
use tokio::sync::watch;

use super::session::{Numbered, Session};

/// Bytes of records that are read at a time, but for the last one, which may be longer.
const BATCH_BYTES: u64 = 64 * 1024;

/// A place among a session's records.
#[derive(Debug)]
pub(crate) struct Follower {
    session: Arc<Session>,
    last: watch::Receiver<u64>,
    /// Number of the next record.
    next: u64,
    /// Which file it is in, and where, once it was looked for.
    place: Option<(u64, u64)>,
}

/// What comes next.
#[derive(Debug, PartialEq)]
pub(crate) enum Followed {
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
pub(crate) struct Beyond(pub(crate) u64);

impl Follower {
    /// The place behind the record of this number.
    pub(crate) fn new(session: Arc<Session>, after_sequence: u64) -> Result<Self, Beyond> {
        let last = session.last_sequence();
        let written = *last.borrow();
        if after_sequence > written {
            return Err(Beyond(written));
        }
        Ok(Self { last, session, next: after_sequence + 1, place: None })
    }

    /// Number of the last record that was read, or that is not kept any more.
    pub(crate) fn last_sequence(&self) -> u64 {
        self.next - 1
    }

    /// Reads what comes next, as far as it has been written; nothing where all was read. Blocks.
    pub(crate) fn read(&mut self) -> io::Result<Vec<Followed>> {
        let records = self.session.records();
        let place = match self.place {
            Some((generation, at)) if generation == records.generation() => at,
            Some(_) | None => records.find(self.next)?,
        };
        let (found, end) = records.read(place, BATCH_BYTES)?;
        self.place = Some((records.generation(), end));
        let mut followed = Vec::new();
        for Numbered { sequence, record } in found {
            if sequence < self.next {
                continue; // never, but for a file that somebody else has written to
            }
            self.gap(sequence, &mut followed);
            followed.push(Followed::Record { sequence, record });
            self.next = sequence + 1;
        }
        if end == records.length() {
            // The last ones may be gone, too.
            self.gap(records.last_sequence() + 1, &mut followed);
        }
        Ok(followed)
    }

    /// Waits until there is more to be read. May be cancelled.
    pub(crate) async fn more(&mut self) {
        let next = self.next;
        // The session, which this holds, keeps the sender.
        let _more = self.last.wait_for(|last| *last >= next).await;
    }

    fn gap(&mut self, first_sequence: u64, followed: &mut Vec<Followed>) {
        if first_sequence > self.next {
            followed.push(Followed::Gap { first_sequence });
            self.next = first_sequence;
        }
    }
}
