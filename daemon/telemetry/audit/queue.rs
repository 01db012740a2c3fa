//! The queue between calls and the thread that writes the audit log.

use std::{
    collections::VecDeque,
    mem,
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use serde_json::{Map, Value};

use super::{auth_failures::AuthFailures, event::AuditEvent};
use crate::daemon::telemetry::access_log::CallRecord;

/// Lines that wait to be written. Each has at most a few kilobytes: methods and parameters are
/// truncated.
pub(super) const MAX_QUEUED_LINES: usize = 4096;
/// Delay before another attempt to write, on a full disk for example.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// What callers and the writer share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    pub(super) queue: Mutex<Queue>,
    /// Notified when the writer has work.
    pub(super) ready: Condvar,
    /// Notified when the writer ends.
    pub(super) ended: Condvar,
    pub(super) written: AtomicU64,
    pub(super) lost: AtomicU64,
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) lines: VecDeque<AuditLine>,
    /// Lost lines that the log does not report yet.
    pub(super) lost: u64,
    auth_failures: AuthFailures,
    pub(super) reopen: bool,
    pub(super) closed: bool,
    pub(super) ended: bool,
}

/// What the writer takes from the queue at once.
pub(super) struct AuditWork {
    pub(super) lines: VecDeque<AuditLine>,
    /// Lines that were lost after these.
    pub(super) lost: u64,
    pub(super) reopen: bool,
}

/// What was requested while the writer waited for another attempt.
pub(super) struct RetryRequest {
    pub(super) reopen: bool,
    pub(super) closed: bool,
}

/// A line, before it has its sequence number.
#[derive(Debug)]
pub(super) struct AuditLine {
    pub(super) event: AuditEvent,
    pub(super) time: SystemTime,
    pub(super) record: Box<CallRecord>,
    /// Fields that only this event has.
    pub(super) details: Map<String, Value>,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, mut line: AuditLine) {
        let mut queue = self.lock();
        if line.event == AuditEvent::AuthFailed {
            let has_room = queue.lines.len() < MAX_QUEUED_LINES / 2;
            match queue.auth_failures.admit(Instant::now(), has_room) {
                None => return,
                Some(0) => {}
                Some(omitted) => {
                    line.details.insert("omitted".to_owned(), omitted.into());
                }
            }
        }
        if queue.lines.len() >= MAX_QUEUED_LINES || queue.ended {
            queue.lost += 1;
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        queue.lines.push_back(line);
        let is_first = queue.lines.len() == 1;
        drop(queue);
        if is_first {
            self.ready.notify_one();
        }
    }

    /// Waits for work, and takes it. Returns `None` when the log is closed and all is written.
    pub(super) fn take(&self) -> Option<AuditWork> {
        let mut queue = self.lock();
        loop {
            let reopen = mem::take(&mut queue.reopen);
            if reopen || !queue.lines.is_empty() || queue.lost > 0 {
                let (lines, lost) = (mem::take(&mut queue.lines), mem::take(&mut queue.lost));
                return Some(AuditWork { lines, lost, reopen });
            }
            if queue.closed {
                queue.ended = true;
                self.ended.notify_all();
                return None;
            }
            queue = self.ready.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits before another attempt to write. Says what was requested meanwhile.
    pub(super) fn wait_for_retry(&self) -> RetryRequest {
        let queue = self.lock();
        if queue.closed {
            return RetryRequest { reopen: false, closed: true };
        }
        let waited = self
            .ready
            .wait_timeout_while(queue, RETRY_INTERVAL, |queue| !queue.closed && !queue.reopen);
        let mut queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        RetryRequest { reopen: mem::take(&mut queue.reopen), closed: queue.closed }
    }
}
