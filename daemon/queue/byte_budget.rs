//! How much calls that wait hold in memory: their requests are there all the time. Likewise requests that
//! are not there as a whole yet.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{fair_queue::PrincipalKey, headroom::Headroom};

/// Bytes of all requests that wait.
const MAX_TOTAL_BYTES: u64 = 256 << 20;
/// Bytes of those of one caller: several of the largest there can be.
const MAX_PRINCIPAL_BYTES: u64 = 64 << 20;
/// What of those of all is there for callers who have little.
const HEADROOM: Headroom = Headroom::of(MAX_TOTAL_BYTES);

/// The requests that wait.
#[derive(Debug, Default)]
pub(crate) struct ByteBudget(Mutex<BudgetUsage>);

#[derive(Debug, Default)]
struct BudgetUsage {
    total_bytes: u64,
    /// Of those callers who have any.
    bytes_by_principal: HashMap<PrincipalKey, u64>,
}

/// One that waits, until this is dropped.
#[derive(Debug)]
pub(crate) struct ByteReservation {
    budget: Arc<ByteBudget>,
    principal: PrincipalKey,
    bytes: u64,
}

/// There is no room for it: so many bytes of this caller's wait already.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ByteBudgetExceeded(pub(crate) u64);

impl ByteBudget {
    /// Adds a request of so many bytes, if there is room for it.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        principal: &PrincipalKey,
        bytes: u64,
    ) -> Result<ByteReservation, ByteBudgetExceeded> {
        let mut held = self.lock();
        let own = held.bytes_by_principal.get(principal).copied().unwrap_or_default();
        let (with, all) = (own.saturating_add(bytes), held.total_bytes.saturating_add(bytes));
        let fits = with <= MAX_PRINCIPAL_BYTES
            && all <= MAX_TOTAL_BYTES
            && HEADROOM.allows(with, MAX_TOTAL_BYTES - all);
        if !fits {
            return Err(ByteBudgetExceeded(own));
        }
        held.total_bytes = all;
        held.bytes_by_principal.insert(Arc::clone(principal), with);
        Ok(ByteReservation { budget: Arc::clone(self), principal: Arc::clone(principal), bytes })
    }

    fn lock(&self) -> MutexGuard<'_, BudgetUsage> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ByteReservation {
    fn drop(&mut self) {
        let mut held = self.budget.lock();
        held.total_bytes -= self.bytes;
        let left = held.bytes_by_principal.get(&self.principal).copied().unwrap_or_default();
        // Requests without a byte may wait, too: who has none left is forgotten all the same.
        match left.saturating_sub(self.bytes) {
            0 => drop(held.bytes_by_principal.remove(&self.principal)),
            left => drop(held.bytes_by_principal.insert(Arc::clone(&self.principal), left)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn what_waits_is_bounded_for_each_and_for_all() {
        let backlog = Arc::new(ByteBudget::default());
        let names: Vec<PrincipalKey> = (0..20).map(|name| name.to_string().into()).collect();
        let fill = |name| {
            let all = std::iter::from_fn(|| backlog.reserve(name, 4 * MIB).ok());
            all.collect::<Vec<_>>()
        };
        let mut held: Vec<_> = names.iter().take(3).map(fill).collect();
        assert_eq!(held.iter().map(Vec::len).collect::<Vec<_>>(), [16, 16, 16]);
        assert_eq!(backlog.reserve(&names[0], 1).unwrap_err(), ByteBudgetExceeded(64 * MIB));
        // The rest is for those who have little.
        for name in &names[3..19] {
            let few = fill(name);
            assert_eq!(few.len(), 1);
            held.push(few);
        }
        assert!(fill(&names[19]).is_empty());
        held.clear();
        assert_eq!(backlog.lock().total_bytes, 0);
        assert!(backlog.lock().bytes_by_principal.is_empty());
        let _large = backlog.reserve(&names[19], 16 * MIB).unwrap();
    }
}
