//! Ends the claims of dead daemons: their jobs are queued again, or are lost. Each daemon judges the
//! others, whether it has free places or not. Its queues take up the claims that it does not keep.
//!
//! A lease can end although its daemon lives: the clock of the server can jump, a connection can break
//! without a sign, and locks, stalls and outages keep all daemons from the table. Such a daemon renews
//! its lease soon. So a claim counts as one of a dead daemon once its lease
//!
//! * has stayed ended for half a lease, by the clock of this daemon, and
//! * no outage was in the last lease: looks at the table succeeded, one soon after the other. They need
//!   the lock that renewals need.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use super::session::PostgresSession;
use crate::daemon::{
    error::Reason,
    fleet::{failure::lost, transition::may_run_again, work_source::SourceUnavailable},
};

/// Part of the lease after which this daemon looks again, and the longest time.
const LOOK_FRACTION: u32 = 4;
const MAX_LOOK_INTERVAL: Duration = Duration::from_secs(15);
/// Part of the lease within which one look must follow another. Leases are renewed after a third, and
/// soon after an outage. So a shorter outage ends none.
const GAP_FRACTION: u32 = 2;
/// Part of the lease for which it must stay ended.
const SUSPICION_FRACTION: u32 = 2;

/// Finds claims whose leases have ended, without `$1` jobs that this daemon runs. Takes the locks of a
/// renewal: what is locked now may have kept a daemon from its own.
const LOOK: &str = "
    WITH same_lock AS (UPDATE jig_jobs SET state = state WHERE false)
    SELECT id, lease_until FROM jig_jobs
    WHERE state = 'claimed' AND lease_until < now() AND id <> ALL($1)
    ORDER BY lease_until LIMIT 10000 FOR SHARE SKIP LOCKED";

/// Ends the claims of dead daemons until `stop` is cancelled.
pub(crate) async fn judge_daemons(session: Arc<PostgresSession>, stop: CancellationToken) {
    let mut suspects = Suspects::new(session.lease);
    let mut ticks = interval((session.lease / LOOK_FRACTION).min(MAX_LOOK_INTERVAL));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        if let Err(error) = look(&session, &mut suspects).await {
            // What keeps this daemon from a claim may keep the other one from its renewal.
            suspects.note_outage();
            tracing::warn!(%error, "cannot look for claims of dead daemons yet");
        }
    }
}

async fn look(session: &PostgresSession, suspects: &mut Suspects) -> Result<(), SourceUnavailable> {
    let sent = Instant::now();
    let rows = session.query(LOOK, &[&session.in_flight.all()]).await?;
    let ended: Result<_, tokio_postgres::Error> =
        rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect();
    let ended = ended.map_err(SourceUnavailable::new)?;
    for (id, lease_until) in suspects.note_look(sent, Instant::now(), ended) {
        end_claim(session, &id, lease_until).await?;
    }
    Ok(())
}

/// Ends the claim of a dead daemon, unless it has been renewed, or is locked.
async fn end_claim(
    session: &PostgresSession,
    id: &str,
    lease_until: SystemTime,
) -> Result<(), SourceUnavailable> {
    let Some(row) = session.find(id).await? else { return Ok(()) };
    let record = &row.record;
    if session.is_resumed_here(record) {
        return Ok(());
    }
    let runs_again = may_run_again(record, session.max_deliver) && !row.is_cancelled;
    let has_ended = if runs_again {
        session.requeue_expired(&row, lease_until).await?
    } else {
        let lost = lost(id, record);
        let has_ended = session.end_expired(&row, &lost, lease_until).await?;
        if has_ended {
            session.log.report_end(id, &lost, Some(Reason::DaemonLost));
        }
        has_ended
    };
    if has_ended {
        let (daemon, attempts) = (&record.daemon_id, record.attempts);
        tracing::warn!(job = id, daemon, attempts, runs_again, "the daemon of a fleet job is dead");
    }
    Ok(())
}

/// Leases that have ended, until they count as those of dead daemons.
#[derive(Debug)]
struct Suspects {
    lease: Duration,
    /// When the last look was sent. `None` after an outage.
    last_look: Option<Instant>,
    /// Since when no outage was noticed.
    reachable_since: Instant,
    /// The ended leases by job, and when this daemon first saw each.
    seen: HashMap<String, (SystemTime, Instant)>,
}

