//! What can be told of a session by a glance at its folder, without opening it.

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
};

/// Bytes that a session takes whatever it holds: its folders and its small files, of a block each.
const EMPTY_SESSION_BYTES: u64 = 4 * 4096;
/// Bytes of a block, in which the kernel counts.
const STAT_BLOCK_BYTES: u64 = 512;

/// What can be told.
#[derive(Debug)]
pub(crate) struct SessionSummary {
    /// Bytes of its records.
    pub(crate) record_bytes: u64,
    /// Bytes that all of it takes on the disk.
    pub(crate) disk_bytes: u64,
    /// When the first record was written that is kept.
    pub(crate) oldest_record: Option<SystemTime>,
    /// When the last one was, kept or not.
    pub(crate) last_used: SystemTime,
}

impl SessionSummary {
    /// Looks at the session in `folder`.
    pub(super) fn read(folder: &Path, end: &CancellationToken) -> io::Result<Self> {
        let last_used = last_used(folder)?;
        let (record_bytes, taken, oldest) = match File::open(folder.join(RECORDS_FILE)) {
            Ok(file) => {
                let data = file.metadata()?;
                let length = data.len();
                let mut records = RecordReader::new(&file, 0, length);
                let first = records.next()?.and_then(RecordHeader::parse);
                let oldest = first.and_then(|head| parse_record_time(&head.time));
                (length, data.blocks() * STAT_BLOCK_BYTES, oldest)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => (0, 0, None),
            Err(error) => return Err(error),
        };
        Ok(Self {
            record_bytes,
            disk_bytes: EMPTY_SESSION_BYTES + taken + artifacts::disk_usage(folder, end)?,
            oldest_record: oldest,
            last_used,
        })
    }
}

/// When the last record of the session in `folder` was written, kept or not.
pub(super) fn last_used(folder: &Path) -> io::Result<SystemTime> {
    let SessionCounters { time, .. } = EventLog::read_counters(folder)?;
    Ok(match parse_record_time(&time) {
        Some(time) => time,
        // Made, and no more.
        None => fs::metadata(folder)?.modified().unwrap_or(UNIX_EPOCH),
    })
}

/// A time as records say it.
pub(super) fn parse_record_time(text: &str) -> Option<SystemTime> {
    let time = text.parse::<Timestamp>().ok()?;
    SystemTime::try_from(time).ok()
}
