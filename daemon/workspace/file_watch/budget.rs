//! Limits the directories that callers watch: each is memory of the kernel, which pins its inode.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::daemon::{
    error::{Error, Reason},
    queue::{Headroom, PrincipalName},
};

/// Watched directories of all callers: about 130 MiB of kernel memory.
const MAX_WATCHED_DIRECTORIES: u64 = 131_072;
/// Watched directories of one caller.
const MAX_WATCHED_DIRECTORIES_PER_PRINCIPAL: u64 = 65_536;
/// The part of the total that is reserved for callers that use little.
const HEADROOM: Headroom = Headroom::of(MAX_WATCHED_DIRECTORIES);

/// The numbers of watched directories.
#[derive(Debug, Default)]
pub(crate) struct WatchBudget(Mutex<WatchUsage>);

#[derive(Debug, Default)]
struct WatchUsage {
    total: u64,
    /// Callers without watches have no entry.
    by_principal: HashMap<PrincipalName, u64>,
}

/// The watches of one stream, which end when this is dropped.
#[derive(Debug)]
pub(crate) struct WatchReservation {
    budget: Arc<WatchBudget>,
    principal: PrincipalName,
    watches: u64,
}

impl WatchBudget {
    /// Begins without a watch.
    pub(crate) fn reserve(self: &Arc<Self>, principal: &PrincipalName) -> WatchReservation {
        WatchReservation { budget: Arc::clone(self), principal: Arc::clone(principal), watches: 0 }
    }

    fn lock(&self) -> MutexGuard<'_, WatchUsage> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WatchReservation {
    /// Adds a watch, unless that exceeds a limit.
    pub(super) fn add(&mut self) -> Result<(), Error> {
        let mut usage = self.budget.lock();
        let own = usage.by_principal.get(&self.principal).copied().unwrap_or_default();
        let fits = own < MAX_WATCHED_DIRECTORIES_PER_PRINCIPAL
            && usage.total < MAX_WATCHED_DIRECTORIES
            && HEADROOM.allows(own + 1, MAX_WATCHED_DIRECTORIES - usage.total - 1);
        if !fits {
            let text = format!(
                "the streams of this caller watch {own} directories, and no more are allowed (limits: {MAX_WATCHED_DIRECTORIES_PER_PRINCIPAL} per caller; {MAX_WATCHED_DIRECTORIES} in total, a quarter of it reserved for callers that use little): watch a smaller directory, exclude some with exclude_globs, or set max_depth"
            );
            return Err(Error::new(Reason::ResourceExhausted, text)
                .with_metadata("limit", MAX_WATCHED_DIRECTORIES_PER_PRINCIPAL.to_string()));
        }

        usage.total += 1;
        usage.by_principal.insert(Arc::clone(&self.principal), own + 1);
        self.watches += 1;
        Ok(())
    }

    /// Removes watches.
    pub(super) fn remove(&mut self, watches: u64) {
        let mut usage = self.budget.lock();
        usage.total = usage.total.saturating_sub(watches);
        let own = usage.by_principal.get(&self.principal).copied().unwrap_or_default();
        let remaining = own.saturating_sub(watches);
        if remaining == 0 {
            usage.by_principal.remove(&self.principal);
        } else {
            usage.by_principal.insert(Arc::clone(&self.principal), remaining);
        }
        self.watches = self.watches.saturating_sub(watches);
    }
}

impl Drop for WatchReservation {
    fn drop(&mut self) {
        self.remove(self.watches);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watches_are_limited_per_caller_and_in_total() {
        let budget = Arc::new(WatchBudget::default());
        let principal = |name: &str| PrincipalName::from(name);
        let fill = |name: &str| {
            let mut reservation = budget.reserve(&principal(name));
            let error = loop {
                if let Err(error) = reservation.add() {
                    break error;
                }
            };
            assert_eq!(error.reason, Reason::ResourceExhausted);
            assert!(error.message.contains("exclude_globs"), "{error}");
            reservation
        };
        let first = fill("a");
        assert_eq!(first.watches, 65_536);
        assert_eq!(fill("a").watches, 0);
        let second = fill("b");
        assert_eq!(second.watches, 32_768);
        // The rest is headroom for callers that use little.
        assert_eq!(fill("c").watches, 2048);

        drop((first, second));
        let mut third = fill("c");
        third.remove(65_000);
        assert_eq!(budget.lock().total, 536);
        drop(third);
        assert_eq!(budget.lock().total, 0);
        assert!(budget.lock().by_principal.is_empty());
    }
}
