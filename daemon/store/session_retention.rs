//! What is removed of sessions: steps that are too old, and where there is too much the oldest ones of the
//! workspace that has most, each with all its records and artifacts; and sessions that nobody has used for
//! so long.
//!
//! It goes on beside the calls, at its own pace. Steps that have not ended stay, and so do sessions that
//! somebody uses.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::{
    row_retention::fair_share,
    session::{RetentionUnit, Session, SessionSummary, StepUsage},
    session_folders::SessionLocation,
    sessions::SessionStore,
};
use crate::daemon::{config::sessions::SessionsConfig as Limits, task};

/// When it is first looked what is to be removed: once the daemon serves, so that its start is not slower.
const INITIAL_DELAY: Duration = Duration::from_secs(2);
/// How long until it is looked again.
const PASS_INTERVAL: Duration = Duration::from_secs(600);
/// Most steps that are removed in one go for want of room; more wait for the next one.
const MAX_EVICTED_STEPS: usize = 100_000;

/// Removes what is not to be kept, until told to end. `past`: how long it is known what numbers removed
/// sessions had got to.
pub(crate) async fn run_retention(
    sessions: Arc<SessionStore>,
    limits: Limits,
    past: Duration,
    shutdown: CancellationToken,
) {
    let fullness = Arc::clone(sessions.usage());
    fullness.set_limits(limits.record_bytes, limits.max_entries.into());
    let in_time = async {
        sleep(INITIAL_DELAY).await;
        loop {
            let pass = RetentionPass::new(&sessions, limits, &shutdown);
            // A panic is told by whoever catches it, and there is a next time.
            let _done = task::spawn_blocking(move || pass.run(past)).await;
            let next = Instant::now() + PASS_INTERVAL;
            loop {
                tokio::select! {
                    () = sleep_until(next) => break,
                    () = fullness.usage_exceeded.notified() => break,
                    () = fullness.records_exceeded.notified() => {
                        let pass = RetentionPass::new(&sessions, limits, &shutdown);
                        let _done = task::spawn_blocking(move || pass.trim_open_sessions()).await;
                    }
                }
            }
        }
    };
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = in_time => {}
    }
}

/// One look at what there is.
#[derive(Debug)]
struct RetentionPass {
    sessions: Arc<SessionStore>,
    limits: Limits,
    now: SystemTime,
    end: CancellationToken,
}

/// A session, and bytes of what is left of it.
struct RemainingSession {
    session: SessionLocation,
    bytes: u64,
    last_used: SystemTime,
}

impl RetentionPass {
    fn new(sessions: &Arc<SessionStore>, limits: Limits, end: &CancellationToken) -> Self {
        Self { sessions: Arc::clone(sessions), limits, now: SystemTime::now(), end: end.clone() }
    }

