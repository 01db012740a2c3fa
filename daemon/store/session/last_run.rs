//! The last command of a session: where its records are.

use std::{collections::HashMap, io, ops::ControlFlow};

use memchr::memmem;

use super::{
    records::{Head, Records, backwards},
    snapshot::Snapshot,
};

/// What each record of a command holds. Other records may hold it too, and are looked at then.
const OF_RUN: &[u8] = b"\"tool\":\"run\"";

/// What is known of the last command.
#[derive(Debug, Clone)]
pub(super) enum LastRun {
    /// The records have not been looked through for it.
    Unknown,
    /// There was none, or its records are not kept any more.
    Never,
    /// This one.
    Known(Run),
}

/// A command, and the numbers of its first record and its last.
#[derive(Debug, Clone)]
pub(super) struct Run {
    pub(super) step: u64,
    pub(super) started: u64,
    pub(super) ended: Option<u64>,
}

impl Run {
    /// One that begins with this record.
    pub(super) fn new(step: u64, started: u64) -> Self {
        Self { step, started, ended: None }
    }
}

impl LastRun {
    /// The step has ended with this record.
    pub(super) fn ended(&mut self, step: u64, sequence: u64) {
        if let Self::Known(run) = self
            && run.step == step
        {
            run.ended = Some(sequence);
        }
    }

    /// Looks the records through for it, from the last one on.
    pub(super) fn look_for(records: &Snapshot) -> io::Result<Self> {
        // Ends that belong to commands whose beginnings are yet to come: as many as ran at once.
        let mut ends = HashMap::new();
        let mut found = Self::Never;
        let of_run = memmem::Finder::new(OF_RUN);
        backwards(&records.file, records.length, Some(&of_run), |line| {
            if of_run.find(line).is_none() {
                return ControlFlow::Continue(());
            }
            match Head::of(line).filter(Head::is_of_run) {
                Some(head) if head.ends_step() => {
                    ends.insert(head.step, head.sequence);
                    ControlFlow::Continue(())
                }
                Some(head) if head.begins_step() => {
                    found = Self::Known(Run {
                        ended: ends.remove(&head.step),
                        ..Run::new(head.step, head.sequence)
                    });
                    ControlFlow::Break(())
                }
                Some(_) | None => ControlFlow::Continue(()),
            }
        })?;
        Ok(found)
    }
}

/// The record of this number; nothing where it is not kept.
pub(super) fn record(records: &Snapshot, sequence: u64) -> io::Result<Option<Vec<u8>>> {
    let at = records.find(sequence)?;
    let mut from = Records::new(&records.file, at, records.length);
    let line = from.next()?.map(<[u8]>::to_vec);
    Ok(line.filter(|line| Head::of(line).is_some_and(|head| head.sequence == sequence)))
}
