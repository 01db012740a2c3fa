//! Levels of isolation, and what the probes at start have found.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use super::{
    cgroup::MemoryAccounting,
    host_environment::HostEnvironment,
    plan::NetworkMode,
    stage::{Stage, StageFailure},
};

/// How strongly commands are isolated.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub(crate) enum IsolationLevel {
    /// Not at all: no command is run.
    #[default]
    L0,
    /// Landlock and seccomp in the daemon's own namespaces.
    L1,
    /// All namespaces, without a fresh `/proc`.
    L2,
    /// All namespaces, with a fresh `/proc`.
    L3,
}

/// What the probes at start have found for a workspace.
#[derive(Debug, Clone)]
pub(crate) struct Isolation {
    /// The level in force.
    pub(crate) level: IsolationLevel,
    /// The level below which no command is run.
    pub(crate) minimum: IsolationLevel,
    /// The workspace.
    pub(crate) workspace: String,
    /// The levels that were tried in vain, highest first.
    pub(crate) rejected: Vec<RejectedLevel>,
    /// Where no command is run, the highest level below the minimum that could be given.
    pub(crate) best_below_minimum: Option<IsolationLevel>,
    /// Checks of the probe that do not hold and cost no level.
    pub(crate) waived_checks: Vec<&'static str>,
    /// What the daemon runs in.
    pub(crate) host_environment: HostEnvironment,
    /// Version of Landlock that the kernel offers; 0 where there is none.
    pub(crate) landlock_abi: u32,
    /// Whether debuggers work inside a run.
    pub(crate) allow_ptrace: bool,
    /// Network that commands have.
    pub(crate) network: NetworkMode,
    /// How their memory is held.
    pub(crate) memory_accounting: MemoryAccounting,
    /// Whether the home directory is the workspace's, and not the run's.
    pub(crate) has_persistent_home: bool,
    /// Paths of the workspace that the operator protects.
    pub(crate) protected_paths: Vec<String>,
}

/// A level that this host does not give.
#[derive(Debug, Clone)]
pub(crate) struct RejectedLevel {
    /// The level.
    pub(crate) level: IsolationLevel,
    /// The first step towards it that failed.
    pub(crate) failure: StageFailure,
}

/// The levels at which commands are run, highest first: the order in which they are tried.
pub(crate) const LEVELS_HIGHEST_FIRST: [IsolationLevel; 3] =
    [IsolationLevel::L3, IsolationLevel::L2, IsolationLevel::L1];

impl IsolationLevel {
    /// Whether commands get namespaces of their own.
    pub(crate) fn has_namespaces(self) -> bool {
        self >= Self::L2
    }

    /// Whether the next run may get the network namespace of the one before it. Where `/proc/sys`
    /// is not the daemon's to write, what a run leaves in it cannot be kept from the next.
    pub(super) fn reuses_network_namespaces(self) -> bool {
        self != Self::L2
    }
}

impl Isolation {
    /// Whether commands are run.
    pub(crate) fn is_ready(&self) -> bool {
        self.level >= self.minimum && self.level > IsolationLevel::L0
    }

    /// Why no command is run, where none is: what failed first at the highest level.
    pub(crate) fn failure(&self) -> Option<&StageFailure> {
        let first = self.rejected.first().filter(|_| !self.is_ready());
        first.map(|refused| &refused.failure)
    }

    /// What to change so that commands are run, or get a higher level. Nothing where they have the
    /// highest.
    pub(crate) fn next_step(&self) -> Option<String> {
        let mut stages = self.rejected.iter().map(|refused| refused.failure.stage);
        // What keeps commands from being run at all comes before what keeps a level from them.
        let owner = stages.clone().find(|stage| *stage == Stage::WorkspaceOwner);
        let stage = owner.filter(|_| self.best_below_minimum.is_none()).or(stages.next())?;
        let step = self.host_environment.remedy(stage);
        let is_protected = |refused: &RejectedLevel| refused.failure.stage == Stage::ProtectedPaths;
        Some(if self.rejected.iter().any(is_protected) {
            let remedy = Stage::ProtectedPaths.remedy();
            format!("{step}; or for {}: {remedy}", IsolationLevel::L1)
        } else {
            step
        })
    }

    /// The flags with which a daemon would run commands here, where none is run and some would do.
    pub(crate) fn suggested_flags(&self) -> Option<String> {
        if self.is_ready() {
            return None;
        }
        if let Some(possible) = self.best_below_minimum {
            return Some(format!("--minimum-level {possible}"));
        }
        let mut stages = self.rejected.iter().map(|refused| refused.failure.stage);
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

    /// One line: what was found, what commands get, and what gives more.
    pub(crate) fn summary(&self) -> Option<String> {
        let (more, found) = (self.next_step()?, &self.host_environment);
        let highest = IsolationLevel::L3;
        Some(match (self.is_ready(), self.best_below_minimum) {
            (true, _) => {
                format!("found: {found}; commands get {}; for {highest}: {more}", self.level)
            }
            (false, Some(possible)) => format!(
                "found: {found}; no command is run, {possible} could be given and {} is the minimum; to run them: --minimum-level {possible}; for {highest}: {more}",
                self.minimum
            ),
            (false, None) => format!("found: {found}; no command is run; to run them: {more}"),
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
