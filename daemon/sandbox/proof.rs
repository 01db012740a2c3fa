//! Finding out, when the daemon starts, which isolation this host gives: by building a real sandbox
//! of each level, from the top, and running the probe in it.

use std::sync::Arc;

use super::{
    level::{Level, Refused, TRIED},
    pool::Pool,
    stage::{Failure, Stage},
    wire::Identity,
};

/// What was found for a workspace.
#[derive(Debug, Clone)]
pub(crate) struct Proven {
    /// The level in force: the highest whose probe holds, [`Level::L0`] where none does.
    pub(crate) level: Level,
    /// The levels that were tried before, in vain, highest first.
    pub(crate) refused: Vec<Refused>,
    /// As whom commands run, where they do.
    pub(crate) identity: Option<Identity>,
    /// Checks of the probe that do not hold and cost no level.
    pub(crate) left_out: Vec<&'static str>,
    /// Where none holds that the operator allows, the highest below it that would.
    pub(crate) possible: Option<Level>,
}

impl Pool {
    /// Tries the levels from the top and stays with the first that holds, unless it is below
    /// `minimum`: then the pool gives none. To be called once, before the first call.
    pub(crate) async fn prove(self: &Arc<Self>, minimum: Level) -> Proven {
        let mut refused = Vec::new();
        let mut possible = None;
        for level in TRIED {
            self.begin_at(level).await;
            match self.try_once().await {
                Ok((identity, left_out)) if level >= minimum => {
                    self.settle();
                    return Proven {
                        level,
                        refused,
                        identity: Some(identity),
                        left_out,
                        possible: None,
                    };
                }
                Ok(_) => {
                    possible = Some(level);
                    break;
                }
                Err(failure) if level >= minimum => refused.push(Refused { level, failure }),
                Err(_) => {}
            }
        }
        // Whatever is asked of it from now on fails at the highest of them, as it did here.
        let highest = refused.first().map_or(Level::L3, |refused| refused.level);
        self.begin_at(highest).await;
        self.set_failing(true);
        Proven { level: Level::L0, refused, identity: None, left_out: Vec::new(), possible }
    }

    async fn try_once(self: &Arc<Self>) -> Result<(Identity, Vec<&'static str>), Failure> {
        let left_out = self.take().await?.probe().await?;
        let unnamed = || Failure::other(Stage::Launcher, "no template has said as whom it runs");
        Ok((self.identity().ok_or_else(unnamed)?, left_out))
    }
}
