//! Limits of the machine and of the daemon's user that all runs share, and warnings about low ones.

use std::fs;

use rustix::process::{Resource, geteuid, getrlimit};

use crate::daemon::{
    config::{Config, sandbox_ids},
    sandbox::plan::PROCESS_ID_DIVISOR,
};

/// Runs with the maximum number of processes that should be possible at the same time.
const MIN_FULL_SIZE_RUNS: u64 = 4;

/// A condition found at start that can make runs fail later.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct StartWarning {
    pub(super) text: String,
    pub(super) remedy: &'static str,
}

impl StartWarning {
    pub(super) fn log(&self) {
        tracing::warn!(remedy = self.remedy, "{}", self.text);
    }

    /// Formats the lines that `--check` prints.
    pub(super) fn report(&self) -> String {
        format!("warning: {}\n  remedy: {}\n", self.text, self.remedy)
    }
}

/// Returns warnings about this configuration on this machine.
pub(super) fn warnings(config: &Config) -> Vec<StartWarning> {
    let is_root = geteuid().is_root();
    // The kernel exempts root from RLIMIT_NPROC.
    let max_processes = getrlimit(Resource::Nproc).current.filter(|_| !is_root);
    let process_limit = max_processes
        .and_then(|limit| process_limit_warning(limit, config.limits.processes.into()));

    let sandbox_id = config.sandbox_ids.first().copied();
    let taken_id = sandbox_id.filter(|id| is_root && sandbox_ids::is_taken(*id));
    let taken_id = taken_id.map(|id| StartWarning {
        text: format!(
            "commands run as user {id}, which is a user or group of this machine: both share the kernel's per-user limits"
        ),
        remedy: "leave sandbox.uid out, or give an id that no user has",
    });

    let renamed_keys = config.renamed_keys.iter().map(|renamed| StartWarning {
        text: format!("the configuration file has an old name: {renamed}"),
        remedy: "use the new name; a later release rejects the old one",
    });
    renamed_keys.chain(process_limit).chain(taken_id).collect()
}

/// Warns if a user with at most `max_processes` cannot have a few runs at the same time.
fn process_limit_warning(max_processes: u64, processes_per_run: u64) -> Option<StartWarning> {
    let needed = processes_per_run.saturating_mul(MIN_FULL_SIZE_RUNS);
    (max_processes < needed).then(|| StartWarning {
        text: format!(
            "the daemon's user may have {max_processes} processes (ulimit -u), and one run {processes_per_run} (limits.processes): a few runs can use up all of them"
        ),
        remedy: "raise ulimit -u (LimitNPROC= of systemd), or lower limits.processes",
    })
}

/// Processes that all runs of a user may have together.
///
/// A fraction of the machine's process ids, and at least as many as one run may have.
pub(super) fn max_processes_of_all_runs(processes_per_run: u32) -> u64 {
    let text = fs::read_to_string("/proc/sys/kernel/pid_max").unwrap_or_default();
    let process_ids = text.trim().parse().unwrap_or(32_768_u64);
    (process_ids / PROCESS_ID_DIVISOR).max(processes_per_run.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn low_process_limit_gives_a_warning() {
        assert_eq!(process_limit_warning(2048, 512), None);
        let warning = process_limit_warning(2047, 512).unwrap();
        assert!(warning.text.contains("2047") && warning.text.contains("512"));
        assert!(max_processes_of_all_runs(1) >= 150);
        assert_eq!(max_processes_of_all_runs(u32::MAX), u64::from(u32::MAX));
    }
}
