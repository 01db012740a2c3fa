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
}

impl Pool {
    /// Tries the levels from the top, none below `minimum`, and stays with the first that holds.
    /// To be called once, before the first call.
    pub(crate) async fn prove(self: &Arc<Self>, minimum: Level) -> Proven {
        let mut refused = Vec::new();
        for level in TRIED.into_iter().filter(|level| *level >= minimum) {
            self.begin_at(level).await;
            match self.try_once().await {
                Ok(identity) => {
                    self.fill();
                    return Proven {
                        level,
                        refused,
                        identity: Some(identity),
                    };
                }
                Err(failure) => refused.push(Refused { level, failure }),
            }
        }
        // Whatever is asked of it from now on fails at the highest of them, as it did here.
        let highest = refused.first().map_or(Level::L3, |refused| refused.level);
        self.begin_at(highest).await;
        Proven {
            level: Level::L0,
            refused,
            identity: None,
        }
    }

    async fn try_once(self: &Arc<Self>) -> Result<Identity, Failure> {
        self.take().await?.probe().await?;
        self.identity()
            .ok_or_else(|| Failure::other(Stage::Launcher, "no template has said as whom it runs"))
    }
}
