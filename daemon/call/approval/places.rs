//! How many calls may wait, and how many bytes of them are held: so many that nobody's flood leaves no room
//! for the calls of others, nor the daemon without memory.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::sync::watch;

use crate::daemon::{
    error::{Error, Reason},
    store::approvals::ApprovalRecord,
};

/// Bytes of all calls that wait: some calls of the largest kind, as they came and as rules look at them.
const HELD_BYTES: usize = 128 << 20;
/// One caller has at most so many times what is left for others.
const OTHERS: usize = 3;
/// How long a caller is told to wait where too many do: somebody must decide first.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// What is taken.
#[derive(Debug, Default)]
pub(super) struct Places {
    taken: Mutex<Taken>,
    /// Told whenever some of it is free again.
    freed: watch::Sender<()>,
}

/// That there is no place until others have left theirs.
#[derive(Debug, thiserror::Error)]
#[error("too many calls wait to be approved")]
struct Full;

#[derive(Debug, Default)]
struct Taken {
    /// Calls, by workspace and caller.
    calls: HashMap<String, HashMap<String, usize>>,
    /// Bytes, by caller.
    bytes: HashMap<String, usize>,
}

/// The right to wait.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    workspace: String,
    principal: String,
    size: usize,
}

impl Places {
    /// Told from now on whenever a place is free again.
    pub(super) fn freed(&self) -> watch::Receiver<()> {
        self.freed.subscribe()
    }

    /// Whether there is a place for a small call, where `at_most` may wait in its workspace.
    pub(super) fn has_room(&self, workspace: &str, principal: &str, at_most: usize) -> bool {
        let taken = self.taken();
        let (own, all) = taken.calls(workspace, principal);
        all < at_most && is_fair(own, 1, at_most - all)
    }

    /// Takes a place for a call that holds so many bytes, where `at_most` may wait in its workspace.
    pub(super) fn take(
        self: &Arc<Self>,
        record: &ApprovalRecord,
        size: usize,
        at_most: usize,
    ) -> Result<Place, Error> {
        let (workspace, principal) = (&record.workspace, &record.principal);
        if size > HELD_BYTES {
            let text = format!(
                "this call takes {size} bytes while it waits to be approved, and all that wait {HELD_BYTES}: ask for less at a time"
            );
            return Err(
                Error::new(Reason::ResourceExhausted, text).with("limit", HELD_BYTES.to_string())
            );
        }
        let mut taken = self.taken();
        let (own, all) = taken.calls(workspace, principal);
        if all >= at_most {
            let text = format!(
                "{all} calls wait to be approved in this workspace, and no more may at one time (approvals.pending): try again when some are decided"
            );
            return Err(full(text, at_most));
        }
        if !is_fair(own, 1, at_most - all) {
            let text = format!(
                "{own} calls of {principal} wait to be approved in this workspace, and of the {at_most} that may at one time (approvals.pending) the rest is for others: try again when some are decided"
            );
            return Err(full(text, at_most));
        }
        let held: usize = taken.bytes.values().sum();
        let own = taken.bytes.get(principal).copied().unwrap_or_default();
        let left = HELD_BYTES.saturating_sub(held);
        if size > left || !is_fair(own, size, left) {
            let text = format!(
                "this call takes {size} bytes while it waits to be approved, calls of {principal} that wait take {own}, and all that may wait {HELD_BYTES}: try again when some are decided, or ask for less at a time"
            );
            return Err(full(text, HELD_BYTES));
        }
        let calls = taken.calls.entry(workspace.clone()).or_default();
        *calls.entry(principal.clone()).or_default() += 1;
        *taken.bytes.entry(principal.clone()).or_default() += size;
        Ok(Place {
            places: Arc::clone(self),
            workspace: workspace.clone(),
            principal: principal.clone(),
            size,
        })
    }

    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    /// Calls of a caller that wait in a workspace, and of all.
    fn calls(&self, workspace: &str, principal: &str) -> (usize, usize) {
        let calls = self.calls.get(workspace);
        let all = calls.iter().flat_map(|calls| calls.values()).sum();
        let own = calls.and_then(|calls| calls.get(principal)).copied();
        (own.unwrap_or_default(), all)
    }
}

