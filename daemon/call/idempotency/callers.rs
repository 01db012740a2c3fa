//! Those who wait for one answer, and for how long.

use std::{collections::BTreeMap, time::Instant};

/// Who waits.
#[derive(Debug, Default)]
pub(crate) struct Callers {
    /// Without a deadline.
    patient: usize,
    /// How many have which deadline.
    hurried: BTreeMap<Instant, usize>,
}

impl Callers {
    pub(super) fn add(&mut self, deadline: Option<Instant>) {
        match deadline {
            None => self.patient += 1,
            Some(deadline) => *self.hurried.entry(deadline).or_default() += 1,
        }
    }

    pub(super) fn remove(&mut self, deadline: Option<Instant>) {
        let Some(deadline) = deadline else {
            self.patient -= 1;
            return;
        };
        if let Some(count) = self.hurried.get_mut(&deadline) {
            *count -= 1;
            if *count == 0 {
                self.hurried.remove(&deadline);
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.patient == 0 && self.hurried.is_empty()
    }

    /// When the last of them stops waiting. None where somebody has no deadline; nor where nobody waits, who
    /// may be on his way back.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let last = self.hurried.last_key_value().map(|(last, _)| *last);
        last.filter(|_| self.patient == 0)
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
        let mut callers = Callers::default();
        assert_eq!(callers.deadline(), None);
        for deadline in [at(1), at(3), at(3), at(2)] {
            callers.add(deadline);
        }
        assert_eq!(callers.deadline(), at(3));
        callers.add(None);
        assert_eq!(callers.deadline(), None);
        callers.remove(None);
        callers.remove(at(3));
        assert_eq!(callers.deadline(), at(3));
        callers.remove(at(3));
        assert_eq!(callers.deadline(), at(2));
        callers.remove(at(1));
        callers.remove(at(2));
        assert!(callers.is_empty() && callers.deadline().is_none());
    }
}
