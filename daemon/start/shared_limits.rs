//! Limits of the machine and of the daemon's user that all runs share, and whether they are enough.

use std::fs;

use rustix::process::{Resource, geteuid, getrlimit};

use crate::daemon::{
    config::{Config, sandbox_ids},
    sandbox::plan::PROCESS_ID_DIVISOR,
};

/// Runs of full size that must be possible at a time.
const MIN_FULL_SIZE_RUNS: u64 = 4;

/// Something that can make runs fail later.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StartWarning {
    pub(super) text: String,
    pub(super) remedy: &'static str,
}

impl StartWarning {
    pub(super) fn log(&self) {
        tracing::warn!(remedy = self.remedy, "{}", self.text);
    }

    /// The lines that `--check` prints.
    pub(super) fn report(&self) -> String {
        format!("warning: {}\n  remedy: {}\n", self.text, self.remedy)
    }
}

/// Warnings about this configuration on this machine.
pub(super) fn warnings(config: &Config) -> Vec<StartWarning> {
    let is_root = geteuid().is_root();
    // The kernel does not hold root to it.
    let processes = getrlimit(Resource::Nproc).current.filter(|_| !is_root);
    let first = config.sandbox_ids.first().copied();
    let taken = first.filter(|id| is_root && sandbox_ids::is_taken(*id));
    let mut warnings = Vec::new();
    warnings.extend(
        processes.and_then(|most| process_limit_warning(most, config.limits.processes.into())),
    );
    warnings.extend(taken.map(|id| StartWarning {
        text: format!(
            "commands run as user {id}, by which this machine knows a user or group: they share what the kernel counts by user"
        ),
        remedy: "leave sandbox.uid out, or give an id that no user has",
    }));
    warnings
}

/// Whether a user that may have so many processes can have a few runs at a time.
fn process_limit_warning(most: u64, of_a_run: u64) -> Option<StartWarning> {
    (most < of_a_run.saturating_mul(MIN_FULL_SIZE_RUNS)).then(|| StartWarning {
        text: format!(
            "the daemon's user may have {most} processes (ulimit -u), and one run {of_a_run} (limits.processes): a few runs take those of all others"
        ),
        remedy: "raise ulimit -u (LimitNPROC= of systemd), or lower limits.processes",
    })
}

/// Processes that all runs of a user may have together: a part of the process ids of the machine,
/// and at least those of one run.
pub(super) fn max_processes_of_all_runs(of_a_run: u32) -> u64 {
    let text = fs::read_to_string("/proc/sys/kernel/pid_max").unwrap_or_default();
    let ids = text.trim().parse().unwrap_or(32_768_u64);
    (ids / PROCESS_ID_DIVISOR).max(of_a_run.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_with_few_processes_is_warned_of() {
        assert_eq!(process_limit_warning(2048, 512), None);
        let warning = process_limit_warning(2047, 512).unwrap();
        assert!(warning.text.contains("2047") && warning.text.contains("512"));
        assert!(max_processes_of_all_runs(1) >= 150);
        assert_eq!(max_processes_of_all_runs(u32::MAX), u64::from(u32::MAX));
    }
}
