//! Those who wait for one answer, and for how long.

use std::{collections::BTreeMap, time::Instant};

/// Who waits.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    /// Without a deadline.
    without_deadline: usize,
    /// How many have which deadline.
    by_deadline: BTreeMap<Instant, usize>,
}

impl Waiters {
    pub(super) fn add(&mut self, deadline: Option<Instant>) {
        match deadline {
            None => self.without_deadline += 1,
            Some(deadline) => *self.by_deadline.entry(deadline).or_default() += 1,
        }
    }

    pub(super) fn remove(&mut self, deadline: Option<Instant>) {
        let Some(deadline) = deadline else {
            self.without_deadline -= 1;
            return;
        };
        if let Some(count) = self.by_deadline.get_mut(&deadline) {
            *count -= 1;
            if *count == 0 {
                self.by_deadline.remove(&deadline);
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.without_deadline == 0 && self.by_deadline.is_empty()
    }

    /// When the last of them stops waiting. None where somebody has no deadline; nor where nobody waits, who
    /// may be on his way back.
    pub(crate) fn last_deadline(&self) -> Option<Instant> {
        let last = self.by_deadline.last_key_value().map(|(last, _)| *last);
        last.filter(|_| self.without_deadline == 0)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_last_deadline_counts_where_everybody_has_one() {
        let now = Instant::now();
        let at = |sec| Some(now + Duration::from_secs(sec));
        let mut callers = Waiters::default();
        assert_eq!(callers.last_deadline(), None);
        for deadline in [at(1), at(3), at(3), at(2)] {
            callers.add(deadline);
        }
        assert_eq!(callers.last_deadline(), at(3));
        callers.add(None);
        assert_eq!(callers.last_deadline(), None);
        callers.remove(None);
        callers.remove(at(3));
        assert_eq!(callers.last_deadline(), at(3));
        callers.remove(at(3));
        assert_eq!(callers.last_deadline(), at(2));
        callers.remove(at(1));
        callers.remove(at(2));
        assert!(callers.is_empty() && callers.last_deadline().is_none());
    }
}
