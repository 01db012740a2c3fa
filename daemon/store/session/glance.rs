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
    events::{Events, Numbers, RECORDS},
    records::{Head, Records},
};

/// Bytes that a session takes whatever it holds: its folders and its small files, of a block each.
const EMPTY: u64 = 4 * 4096;
/// Bytes of a block, in which the kernel counts.
const BLOCK: u64 = 512;

/// What can be told.
#[derive(Debug)]
pub(crate) struct Glance {
    /// Bytes of its records.
    pub(crate) record_bytes: u64,
    /// Bytes that all of it takes on the disk.
    pub(crate) bytes: u64,
    /// When the first record was written that is kept.
    pub(crate) oldest: Option<SystemTime>,
    /// When the last one was, kept or not.
    pub(crate) last_used: SystemTime,
}

impl Glance {
    /// Looks at the session in `folder`.
    pub(super) fn at(folder: &Path, end: &CancellationToken) -> io::Result<Self> {
        let last_used = last_used(folder)?;
        let (record_bytes, taken, oldest) = match File::open(folder.join(RECORDS)) {
            Ok(file) => {
                let data = file.metadata()?;
                let length = data.len();
                let mut records = Records::new(&file, 0, length);
                let first = records.next()?.and_then(Head::of);
                let oldest = first.and_then(|head| system_time(&head.time));
                (length, data.blocks() * BLOCK, oldest)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => (0, 0, None),
            Err(error) => return Err(error),
        };
        Ok(Self {
            record_bytes,
            bytes: EMPTY + taken + artifacts::bytes(folder, end)?,
            oldest,
            last_used,
        })
    }
}

/// When the last record of the session in `folder` was written, kept or not.
pub(super) fn last_used(folder: &Path) -> io::Result<SystemTime> {
    let Numbers { time, .. } = Events::numbers(folder)?;
    Ok(match system_time(&time) {
        Some(time) => time,
        // Made, and no more.
        None => fs::metadata(folder)?.modified().unwrap_or(UNIX_EPOCH),
    })
}

/// A time as records say it.
pub(super) fn system_time(text: &str) -> Option<SystemTime> {
    let time = text.parse::<Timestamp>().ok()?;
    SystemTime::try_from(time).ok()
}
