//! What there is of a session's records at a moment.

use std::{fs::File, io, sync::Arc};

use serde_json::{Map, Value};

use super::record_reader::{RecordReader, binary_search};

/// What there is.
#[derive(Debug, Clone)]
pub(crate) struct RecordsSnapshot {
    /// The file.
    pub(super) file: Arc<File>,
    /// Bytes of whole records in it.
    pub(super) length: u64,
    /// Which file it is, of those that have had the place.
    pub(super) generation: u64,
    /// Number of the last record.
    pub(super) last_sequence: u64,
}

/// A record, and its number.
#[derive(Debug)]
pub(crate) struct SequencedRecord {
    /// Its number.
    pub(crate) sequence: u64,
    /// All of it.
    pub(crate) record: Map<String, Value>,
}

impl RecordsSnapshot {
    /// Bytes of whole records.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Which file they are in, of those that have had the place.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    /// Number of the last record.
    pub(crate) fn last_sequence(&self) -> u64 {
        self.last_sequence
    }

    /// Where the record of this number begins, or the first one behind it. Blocks.
    pub(crate) fn offset_of(&self, sequence: u64) -> io::Result<u64> {
        binary_search(&self.file, self.length, |head| Some(head.sequence < sequence))
    }

    /// Reads records from a place on, where one begins, until they have so many bytes. Answers where
    /// the next one begins. Blocks.
    pub(crate) fn read_from(
        &self,
        from: u64,
        bytes: u64,
    ) -> io::Result<(Vec<SequencedRecord>, u64)> {
        let mut found = Vec::new();
        let mut records = RecordReader::new(&self.file, from, self.length);
        while records.position() - from < bytes
            && let Some(line) = records.next()?
        {
            // What is none was not written by a daemon.
            if let Ok(record) = serde_json::from_slice::<Map<String, Value>>(line)
                && let Some(sequence) = record.get("sequence").and_then(Value::as_u64)
            {
                found.push(SequencedRecord { sequence, record });
            }
        }
        Ok((found, records.position()))
    }
}
