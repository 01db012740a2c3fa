//! Bounds the lines about callers without a valid key. Every peer can cause these lines: they must
//! crowd out neither other lines nor the files of before.

use std::time::{Duration, Instant};

/// Lines in a second. At this rate, the default files last for a day.
const MAX_LINES_PER_SEC: u32 = 10;

/// The lines of the current second.
#[derive(Debug, Default)]
pub(super) struct AuthFailures {
    second: Option<Instant>,
    lines: u32,
    omitted: u64,
}

impl AuthFailures {
    /// Admits a line to a queue that has room for it. Returns how many were omitted before it, or
    /// `None` if this one is omitted.
    pub(super) fn admit(&mut self, now: Instant, has_room: bool) -> Option<u64> {
        let is_same =
            self.second.is_some_and(|second| now.duration_since(second) < Duration::from_secs(1));
        if !is_same {
            self.second = Some(now);
            self.lines = 0;
        }
        if self.lines >= MAX_LINES_PER_SEC || !has_room {
            self.omitted += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.omitted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_omitted_and_counted() {
        let start = Instant::now();
        let mut failures = AuthFailures::default();
        let written = (0..1000).filter(|_| failures.admit(start, true).is_some()).count();
        assert_eq!(written, MAX_LINES_PER_SEC as usize);

        let later = start + Duration::from_secs(1);
        assert_eq!(failures.admit(later, false), None);
        assert_eq!(failures.admit(later, true), Some(1000 - written as u64 + 1));
        assert_eq!(failures.admit(later, true), Some(0));
    }
}