impl Suspects {
    fn new(lease: Duration) -> Self {
        Self { lease, last_look: None, reachable_since: Instant::now(), seen: HashMap::new() }
    }

    fn note_outage(&mut self) {
        self.last_look = None;
    }

    /// Notes a look that found these ended leases. Returns those that count.
    fn note_look(
        &mut self,
        sent: Instant,
        answered: Instant,
        ended: Vec<(String, SystemTime)>,
    ) -> Vec<(String, SystemTime)> {
        let since = |time: Instant| answered.saturating_duration_since(time);
        if self.last_look.is_none_or(|last| since(last) > self.lease / GAP_FRACTION) {
            self.reachable_since = answered;
        }
        self.last_look = Some(sent);

        let earlier = std::mem::take(&mut self.seen);
        let seen = ended.into_iter().map(|(id, lease_until)| {
            let known = earlier.get(&id).filter(|(known, _)| *known == lease_until);
            (id, known.copied().unwrap_or((lease_until, answered)))
        });
        self.seen = seen.collect();
        if since(self.reachable_since) < self.lease {
            return Vec::new();
        }
        let counts = |(_, first_seen): &(SystemTime, Instant)| {
            since(*first_seen) >= self.lease / SUSPICION_FRACTION
        };
        let dead = self.seen.iter().filter(|(_, seen)| counts(seen));
        dead.map(|(id, (lease_until, _))| (id.clone(), *lease_until)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(60);

    struct Looks {
        start: Instant,
        suspects: Suspects,
    }

    impl Looks {
        fn new() -> Self {
            Self { start: Instant::now(), suspects: Suspects::new(LEASE) }
        }

        /// Looks at times in seconds after the start. The ended leases have names and ends.
        fn look(&mut self, sent: u64, answered: u64, ended: &[(&str, u64)]) -> Vec<String> {
            let at = |secs| self.start + Duration::from_secs(secs);
            let lease = |secs: &u64| SystemTime::UNIX_EPOCH + Duration::from_secs(*secs);
            let ended = ended.iter().map(|(id, until)| ((*id).to_owned(), lease(until))).collect();
            let dead = self.suspects.note_look(at(sent), at(answered), ended);
            let mut dead: Vec<_> = dead.into_iter().map(|(id, _)| id).collect();
            dead.sort();
            dead
        }

        /// Looks without a gap.
        fn reach(&mut self, seconds: std::ops::Range<u64>) {
            for now in seconds.step_by(15) {
                assert!(self.look(now, now, &[]).is_empty());
            }
        }
    }

    #[test]
    fn leases_count_once_they_have_stayed_ended() {
        let mut looks = Looks::new();
        looks.reach(0..60);
        let none: [&str; 0] = [];
        assert_eq!(looks.look(60, 60, &[("dead", 1), ("renewed", 1)]), none);
        assert_eq!(looks.look(75, 75, &[("dead", 1), ("renewed", 2), ("late", 1)]), none);
        assert_eq!(looks.look(90, 90, &[("dead", 1), ("renewed", 2)]), ["dead"]);
        let late = looks.look(105, 105, &[("dead", 1), ("renewed", 2), ("late", 1)]);
        assert_eq!(late, ["dead", "renewed"]);
    }

    #[test]
    fn outages_delay_the_judgement_by_a_lease() {
        // Looks each 5 seconds, and says when a lease that has ended first counts.
        let first_dead = |looks: &mut Looks, from: u64| {
            (from..).step_by(5).find(|now| !looks.look(*now, *now, &[("dead", 1)]).is_empty())
        };
        assert_eq!(first_dead(&mut Looks::new(), 0), Some(60), "the first look begins a lease");

        // A short outage, a longer one, and a look that waited for the end of one.
        for (sent, answered, dead) in [(90, 90, 120), (91, 91, 155), (61, 91, 155)] {
            let mut looks = Looks::new();
            looks.reach(0..61);
            assert!(looks.look(sent, answered, &[("dead", 1)]).is_empty());
            assert_eq!(first_dead(&mut looks, 95), Some(dead), "{sent} {answered}");
        }

        let mut looks = Looks::new();
        looks.reach(0..61);
        looks.suspects.note_outage();
        assert_eq!(first_dead(&mut looks, 65), Some(125));
    }
}
