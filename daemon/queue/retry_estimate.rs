//! Estimates when a rejected caller should retry, from how long permits were held recently.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use super::fair_queue::PrincipalName;

/// The latest measurement has the weight 1 / `EWMA_WEIGHT_DIVISOR`, as in the smoothed round-trip
/// time of TCP (RFC 6298).
const EWMA_WEIGHT_DIVISOR: u32 = 8;
/// Range of retry delays: short enough to be useful, and not too long to be reliable.
const MIN_RETRY_AFTER: Duration = Duration::from_millis(5);
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);
/// Least delay if the time is unknown: nothing was measured yet, or the current holders differ from
/// the earlier ones.
const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(1);
/// Holders differ from the earlier ones if their mean age exceeds this many times the mean hold.
const MAX_AGE_TO_HOLD_RATIO: u32 = 4;
/// Rejected calls of one caller that get staggered delays. Further ones get the same delay, so that
/// a caller that retries at once cannot delay its other calls for ever.
const MAX_STAGGERED_RETRIES: u32 = 64;
/// Number of callers above which entries without a future retry are removed.
const MAX_UNSWEPT_PRINCIPALS: usize = 1024;

/// Recent hold times of permits, and the ages of those in use.
#[derive(Debug)]
pub(super) struct RetryEstimate {
    /// Origin of all times below.
    origin: Instant,
    /// Smoothed hold time of released permits.
    mean_hold: Duration,
    in_use: u32,
    /// Sum of the times at which the permits in use were acquired.
    acquired_at_sum: Duration,
    /// When the latest rejected call of each caller is to retry.
    last_retry_at: HashMap<PrincipalName, Instant>,
}

impl RetryEstimate {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            origin: now,
            mean_hold: Duration::ZERO,
            in_use: 0,
            acquired_at_sum: Duration::ZERO,
            last_retry_at: HashMap::new(),
        }
    }

    /// Records that a permit was acquired.
    pub(super) fn record_acquire(&mut self, now: Instant) {
        self.in_use += 1;
        self.acquired_at_sum += now.saturating_duration_since(self.origin);
    }

    /// Records that a permit acquired at `acquired_at` was released.
    pub(super) fn record_release(&mut self, acquired_at: Instant, now: Instant) {
        self.in_use = self.in_use.saturating_sub(1);
        let acquired = acquired_at.saturating_duration_since(self.origin);
        self.acquired_at_sum = self.acquired_at_sum.saturating_sub(acquired);

        let held = now.saturating_duration_since(acquired_at);
        self.mean_hold = match self.mean_hold {
            Duration::ZERO => held,
            mean => (mean * (EWMA_WEIGHT_DIVISOR - 1) + held) / EWMA_WEIGHT_DIVISOR,
        };
    }

    /// Estimates the time between two permits for one caller that may hold `max_in_use`, while
    /// `waiting_flows` callers take turns. Assumes that permits are held as long as recently.
    pub(super) fn release_interval(
        &self,
        waiting_flows: usize,
        max_in_use: usize,
        now: Instant,
    ) -> Duration {
        let elapsed = now.saturating_duration_since(self.origin);
        let age_sum = (elapsed * self.in_use).saturating_sub(self.acquired_at_sum);
        let mean_age = age_sum.checked_div(self.in_use).unwrap_or_default();
        if self.mean_hold.is_zero() || mean_age > self.mean_hold * MAX_AGE_TO_HOLD_RATIO {
            return self.mean_hold.max(DEFAULT_RETRY_AFTER);
        }
        (self.mean_hold / at_least_one(max_in_use)).saturating_mul(at_least_one(waiting_flows))
    }

    /// Returns when a rejected call should retry: `interval` after the rejected call before it.
    pub(super) fn schedule_retry(
        &mut self,
        principal: &PrincipalName,
        interval: Duration,
        now: Instant,
    ) -> Duration {
        if self.last_retry_at.len() > MAX_UNSWEPT_PRINCIPALS {
            self.last_retry_at.retain(|_, last| *last > now);
        }

        let until_last = self
            .last_retry_at
            .get(principal)
            .map_or(Duration::ZERO, |last| last.saturating_duration_since(now));
        let max_delay = interval.saturating_mul(MAX_STAGGERED_RETRIES);
        let delay = clamp_retry_after((until_last + interval).min(max_delay));
        self.last_retry_at.insert(principal.clone(), now + delay);
        delay
    }
}

/// Limits a delay to the range of retry delays.
pub(super) fn clamp_retry_after(time: Duration) -> Duration {
    time.clamp(MIN_RETRY_AFTER, MAX_RETRY_AFTER)
}

/// Converts a number of permits or callers, at least one.
pub(super) fn at_least_one(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn retry_delay_matches_the_release_interval() {
        let start = Instant::now();
        let at = |time| start + ms(time);
        let mut estimate = RetryEstimate::new(start);
        assert_eq!(estimate.release_interval(1, 1, at(0)), DEFAULT_RETRY_AFTER);

        // Ten permits, each held for 100 ms.
        for _ in 0..10 {
            estimate.record_acquire(at(0));
        }

        for _ in 0..10 {
            estimate.record_release(at(0), at(100));
        }

        for (waiting_flows, expected) in [(1, 10), (3, 30)] {
            assert_eq!(estimate.release_interval(waiting_flows, 10, at(100)), ms(expected));
        }

        // The holder is as old as earlier ones, then much older. The estimate does not grow with
        // it.
        estimate.record_acquire(at(1000));
        assert_eq!(estimate.release_interval(1, 10, at(1200)), ms(10));

        for now in [2_000, 11_000, 3_600_000] {
            assert_eq!(estimate.release_interval(1, 10, at(now)), DEFAULT_RETRY_AFTER);
        }
    }

    #[test]
    fn rejected_calls_get_staggered_delays() {
        let (now, [a, b]) = (Instant::now(), ["a", "b"].map(PrincipalName::from));
        let mut estimate = RetryEstimate::new(now);
        for expected in [10, 20, 30] {
            assert_eq!(estimate.schedule_retry(&a, ms(10), now), ms(expected));
        }

        assert_eq!(estimate.schedule_retry(&b, ms(10), now), ms(10));

        // Two of them have retried, and the third is due soon.
        assert_eq!(estimate.schedule_retry(&a, ms(10), now + ms(25)), ms(15));
        for _ in 0..1000 {
            let wait = estimate.schedule_retry(&a, ms(10), now + ms(25));
            assert!(wait <= ms(640), "{wait:?}");
        }

        assert_eq!(estimate.schedule_retry(&b, Duration::from_secs(9_999), now), MAX_RETRY_AFTER);
    }
}
