//! Retention of sessions by age, count and bytes.
//!
//! Removes steps older than `sessions.retention`, and sessions unused for that long. Where a limit is
//! exceeded, it removes the oldest steps of the workspace that uses the most. A step is removed
//! with all its records and artifacts.
//!
//! Runs in the background. Steps that have not ended stay, and so do sessions in use.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::fair_share;
use crate::daemon::{
    config::sessions::SessionsConfig,
    store::{
        session::{RetentionUnit, Session, SessionSummary, StepUsage},
        session_directories::SessionLocation,
        sessions::SessionStore,
    },
    task,
};

/// Delay of the first pass: the daemon serves by then, so that retention does not slow its start.
const INITIAL_DELAY: Duration = Duration::from_secs(2);
/// Longest time between two passes.
const PASS_INTERVAL: Duration = Duration::from_secs(600);
/// Steps that one pass evicts at most to free space; the next pass evicts more.
const MAX_EVICTED_STEPS: usize = 100_000;

/// Runs retention passes until `shutdown`. Tombstones of removed sessions are stored for
/// `tombstone_retention`.
pub(crate) async fn run_retention(
    sessions: Arc<SessionStore>,
    limits: SessionsConfig,
    tombstone_retention: Duration,
    shutdown: CancellationToken,
) {
    let usage = Arc::clone(sessions.usage());
    usage.set_limits(limits.max_record_bytes, limits.max_entries.into());

    let passes = async {
        sleep(INITIAL_DELAY).await;
        loop {
            let pass = RetentionPass::new(&sessions, limits, &shutdown);
            // `spawn_blocking` reports a panic; the next pass runs all the same.
            let _done = task::spawn_blocking(move || pass.run(tombstone_retention)).await;

            let next = Instant::now() + PASS_INTERVAL;
            loop {
                tokio::select! {
                    () = sleep_until(next) => break,
                    () = usage.usage_exceeded.notified() => break,
                    () = usage.records_exceeded.notified() => {
                        let pass = RetentionPass::new(&sessions, limits, &shutdown);
                        let _done = task::spawn_blocking(move || pass.trim_open_sessions()).await;
                    }
                }
            }
        }
    };
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = passes => {}
    }
}

#[derive(Debug)]
struct RetentionPass {
    sessions: Arc<SessionStore>,
    limits: SessionsConfig,
    now: SystemTime,
    shutdown: CancellationToken,
}

/// A session that was not removed, with what remains of it.
struct RemainingSession {
    location: SessionLocation,
    bytes: u64,
    last_used: SystemTime,
}

impl RetentionPass {
    fn new(
        sessions: &Arc<SessionStore>,
        limits: SessionsConfig,
        shutdown: &CancellationToken,
    ) -> Self {
        Self {
            sessions: Arc::clone(sessions),
            limits,
            now: SystemTime::now(),
            shutdown: shutdown.clone(),
        }
    }

    /// Applies the limits to all sessions.
    fn run(&self, tombstone_retention: Duration) {
        let usage = self.sessions.usage();
        let counted = usage.counted_bytes();

        let finished = self.sessions.finish_removals(&self.shutdown);
        let pruned = self.sessions.prune_tombstones(tombstone_retention);
        if let Err(error) = finished.and(pruned)
            && !self.shutdown.is_cancelled()
        {
            tracing::warn!(%error, "cannot delete the remains of removed sessions");
        }

        let locations = match self.sessions.all_locations() {
            Ok(locations) => locations,
            Err(error) => {
                tracing::warn!(%error, "cannot list the sessions to remove expired ones");
                return;
            }
        };
        let mut remaining = Vec::new();
        for location in locations {
            if self.shutdown.is_cancelled() {
                return;
            }
            match self.retain_session(&location) {
                Ok(None) => {}
                Ok(Some(summary)) => remaining.push(RemainingSession {
                    location,
                    bytes: summary.disk_bytes,
                    last_used: summary.last_used,
                }),
                Err(error) => self.log_failure(&location, &error),
            }
        }
        let remaining = self.evict_excess_sessions(remaining);

        let bytes: u64 = remaining.iter().map(|session| session.bytes).sum();
        let max_bytes = self.limits.max_bytes;
        let freed = if bytes > max_bytes {
            // More than necessary, so that the next pass is not due at once.
            self.evict_to_fair_share(&remaining, max_bytes / 16 * 15)
        } else {
            0
        };
        usage.set_measured(counted, bytes.saturating_sub(freed), max_bytes);
    }