    /// Removes what is not to be kept.
    fn run(&self, past: Duration) {
        let fullness = self.sessions.usage();
        let counted = fullness.counted_bytes();
        let finished = self.sessions.finish_removals(&self.end);
        let forgotten = self.sessions.prune_tombstones(past);
        if let Err(error) = finished.and(forgotten)
            && !self.end.is_cancelled()
        {
            tracing::warn!(%error, "what is left of removed sessions could not be deleted");
        }
        let found = match self.sessions.all_locations() {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(%error, "the sessions could not be looked through for what is too old");
                return;
            }
        };
        let mut left = Vec::new();
        for session in found {
            if self.end.is_cancelled() {
                return;
            }
            match self.retain_session(&session) {
                Ok(None) => {}
                Ok(Some(glance)) => left.push(RemainingSession {
                    session,
                    bytes: glance.disk_bytes,
                    last_used: glance.last_used,
                }),
                Err(error) => self.log_failure(&session, &error),
            }
        }
        let left = self.evict_excess_sessions(left);
        let bytes: u64 = left.iter().map(|left| left.bytes).sum();
        let most = self.limits.max_bytes;
        let freed = match bytes > most {
            // More than must be, so that there is room for a while.
            true => self.evict_to_fair_share(&left, most / 16 * 15),
            false => 0,
        };
        fullness.set_measured(counted, bytes.saturating_sub(freed), most);
    }

    /// Removes what is too old of a session, or too much for it. Answers what is left; nothing where it is
    /// gone.
    fn retain_session(&self, session: &SessionLocation) -> io::Result<Option<SessionSummary>> {
        let glance = Session::summarize(&session.folder, &self.end)?;
        if self.is_expired(glance.last_used)
            && self.remove_if(session, |used| self.is_expired(used))?
        {
            return Ok(None);
        }
        let has_old = glance.oldest_record.is_some_and(|time| self.is_expired(time));
        let is_long = glance.record_bytes > self.limits.record_bytes;
        if !has_old && !is_long {
            return Ok(Some(glance));
        }
        let Some(open) = self.sessions.open_existing(&session.workspace, &session.id)? else {
            return Ok(None);
        };
        self.trim_session(&open)?;
        Session::summarize(&session.folder, &self.end).map(Some)
    }

    fn remove_if(
        &self,
        session: &SessionLocation,
        unused: impl FnOnce(SystemTime) -> bool,
    ) -> io::Result<bool> {
        self.sessions.remove(session, unused, &self.end)
    }

    /// Removes the sessions of each workspace that nobody has used for longest, where there are too many of
    /// them, and some more, so that there is room for a while. Answers those that are left.
    fn evict_excess_sessions(&self, left: Vec<RemainingSession>) -> Vec<RemainingSession> {
        let mut of_workspaces: BTreeMap<String, Vec<RemainingSession>> = BTreeMap::new();
        for left in left {
            let of_workspace = of_workspaces.entry(left.session.workspace.clone());
            of_workspace.or_default().push(left);
        }
        let most = self.limits.max_entries as usize;
        for of_workspace in of_workspaces.values_mut() {
            if of_workspace.len() <= most {
                continue;
            }
            of_workspace.sort_by_key(|left| left.last_used);
            let mut surplus = of_workspace.len() - (most - most / 16);
            of_workspace.retain(|left| {
                if surplus == 0 || self.end.is_cancelled() {
                    return true;
                }
                match self.remove_if(&left.session, |used| used <= left.last_used) {
                    Ok(true) => {
                        surplus -= 1;
                        false
                    }
                    Ok(false) => true,
                    Err(error) => {
                        self.log_failure(&left.session, &error);
                        true
                    }
                }
            });
        }
        of_workspaces.into_values().flatten().collect()
    }

    /// Removes the oldest steps of sessions that have got more records than they may have.
    fn trim_open_sessions(&self) {
        for session in self.sessions.open_sessions() {
            if session.records().length() > self.limits.record_bytes
                && let Err(error) = self.trim_session(&session)
                && !self.end.is_cancelled()
            {
                tracing::warn!(%error, "the oldest records of a session could not be removed");
            }
        }
    }

    fn trim_session(&self, session: &Session) -> io::Result<()> {
        let bytes = session.records().length();
        let steps = session.step_usage(&self.end)?;
        let removed = expired_steps(&steps, bytes, &self.limits, self.now);
        let mut stayed = bytes;
        let mut done = Ok(());
        if !removed.is_empty() {
            tracing::debug!(steps = removed.len(), "old steps of a session are removed");
            done = session.remove_steps(&removed, &self.end);
            if done.is_ok() {
                let gone = steps.iter().filter(|step| removed.contains(&step.unit));
                stayed = stayed.saturating_sub(gone.map(|step| step.record_bytes).sum());
            }
        }
        session.set_trimmed(stayed);
        done
    }

    /// Removes the oldest steps of the workspaces that have most, until all together have `most` bytes: who
    /// has less than others loses nothing before they have come down to as much. Answers how many are gone.
    fn evict_to_fair_share(&self, left: &[RemainingSession], most: u64) -> u64 {
        let mut held: BTreeMap<&str, u64> = BTreeMap::new();
        for session in left {
            *held.entry(&session.session.workspace).or_default() += session.bytes;
        }
        let share = fair_share(held.values().copied(), most);
        let mut freed = 0;
        for (workspace, bytes) in held {
            if bytes > share {
                let of_workspace = left.iter().filter(|left| left.session.workspace == workspace);
                freed += self.evict_oldest_steps(&of_workspace.collect::<Vec<_>>(), bytes - share);
            }
        }
        freed
    }

    /// Removes the oldest steps of these sessions, until `surplus` bytes are gone. Answers how many are.
    fn evict_oldest_steps(&self, left: &[&RemainingSession], surplus: u64) -> u64 {
        let mut oldest = OldestSteps::new(surplus);
        for (index, session) in left.iter().enumerate() {
            if self.end.is_cancelled() {
                return 0;
            }
            match self.steps_of(&session.session) {
                Ok(steps) => steps.iter().for_each(|step| oldest.offer(index, step)),
                Err(error) => self.log_failure(&session.session, &error),
            }
        }
        let freed = oldest.bytes;
        for (index, steps) in oldest.by_session() {
            let Some(RemainingSession { session: found, .. }) = left.get(index) else {
                continue;
            };
            let removed = self.sessions.open_existing(&found.workspace, &found.id);
            let removed = removed.and_then(|session| match session {
                Some(session) => session.remove_steps(&steps, &self.end),
                None => Ok(()),
            });
            if let Err(error) = removed {
                self.log_failure(found, &error);
            }
        }
        freed
    }

    fn steps_of(&self, session: &SessionLocation) -> io::Result<Vec<StepUsage>> {
        let session = self.sessions.open_existing(&session.workspace, &session.id)?;
        session.map_or_else(|| Ok(Vec::new()), |session| session.step_usage(&self.end))
    }

    fn is_expired(&self, time: SystemTime) -> bool {
        is_expired(time, self.now, &self.limits)
    }

    fn log_failure(&self, session: &SessionLocation, error: &io::Error) {
        if self.end.is_cancelled() {
            return; // the next daemon goes on
        }
        tracing::warn!(
            workspace = session.workspace,
            session = session.id.as_str(),
            %error,
            "what is not to be kept of a session could not be removed"
        );
    }
}

