//! Finding out, when the daemon starts, which isolation this host gives: by building a real sandbox
//! of each level, from the top, and running the probe in it.

use std::sync::Arc;

use super::{
    level::{IsolationLevel, LEVELS_HIGHEST_FIRST, RejectedLevel},
    pool::SandboxPool,
    stage::{Stage, StageFailure},
    wire::SandboxIdentity,
};

/// What was found for a workspace.
#[derive(Debug, Clone)]
pub(crate) struct ProbedIsolation {
    /// The level in force: the highest whose probe holds, [`Level::L0`] where none does.
    pub(crate) level: IsolationLevel,
    /// The levels that were tried before, in vain, highest first.
    pub(crate) rejected: Vec<RejectedLevel>,
    /// As whom commands run, where they do.
    pub(crate) identity: Option<SandboxIdentity>,
    /// Checks of the probe that do not hold and cost no level.
    pub(crate) waived_checks: Vec<&'static str>,
    /// Where none holds that the operator allows, the highest below it that would.
    pub(crate) best_below_minimum: Option<IsolationLevel>,
}

impl SandboxPool {
    /// Tries the levels from the top and stays with the first that holds, unless it is below
    /// `minimum`: then the pool gives none. To be called once, before the first call.
    pub(crate) async fn probe_levels(self: &Arc<Self>, minimum: IsolationLevel) -> ProbedIsolation {
        let mut refused = Vec::new();
        let mut possible = None;
        for level in LEVELS_HIGHEST_FIRST {
            self.restart_at_level(level).await;
            match self.probe_once().await {
                Ok((identity, left_out)) if level >= minimum => {
                    self.settle_level();
                    return ProbedIsolation {
                        level,
                        rejected: refused,
                        identity: Some(identity),
                        waived_checks: left_out,
                        best_below_minimum: None,
                    };
                }
                Ok(_) => {
                    possible = Some(level);
                    break;
                }
                Err(failure) if level >= minimum => refused.push(RejectedLevel { level, failure }),
                Err(_) => {}
            }
        }
        // Whatever is asked of it from now on fails at the highest of them, as it did here.
        let highest = refused.first().map_or(IsolationLevel::L3, |refused| refused.level);
        self.restart_at_level(highest).await;
        self.set_failing(true);
        ProbedIsolation {
            level: IsolationLevel::L0,
            rejected: refused,
            identity: None,
            waived_checks: Vec::new(),
            best_below_minimum: possible,
        }
    }

    async fn probe_once(
        self: &Arc<Self>,
    ) -> Result<(SandboxIdentity, Vec<&'static str>), StageFailure> {
        let left_out = self.take_idle().await?.probe().await?;
        let unnamed =
            || StageFailure::other(Stage::Launcher, "no template has said as whom it runs");
        Ok((self.identity().ok_or_else(unnamed)?, left_out))
    }
}