    /// Removes a session that has expired, or those of its steps that have expired or exceed
    /// `max_record_bytes`. Returns a summary of what remains; `None` if the session is gone.
    fn retain_session(&self, location: &SessionLocation) -> io::Result<Option<SessionSummary>> {
        let summary = Session::summarize(&location.directory, &self.shutdown)?;
        if self.is_expired(summary.last_used)
            && self.remove_if(location, |last_used| self.is_expired(last_used))?
        {
            return Ok(None);
        }

        let has_expired = summary.oldest_record.is_some_and(|time| self.is_expired(time));
        let exceeds_limit = summary.record_bytes > self.limits.max_record_bytes;
        if !has_expired && !exceeds_limit {
            return Ok(Some(summary));
        }

        let Some(session) = self.sessions.open_existing(&location.workspace, &location.id)? else {
            return Ok(None);
        };
        self.trim_session(&session)?;
        Session::summarize(&location.directory, &self.shutdown).map(Some)
    }

    fn remove_if(
        &self,
        location: &SessionLocation,
        is_unused: impl FnOnce(SystemTime) -> bool,
    ) -> io::Result<bool> {
        self.sessions.remove(location, is_unused, &self.shutdown)
    }

    /// Removes the least recently used sessions of each workspace that has too many, down to 15/16
    /// of the limit, so that the next pass is not due at once. Returns those that remain.
    fn evict_excess_sessions(&self, sessions: Vec<RemainingSession>) -> Vec<RemainingSession> {
        let mut by_workspace: BTreeMap<String, Vec<RemainingSession>> = BTreeMap::new();
        for session in sessions {
            by_workspace.entry(session.location.workspace.clone()).or_default().push(session);
        }

        let max_sessions = self.limits.max_entries as usize;
        for sessions in by_workspace.values_mut() {
            if sessions.len() <= max_sessions {
                continue;
            }

            sessions.sort_by_key(|session| session.last_used);
            let mut excess = sessions.len() - (max_sessions - max_sessions / 16);
            sessions.retain(|session| {
                if excess == 0 || self.shutdown.is_cancelled() {
                    return true;
                }
                match self.remove_if(&session.location, |used| used <= session.last_used) {
                    Ok(true) => {
                        excess -= 1;
                        false
                    }
                    Ok(false) => true,
                    Err(error) => {
                        self.log_failure(&session.location, &error);
                        true
                    }
                }
            });
        }
        by_workspace.into_values().flatten().collect()
    }

    /// Removes the oldest steps of open sessions with more than `max_record_bytes` of records.
    fn trim_open_sessions(&self) {
        for session in self.sessions.open_sessions() {
            if session.records().length() > self.limits.max_record_bytes
                && let Err(error) = self.trim_session(&session)
                && !self.shutdown.is_cancelled()
            {
                tracing::warn!(%error, "cannot remove the oldest records of a session");
            }
        }
    }

    fn trim_session(&self, session: &Session) -> io::Result<()> {
        let bytes = session.records().length();
        let steps = session.step_usage(&self.shutdown)?;
        let removed = excess_steps(&steps, bytes, &self.limits, self.now);

        let mut remaining_bytes = bytes;
        let mut result = Ok(());
        if !removed.is_empty() {
            tracing::debug!(steps = removed.len(), "removing old steps of a session");
            result = session.remove_steps(&removed, &self.shutdown);
            if result.is_ok() {
                let removed_steps = steps.iter().filter(|step| removed.contains(&step.unit));
                let removed_bytes = removed_steps.map(|step| step.record_bytes).sum();
                remaining_bytes = remaining_bytes.saturating_sub(removed_bytes);
            }
        }
        session.set_trimmed(remaining_bytes);
        result
    }

