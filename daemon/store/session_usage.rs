//! How full the sessions are, as far as it is known while calls go on: tells when somebody is to look
//! after what is kept of them.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// What there is of them, and how much there may be. Nothing is too much until that was said.
#[derive(Debug)]
pub(crate) struct SessionUsage {
    /// Bytes of the records of one session.
    max_record_bytes: AtomicU64,
    /// Bytes of all sessions that somebody is told of.
    notify_above_bytes: AtomicU64,
    /// Bytes when it was last looked, and what was written since.
    bytes: AtomicU64,
    /// Sessions of one workspace.
    max_sessions: AtomicU64,
    /// Told when a session has more records.
    pub(super) records_exceeded: Notify,
    /// Told when all sessions have more bytes, or a workspace has more of them.
    pub(super) usage_exceeded: Notify,
}

impl Default for SessionUsage {
    fn default() -> Self {
        Self {
            max_record_bytes: AtomicU64::new(u64::MAX),
            notify_above_bytes: AtomicU64::new(u64::MAX),
            bytes: AtomicU64::new(0),
            max_sessions: AtomicU64::new(u64::MAX),
            records_exceeded: Notify::new(),
            usage_exceeded: Notify::new(),
        }
    }
}

impl SessionUsage {
    /// Has somebody be told of sessions with more records, and of workspaces with more sessions.
    pub(super) fn set_limits(&self, most_record_bytes: u64, most_sessions: u64) {
        self.max_record_bytes.store(most_record_bytes, Ordering::Relaxed);
        self.max_sessions.store(most_sessions, Ordering::Relaxed);
    }

    /// What was counted so far, for [`Self::measured`].
    pub(super) fn counted_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Has somebody be told when there is more than `most`. It was looked how much there is since so much
    /// was `counted`, and found `bytes`: what was written meanwhile may be among them, or not. Where there
    /// is more already, which could not be removed, it is told when some more has come.
    pub(super) fn set_measured(&self, counted: u64, bytes: u64, most: u64) {
        let alarm = if bytes > most { bytes + most / 16 } else { most };
        self.notify_above_bytes.store(alarm, Ordering::Relaxed);
        let all = bytes + self.counted_bytes().saturating_sub(counted);
        self.bytes.store(all, Ordering::Relaxed);
        if all > alarm {
            self.usage_exceeded.notify_one();
        }
    }

    /// So many bytes more were written.
    pub(super) fn add_written(&self, bytes: u64) {
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let alarm = self.notify_above_bytes.load(Ordering::Relaxed);
        if before <= alarm && before + bytes > alarm {
            self.usage_exceeded.notify_one();
        }
    }

    /// The records of a session have got to so many bytes. So many `stayed` when somebody last looked
    /// after them.
    pub(super) fn check_record_bytes(&self, bytes: u64, stayed: u64) {
        let most = self.max_record_bytes.load(Ordering::Relaxed);
        // Of what could not be removed then, as it goes on, nobody is told again with each record.
        let alarm = if stayed > most { stayed.saturating_add(most / 16) } else { most };
        if bytes > alarm {
            self.records_exceeded.notify_one();
        }
    }

    /// A workspace has got so many sessions.
    pub(super) fn check_session_count(&self, count: u64) {
        if count > self.max_sessions.load(Ordering::Relaxed) {
            self.usage_exceeded.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Waker},
    };

    use super::*;

    /// Whether somebody was told since this was last asked.
    fn told(notify: &Notify) -> bool {
        let notified = pin!(notify.notified());
        let mut context = Context::from_waker(Waker::noop());
        notified.poll(&mut context).is_ready()
    }

    #[test]
    fn somebody_is_told_once_of_what_is_too_much() {
        let fullness = SessionUsage::default();
        fullness.add_written(1 << 40);
        fullness.check_record_bytes(1 << 40, 0);
        fullness.check_session_count(1 << 40);
        assert!(!told(&fullness.usage_exceeded) && !told(&fullness.records_exceeded));
        fullness.set_limits(160, 2);
        fullness.set_measured(fullness.counted_bytes(), 900, 1600);
        fullness.add_written(700);
        assert!(!told(&fullness.usage_exceeded));
        fullness.add_written(1);
        assert!(told(&fullness.usage_exceeded));
        fullness.add_written(1);
        assert!(!told(&fullness.usage_exceeded));
        // What cannot be removed.
        fullness.set_measured(fullness.counted_bytes(), 2000, 1600);
        fullness.add_written(100);
        assert!(!told(&fullness.usage_exceeded));
        fullness.add_written(1);
        assert!(told(&fullness.usage_exceeded));
        // What was written while it was looked.
        let counted = fullness.counted_bytes();
        fullness.add_written(800);
        fullness.set_measured(counted, 900, 1600);
        assert!(told(&fullness.usage_exceeded));
        fullness.check_session_count(2);
        assert!(!told(&fullness.usage_exceeded));
        fullness.check_session_count(3);
        assert!(told(&fullness.usage_exceeded));
        for (bytes, stayed, is_told) in [
            (160, 0, false),
            (161, 0, true),
            // However little has come since.
            (161, 160, true),
            (200, 190, false),
            (201, 190, true),
        ] {
            fullness.check_record_bytes(bytes, stayed);
            assert_eq!(told(&fullness.records_exceeded), is_told, "{bytes}");
        }
    }
}
