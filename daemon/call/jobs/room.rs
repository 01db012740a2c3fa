//! Room for jobs that wait: for so many of them, and for so many bytes of what they are to do. Where callers are
//! told apart, a quarter is left for those who have little of it. A decision, without locks or files.

use std::{collections::HashMap, time::Duration};

use crate::daemon::{
    error::{Error, Reason},
    queue::Reserve,
};

/// When to come again. When there is room is not known, as jobs last as long as they want: as with the places of
/// started processes.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// The room.
#[derive(Debug)]
pub(super) struct Room {
    most: Amount,
    /// Whether there may be several callers, to whom something is left.
    is_shared: bool,
    taken: Amount,
    callers: HashMap<String, Amount>,
}

/// So much of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Amount {
    pub(super) jobs: u64,
    pub(super) bytes: u64,
}

impl Amount {
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

impl Room {
    /// So much, none of it taken.
    pub(super) fn new(most: Amount, is_shared: bool) -> Self {
        Self { most, is_shared, taken: Amount::default(), callers: HashMap::new() }
    }

    /// Leaves a part to others from now on.
    pub(super) fn share(&mut self) {
        self.is_shared = true;
    }

    /// Takes some for a caller, if there is some for him.
    pub(super) fn take(&mut self, caller: &str, amount: Amount) -> Result<(), Error> {
        let own = self.callers.get(caller).copied().unwrap_or_default();
        let (all, own_then) = (self.taken.plus(amount), own.plus(amount));
        let left = self.most.minus(all);
        let fits = |all: u64, most: u64, own: u64, left: u64| {
            let reserve = match self.is_shared {
                true => Reserve::of(most),
                false => Reserve::NONE,
            };
            all <= most && reserve.allows(own, left)
        };
        let (what, limit) = if !fits(all.jobs, self.most.jobs, own_then.jobs, left.jobs) {
            ("jobs", self.most.jobs)
        } else if !fits(all.bytes, self.most.bytes, own_then.bytes, left.bytes) {
            ("bytes of parameters of jobs", self.most.bytes)
        } else {
            self.put(caller, amount);
            return Ok(());
        };
        let text = format!(
            "{} jobs of {caller} wait, with {} bytes of parameters, and there is no room for another: at most {limit} {what} may wait, of all callers together, of which a quarter is left for those who have few; wait until some have started (WaitJob), or cancel some (CancelJob)",
            own.jobs, own.bytes
        );
        Err(Error::new(Reason::ResourceExhausted, text)
            .retry_after(RETRY_AFTER)
            .with("limit", limit.to_string()))
    }

    /// Takes some for a caller, whether there is any or not.
    pub(super) fn put(&mut self, caller: &str, amount: Amount) {
        self.taken = self.taken.plus(amount);
        let own = self.callers.entry(caller.to_owned()).or_default();
        *own = own.plus(amount);
    }

    /// Gives back what was taken.
    pub(super) fn give_back(&mut self, caller: &str, amount: Amount) {
        self.taken = self.taken.minus(amount);
        if let Some(own) = self.callers.get_mut(caller) {
            *own = own.minus(amount);
            if own.jobs == 0 {
                self.callers.remove(caller);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(jobs: u64, bytes: u64, is_shared: bool) -> Room {
        Room::new(Amount { jobs, bytes }, is_shared)
    }

    fn most(room: &mut Room, caller: &str, bytes: u64) -> usize {
        let amount = Amount::of_job(bytes);
        (0..).take_while(|_| room.take(caller, amount).is_ok()).count()
    }

    #[test]
    fn one_caller_leaves_some_to_others() {
        let mut shared = room(1600, 1 << 30, true);
        assert_eq!([most(&mut shared, "a", 1), most(&mut shared, "b", 1)], [1200, 25]);
        let mut bytes = room(1000, 1600, true);
        assert_eq!([most(&mut bytes, "a", 10), most(&mut bytes, "b", 10)], [120, 2]);
        let mut of_one = room(3, 1 << 30, false);
        assert_eq!(most(&mut of_one, "a", 1), 3);
        let refused = of_one.take("a", Amount::of_job(1)).unwrap_err();
        assert_eq!(refused.reason, Reason::ResourceExhausted);
        assert_eq!(refused.retry_after, Some(RETRY_AFTER));
    }

    #[test]
    fn what_is_given_back_can_be_taken_again() {
        let mut room = room(10, 100, true);
        assert_eq!(most(&mut room, "a", 60), 1);
        assert!(room.take("b", Amount::of_job(60)).is_err());
        room.give_back("a", Amount::of_job(60));
        assert!(room.callers.is_empty());
        assert_eq!(room.taken, Amount::default());
        assert_eq!(most(&mut room, "b", 75), 1);
    }
}
