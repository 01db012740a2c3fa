//! Limits the memory of requests that are queued, or not received completely yet.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{fair_queue::PrincipalName, headroom::Headroom};

const MAX_TOTAL_BYTES: u64 = 256 << 20;
/// Limit per caller: several of the largest possible requests.
const MAX_PRINCIPAL_BYTES: u64 = 64 << 20;
/// The part of the total that is reserved for callers that use little.
const HEADROOM: Headroom = Headroom::of(MAX_TOTAL_BYTES);

/// The bytes of queued requests.
#[derive(Debug, Default)]
pub(crate) struct ByteBudget(Mutex<BudgetUsage>);

#[derive(Debug, Default)]
struct BudgetUsage {
    total_bytes: u64,
    /// Callers without bytes have no entry.
    bytes_by_principal: HashMap<PrincipalName, u64>,
}

/// Bytes of one request, reserved until this is dropped.
#[derive(Debug)]
pub(crate) struct ByteReservation {
    budget: Arc<ByteBudget>,
    principal: PrincipalName,
    bytes: u64,
}

/// The budget has no room. Holds the bytes that the caller has reserved.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ByteBudgetExceeded(pub(crate) u64);

impl ByteBudgetExceeded {
    /// Describes the rejection of `bytes` more. `requests` names what the budget counts.
    pub(crate) fn describe(&self, requests: &str, bytes: usize) -> String {
        format!(
            "{requests} use too much memory: those of this caller use {} bytes, and {bytes} more do not fit (limits: {} MiB per caller; {} MiB in total, a quarter of it reserved for callers that use little). Retry after the delay in RetryInfo, or send fewer or smaller requests",
            self.0,
            MAX_PRINCIPAL_BYTES >> 20,
            MAX_TOTAL_BYTES >> 20,
        )
    }
}

impl ByteBudget {
    /// Reserves bytes for a request of `principal`.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        principal: &PrincipalName,
        bytes: u64,
    ) -> Result<ByteReservation, ByteBudgetExceeded> {
        let mut usage = self.lock();
        let own = usage.bytes_by_principal.get(principal).copied().unwrap_or_default();
        let (own_after, total_after) =
            (own.saturating_add(bytes), usage.total_bytes.saturating_add(bytes));
        let fits = own_after <= MAX_PRINCIPAL_BYTES
            && total_after <= MAX_TOTAL_BYTES
            && HEADROOM.allows(own_after, MAX_TOTAL_BYTES - total_after);
        if !fits {
            return Err(ByteBudgetExceeded(own));
        }

        usage.total_bytes = total_after;
        usage.bytes_by_principal.insert(Arc::clone(principal), own_after);

        Ok(ByteReservation { budget: Arc::clone(self), principal: Arc::clone(principal), bytes })
    }

    fn lock(&self) -> MutexGuard<'_, BudgetUsage> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for ByteReservation {
    fn drop(&mut self) {
        let mut usage = self.budget.lock();
        usage.total_bytes -= self.bytes;
        let own = usage.bytes_by_principal.get(&self.principal).copied().unwrap_or_default();
        let remaining = own.saturating_sub(self.bytes);

        // Requests without a byte exist too: an entry of 0 is removed all the same.
        if remaining == 0 {
            usage.bytes_by_principal.remove(&self.principal);
        } else {
            usage.bytes_by_principal.insert(Arc::clone(&self.principal), remaining);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn queued_bytes_are_limited_per_caller_and_in_total() {
        let budget = Arc::new(ByteBudget::default());
        let principals: Vec<PrincipalName> =
            (0..20).map(|index| index.to_string().into()).collect();
        let fill = |principal| {
            let all = std::iter::from_fn(|| budget.reserve(principal, 4 * MIB).ok());
            all.collect::<Vec<_>>()
        };
        let mut reservations: Vec<_> = principals.iter().take(3).map(fill).collect();
        assert_eq!(reservations.iter().map(Vec::len).collect::<Vec<_>>(), [16, 16, 16]);
        assert_eq!(budget.reserve(&principals[0], 1).unwrap_err(), ByteBudgetExceeded(64 * MIB));

        // The rest is headroom for callers that use little.
        for principal in &principals[3..19] {
            let reserved = fill(principal);
            assert_eq!(reserved.len(), 1);
            reservations.push(reserved);
        }

        assert!(fill(&principals[19]).is_empty());
        reservations.clear();
        assert_eq!(budget.lock().total_bytes, 0);
        assert!(budget.lock().bytes_by_principal.is_empty());
        let _large = budget.reserve(&principals[19], 16 * MIB).unwrap();
    }
}
