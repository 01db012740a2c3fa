//! The last command of a session: where its records are.

use std::{collections::HashMap, io, ops::ControlFlow};

use memchr::memmem;

use super::{
    record_reader::{RecordHeader, RecordReader, visit_lines_reverse},
    snapshot::RecordsSnapshot,
};

/// What each record of a command holds. Other records may hold it too, and are looked at then.
const RUN_MARKER: &[u8] = b"\"tool\":\"run\"";

/// What is known of the last command.
#[derive(Debug, Clone)]
pub(super) enum LastRun {
    /// The records have not been looked through for it.
    Unknown,
    /// There was none, or its records are not kept any more.
    Absent,
    /// This one.
    Known(RunRecords),
}

/// A command, and the numbers of its first record and its last.
#[derive(Debug, Clone)]
pub(super) struct RunRecords {
    pub(super) step: u64,
    pub(super) start_sequence: u64,
    pub(super) end_sequence: Option<u64>,
}

impl RunRecords {
    /// One that begins with this record.
    pub(super) fn new(step: u64, started: u64) -> Self {
        Self { step, start_sequence: started, end_sequence: None }
    }
}

impl LastRun {
    /// The step has ended with this record.
    pub(super) fn mark_ended(&mut self, step: u64, sequence: u64) {
        if let Self::Known(run) = self
            && run.step == step
        {
            run.end_sequence = Some(sequence);
        }
    }

    /// Looks the records through for it, from the last one on.
    pub(super) fn search(records: &RecordsSnapshot) -> io::Result<Self> {
        // Ends that belong to commands whose beginnings are yet to come: as many as ran at once.
        let mut ends = HashMap::new();
        let mut found = Self::Absent;
        let of_run = memmem::Finder::new(RUN_MARKER);
        visit_lines_reverse(&records.file, records.length, Some(&of_run), |line| {
            if of_run.find(line).is_none() {
                return ControlFlow::Continue(());
            }
            match RecordHeader::parse(line).filter(RecordHeader::is_of_run) {
                Some(head) if head.ends_step() => {
                    ends.insert(head.step, head.sequence);
                    ControlFlow::Continue(())
                }
                Some(head) if head.begins_step() => {
                    found = Self::Known(RunRecords {
                        end_sequence: ends.remove(&head.step),
                        ..RunRecords::new(head.step, head.sequence)
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
pub(super) fn read_record(records: &RecordsSnapshot, sequence: u64) -> io::Result<Option<Vec<u8>>> {
    let at = records.offset_of(sequence)?;
    let mut from = RecordReader::new(&records.file, at, records.length);
    let line = from.next()?.map(<[u8]>::to_vec);
    Ok(line.filter(|line| RecordHeader::parse(line).is_some_and(|head| head.sequence == sequence)))
}
