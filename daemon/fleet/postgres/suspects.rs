//! Claims whose leases have ended, until they count as those of dead daemons.
//!
//! A lease can end although its daemon lives: the clock of the server can jump, and a connection can
//! break without a sign. Such a daemon renews it soon. So a lease counts once it has stayed as it is
//! for a while, by the clock of this daemon.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime},
};

/// Part of the lease for which it must stay ended. Living daemons renew it after a third.
const SUSPICION_FRACTION: u32 = 2;

#[derive(Debug)]
pub(super) struct Suspects {
    suspicion: Duration,
    claims: Mutex<HashMap<String, Suspect>>,
}

#[derive(Debug, Clone, Copy)]
struct Suspect {
    lease_until: SystemTime,
    /// When this daemon first saw that it had ended.
    since: Instant,
}

impl Suspects {
    pub(super) fn new(lease: Duration) -> Self {
        Self { suspicion: lease / SUSPICION_FRACTION, claims: Mutex::default() }
    }

    /// Notes all leases that have ended, and returns the ids of those that count.
    pub(super) fn note(&self, ended: Vec<(String, SystemTime)>, now: Instant) -> Vec<String> {
        let mut claims = self.lock();
        let earlier = std::mem::take(&mut *claims);
        let mut counting = Vec::new();
        for (id, lease_until) in ended {
            let known = earlier.get(&id).filter(|known| known.lease_until == lease_until);
            let suspect = known.copied().unwrap_or(Suspect { lease_until, since: now });
            if self.time_left(&suspect, now).is_zero() {
                counting.push(id.clone());
            }
            claims.insert(id, suspect);
        }
        counting
    }

    /// Time until the first one counts. Zero if there are none.
    pub(super) fn time_until_first(&self, now: Instant) -> Duration {
        let claims = self.lock();
        claims.values().map(|suspect| self.time_left(suspect, now)).min().unwrap_or_default()
    }

    fn time_left(&self, suspect: &Suspect, now: Instant) -> Duration {
        self.suspicion.saturating_sub(now.saturating_duration_since(suspect.since))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Suspect>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_count_once_they_have_stayed_ended() {
        let suspects = Suspects::new(Duration::from_secs(60));
        let (start, lease) = (Instant::now(), SystemTime::UNIX_EPOCH);
        let note = |secs, ids: &[(&str, u64)]| {
            let ended = ids
                .iter()
                .map(|(id, until)| ((*id).to_owned(), lease + Duration::from_secs(*until)))
                .collect();
            suspects.note(ended, start + Duration::from_secs(secs))
        };
        let none: [&str; 0] = [];
        assert_eq!(suspects.time_until_first(start), Duration::ZERO);
        assert_eq!(note(0, &[("dead", 1), ("renewed", 1)]), none);
        assert_eq!(note(10, &[("dead", 1), ("renewed", 2), ("late", 1)]), none);
        assert_eq!(suspects.time_until_first(start).as_secs(), 30);
        assert_eq!(note(30, &[("dead", 1), ("renewed", 2)]), ["dead"]);
        assert_eq!(note(40, &[("dead", 1), ("renewed", 2), ("late", 1)]), ["dead", "renewed"]);
    }
}
