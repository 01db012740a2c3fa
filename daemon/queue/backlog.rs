//! How much calls that wait hold in memory: their requests are there all the time. Likewise requests that
//! are not there as a whole yet.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{line::Name, reserve::Reserve};

/// Bytes of all requests that wait.
const OF_ALL: u64 = 256 << 20;
/// Bytes of those of one caller: several of the largest there can be.
const OF_ONE: u64 = 64 << 20;
/// What of those of all is there for callers who have little.
const RESERVE: Reserve = Reserve::of(OF_ALL);

/// The requests that wait.
#[derive(Debug, Default)]
pub(crate) struct Backlog(Mutex<Held>);

#[derive(Debug, Default)]
struct Held {
    of_all: u64,
    /// Of those callers who have any.
    of_each: HashMap<Name, u64>,
}

/// One that waits, until this is dropped.
#[derive(Debug)]
pub(crate) struct Waits {
    backlog: Arc<Backlog>,
    name: Name,
    bytes: u64,
}

/// There is no room for it: so many bytes of this caller's wait already.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TooMuch(pub(crate) u64);

impl Backlog {
    /// Adds a request of so many bytes, if there is room for it.
    pub(crate) fn add(self: &Arc<Self>, name: &Name, bytes: u64) -> Result<Waits, TooMuch> {
        let mut held = self.held();
        let own = held.of_each.get(name).copied().unwrap_or_default();
        let (with, all) = (own.saturating_add(bytes), held.of_all.saturating_add(bytes));
        let fits = with <= OF_ONE && all <= OF_ALL && RESERVE.allows(with, OF_ALL - all);
        if !fits {
            return Err(TooMuch(own));
        }
        held.of_all = all;
        held.of_each.insert(Arc::clone(name), with);
        Ok(Waits { backlog: Arc::clone(self), name: Arc::clone(name), bytes })
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Waits {
    fn drop(&mut self) {
        let mut held = self.backlog.held();
        held.of_all -= self.bytes;
        let left = held.of_each.get(&self.name).copied().unwrap_or_default();
        // Requests without a byte may wait, too: who has none left is forgotten all the same.
        match left.saturating_sub(self.bytes) {
            0 => drop(held.of_each.remove(&self.name)),
            left => drop(held.of_each.insert(Arc::clone(&self.name), left)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_waits_is_bounded_for_each_and_for_all() {
        let backlog = Arc::new(Backlog::default());
        let names: Vec<Name> = (0..20).map(|name| name.to_string().into()).collect();
        let fill = |name| {
            let all = std::iter::from_fn(|| backlog.add(name, 4 * MIB).ok());
            all.collect::<Vec<_>>()
        };
        let mut held: Vec<_> = names.iter().take(3).map(fill).collect();
        assert_eq!(held.iter().map(Vec::len).collect::<Vec<_>>(), [16, 16, 16]);
        assert_eq!(backlog.add(&names[0], 1).unwrap_err(), TooMuch(64 * MIB));
        // The rest is for those who have little.
        for name in &names[3..19] {
            let few = fill(name);
            assert_eq!(few.len(), 1);
            held.push(few);
        }
        assert!(fill(&names[19]).is_empty());
        held.clear();
        assert_eq!(backlog.held().of_all, 0);
        assert!(backlog.held().of_each.is_empty());
        let _large = backlog.add(&names[19], 16 * MIB).unwrap();
    }
}
