//! How often somebody may call: a bucket that holds `burst` calls and is filled by `per_second` of them.
//! It counts in billionths of a call, of which `per_second` come in each nanosecond, so that nothing is
//! rounded: what it says when it refuses is when it will not.

use std::time::{Duration, Instant};

use crate::daemon::config::keys::RateLimit;

/// What one call is.
const UNITS_PER_CALL: u128 = 1_000_000_000;

/// The calls that somebody may make now.
#[derive(Debug)]
pub(crate) struct TokenBucket {
    rate: RateLimit,
    available: u128,
    /// When it had that level.
    updated_at: Instant,
}

impl TokenBucket {
    /// A full one.
    pub(crate) fn new(rate: RateLimit, now: Instant) -> Self {
        Self { rate, available: u128::from(rate.burst) * UNITS_PER_CALL, updated_at: now }
    }

    /// How often it lets call.
    pub(crate) fn rate(&self) -> RateLimit {
        self.rate
    }

    /// Takes a call out, or answers after which time there will be one.
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
    fn who_is_refused_is_told_to_the_nanosecond_when_he_will_not_be() {
        for (per_second, burst) in [(1, 1), (3, 5), (7, 1), (1_000_000, 3), (999_983, 2)] {
            let begun = Instant::now();
            let mut bucket = TokenBucket::new(RateLimit { per_second, burst }, begun);
            let mut now = begun;
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
    fn no_more_than_a_burst_is_saved_up() {
        let begun = Instant::now();
        let rate = RateLimit { per_second: 10, burst: 4 };
        let mut bucket = TokenBucket::new(rate, begun);
        let later = begun + Duration::from_secs(3600);
        let taken = (0..).take_while(|_| bucket.try_take(later).is_ok()).count();
        assert_eq!(taken, 4);
        // Time does not go back.
        assert!(bucket.try_take(begun).is_err());
        assert!(bucket.try_take(later + Duration::from_millis(100)).is_ok());
    }
}