fn is_expired(time: SystemTime, now: SystemTime, limits: &Limits) -> bool {
    now.duration_since(time).is_ok_and(|age| age > limits.retention)
}

/// Which of these steps of a session, which have ended, are not to be kept. All its records have so many
/// `bytes`; where that is too much, more are removed than must be, so that there is room for a while.
fn expired_steps(
    steps: &[StepUsage],
    bytes: u64,
    limits: &Limits,
    now: SystemTime,
) -> BTreeSet<RetentionUnit> {
    let old = steps.iter().filter(|step| is_expired(step.time, now, limits));
    let mut removed: BTreeSet<_> = old.map(|step| step.unit).collect();
    let mut left = bytes;
    if left > limits.record_bytes {
        for step in steps {
            if left <= limits.record_bytes / 4 * 3 && !removed.contains(&step.unit) {
                break;
            }
            left = left.saturating_sub(step.record_bytes);
            removed.insert(step.unit);
        }
    }
    removed
}

/// The oldest steps of several sessions, as many as it takes to make room.
struct OldestSteps {
    target_bytes: u64,
    bytes: u64,
    steps: BTreeMap<(SystemTime, usize, RetentionUnit), u64>,
}

impl OldestSteps {
    fn new(surplus: u64) -> Self {
        Self { target_bytes: surplus, bytes: 0, steps: BTreeMap::new() }
    }

    fn offer(&mut self, session: usize, step: &StepUsage) {
        let bytes = step.record_bytes + step.artifact_bytes;
        self.steps.insert((step.time, session, step.unit), bytes);
        self.bytes += bytes;
        while let Some(newest) = self.steps.last_entry() {
            let without = self.bytes - newest.get();
            if without < self.target_bytes && self.steps.len() <= MAX_EVICTED_STEPS {
                break;
            }
            self.bytes = without;
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

    fn limits() -> Limits {
        Limits {
            retention: Duration::from_secs(100),
            max_entries: 10,
            max_bytes: 1000,
            record_bytes: 100,
        }
    }

    /// A step that ended so many seconds ago.
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
    fn what_is_old_goes_and_of_too_much_the_oldest() {
        let steps = |sizes: &[(u64, u64)]| -> Vec<_> {
            let steps = (1..).zip(sizes);
            steps.map(|(number, (age, bytes))| step(number, *age, *bytes)).collect()
        };
        // Beside bytes of those that go on, which stay and count.
        for (sizes, go_on, expected) in [
            (&[][..], 0, &[][..]),
            (&[(50, 30), (40, 30)], 0, &[]),
            (&[(101, 30), (100, 30)], 0, &[1]),
            // One that took long is younger than those that began after it.
            (&[(50, 30), (200, 30), (40, 30)], 0, &[2]),
            (&[(9, 30), (8, 30), (7, 30), (6, 30)], 0, &[1, 2]),
            (&[(9, 30), (200, 60), (7, 30)], 0, &[1, 2]),
            (&[(9, 30), (8, 30), (7, 30)], 10, &[]),
            (&[(9, 30), (8, 30), (7, 30)], 11, &[1]),
            (&[(9, 30)], 200, &[1]),
        ] {
            let steps = steps(sizes);
            let bytes = sizes.iter().map(|(_, bytes)| bytes).sum::<u64>() + go_on;
            let removed = expired_steps(&steps, bytes, &limits(), now());
            let expected = expected.iter().copied().map(RetentionUnit::Step);
            assert_eq!(removed, expected.collect(), "{sizes:?} {go_on}");
        }
    }

    #[test]
    fn room_is_made_by_the_oldest_steps_wherever_they_are() {
        let mut oldest = OldestSteps::new(75);
        for (session, number, age) in [(0, 1, 50), (0, 2, 10), (1, 1, 40), (1, 2, 60), (2, 7, 1)] {
            oldest.offer(session, &step(number, age, 20));
        }
        let [first, second] = [1, 2].map(RetentionUnit::Step);
        let expected = [(0, [first].into()), (1, [first, second].into())];
        assert_eq!(oldest.by_session(), expected.into());
    }
}
