//! Usage of the session store: signals when a retention limit is exceeded.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// Counters and limits of all sessions. Without [`Self::set_limits`], nothing is signalled.
#[derive(Debug)]
pub(crate) struct SessionUsage {
    /// Limit for the records of one session.
    max_record_bytes: AtomicU64,
    /// Bytes of all sessions above which `usage_exceeded` is signalled.
    notify_above_bytes: AtomicU64,
    /// Bytes at the last measurement, plus those written since.
    bytes: AtomicU64,
    /// Limit for the sessions of one workspace.
    max_sessions: AtomicU64,
    /// Signalled when the records of a session exceed their limit.
    pub(super) records_exceeded: Notify,
    /// Signalled when all sessions exceed their bytes, or a workspace its number of sessions.
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
    /// Sets the limits for the records of a session and the sessions of a workspace.
    pub(super) fn set_limits(&self, max_record_bytes: u64, max_sessions: u64) {
        self.max_record_bytes.store(max_record_bytes, Ordering::Relaxed);
        self.max_sessions.store(max_sessions, Ordering::Relaxed);
    }

    /// Returns the bytes counted so far, for [`Self::set_measured`].
    pub(super) fn counted_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Sets the result of a measurement, and the limit for all sessions.
    ///
    /// `counted` is [`Self::counted_bytes`] before the measurement, `bytes` the result. `bytes` may
    /// or may not include what was written during the measurement. If `bytes` exceeds the limit
    /// because the rest cannot be removed, the signal comes after another 1/16 of the limit.
    pub(super) fn set_measured(&self, counted: u64, bytes: u64, max_bytes: u64) {
        let notify_above = if bytes > max_bytes { bytes + max_bytes / 16 } else { max_bytes };
        self.notify_above_bytes.store(notify_above, Ordering::Relaxed);

        let total = bytes + self.counted_bytes().saturating_sub(counted);
        self.bytes.store(total, Ordering::Relaxed);
        if total > notify_above {
            self.usage_exceeded.notify_one();
        }
    }

    /// Adds written bytes.
    pub(super) fn add_written(&self, bytes: u64) {
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let notify_above = self.notify_above_bytes.load(Ordering::Relaxed);
        if before <= notify_above && before + bytes > notify_above {
            self.usage_exceeded.notify_one();
        }
    }

    /// Checks the records of a session, which have `bytes`. The last trim left `trimmed_bytes`.
    pub(super) fn check_record_bytes(&self, bytes: u64, trimmed_bytes: u64) {
        let max_bytes = self.max_record_bytes.load(Ordering::Relaxed);
        // Records of running steps cannot be removed: avoids a signal with each new record.
        let notify_above = if trimmed_bytes > max_bytes {
            trimmed_bytes.saturating_add(max_bytes / 16)
        } else {
            max_bytes
        };
        if bytes > notify_above {
            self.records_exceeded.notify_one();
        }
    }

    /// Checks the number of sessions of a workspace.
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

    /// Whether there was a signal since the last call.
    fn is_signalled(notify: &Notify) -> bool {
        let notified = pin!(notify.notified());
        let mut context = Context::from_waker(Waker::noop());
        notified.poll(&mut context).is_ready()
    }

    #[test]
    fn each_exceeded_limit_is_signalled_once() {
        let usage = SessionUsage::default();
        usage.add_written(1 << 40);
        usage.check_record_bytes(1 << 40, 0);
        usage.check_session_count(1 << 40);
        assert!(!is_signalled(&usage.usage_exceeded) && !is_signalled(&usage.records_exceeded));

        usage.set_limits(160, 2);
        usage.set_measured(usage.counted_bytes(), 900, 1600);
        usage.add_written(700);
        assert!(!is_signalled(&usage.usage_exceeded));

        usage.add_written(1);
        assert!(is_signalled(&usage.usage_exceeded));
        usage.add_written(1);
        assert!(!is_signalled(&usage.usage_exceeded));

        // Bytes that cannot be removed.
        usage.set_measured(usage.counted_bytes(), 2000, 1600);
        usage.add_written(100);
        assert!(!is_signalled(&usage.usage_exceeded));
        usage.add_written(1);
        assert!(is_signalled(&usage.usage_exceeded));

        // Written during the measurement.
        let counted = usage.counted_bytes();
        usage.add_written(800);
        usage.set_measured(counted, 900, 1600);
        assert!(is_signalled(&usage.usage_exceeded));
        usage.check_session_count(2);
        assert!(!is_signalled(&usage.usage_exceeded));
        usage.check_session_count(3);
        assert!(is_signalled(&usage.usage_exceeded));

        for (bytes, trimmed_bytes, expected) in [
            (160, 0, false),
            (161, 0, true),
            // Even if few were added since the last trim.
            (161, 160, true),
            (200, 190, false),
            (201, 190, true),
        ] {
            usage.check_record_bytes(bytes, trimmed_bytes);
            assert_eq!(is_signalled(&usage.records_exceeded), expected, "{bytes}");
        }
    }
}
