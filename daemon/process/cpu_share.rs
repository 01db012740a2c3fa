//! Schedule of the attempts to lower the CPU share of a run.

use std::time::{Duration, Instant};

/// When to lower the CPU share of a run. Short runs end before the first attempt.
pub(super) struct CpuShareSchedule {
    next_attempt: Option<Instant>,
    delay: Duration,
}

impl CpuShareSchedule {
    const FIRST_ATTEMPT_DELAY: Duration = Duration::from_millis(25);
    /// Longest pause between two attempts. Several are made because the kernel may reject some.
    const MAX_ATTEMPT_DELAY: Duration = Duration::from_secs(5);

    pub(super) fn new(now: Instant) -> Self {
        Self {
            next_attempt: Some(now + Self::FIRST_ATTEMPT_DELAY),
            delay: Self::FIRST_ATTEMPT_DELAY,
        }
    }

    /// `None` after the last attempt.
    pub(super) fn next_attempt(&self) -> Option<Instant> {
        self.next_attempt
    }

    pub(super) fn schedule_next(&mut self, now: Instant) {
        self.delay *= 3;
        self.next_attempt = (self.delay <= Self::MAX_ATTEMPT_DELAY).then(|| now + self.delay);
    }
}
