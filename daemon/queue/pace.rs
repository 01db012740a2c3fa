//! How long places are held, so that who finds none can be told when to come again.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use super::line::Name;

/// How much of the mean is what was measured last: one eighth, as in the smoothed round-trip time of
/// TCP (RFC 6298).
const WEIGHT: u32 = 8;
/// What is told of times: not less than a caller can make use of, not more than it should rely on.
const LEAST: Duration = Duration::from_millis(5);
const MOST: Duration = Duration::from_secs(60);
/// What is told, at least, where nobody knows how long it will be: nothing was measured yet, or what holds
/// the places is not like what was.
const UNKNOWN: Duration = Duration::from_secs(1);
/// Holders are not like those before them that have held their places for so many times as long already.
const UNLIKE: u32 = 4;
/// So many of one caller's who were sent away come again one after the other. More of them are told the
/// same time: whoever comes again at once and is sent away each time must not put off the others for ever.
const IN_TURN: u32 = 64;
/// Callers above which those are looked for of whom nobody is to come again.
const MANY: usize = 1024;

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
    /// When the last of those is to come again who were sent away.
    put_off: HashMap<Name, Instant>,
}

impl Pace {
    /// Nothing was held yet.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            origin: now,
            mean: Duration::ZERO,
            holders: 0,
            begun: Duration::ZERO,
            put_off: HashMap::new(),
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

    /// Time between two places that come free for one caller, where `lanes` of them wait, who have them in
    /// turn, and he has `width` of them at a time at most. An estimate: as though each were held as long as
    /// those of late.
    pub(super) fn between(&self, lanes: usize, width: usize, now: Instant) -> Duration {
        let elapsed = now.saturating_duration_since(self.origin);
        let ages = (elapsed * self.holders).saturating_sub(self.begun);
        let age = ages.checked_div(self.holders).unwrap_or_default();
        if self.mean.is_zero() || age > self.mean * UNLIKE {
            return self.mean.max(UNKNOWN);
        }
        (self.mean / number(width)).saturating_mul(number(lanes))
    }

    /// When one is to come again who is sent away: after those who were before him, with this time between
    /// each two of them.
    pub(super) fn put_off(&mut self, name: &Name, between: Duration, now: Instant) -> Duration {
        if self.put_off.len() > MANY {
            self.put_off.retain(|_, last| *last > now);
        }
        let before = self.put_off.get(name);
        let before = before.map_or(Duration::ZERO, |last| last.saturating_duration_since(now));
        let wait = told((before + between).min(between.saturating_mul(IN_TURN)));
        self.put_off.insert(name.clone(), now + wait);
        wait
    }
}

/// A time as it is told.
pub(super) fn told(time: Duration) -> Duration {
    time.clamp(LEAST, MOST)
}

/// A number of places or callers; one at least.
pub(super) fn number(number: usize) -> u32 {
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
        let mut pace = Pace::new(begun);
        assert_eq!(pace.between(1, 1, at(0)), UNKNOWN);
        // Ten places, each held for 100 ms.
        for _ in 0..10 {
            pace.took(at(0));
        }
        for _ in 0..10 {
            pace.gave_back(at(0), at(100));
        }
        for (lanes, expected) in [(1, 10), (3, 30)] {
            assert_eq!(pace.between(lanes, 10, at(100)), ms(expected));
        }
        // What holds the place is as old as others were, and then it is not like them: the time does not
        // grow with it.
        pace.took(at(1000));
        assert_eq!(pace.between(1, 10, at(1200)), ms(10));
        for now in [2_000, 11_000, 3_600_000] {
            assert_eq!(pace.between(1, 10, at(now)), UNKNOWN);
        }
    }

    #[test]
    fn those_who_are_sent_away_come_again_one_after_the_other() {
        let (now, [a, b]) = (Instant::now(), ["a", "b"].map(Name::from));
        let mut pace = Pace::new(now);
        for expected in [10, 20, 30] {
            assert_eq!(pace.put_off(&a, ms(10), now), ms(expected));
        }
        assert_eq!(pace.put_off(&b, ms(10), now), ms(10));
        // Two of them have come, and the third is to come soon.
        assert_eq!(pace.put_off(&a, ms(10), now + ms(25)), ms(15));
        for _ in 0..1000 {
            let wait = pace.put_off(&a, ms(10), now + ms(25));
            assert!(wait <= ms(640), "{wait:?}");
        }
        assert_eq!(pace.put_off(&b, Duration::from_secs(9_999), now), MOST);
    }
}
