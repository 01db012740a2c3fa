//! A snapshot of a session's records.

use std::{fs::File, io, sync::Arc};

use serde_json::{Map, Value};

use super::record_reader::{RecordReader, binary_search};

/// The records at one moment. Stays readable after old records are removed from the log.
#[derive(Debug, Clone)]
pub(crate) struct RecordsSnapshot {
    pub(super) file: Arc<File>,
    /// Bytes of complete records in the file.
    pub(super) length: u64,
    /// Number of the file: each removal of old records replaces it.
    pub(super) generation: u64,
    pub(super) last_sequence: u64,
}

#[derive(Debug)]
pub(crate) struct SequencedRecord {
    pub(crate) sequence: u64,
    pub(crate) record: Map<String, Value>,
}

impl RecordsSnapshot {
    /// Returns the bytes of complete records.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Returns the number of the file. Offsets are valid within one generation only.
    pub(crate) fn generation(&self) -> u64 {
        self.generation
    }

    pub(crate) fn last_sequence(&self) -> u64 {
        self.last_sequence
    }

    /// Returns the offset of the record `sequence`, or of the first record after it. Blocks.
    pub(crate) fn offset_of(&self, sequence: u64) -> io::Result<u64> {
        binary_search(&self.file, self.length, |head| Some(head.sequence < sequence))
    }

    /// Reads records from the offset `from`, where one must begin, until they have `max_bytes`. The
    /// last one may exceed it. Returns the offset of the next record. Blocks.
    pub(crate) fn read_from(
        &self,
        from: u64,
        max_bytes: u64,
    ) -> io::Result<(Vec<SequencedRecord>, u64)> {
        let mut records = Vec::new();
        let mut reader = RecordReader::new(&self.file, from, self.length);
        while reader.position() - from < max_bytes
            && let Some(line) = reader.next()?
        {
            // Skips lines that no daemon wrote.
            if let Ok(record) = serde_json::from_slice::<Map<String, Value>>(line)
                && let Some(sequence) = record.get("sequence").and_then(Value::as_u64)
            {
                records.push(SequencedRecord { sequence, record });
            }
        }
        Ok((records, reader.position()))
    }
}