/// Whether a call could not be asked about as too many wait: there will be a place, as these end.
pub(in crate::daemon::call) fn are_full(error: &Error) -> bool {
    let cause = error.cause.as_deref();
    cause.is_some_and(|cause| cause.is::<Full>())
}

/// Whether who has `own` may have so much `more` of what is left. A first call always may.
fn is_fair(own: usize, more: usize, left: usize) -> bool {
    let rest = left.saturating_sub(more);
    own == 0 || own.saturating_add(more) <= rest.saturating_mul(OTHERS)
}

fn full(text: String, limit: usize) -> Error {
    Error::new(Reason::ResourceExhausted, text)
        .with("limit", limit.to_string())
        .retry_after(RETRY_AFTER)
        .caused_by(Full)
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        if let Some(calls) = taken.calls.get_mut(&self.workspace) {
            less(calls, &self.principal, 1);
            if calls.is_empty() {
                taken.calls.remove(&self.workspace);
            }
        }
        less(&mut taken.bytes, &self.principal, self.size);
        drop(taken);
        self.places.freed.send_replace(());
    }
}

/// Takes so much away, and the entry where nothing is left.
fn less(taken: &mut HashMap<String, usize>, name: &str, size: usize) {
    if let Some(left) = taken.get_mut(name) {
        *left = left.saturating_sub(size);
        if *left == 0 {
            taken.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(workspace: &str, principal: &str) -> ApprovalRecord {
        ApprovalRecord {
            workspace: workspace.to_owned(),
            principal: principal.to_owned(),
            ..ApprovalRecord::default()
        }
    }

    #[test]
    fn one_caller_leaves_room_for_others() {
        let places = Arc::new(Places::default());
        let take = |workspace: &str, principal: &str, at_most| {
            places.take(&record(workspace, principal), 1, at_most)
        };
        let mut held: Vec<_> = (0..6).map(|_| take("w", "a", 8).unwrap()).collect();
        let refused = take("w", "a", 8).unwrap_err();
        assert!(refused.message.contains("for others"), "{}", refused.message);
        held.push(take("w", "b", 8).unwrap());
        take("w", "b", 8).unwrap_err();
        held.push(take("w", "c", 8).unwrap());
        let refused = take("w", "d", 8).unwrap_err();
        assert!(refused.message.contains("8 calls wait"), "{}", refused.message);
        held.push(take("other", "a", 8).unwrap());
        assert_eq!(held.len(), 9);
        held.clear();
        let taken = places.taken();
        assert!(taken.calls.is_empty() && taken.bytes.is_empty());
        drop(taken);
        // Where there is one place, whoever comes first has it.
        let _one = take("w", "a", 1).unwrap();
        take("w", "b", 1).unwrap_err();
    }

    #[test]
    fn who_finds_no_place_is_told_when_there_may_be_one() {
        let places = Arc::new(Places::default());
        let take = || places.take(&record("w", "a"), 1, 1);
        assert!(places.has_room("w", "a", 1));
        let held = take().unwrap();
        assert!(!places.has_room("w", "a", 1) && places.has_room("other", "a", 1));
        let freed = places.freed();
        assert!(are_full(&take().unwrap_err()));
        assert!(!freed.has_changed().unwrap());
        drop(held);
        assert!(freed.has_changed().unwrap() && places.has_room("w", "a", 1));
        // There never will be one.
        let large = places.take(&record("w", "a"), HELD_BYTES + 1, 1);
        let large = large.unwrap_err();
        assert!(!are_full(&large) && large.retry_after.is_none());
    }

    #[test]
    fn what_waits_is_bounded_in_bytes() {
        let places = Arc::new(Places::default());
        let take = |principal: &str, size| places.take(&record("w", principal), size, 1000);
        take("a", HELD_BYTES + 1).unwrap_err();
        let mut held = Vec::new();
        while let Ok(place) = take("a", 10 << 20) {
            held.push(place);
        }
        assert_eq!(held.len(), 9);
        held.push(take("b", 10 << 20).unwrap());
        held.push(take("c", 1).unwrap());
        take("d", 30 << 20).unwrap_err();
    }
}