    /// Removes the oldest steps of the workspaces that use the most, until all together use
    /// `target_bytes`. Returns the bytes of the steps that it selected.
    fn evict_to_fair_share(&self, sessions: &[RemainingSession], target_bytes: u64) -> u64 {
        let mut bytes_by_workspace: BTreeMap<&str, u64> = BTreeMap::new();
        for session in sessions {
            *bytes_by_workspace.entry(&session.location.workspace).or_default() += session.bytes;
        }

        let share = fair_share(bytes_by_workspace.values().copied(), target_bytes);
        let mut freed = 0;
        for (workspace, bytes) in bytes_by_workspace {
            if bytes > share {
                let in_workspace =
                    sessions.iter().filter(|session| session.location.workspace == workspace);
                freed += self.evict_oldest_steps(&in_workspace.collect::<Vec<_>>(), bytes - share);
            }
        }
        freed
    }

    /// Removes the oldest steps of `sessions` until `excess_bytes` are freed. Returns the bytes of
    /// these steps. They include steps that it could not remove.
    fn evict_oldest_steps(&self, sessions: &[&RemainingSession], excess_bytes: u64) -> u64 {
        let mut oldest = OldestSteps::new(excess_bytes);
        for (index, session) in sessions.iter().enumerate() {
            if self.shutdown.is_cancelled() {
                return 0;
            }
            match self.steps_of(&session.location) {
                Ok(steps) => steps.iter().for_each(|step| oldest.offer(index, step)),
                Err(error) => self.log_failure(&session.location, &error),
            }
        }

        let freed = oldest.bytes;
        for (index, steps) in oldest.by_session() {
            let Some(RemainingSession { location, .. }) = sessions.get(index) else {
                continue;
            };
            if let Err(error) = self.remove_steps(location, &steps) {
                self.log_failure(location, &error);
            }
        }
        freed
    }

    fn remove_steps(
        &self,
        location: &SessionLocation,
        steps: &BTreeSet<RetentionUnit>,
    ) -> io::Result<()> {
        match self.sessions.open_existing(&location.workspace, &location.id)? {
            Some(session) => session.remove_steps(steps, &self.shutdown),
            None => Ok(()),
        }
    }

    fn steps_of(&self, location: &SessionLocation) -> io::Result<Vec<StepUsage>> {
        let session = self.sessions.open_existing(&location.workspace, &location.id)?;
        session.map_or_else(|| Ok(Vec::new()), |session| session.step_usage(&self.shutdown))
    }

    fn is_expired(&self, time: SystemTime) -> bool {
        is_expired(time, self.now, &self.limits)
    }

    fn log_failure(&self, location: &SessionLocation, error: &io::Error) {
        if self.shutdown.is_cancelled() {
            return; // the next daemon continues
        }
        tracing::warn!(
            workspace = location.workspace,
            session = location.id.as_str(),
            %error,
            "cannot remove expired or excess parts of a session"
        );
    }
}

fn is_expired(time: SystemTime, now: SystemTime, limits: &SessionsConfig) -> bool {
    now.duration_since(time).is_ok_and(|age| age > limits.retention)
}

/// Returns the ended steps of a session to remove: those that have expired, and the oldest if the
/// records exceed `record_bytes`. In that case it goes down to 3/4 of the limit, so that the next
/// trim is not due at once. `bytes` is the size of all records, including steps in progress.
fn excess_steps(
    steps: &[StepUsage],
    bytes: u64,
    limits: &SessionsConfig,
    now: SystemTime,
) -> BTreeSet<RetentionUnit> {
    let expired = steps.iter().filter(|step| is_expired(step.time, now, limits));
    let mut removed: BTreeSet<_> = expired.map(|step| step.unit).collect();

    let mut remaining = bytes;
    if remaining > limits.max_record_bytes {
        for step in steps {
            if remaining <= limits.max_record_bytes / 4 * 3 && !removed.contains(&step.unit) {
                break;
            }
            remaining = remaining.saturating_sub(step.record_bytes);
            removed.insert(step.unit);
        }
    }
    removed
}

