//! How long places are held, so that who finds none can be told when to come again.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use super::fair_queue::PrincipalKey;

/// How much of the mean is what was measured last: one eighth, as in the smoothed round-trip time of
/// TCP (RFC 6298).
const EWMA_WEIGHT: u32 = 8;
/// What is told of times: not less than a caller can make use of, not more than it should rely on.
const MIN_RETRY_AFTER: Duration = Duration::from_millis(5);
const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);
/// What is told, at least, where nobody knows how long it will be: nothing was measured yet, or what holds
/// the places is not like what was.
const DEFAULT_RETRY_AFTER: Duration = Duration::from_secs(1);
/// Holders are not like those before them that have held their places for so many times as long already.
const MAX_AGE_IN_MEANS: u32 = 4;
/// So many of one caller's who were sent away come again one after the other. More of them are told the
/// same time: whoever comes again at once and is sent away each time must not put off the others for ever.
const MAX_STAGGERED_RETRIES: u32 = 64;
/// Callers above which those are looked for of whom nobody is to come again.
const RETRY_SWEEP_THRESHOLD: usize = 1024;

/// How long places were held of late, and have been by those who hold them.
#[derive(Debug)]
pub(super) struct RetryEstimate {
    /// Times are counted from here.
    origin: Instant,
    /// Of those that were given back.
    mean_hold: Duration,
    in_use: u32,
    /// When each of them began, all together.
    acquired_at_sum: Duration,
    /// When the last of those is to come again who were sent away.
    last_retry_at: HashMap<PrincipalKey, Instant>,
}

impl RetryEstimate {
    /// Nothing was held yet.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            origin: now,
            mean_hold: Duration::ZERO,
            in_use: 0,
            acquired_at_sum: Duration::ZERO,
            last_retry_at: HashMap::new(),
        }
    }

    /// A place was taken.
    pub(super) fn record_acquire(&mut self, now: Instant) {
        self.in_use += 1;
        self.acquired_at_sum += now.saturating_duration_since(self.origin);
    }

    /// A place was given back that was taken at `since`.
    pub(super) fn record_release(&mut self, acquired_at: Instant, now: Instant) {
        self.in_use = self.in_use.saturating_sub(1);
        let begun = acquired_at.saturating_duration_since(self.origin);
        self.acquired_at_sum = self.acquired_at_sum.saturating_sub(begun);
        let held = now.saturating_duration_since(acquired_at);
        self.mean_hold = match self.mean_hold {
            Duration::ZERO => held,
            mean => (mean * (EWMA_WEIGHT - 1) + held) / EWMA_WEIGHT,
        };
    }

    /// Time between two places that come free for one caller, where `lanes` of them wait, who have them in
    /// turn, and he has `width` of them at a time at most. An estimate: as though each were held as long as
    /// those of late.
    pub(super) fn release_interval(
        &self,
        waiting_flows: usize,
        max_in_use: usize,
        now: Instant,
    ) -> Duration {
        let elapsed = now.saturating_duration_since(self.origin);
        let ages = (elapsed * self.in_use).saturating_sub(self.acquired_at_sum);
        let age = ages.checked_div(self.in_use).unwrap_or_default();
        if self.mean_hold.is_zero() || age > self.mean_hold * MAX_AGE_IN_MEANS {
            return self.mean_hold.max(DEFAULT_RETRY_AFTER);
        }
        (self.mean_hold / at_least_one(max_in_use)).saturating_mul(at_least_one(waiting_flows))
    }

    /// When one is to come again who is sent away: after those who were before him, with this time between
    /// each two of them.
    pub(super) fn schedule_retry(
        &mut self,
        principal: &PrincipalKey,
        between: Duration,
        now: Instant,
    ) -> Duration {
        if self.last_retry_at.len() > RETRY_SWEEP_THRESHOLD {
            self.last_retry_at.retain(|_, last| *last > now);
        }
        let before = self.last_retry_at.get(principal);
        let before = before.map_or(Duration::ZERO, |last| last.saturating_duration_since(now));
        let wait = clamp_retry_after(
            (before + between).min(between.saturating_mul(MAX_STAGGERED_RETRIES)),
        );
        self.last_retry_at.insert(principal.clone(), now + wait);
        wait
    }
}

/// A time as it is told.
pub(super) fn clamp_retry_after(time: Duration) -> Duration {
    time.clamp(MIN_RETRY_AFTER, MAX_RETRY_AFTER)
}

/// A number of places or callers; one at least.
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
    fn who_comes_again_is_told_when_a_place_should_be_free() {
        let begun = Instant::now();
        let at = |time| begun + ms(time);
        let mut pace = RetryEstimate::new(begun);
        assert_eq!(pace.release_interval(1, 1, at(0)), DEFAULT_RETRY_AFTER);
        // Ten places, each held for 100 ms.
        for _ in 0..10 {
            pace.record_acquire(at(0));
        }
        for _ in 0..10 {
            pace.record_release(at(0), at(100));
        }
        for (lanes, expected) in [(1, 10), (3, 30)] {
            assert_eq!(pace.release_interval(lanes, 10, at(100)), ms(expected));
        }
        // What holds the place is as old as others were, and then it is not like them: the time does not
        // grow with it.
        pace.record_acquire(at(1000));
        assert_eq!(pace.release_interval(1, 10, at(1200)), ms(10));
        for now in [2_000, 11_000, 3_600_000] {
            assert_eq!(pace.release_interval(1, 10, at(now)), DEFAULT_RETRY_AFTER);
        }
    }

    #[test]
    fn those_who_are_sent_away_come_again_one_after_the_other() {
        let (now, [a, b]) = (Instant::now(), ["a", "b"].map(PrincipalKey::from));
        let mut pace = RetryEstimate::new(now);
        for expected in [10, 20, 30] {
            assert_eq!(pace.schedule_retry(&a, ms(10), now), ms(expected));
        }
        assert_eq!(pace.schedule_retry(&b, ms(10), now), ms(10));
        // Two of them have come, and the third is to come soon.
        assert_eq!(pace.schedule_retry(&a, ms(10), now + ms(25)), ms(15));
        for _ in 0..1000 {
            let wait = pace.schedule_retry(&a, ms(10), now + ms(25));
            assert!(wait <= ms(640), "{wait:?}");
        }
        assert_eq!(pace.schedule_retry(&b, Duration::from_secs(9_999), now), MAX_RETRY_AFTER);
    }
}
