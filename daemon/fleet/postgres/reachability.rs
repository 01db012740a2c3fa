//! How long this daemon has reached the table without an outage in which other daemons could not
//! renew their leases.
//!
//! Connections say nothing of that: locks and stalls do not cut them, and idle ones can be cut at any
//! time. Statements that change rows do, also those that change none: they need the same lock as
//! renewals.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Part of the lease within which one change must follow another. Leases are renewed after a third,
/// and soon after an outage. So a shorter outage ends none.
const GAP_FRACTION: u32 = 2;

/// Whether this daemon may take others for dead.
#[derive(Debug)]
pub(super) struct Reachability {
    lease: Duration,
    span: Mutex<Option<Span>>,
}

/// Time without an outage.
#[derive(Debug)]
struct Span {
    since: Instant,
    /// When the last change was sent that the server has made.
    last: Instant,
}

impl Reachability {
    pub(super) fn new(lease: Duration) -> Self {
        Self { lease, span: Mutex::default() }
    }

    /// Notes that the server has made a change, at some time between the two.
    pub(super) fn note_change(&self, sent: Instant, answered: Instant) {
        let mut span = self.span.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *span {
            Some(span) if !self.is_outage(span, answered) => span.last = span.last.max(sent),
            _ => *span = Some(Span { since: answered, last: sent }),
        }
    }

    /// Begins anew, because a claim could not be changed, which its daemon may not have renewed for
    /// the same reason.
    pub(super) fn reset(&self) {
        *self.span.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Time until this daemon may take others for dead. After an outage, they get a whole lease.
    pub(super) fn time_until_judge(&self, now: Instant) -> Duration {
        match &*self.span.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(span) if !self.is_outage(span, now) => {
                self.lease.saturating_sub(now.saturating_duration_since(span.since))
            }
            _ => self.lease,
        }
    }

    fn is_outage(&self, span: &Span, now: Instant) -> bool {
        now.saturating_duration_since(span.last) > self.lease / GAP_FRACTION
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(60);

    /// Seconds after `start` at which changes are sent and answered, and the seconds until the
    /// judgement at the last answer.
    fn judge_after(changes: &[(u64, u64)]) -> u64 {
        let start = Instant::now();
        let at = |secs| start + Duration::from_secs(secs);
        let reachability = Reachability::new(LEASE);
        assert_eq!(reachability.time_until_judge(start), LEASE);
        for &(sent, answered) in changes {
            reachability.note_change(at(sent), at(answered));
        }
        let (_, last) = changes.last().unwrap();
        reachability.time_until_judge(at(*last)).as_secs()
    }

    #[test]
    fn only_outages_delay_the_judgement() {
        assert_eq!(judge_after(&[(0, 0)]), 60);
        assert_eq!(judge_after(&[(0, 0), (20, 20), (40, 40), (60, 60)]), 0);
        // A short outage, as that of a connection.
        assert_eq!(judge_after(&[(0, 0), (30, 30), (60, 60)]), 0);
        // An outage, and a change that waits for its end.
        assert_eq!(judge_after(&[(0, 0), (31, 31), (60, 60)]), 31);
        assert_eq!(judge_after(&[(0, 0), (1, 40), (60, 60)]), 60);
        assert_eq!(judge_after(&[(0, 0), (29, 31), (31, 31), (60, 60)]), 31);
    }

    #[test]
    fn nothing_is_known_after_a_gap_or_a_failure() {
        let start = Instant::now();
        let reachability = Reachability::new(LEASE);
        for secs in [0, 20, 40, 60] {
            let now = start + Duration::from_secs(secs);
            reachability.note_change(now, now);
        }
        let late = start + Duration::from_secs(91);
        assert_eq!(reachability.time_until_judge(late), LEASE);
        let last = start + Duration::from_secs(60);
        assert!(reachability.time_until_judge(last).is_zero());
        reachability.reset();
        assert_eq!(reachability.time_until_judge(last), LEASE);
    }
}
