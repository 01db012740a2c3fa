//! Recycled sandboxes: whether a sandbox that has had runs may have another, and of which caller.
//!
//! The init of a sandbox proves after each run that nothing is left ([`super::clean_check`]). What
//! is decided here are bounds beyond that proof: runs of one caller only, up to a number and an age.

use std::{
    os::fd::OwnedFd,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use super::channel::Channel;
use crate::daemon::queue::PrincipalName;

/// Runs of one sandbox.
const MAX_RUNS: u32 = 1000;
/// Age up to which a sandbox gets another run.
const MAX_AGE: Duration = Duration::from_secs(600);

/// The runs that a sandbox has had.
#[derive(Debug, Clone)]
pub(super) struct SandboxHistory {
    built_at: Instant,
    runs: u32,
    /// The caller of these runs.
    caller: Option<PrincipalName>,
    /// Whether the sandbox may have more than one run.
    may_recycle: bool,
}

/// A sandbox whose run has ended. Its init reports Ready again, or ends.
#[derive(Debug)]
pub(super) struct UsedSandbox {
    pub(super) control: Channel,
    pub(super) pidfd: OwnedFd,
    pub(super) history: SandboxHistory,
}

/// Whether commands of recycled sandboxes get warm shells.
#[derive(Debug)]
pub(super) struct WarmShellSwitch {
    is_on: AtomicBool,
    needs_check: AtomicBool,
}

impl WarmShellSwitch {
    /// Off until a check has passed. If they are not `wanted`, there is no check.
    pub(super) fn new(wanted: bool) -> Self {
        Self { is_on: AtomicBool::new(false), needs_check: AtomicBool::new(wanted) }
    }

    /// Whether a check is due. Only the first caller gets true.
    pub(super) fn take_check(&self) -> bool {
        self.needs_check.swap(false, Ordering::Relaxed)
    }

    pub(super) fn turn_on(&self) {
        self.is_on.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }
}

impl SandboxHistory {
    /// The history of a sandbox that has had no run.
    pub(super) fn new(may_recycle: bool) -> Self {
        Self { built_at: Instant::now(), runs: 0, caller: None, may_recycle }
    }

    /// Whether the sandbox may have a run of `caller`.
    pub(super) fn permits_run_of(&self, caller: &PrincipalName) -> bool {
        match &self.caller {
            None => true,
            Some(previous) => previous == caller && self.built_at.elapsed() < MAX_AGE,
        }
    }

    /// Adds a run of `caller`.
    pub(super) fn add_run(&mut self, caller: &PrincipalName) {
        self.runs += 1;
        self.caller = Some(PrincipalName::clone(caller));
    }

    /// Whether the sandbox may have another run.
    pub(super) fn permits_another_run(&self) -> bool {
        self.may_recycle && self.runs < MAX_RUNS && self.built_at.elapsed() < MAX_AGE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sandbox_belongs_to_its_first_caller() {
        let (first, second) = (PrincipalName::from("first"), PrincipalName::from("second"));
        let mut history = SandboxHistory::new(true);
        assert!(history.permits_run_of(&first) && history.permits_run_of(&second));

        history.add_run(&first);
        assert!(history.permits_run_of(&first) && !history.permits_run_of(&second));
        assert!(history.permits_another_run());
    }

    #[test]
    fn runs_and_age_are_bounded() {
        let caller = PrincipalName::from("caller");
        let mut history = SandboxHistory::new(true);
        for _ in 0..MAX_RUNS {
            assert!(history.permits_another_run());
            history.add_run(&caller);
        }
        assert!(!history.permits_another_run());

        let Some(built_at) = Instant::now().checked_sub(MAX_AGE) else {
            return; // this machine started less than MAX_AGE ago
        };
        let mut old = SandboxHistory { built_at, ..SandboxHistory::new(true) };
        assert!(old.permits_run_of(&caller), "an unused sandbox does not age");
        old.add_run(&caller);
        assert!(!old.permits_run_of(&caller) && !old.permits_another_run());
        assert!(!SandboxHistory::new(false).permits_another_run());
    }
}
