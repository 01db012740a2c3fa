//! Limits on queued jobs: their number, and the bytes of their parameters. If callers are
//! distinguished, a quarter is headroom for callers that use little. Pure state: no locks or files.

use std::{collections::HashMap, time::Duration};

use crate::daemon::{
    error::{Error, Reason},
    queue::Headroom,
};

/// Retry delay when a limit is reached. Jobs end at an unknown time, as started processes do.
const PENDING_JOBS_RETRY_AFTER: Duration = Duration::from_secs(5);

/// The limits, and their usage.
#[derive(Debug)]
pub(super) struct PendingJobsBudget {
    limit: PendingJobsUsage,
    /// Whether there may be several callers, each of which leaves headroom for others.
    is_shared: bool,
    used: PendingJobsUsage,
    by_principal: HashMap<String, PendingJobsUsage>,
}

/// An amount of jobs and bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PendingJobsUsage {
    pub(super) jobs: u64,
    pub(super) bytes: u64,
}

impl PendingJobsUsage {
    /// One job with parameters of `bytes`.
    pub(super) fn of_job(bytes: u64) -> Self {
        Self { jobs: 1, bytes }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            jobs: self.jobs.saturating_add(other.jobs),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    fn minus(self, other: Self) -> Self {
        Self {
            jobs: self.jobs.saturating_sub(other.jobs),
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }
}

impl PendingJobsBudget {
    pub(super) fn new(limit: PendingJobsUsage, is_shared: bool) -> Self {
        Self { limit, is_shared, used: PendingJobsUsage::default(), by_principal: HashMap::new() }
    }

    /// Permanently reserves headroom for callers that use little.
    pub(super) fn reserve_headroom(&mut self) {
        self.is_shared = true;
    }

    /// Reserves an amount for a caller.
    pub(super) fn reserve(
        &mut self,
        principal: &str,
        amount: PendingJobsUsage,
    ) -> Result<(), Error> {
        let own = self.by_principal.get(principal).copied().unwrap_or_default();
        let (used, own_used) = (self.used.plus(amount), own.plus(amount));
        let free = self.limit.minus(used);
        let fits = |used: u64, limit: u64, own: u64, free: u64| {
            let headroom = if self.is_shared { Headroom::of(limit) } else { Headroom::NONE };
            used <= limit && headroom.allows(own, free)
        };

        let (unit, limit) = if !fits(used.jobs, self.limit.jobs, own_used.jobs, free.jobs) {
            ("jobs", self.limit.jobs)
        } else if !fits(used.bytes, self.limit.bytes, own_used.bytes, free.bytes) {
            ("bytes of parameters", self.limit.bytes)
        } else {
            self.reserve_unchecked(principal, amount);
            return Ok(());
        };
        let text = format!(
            "the job queue is full: {principal} has {} queued jobs with {} bytes of parameters (limit: {limit} {unit} of all callers, a quarter of it reserved for callers that use little). Wait until some have started (WaitJob), or cancel some (CancelJob)",
            own.jobs, own.bytes
        );
        Err(Error::new(Reason::ResourceExhausted, text)
            .with_retry_after(PENDING_JOBS_RETRY_AFTER)
            .with_metadata("limit", limit.to_string()))
    }

    /// Reserves an amount for a caller, even beyond the limits.
    pub(super) fn reserve_unchecked(&mut self, principal: &str, amount: PendingJobsUsage) {
        self.used = self.used.plus(amount);
        let own = self.by_principal.entry(principal.to_owned()).or_default();
        *own = own.plus(amount);
    }

    /// Releases a reserved amount.
    pub(super) fn release(&mut self, principal: &str, amount: PendingJobsUsage) {
        self.used = self.used.minus(amount);
        if let Some(own) = self.by_principal.get_mut(principal) {
            *own = own.minus(amount);
            if own.jobs == 0 {
                self.by_principal.remove(principal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(jobs: u64, bytes: u64, is_shared: bool) -> PendingJobsBudget {
        PendingJobsBudget::new(PendingJobsUsage { jobs, bytes }, is_shared)
    }

    fn reserve_all(budget: &mut PendingJobsBudget, principal: &str, bytes: u64) -> usize {
        let amount = PendingJobsUsage::of_job(bytes);
        (0..).take_while(|_| budget.reserve(principal, amount).is_ok()).count()
    }

    #[test]
    fn one_caller_leaves_headroom_for_others() {
        let mut shared = budget(1600, 1 << 30, true);
        assert_eq!(
            [reserve_all(&mut shared, "a", 1), reserve_all(&mut shared, "b", 1)],
            [1200, 25]
        );
        let mut bytes = budget(1000, 1600, true);
        assert_eq!([reserve_all(&mut bytes, "a", 10), reserve_all(&mut bytes, "b", 10)], [120, 2]);
        let mut single = budget(3, 1 << 30, false);
        assert_eq!(reserve_all(&mut single, "a", 1), 3);
        let error = single.reserve("a", PendingJobsUsage::of_job(1)).unwrap_err();
        assert_eq!(error.reason, Reason::ResourceExhausted);
        assert_eq!(error.retry_after, Some(PENDING_JOBS_RETRY_AFTER));
    }

    #[test]
    fn released_budget_can_be_reserved_again() {
        let mut budget = budget(10, 100, true);
        assert_eq!(reserve_all(&mut budget, "a", 60), 1);
        assert!(budget.reserve("b", PendingJobsUsage::of_job(60)).is_err());
        budget.release("a", PendingJobsUsage::of_job(60));
        assert!(budget.by_principal.is_empty());
        assert_eq!(budget.used, PendingJobsUsage::default());
        assert_eq!(reserve_all(&mut budget, "b", 75), 1);
    }
}
