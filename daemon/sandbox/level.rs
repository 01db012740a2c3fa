//! Isolation levels, and the result of probing for them at startup.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use super::{
    cgroup::MemoryAccounting,
    host_environment::HostEnvironment,
    plan::{NetworkMode, PersistentDirectories},
    stage::{Stage, StageFailure},
};

#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub(crate) enum IsolationLevel {
    /// No isolation: commands are refused.
    #[default]
    L0,
    /// Landlock and seccomp in the daemon's own namespaces.
    L1,
    /// All namespaces, with the daemon's `/proc`.
    L2,
    /// All namespaces, with a fresh `/proc`.
    L3,
}

/// The isolation of one workspace, as probed at startup.
#[derive(Debug, Clone)]
pub(crate) struct Isolation {
    pub(crate) level: IsolationLevel,
    /// The minimum isolation level: below it, commands are refused.
    pub(crate) minimum: IsolationLevel,
    pub(crate) workspace: String,
    /// The higher levels that failed, highest first.
    pub(crate) failed_levels: Vec<FailedLevel>,
    /// The highest level that this host supports below the minimum, if commands are refused.
    pub(crate) best_below_minimum: Option<IsolationLevel>,
    /// Failed checks of the probe that do not lower the level.
    pub(crate) waived_checks: Vec<&'static str>,
    pub(crate) host_environment: HostEnvironment,
    /// Landlock ABI version of the kernel; 0 without Landlock.
    pub(crate) landlock_abi: u32,
    /// Whether commands may use ptrace(2) within their run.
    pub(crate) allow_ptrace: bool,
    pub(crate) network: NetworkMode,
    pub(crate) memory_accounting: MemoryAccounting,
    /// Directories that all runs of the workspace share.
    pub(crate) persistent: PersistentDirectories,
    /// Paths of the workspace that commands cannot change.
    pub(crate) protected_paths: Vec<String>,
}

#[derive(Debug, Clone)]
pub(crate) struct FailedLevel {
    pub(crate) level: IsolationLevel,
    pub(crate) failure: StageFailure,
}

/// The levels at which commands run, in the order in which they are tried.
pub(crate) const LEVELS_HIGHEST_FIRST: [IsolationLevel; 3] =
    [IsolationLevel::L3, IsolationLevel::L2, IsolationLevel::L1];

impl IsolationLevel {
    pub(crate) fn has_namespaces(self) -> bool {
        self >= Self::L2
    }

    /// Whether consecutive runs of one caller may use one sandbox.
    pub(super) fn recycles_sandboxes(self) -> bool {
        self == Self::L3
    }

    /// Whether consecutive runs may use one network namespace. At L2 the template cannot write
    /// `/proc/sys`, so it cannot set `NETWORK_SYSCTLS`, with which no state of a run remains for
    /// the next.
    pub(super) fn reuses_network_namespaces(self) -> bool {
        self != Self::L2
    }
}

impl Isolation {
    pub(crate) fn is_ready(&self) -> bool {
        self.level >= self.minimum && self.level > IsolationLevel::L0
    }

    /// Why commands are refused, if they are: the first failure at the highest level.
    pub(crate) fn failure(&self) -> Option<&StageFailure> {
        let first = self.failed_levels.first().filter(|_| !self.is_ready());
        first.map(|failed| &failed.failure)
    }

    /// How to make commands run, or how to get a higher level. `None` at the highest level.
    pub(crate) fn next_step(&self) -> Option<String> {
        let mut stages = self.failed_levels.iter().map(|failed| failed.failure.stage);
        // An obstacle to running commands at all comes before an obstacle to a higher level.
        let owner = stages.clone().find(|stage| *stage == Stage::WorkspaceOwner);
        let stage = owner.filter(|_| self.best_below_minimum.is_none()).or(stages.next())?;

        let step = self.host_environment.remedy(stage);
        let is_protected = |failed: &FailedLevel| failed.failure.stage == Stage::ProtectedPaths;
        Some(if self.failed_levels.iter().any(is_protected) {
            let remedy = Stage::ProtectedPaths.remedy();
            format!("{step}; or for {}: {remedy}", IsolationLevel::L1)
        } else {
            step
        })
    }

    /// The flags with which the daemon would run commands here, if it refuses them and flags can
    /// help.
    pub(crate) fn suggested_flags(&self) -> Option<String> {
        if self.is_ready() {
            return None;
        }
        if let Some(supported) = self.best_below_minimum {
            return Some(format!("--minimum-level {supported}"));
        }

        let mut stages = self.failed_levels.iter().map(|failed| failed.failure.stage);
        let is_owner = |stage| matches!(stage, Stage::WorkspaceOwner | Stage::MapOwner);
        let stage = stages.find(|stage| is_owner(*stage))?;
        let needs_lower_level =
            stage == Stage::WorkspaceOwner && !self.host_environment.is_unrestricted();
        Some(if needs_lower_level {
            format!("--chown-workspace --minimum-level {}", IsolationLevel::L1)
        } else {
            "--chown-workspace".to_owned()
        })
    }

    /// One line: the host environment, the level, and how to get a higher one. `None` at the
    /// highest level.
    pub(crate) fn summary(&self) -> Option<String> {
        let (more, found) = (self.next_step()?, &self.host_environment);
        let highest = IsolationLevel::L3;
        Some(match (self.is_ready(), self.best_below_minimum) {
            (true, _) => {
                format!("found: {found}; commands get {}; for {highest}: {more}", self.level)
            }
            (false, Some(supported)) => format!(
                "found: {found}. No command runs: this host supports {supported}, and the minimum is {}. Start the daemon with --minimum-level {supported}, or to get {highest}: {more}",
                self.minimum
            ),
            (false, None) => format!("found: {found}. No command runs. To run commands: {more}"),
        })
    }
}

impl fmt::Display for IsolationLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::L0 => "L0",
            Self::L1 => "L1",
            Self::L2 => "L2",
            Self::L3 => "L3",
        })
    }
}

impl FromStr for IsolationLevel {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "L0" => Ok(Self::L0),
            "L1" => Ok(Self::L1),
            "L2" => Ok(Self::L2),
            "L3" => Ok(Self::L3),
            _ => Err(()),
        }
    }
}
