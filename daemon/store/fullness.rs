//! How full the sessions are, as far as it is known while calls go on: tells when somebody is to look
//! after what is kept of them.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// What there is of them, and how much there may be. Nothing is too much until that was said.
#[derive(Debug)]
pub(crate) struct Fullness {
    /// Bytes of the records of one session.
    most_record_bytes: AtomicU64,
    /// Bytes of all sessions that somebody is told of.
    alarm_bytes: AtomicU64,
    /// Bytes when it was last looked, and what was written since.
    bytes: AtomicU64,
    /// Sessions of one workspace.
    most_sessions: AtomicU64,
    /// Told when a session has more records.
    pub(super) is_long: Notify,
    /// Told when all sessions have more bytes, or a workspace has more of them.
    pub(super) is_full: Notify,
}

impl Default for Fullness {
    fn default() -> Self {
        Self {
            most_record_bytes: AtomicU64::new(u64::MAX),
            alarm_bytes: AtomicU64::new(u64::MAX),
            bytes: AtomicU64::new(0),
            most_sessions: AtomicU64::new(u64::MAX),
            is_long: Notify::new(),
            is_full: Notify::new(),
        }
    }
}

impl Fullness {
    /// Has somebody be told of sessions with more records, and of workspaces with more sessions.
    pub(super) fn set(&self, most_record_bytes: u64, most_sessions: u64) {
        self.most_record_bytes.store(most_record_bytes, Ordering::Relaxed);
        self.most_sessions.store(most_sessions, Ordering::Relaxed);
    }

    /// What was counted so far, for [`Self::measured`].
    pub(super) fn counted(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Has somebody be told when there is more than `most`. It was looked how much there is since so much
    /// was `counted`, and found `bytes`: what was written meanwhile may be among them, or not. Where there
    /// is more already, which could not be removed, it is told when some more has come.
    pub(super) fn measured(&self, counted: u64, bytes: u64, most: u64) {
        let alarm = if bytes > most { bytes + most / 16 } else { most };
        self.alarm_bytes.store(alarm, Ordering::Relaxed);
        let all = bytes + self.counted().saturating_sub(counted);
        self.bytes.store(all, Ordering::Relaxed);
        if all > alarm {
            self.is_full.notify_one();
        }
    }

    /// So many bytes more were written.
    pub(super) fn wrote(&self, bytes: u64) {
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let alarm = self.alarm_bytes.load(Ordering::Relaxed);
        if before <= alarm && before + bytes > alarm {
            self.is_full.notify_one();
        }
    }

    /// The records of a session have got to so many bytes. So many `stayed` when somebody last looked
    /// after them.
    pub(super) fn records(&self, bytes: u64, stayed: u64) {
        let most = self.most_record_bytes.load(Ordering::Relaxed);
        // Of what could not be removed then, as it goes on, nobody is told again with each record.
        let alarm = if stayed > most { stayed.saturating_add(most / 16) } else { most };
        if bytes > alarm {
            self.is_long.notify_one();
        }
    }

    /// A workspace has got so many sessions.
    pub(super) fn sessions(&self, count: u64) {
        if count > self.most_sessions.load(Ordering::Relaxed) {
            self.is_full.notify_one();
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
        let fullness = Fullness::default();
        fullness.wrote(1 << 40);
        fullness.records(1 << 40, 0);
        fullness.sessions(1 << 40);
        assert!(!told(&fullness.is_full) && !told(&fullness.is_long));
        fullness.set(160, 2);
        fullness.measured(fullness.counted(), 900, 1600);
        fullness.wrote(700);
        assert!(!told(&fullness.is_full));
        fullness.wrote(1);
        assert!(told(&fullness.is_full));
        fullness.wrote(1);
        assert!(!told(&fullness.is_full));
        // What cannot be removed.
        fullness.measured(fullness.counted(), 2000, 1600);
        fullness.wrote(100);
        assert!(!told(&fullness.is_full));
        fullness.wrote(1);
        assert!(told(&fullness.is_full));
        // What was written while it was looked.
        let counted = fullness.counted();
        fullness.wrote(800);
        fullness.measured(counted, 900, 1600);
        assert!(told(&fullness.is_full));
        fullness.sessions(2);
        assert!(!told(&fullness.is_full));
        fullness.sessions(3);
        assert!(told(&fullness.is_full));
        for (bytes, stayed, is_told) in [
            (160, 0, false),
            (161, 0, true),
            // However little has come since.
            (161, 160, true),
            (200, 190, false),
            (201, 190, true),
        ] {
            fullness.records(bytes, stayed);
            assert_eq!(told(&fullness.is_long), is_told, "{bytes}");
        }
    }
}
