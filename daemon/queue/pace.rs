//! How long places are held, so that who finds none can be told when to come again.

use std::time::{Duration, Instant};

/// How much of the mean is what was measured last: one eighth, as in the smoothed round-trip time of
/// TCP (RFC 6298).
const WEIGHT: u32 = 8;
/// What is told of times: not less than a caller can make use of, not more than it should rely on.
const LEAST: Duration = Duration::from_millis(5);
const MOST: Duration = Duration::from_secs(60);

/// How long places were held of late, and have been by those who hold them.
#[derive(Debug)]
pub(super) struct Pace {
    /// Times are counted from here.
    origin: Instant,
    /// Of those that were given back.
    mean: Duration,
    holders: u32,
    /// When each of them began, all together.
    begun: Duration,
}

impl Pace {
    /// Nothing was held yet.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            origin: now,
            mean: Duration::ZERO,
            holders: 0,
            begun: Duration::ZERO,
        }
    }

    /// A place was taken.
    pub(super) fn took(&mut self, now: Instant) {
        self.holders += 1;
        self.begun += now.saturating_duration_since(self.origin);
    }

    /// A place was given back that was taken at `since`.
    pub(super) fn gave_back(&mut self, since: Instant, now: Instant) {
        self.holders = self.holders.saturating_sub(1);
        let begun = since.saturating_duration_since(self.origin);
        self.begun = self.begun.saturating_sub(begun);
        let held = now.saturating_duration_since(since);
        self.mean = match self.mean {
            Duration::ZERO => held,
            mean => (mean * (WEIGHT - 1) + held) / WEIGHT,
        };
    }

    /// When `places` places, of those that `lanes` callers have in turn, will have come free for one of
    /// them, who has `width` of them at a time at most. An estimate: as though each were held as long as
    /// those of late, or, if that is longer, as those that are held now have been until now.
    pub(super) fn wait(&self, places: usize, lanes: usize, width: usize, now: Instant) -> Duration {
        let elapsed = now.saturating_duration_since(self.origin);
        let ages = (elapsed * self.holders).saturating_sub(self.begun);
        let held = self
            .mean
            .max(ages.checked_div(self.holders).unwrap_or_default());
        let number = |number: usize| u32::try_from(number).unwrap_or(u32::MAX).max(1);
        let rounds = number(places).saturating_mul(number(lanes));
        (held / number(width))
            .saturating_mul(rounds)
            .clamp(LEAST, MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_again_is_told_when_a_place_should_be_free() {
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let mut pace = Pace::new(begun);
        assert_eq!(pace.wait(1, 1, 1, at(0)), LEAST);
        // Ten places, each held for 100 ms.
        for _ in 0..10 {
            pace.took(at(0));
        }
        for _ in 0..10 {
            pace.gave_back(at(0), at(100));
        }
        let ms = Duration::from_millis;
        for (places, lanes, expected) in
            [(1, 1, 10), (1, 3, 30), (20, 2, 400), (1 << 20, 1, 60_000)]
        {
            assert_eq!(pace.wait(places, lanes, 10, at(100)), ms(expected));
        }
        // One that is held for ten seconds already.
        pace.took(at(1000));
        assert_eq!(pace.wait(1, 1, 10, at(11_000)), ms(1000));
        pace.gave_back(at(1000), at(11_000));
        assert!(pace.wait(1, 1, 10, at(11_000)) > ms(100));
    }
}
