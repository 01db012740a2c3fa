//! Room for jobs that wait: for so many of them, and for so many bytes of what they are to do. Where callers are
//! told apart, a quarter is left for those who have little of it. A decision, without locks or files.

use std::{collections::HashMap, time::Duration};

use crate::daemon::{
    error::{Error, Reason},
    queue::Headroom,
};

/// When to come again. When there is room is not known, as jobs last as long as they want: as with the places of
/// started processes.
const PENDING_JOBS_RETRY_AFTER: Duration = Duration::from_secs(5);

/// The room.
#[derive(Debug)]
pub(super) struct PendingJobsBudget {
    limit: PendingJobsUsage,
    /// Whether there may be several callers, to whom something is left.
    is_shared: bool,
    used: PendingJobsUsage,
    by_principal: HashMap<String, PendingJobsUsage>,
}

/// So much of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PendingJobsUsage {
    pub(super) jobs: u64,
    pub(super) bytes: u64,
}

impl PendingJobsUsage {
    /// One job whose parameters have so many bytes.
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
    /// So much, none of it taken.
    pub(super) fn new(most: PendingJobsUsage, is_shared: bool) -> Self {
        Self {
            limit: most,
            is_shared,
            used: PendingJobsUsage::default(),
            by_principal: HashMap::new(),
        }
    }

    /// Leaves a part to others from now on.
    pub(super) fn keep_headroom(&mut self) {
        self.is_shared = true;
    }

    /// Takes some for a caller, if there is some for him.
    pub(super) fn reserve(&mut self, caller: &str, amount: PendingJobsUsage) -> Result<(), Error> {
        let own = self.by_principal.get(caller).copied().unwrap_or_default();
        let (all, own_then) = (self.used.plus(amount), own.plus(amount));
        let left = self.limit.minus(all);
        let fits = |all: u64, most: u64, own: u64, left: u64| {
            let reserve = match self.is_shared {
                true => Headroom::of(most),
                false => Headroom::NONE,
            };
            all <= most && reserve.allows(own, left)
        };
        let (what, limit) = if !fits(all.jobs, self.limit.jobs, own_then.jobs, left.jobs) {
            ("jobs", self.limit.jobs)
        } else if !fits(all.bytes, self.limit.bytes, own_then.bytes, left.bytes) {
            ("bytes of parameters of jobs", self.limit.bytes)
        } else {
            self.reserve_unchecked(caller, amount);
            return Ok(());
        };
        let text = format!(
            "{} jobs of {caller} wait, with {} bytes of parameters, and there is no room for another: at most {limit} {what} may wait, of all callers together, of which a quarter is left for those who have few; wait until some have started (WaitJob), or cancel some (CancelJob)",
            own.jobs, own.bytes
        );
        Err(Error::new(Reason::ResourceExhausted, text)
            .retry_after(PENDING_JOBS_RETRY_AFTER)
            .with_metadata("limit", limit.to_string()))
    }

    /// Takes some for a caller, whether there is any or not.
    pub(super) fn reserve_unchecked(&mut self, caller: &str, amount: PendingJobsUsage) {
        self.used = self.used.plus(amount);
        let own = self.by_principal.entry(caller.to_owned()).or_default();
        *own = own.plus(amount);
    }

    /// Gives back what was taken.
    pub(super) fn release(&mut self, caller: &str, amount: PendingJobsUsage) {
        self.used = self.used.minus(amount);
        if let Some(own) = self.by_principal.get_mut(caller) {
            *own = own.minus(amount);
            if own.jobs == 0 {
                self.by_principal.remove(caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(jobs: u64, bytes: u64, is_shared: bool) -> PendingJobsBudget {
        PendingJobsBudget::new(PendingJobsUsage { jobs, bytes }, is_shared)
    }

    fn most(room: &mut PendingJobsBudget, caller: &str, bytes: u64) -> usize {
        let amount = PendingJobsUsage::of_job(bytes);
        (0..).take_while(|_| room.reserve(caller, amount).is_ok()).count()
    }

    #[test]
    fn one_caller_leaves_some_to_others() {
        let mut shared = room(1600, 1 << 30, true);
        assert_eq!([most(&mut shared, "a", 1), most(&mut shared, "b", 1)], [1200, 25]);
        let mut bytes = room(1000, 1600, true);
        assert_eq!([most(&mut bytes, "a", 10), most(&mut bytes, "b", 10)], [120, 2]);
        let mut of_one = room(3, 1 << 30, false);
        assert_eq!(most(&mut of_one, "a", 1), 3);
        let refused = of_one.reserve("a", PendingJobsUsage::of_job(1)).unwrap_err();
        assert_eq!(refused.reason, Reason::ResourceExhausted);
        assert_eq!(refused.retry_after, Some(PENDING_JOBS_RETRY_AFTER));
    }

    #[test]
    fn what_is_given_back_can_be_taken_again() {
        let mut room = room(10, 100, true);
        assert_eq!(most(&mut room, "a", 60), 1);
        assert!(room.reserve("b", PendingJobsUsage::of_job(60)).is_err());
        room.release("a", PendingJobsUsage::of_job(60));
        assert!(room.by_principal.is_empty());
        assert_eq!(room.used, PendingJobsUsage::default());
        assert_eq!(most(&mut room, "b", 75), 1);
    }
}
