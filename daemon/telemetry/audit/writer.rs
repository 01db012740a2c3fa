//! The thread that writes the audit log.

use std::{mem, sync::atomic::Ordering, time::SystemTime};

use serde::Serialize;
use serde_json::{Map, Value};

use super::{
    event::AuditEvent,
    file::AuditFile,
    queue::{AuditLine, AuditWork, RetryRequest, Shared},
};
use crate::daemon::telemetry::{access_log::CallRecord, logs::rfc3339_micros};

/// Bytes that are written at once.
const WRITE_BYTES: usize = 64 << 10;

/// A line as it is written.
#[derive(Serialize)]
struct EncodedLine<'a> {
    time: String,
    /// Counts the lines of one daemon, from 1.
    sequence: u64,
    event: &'static str,
    #[serde(flatten)]
    record: &'a CallRecord,
    #[serde(flatten)]
    details: &'a Map<String, Value>,
}

/// Lines that are about to be written.
struct Buffer<'a> {
    shared: &'a Shared,
    file: AuditFile,
    bytes: Vec<u8>,
    lines: u64,
    is_failing: bool,
}

/// Writes lines until the log is closed.
pub(super) fn write_lines(shared: &Shared, file: AuditFile) {
    let mut buffer = Buffer { shared, file, bytes: Vec::new(), lines: 0, is_failing: false };
    let mut sequence = 0;
    while let Some(AuditWork { lines, lost, reopen }) = shared.take() {
        if reopen {
            buffer.reopen();
        }
        for line in lines.into_iter().chain((lost > 0).then(|| lines_lost(lost))) {
            sequence += 1;
            buffer.add(&line, sequence);
        }
        buffer.write();
    }
    if let Err(error) = buffer.file.sync() {
        tracing::error!(%error, "the audit log could not be written through to the disk");
    }
}

fn lines_lost(count: u64) -> AuditLine {
    AuditLine {
        event: AuditEvent::LinesLost,
        time: SystemTime::now(),
        record: Box::default(),
        details: Map::from_iter([("count".to_owned(), count.into())]),
    }
}

impl Buffer<'_> {
    fn add(&mut self, line: &AuditLine, sequence: u64) {
        let encoded = EncodedLine {
            time: rfc3339_micros(line.time),
            sequence,
            event: line.event.name(),
            record: &line.record,
            details: &line.details,
        };
        let length = self.bytes.len();
        if let Err(error) = serde_json::to_writer(&mut self.bytes, &encoded) {
            tracing::error!(%error, "a line of the audit log cannot be encoded");
            self.bytes.truncate(length);
            return;
        }
        self.bytes.push(b'\n');
        self.lines += 1;
        if self.bytes.len() >= WRITE_BYTES {
            self.write();
        }
    }

    /// Writes the lines, however long that takes. Gives up only if the log is closed.
    fn write(&mut self) {
        let lines = mem::take(&mut self.lines);
        while let Err(error) = self.file.append(&self.bytes) {
            if !mem::replace(&mut self.is_failing, true) {
                tracing::error!(%error, "the audit log cannot be written: the daemon tries again");
            }
            let RetryRequest { reopen, closed } = self.shared.wait_for_retry();
            if reopen {
                self.reopen();
            }
            if closed {
                tracing::error!(lines, "lines of the audit log are lost");
                self.shared.lost.fetch_add(lines, Ordering::Relaxed);
                self.file.discard();
                self.bytes.clear();
                return;
            }
        }

        self.bytes.clear();
        self.shared.written.fetch_add(lines, Ordering::Relaxed);
        if lines > 0 && mem::take(&mut self.is_failing) {
            tracing::info!("the audit log is written again");
        }
    }

    fn reopen(&mut self) {
        if let Err(error) = self.file.reopen() {
            tracing::error!(%error, "the audit log cannot be opened again: the old file stays open");
        }
    }
}
