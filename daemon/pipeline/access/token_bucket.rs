//! A token bucket: at most `burst` calls at once, refilled at `per_second`.
//!
//! It counts billionths of a call, of which `per_second` arrive in each nanosecond. Nothing is
//! rounded, so the wait that a rejection reports is exact.

use std::time::{Duration, Instant};

use crate::daemon::config::keys::RateLimit;

/// A call, in the units of the bucket.
const UNITS_PER_CALL: u128 = 1_000_000_000;

#[derive(Debug)]
pub(crate) struct TokenBucket {
    rate: RateLimit,
    /// Level at `updated_at`, in units.
    available: u128,
    updated_at: Instant,
}

impl TokenBucket {
    /// Creates a full bucket.
    pub(crate) fn new(rate: RateLimit, now: Instant) -> Self {
        Self { rate, available: u128::from(rate.burst) * UNITS_PER_CALL, updated_at: now }
    }

    pub(crate) fn rate(&self) -> RateLimit {
        self.rate
    }

    /// Takes one call. If there is none, returns the time until there is one.
    pub(crate) fn try_take(&mut self, now: Instant) -> Result<(), Duration> {
        let per_nanosecond = u128::from(self.rate.per_second);
        let elapsed = now.saturating_duration_since(self.updated_at).as_nanos();
        let filled = self.available + elapsed * per_nanosecond;
        self.available = filled.min(u128::from(self.rate.burst) * UNITS_PER_CALL);
        self.updated_at = self.updated_at.max(now);

        match self.available.checked_sub(UNITS_PER_CALL) {
            Some(level) => {
                self.available = level;
                Ok(())
            }
            None => {
                let wait = (UNITS_PER_CALL - self.available).div_ceil(per_nanosecond);
                Err(Duration::from_nanos(u64::try_from(wait).unwrap_or(u64::MAX)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rejection_reports_the_exact_wait() {
        for (per_second, burst) in [(1, 1), (3, 5), (7, 1), (1_000_000, 3), (999_983, 2)] {
            let start = Instant::now();
            let mut bucket = TokenBucket::new(RateLimit { per_second, burst }, start);
            let mut now = start;
            for _ in 0..burst {
                assert_eq!(bucket.try_take(now), Ok(()));
            }

            for _ in 0..1000 {
                let wait = bucket.try_take(now).unwrap_err();
                assert!(
                    wait <= Duration::from_nanos(1_000_000_000_u64.div_ceil(per_second.into()))
                );

                let early = now + wait - Duration::from_nanos(1);
                assert_eq!(bucket.try_take(early), Err(Duration::from_nanos(1)));
                now += wait;
                assert_eq!(bucket.try_take(now), Ok(()));
            }
        }
    }

    #[test]
    fn idle_bucket_saves_at_most_a_burst() {
        let start = Instant::now();
        let rate = RateLimit { per_second: 10, burst: 4 };
        let mut bucket = TokenBucket::new(rate, start);
        let later = start + Duration::from_secs(3600);
        let taken = (0..).take_while(|_| bucket.try_take(later).is_ok()).count();
        assert_eq!(taken, 4);
        // An earlier time refills nothing.
        assert!(bucket.try_take(start).is_err());
        assert!(bucket.try_take(later + Duration::from_millis(100)).is_ok());
    }
}
