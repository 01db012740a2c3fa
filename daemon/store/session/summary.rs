//! Summary of a session, read from its directory without opening it.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt as _,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use prost_types::Timestamp;
use tokio_util::sync::CancellationToken;

use super::{
    artifacts,
    event_log::{EventLog, RECORDS_FILE, SessionCounters},
    record_reader::{RecordHeader, RecordReader},
    shells,
};
use crate::daemon::sys::STAT_BLOCK_BYTES;

/// Size of a session without content: its directories and small files, one block each.
const EMPTY_SESSION_BYTES: u64 = 4 * 4096;

#[derive(Debug)]
pub(crate) struct SessionSummary {
    pub(crate) record_bytes: u64,
    /// Bytes that the whole session takes on the disk.
    pub(crate) disk_bytes: u64,
    /// Time of the oldest stored record.
    pub(crate) oldest_record: Option<SystemTime>,
    /// Time of the last record, even if it has been removed.
    pub(crate) last_used: SystemTime,
}

impl SessionSummary {
    /// Summarizes the session in `directory`.
    pub(super) fn read(directory: &Path, shutdown: &CancellationToken) -> io::Result<Self> {
        let last_used = last_used(directory)?;

        let (record_bytes, disk_bytes, oldest_record) =
            match File::open(directory.join(RECORDS_FILE)) {
                Ok(file) => {
                    let metadata = file.metadata()?;
                    let length = metadata.len();
                    let mut reader = RecordReader::new(&file, 0, length);
                    let first = reader.next()?.and_then(RecordHeader::parse);
                    let oldest_record = first.and_then(|header| parse_record_time(&header.time));
                    (length, metadata.blocks() * STAT_BLOCK_BYTES, oldest_record)
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => (0, 0, None),
                Err(error) => return Err(error),
            };

        Ok(Self {
            record_bytes,
            disk_bytes: EMPTY_SESSION_BYTES
                + disk_bytes
                + artifacts::disk_usage(directory, shutdown)?
                + shells::disk_usage(directory)?,
            oldest_record,
            last_used,
        })
    }
}

/// Returns the time of the session's last record, even if that has been removed.
pub(super) fn last_used(directory: &Path) -> io::Result<SystemTime> {
    let SessionCounters { time, .. } = EventLog::read_counters(directory)?;
    Ok(match parse_record_time(&time) {
        Some(time) => time,
        // Created, and without any record so far.
        None => fs::metadata(directory)?.modified().unwrap_or(UNIX_EPOCH),
    })
}

/// Parses the `time` of a record.
pub(super) fn parse_record_time(text: &str) -> Option<SystemTime> {
    let time = text.parse::<Timestamp>().ok()?;
    SystemTime::try_from(time).ok()
}
