//! What can be told of a session by a glance at its folder, without opening it.

use std::{
    fs::{self, File},
    io,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use prost_types::Timestamp;

use super::{
    artifacts,
    events::{Events, Numbers, RECORDS},
    records::{Head, Records},
};

/// What can be told.
#[derive(Debug)]
pub(crate) struct Glance {
    /// Bytes of its records.
    pub(crate) record_bytes: u64,
    /// Bytes of its artifacts.
    pub(crate) artifact_bytes: u64,
    /// When the first record was written that is kept.
    pub(crate) oldest: Option<SystemTime>,
    /// When the last one was, kept or not.
    pub(crate) last_used: SystemTime,
    /// Whether artifacts may be left of which no record tells any more.
    pub(crate) is_unfinished: bool,
}

impl Glance {
    /// Looks at the session in `folder`.
    pub(super) fn at(folder: &Path) -> io::Result<Self> {
        let Numbers {
            time,
            is_unfinished,
            ..
        } = Events::numbers(folder)?;
        let (record_bytes, oldest) = match File::open(folder.join(RECORDS)) {
            Ok(file) => {
                let length = file.metadata()?.len();
                let mut records = Records::new(&file, 0, length);
                let first = records.next()?.and_then(Head::of);
                (length, first.and_then(|head| system_time(&head.time)))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => (0, None),
            Err(error) => return Err(error),
        };
        let last_used = match system_time(&time) {
            Some(time) => time,
            // Made, and no more.
            None => fs::metadata(folder)?.modified().unwrap_or(UNIX_EPOCH),
        };
        Ok(Self {
            record_bytes,
            artifact_bytes: artifacts::bytes(folder)?,
            oldest,
            last_used,
            is_unfinished,
        })
    }
}

/// A time as records say it.
pub(super) fn system_time(text: &str) -> Option<SystemTime> {
    let time = text.parse::<Timestamp>().ok()?;
    SystemTime::try_from(time).ok()
}
