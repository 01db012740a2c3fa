//! Detects at startup which isolation level this host supports: builds a real sandbox of each
//! level, highest first, and runs the probe in it.

use std::sync::Arc;

use super::{
    level::{FailedLevel, IsolationLevel, LEVELS_HIGHEST_FIRST},
    pool::SandboxPool,
    stage::{Stage, StageFailure},
    wire::SandboxIdentity,
};

#[derive(Debug, Clone)]
pub(crate) struct ProbedIsolation {
    /// The level in force: the highest that passes the probe, or [`IsolationLevel::L0`] if none
    /// does.
    pub(crate) level: IsolationLevel,
    /// The higher levels that failed, highest first.
    pub(crate) failed_levels: Vec<FailedLevel>,
    /// The user that commands run as; `None` at L0.
    pub(crate) identity: Option<SandboxIdentity>,
    /// Failed checks of the probe that do not lower the level.
    pub(crate) waived_checks: Vec<&'static str>,
    /// The highest level that passes but is below the operator's minimum, if no allowed level
    /// passes.
    pub(crate) best_below_minimum: Option<IsolationLevel>,
}

impl SandboxPool {
    /// Tries the levels from the highest down and keeps the first that passes.
    ///
    /// If that level is below `minimum`, the pool gives no sandboxes. Called once, before the first
    /// call.
    pub(crate) async fn probe_levels(self: &Arc<Self>, minimum: IsolationLevel) -> ProbedIsolation {
        let mut failed_levels = Vec::new();
        let mut below_minimum = None;

        for level in LEVELS_HIGHEST_FIRST {
            self.restart_at_level(level).await;
            match self.probe_once().await {
                Ok((identity, waived)) if level >= minimum => {
                    self.decide_level();
                    return ProbedIsolation {
                        level,
                        failed_levels,
                        identity: Some(identity),
                        waived_checks: waived,
                        best_below_minimum: None,
                    };
                }
                Ok(_) => {
                    below_minimum = Some(level);
                    break;
                }
                Err(failure) if level >= minimum => {
                    failed_levels.push(FailedLevel { level, failure })
                }
                Err(_) => {}
            }
        }

        // Later requests for a sandbox fail at the highest failed level, with the same error as
        // here.
        let highest = failed_levels.first().map_or(IsolationLevel::L3, |highest| highest.level);
        self.restart_at_level(highest).await;
        self.set_failing(true);
        ProbedIsolation {
            level: IsolationLevel::L0,
            failed_levels,
            identity: None,
            waived_checks: Vec::new(),
            best_below_minimum: below_minimum,
        }
    }

    async fn probe_once(
        self: &Arc<Self>,
    ) -> Result<(SandboxIdentity, Vec<&'static str>), StageFailure> {
        let waived = self.take_idle(|_| true).await?.probe().await?;
        let unknown_user =
            || StageFailure::other(Stage::Launcher, "no template has reported its user");
        Ok((self.identity().ok_or_else(unknown_user)?, waived))
    }
}
