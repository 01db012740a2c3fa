//! The audit log: a file with one line of JSON for each call and each decision (`--audit-log`).
//!
//! Calls only append to a bounded queue. One thread writes the file. If the queue is full, lines are
//! lost: they are counted, and the log reports their number as soon as it can.

mod auth_failures;
mod event;
mod file;
mod queue;
mod settings;
mod writer;

use std::{
    io,
    sync::{Arc, PoisonError, atomic::Ordering},
    thread,
    time::{Duration, Instant, SystemTime},
};

use serde_json::{Map, Value};

pub(crate) use self::{event::AuditEvent, settings::AuditSettings};
use self::{
    file::AuditFile,
    queue::{AuditLine, Shared},
    writer::write_lines,
};
use super::{
    access_log::CallRecord,
    metrics::{Metrics, table},
};

/// How long the last lines may take at shutdown.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// The audit log. Clones share it. Without a file, nothing is written.
#[derive(Debug, Clone, Default)]
pub(crate) struct AuditLog(Option<Arc<Shared>>);

impl AuditLog {
    /// Opens the file, and starts the thread that writes it.
    pub(crate) fn open(settings: AuditSettings) -> io::Result<Self> {
        let file = AuditFile::open(settings)?;
        let shared = Arc::new(Shared::default());
        let of_writer = Arc::clone(&shared);
        thread::Builder::new()
            .name("audit log".to_owned())
            .spawn(move || write_lines(&of_writer, file))?;
        Ok(Self(Some(shared)))
    }

    /// Whether lines are written.
    pub(crate) fn is_enabled(&self) -> bool {
        self.0.is_some()
    }

    /// Reports a call, or a decision about it. `record` is called only if lines are written.
    pub(crate) fn record(&self, event: AuditEvent, record: impl FnOnce() -> CallRecord) {
        self.record_with(event, || (record(), Map::new()));
    }

    /// As [`Self::record`], with fields that only this event has.
    pub(crate) fn record_with(
        &self,
        event: AuditEvent,
        record: impl FnOnce() -> (CallRecord, Map<String, Value>),
    ) {
        let Some(shared) = &self.0 else { return };
        let (record, details) = record();
        shared.push(AuditLine {
            event,
            time: SystemTime::now(),
            record: Box::new(record),
            details,
        });
    }

    /// Reports an event of the daemon.
    pub(crate) fn report<const N: usize>(&self, event: AuditEvent, details: [(&str, Value); N]) {
        self.record_with(event, || {
            let details = details.into_iter().map(|(name, value)| (name.to_owned(), value));
            (CallRecord::default(), details.collect())
        });
    }

    /// Opens the file anew: another program may have renamed it.
    pub(crate) fn reopen(&self) {
        if let Some(shared) = &self.0 {
            shared.lock().reopen = true;
            shared.ready.notify_one();
        }
    }

    /// Writes the remaining lines. Blocks for a limited time.
    pub(crate) fn close(&self) {
        let Some(shared) = &self.0 else { return };
        let deadline = Instant::now() + CLOSE_TIMEOUT;
        let mut queue = shared.lock();
        queue.closed = true;
        shared.ready.notify_one();
        while !queue.ended {
            let remaining = deadline.saturating_duration_since(Instant::now());
            if remaining.is_zero() {
                tracing::error!("the last lines of the audit log could not be written in time");
                return;
            }
            queue = shared
                .ended
                .wait_timeout(queue, remaining)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Counts the lines.
    pub(super) fn observe(&self, metrics: &Metrics) {
        let Some(shared) = &self.0 else { return };
        let written = Arc::clone(shared);
        metrics.observe(&table::AUDIT_WRITTEN, move |observe| {
            observe(written.written.load(Ordering::Relaxed), &[]);
        });
        let lost = Arc::clone(shared);
        metrics.observe(&table::AUDIT_LOST, move |observe| {
            observe(lost.lost.load(Ordering::Relaxed), &[]);
        });
    }
}

#[cfg(test)]
mod tests;