/// The oldest steps of several sessions, as many as free `target_bytes`.
struct OldestSteps {
    target_bytes: u64,
    bytes: u64,
    steps: BTreeMap<(SystemTime, usize, RetentionUnit), u64>,
}

impl OldestSteps {
    fn new(target_bytes: u64) -> Self {
        Self { target_bytes, bytes: 0, steps: BTreeMap::new() }
    }

    fn offer(&mut self, session: usize, step: &StepUsage) {
        let bytes = step.record_bytes + step.artifact_bytes;
        self.steps.insert((step.time, session, step.unit), bytes);
        self.bytes += bytes;

        while let Some(newest) = self.steps.last_entry() {
            let without_newest = self.bytes - newest.get();
            if without_newest < self.target_bytes && self.steps.len() <= MAX_EVICTED_STEPS {
                break;
            }
            self.bytes = without_newest;
            self.steps.pop_last();
        }
    }

    fn by_session(self) -> BTreeMap<usize, BTreeSet<RetentionUnit>> {
        let mut sessions: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for (_, session, step) in self.steps.into_keys() {
            sessions.entry(session).or_default().insert(step);
        }
        sessions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: SystemTime = SystemTime::UNIX_EPOCH;

    fn limits() -> SessionsConfig {
        SessionsConfig {
            retention: Duration::from_secs(100),
            max_entries: 10,
            max_bytes: 1000,
            max_record_bytes: 100,
        }
    }

    /// A step that ended `age` seconds ago.
    fn step(step: u64, age: u64, record_bytes: u64) -> StepUsage {
        StepUsage {
            unit: RetentionUnit::Step(step),
            time: now() - Duration::from_secs(age),
            record_bytes,
            artifact_bytes: 10,
        }
    }

    fn now() -> SystemTime {
        NOW + Duration::from_secs(1_000_000)
    }

    #[test]
    fn expired_and_excess_steps_are_removed_oldest_first() {
        let steps = |sizes: &[(u64, u64)]| -> Vec<_> {
            let steps = (1..).zip(sizes);
            steps.map(|(number, (age, bytes))| step(number, *age, *bytes)).collect()
        };
        // Bytes of steps in progress stay and count.
        for (sizes, in_progress, expected) in [
            (&[][..], 0, &[][..]),
            (&[(50, 30), (40, 30)], 0, &[]),
            (&[(101, 30), (100, 30)], 0, &[1]),
            // The time is that of the end: a long step is younger than some that began after it.
            (&[(50, 30), (200, 30), (40, 30)], 0, &[2]),
            (&[(9, 30), (8, 30), (7, 30), (6, 30)], 0, &[1, 2]),
            (&[(9, 30), (200, 60), (7, 30)], 0, &[1, 2]),
            (&[(9, 30), (8, 30), (7, 30)], 10, &[]),
            (&[(9, 30), (8, 30), (7, 30)], 11, &[1]),
            (&[(9, 30)], 200, &[1]),
        ] {
            let steps = steps(sizes);
            let bytes = sizes.iter().map(|(_, bytes)| bytes).sum::<u64>() + in_progress;
            let removed = excess_steps(&steps, bytes, &limits(), now());
            let expected = expected.iter().copied().map(RetentionUnit::Step);
            assert_eq!(removed, expected.collect(), "{sizes:?} {in_progress}");
        }
    }

    #[test]
    fn space_is_freed_by_the_oldest_steps_of_any_session() {
        let mut oldest = OldestSteps::new(75);
        for (session, number, age) in [(0, 1, 50), (0, 2, 10), (1, 1, 40), (1, 2, 60), (2, 7, 1)] {
            oldest.offer(session, &step(number, age, 20));
        }
        let [first, second] = [1, 2].map(RetentionUnit::Step);
        let expected = [(0, [first].into()), (1, [first, second].into())];
        assert_eq!(oldest.by_session(), expected.into());
    }
}
