//! The last command of a session: which records it has.

use std::{collections::HashMap, io, ops::ControlFlow};

use memchr::memmem;

use super::{
    record_reader::{RecordHeader, RecordReader, visit_lines_reverse},
    snapshot::RecordsSnapshot,
};

/// Part of each record of a command. Other records may contain it too, so matches are parsed.
const RUN_MARKER: &[u8] = b"\"tool\":\"run\"";

/// The last command, as far as it is known.
#[derive(Debug, Clone)]
pub(super) enum LastRun {
    /// The records have not been searched.
    Unknown,
    /// There was none, or its records have been removed.
    Absent,
    Known(RunRecords),
}

/// A command, and the sequence numbers of its first and last record.
#[derive(Debug, Clone)]
pub(super) struct RunRecords {
    pub(super) step: u64,
    pub(super) start_sequence: u64,
    pub(super) end_sequence: Option<u64>,
}

impl RunRecords {
    pub(super) fn new(step: u64, start_sequence: u64) -> Self {
        Self { step, start_sequence, end_sequence: None }
    }
}

impl LastRun {
    /// Sets the end record of the step, if it is the last command.
    pub(super) fn mark_ended(&mut self, step: u64, sequence: u64) {
        if let Self::Known(run) = self
            && run.step == step
        {
            run.end_sequence = Some(sequence);
        }
    }

    /// Searches the records for the last command, backwards.
    pub(super) fn search(records: &RecordsSnapshot) -> io::Result<Self> {
        // End records whose start records come earlier in the file: as many as ran at once.
        let mut ends = HashMap::new();
        let mut found = Self::Absent;

        let run_finder = memmem::Finder::new(RUN_MARKER);
        visit_lines_reverse(&records.file, records.length, Some(&run_finder), |line| {
            if run_finder.find(line).is_none() {
                return ControlFlow::Continue(());
            }
            match RecordHeader::parse(line).filter(RecordHeader::is_of_run) {
                Some(header) if header.ends_step() => {
                    ends.insert(header.step, header.sequence);
                    ControlFlow::Continue(())
                }
                Some(header) if header.begins_step() => {
                    found = Self::Known(RunRecords {
                        end_sequence: ends.remove(&header.step),
                        ..RunRecords::new(header.step, header.sequence)
                    });
                    ControlFlow::Break(())
                }
                Some(_) | None => ControlFlow::Continue(()),
            }
        })?;
        Ok(found)
    }
}

/// Reads the record of a sequence number; `None` if it has been removed.
pub(super) fn read_record(records: &RecordsSnapshot, sequence: u64) -> io::Result<Option<Vec<u8>>> {
    let offset = records.offset_of(sequence)?;
    let mut reader = RecordReader::new(&records.file, offset, records.length);
    let line = reader.next()?.map(<[u8]>::to_vec);

    let has_sequence =
        |line: &[u8]| RecordHeader::parse(line).is_some_and(|header| header.sequence == sequence);
    Ok(line.filter(|line| has_sequence(line)))
}
