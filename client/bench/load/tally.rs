//! Counts of calls, errors and broken promises of a load.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::super::statistics::Samples;

/// Number of descriptions that are stored of each kind of failure. All are counted.
const MAX_DESCRIPTIONS: usize = 20;

/// Results of a load. Its agents share one.
#[derive(Debug, Default)]
pub(super) struct Tally(Mutex<Counts>);

/// What a tally has counted.
#[derive(Debug, Clone, Default)]
pub(super) struct Counts {
    /// Time of each completed call, with its repetitions, by kind.
    pub(super) times: BTreeMap<&'static str, Vec<Duration>>,
    /// Failed attempts by kind and reason. Most were repeated.
    pub(super) errors: BTreeMap<(&'static str, String), u64>,
    /// Calls without a result, because the daemon or a process of it died, by kind and reason.
    pub(super) interrupted: BTreeMap<(&'static str, String), u64>,
    /// Answers that contradict the model.
    pub(super) wrong: Failures,
    /// Acknowledged results that the daemon no longer has.
    pub(super) lost: Failures,
    /// Checks of answers.
    pub(super) checks: u64,
}

/// Failures of one kind: their number, and the first descriptions.
#[derive(Debug, Clone, Default)]
pub(super) struct Failures {
    pub(super) count: u64,
    pub(super) descriptions: Vec<String>,
}

impl Failures {
    fn push(&mut self, description: String) {
        self.count += 1;
        if self.descriptions.len() < MAX_DESCRIPTIONS {
            self.descriptions.push(description);
        }
    }
}

impl Tally {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn completed(&self, kind: &'static str, time: Duration) {
        self.counts().times.entry(kind).or_default().push(time);
    }

    pub(super) fn failed(&self, kind: &'static str, reason: &str) {
        *self.counts().errors.entry((kind, reason.to_owned())).or_default() += 1;
    }

    pub(super) fn interrupted(&self, kind: &'static str, reason: &str) {
        *self.counts().interrupted.entry((kind, reason.to_owned())).or_default() += 1;
    }

    /// Checks an answer. `describe` says what is wrong about it.
    pub(super) fn check(&self, is_right: bool, describe: impl FnOnce() -> String) {
        let mut counts = self.counts();
        counts.checks += 1;
        if !is_right {
            counts.wrong.push(describe());
        }
    }

    /// Checks that an acknowledged result is still there.
    pub(super) fn check_stored(&self, is_stored: bool, describe: impl FnOnce() -> String) {
        let mut counts = self.counts();
        counts.checks += 1;
        if !is_stored {
            counts.lost.push(describe());
        }
    }

    pub(super) fn snapshot(&self) -> Counts {
        self.counts().clone()
    }
}

impl Counts {
    pub(super) fn call_count(&self) -> usize {
        self.times.values().map(Vec::len).sum()
    }

    /// Returns the times of each kind.
    pub(super) fn samples(&self) -> impl Iterator<Item = (&'static str, usize, Samples)> {
        self.times.iter().map(|(kind, times)| (*kind, times.len(), Samples::new(times.clone())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_answers_and_lost_results_are_counted() {
        let tally = Tally::default();
        tally.check(true, String::new);
        tally.check_stored(true, String::new);
        assert_eq!((tally.snapshot().wrong.count, tally.snapshot().lost.count), (0, 0));
        for _ in 0..MAX_DESCRIPTIONS + 1 {
            tally.check(false, || "wrong".to_owned());
        }
        tally.check_stored(false, || "lost".to_owned());
        let counts = tally.snapshot();
        assert_eq!((counts.wrong.count, counts.lost.count), (MAX_DESCRIPTIONS as u64 + 1, 1));
        assert_eq!(counts.wrong.descriptions.len(), MAX_DESCRIPTIONS);
        assert_eq!(counts.checks, MAX_DESCRIPTIONS as u64 + 4);
    }
}
