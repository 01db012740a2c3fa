//! Many runs one after the other: what they leave behind.

use jig::client::Client;
use tokio::runtime::Runtime;

use super::{super::daemon::Daemon, calls, tree::Held};
use crate::failure::Failure;

/// Runs before it is looked for the first time: what is kept for the next run is there then.
const WARM_UP: usize = 500;

/// What was held before the runs and after them.
#[derive(Debug)]
pub(super) struct Sequence {
    pub(super) runs: usize,
    pub(super) before: Held,
    pub(super) after: Held,
}

pub(super) fn measure(
    runtime: &Runtime,
    client: &Client,
    daemon: &Daemon,
    runs: usize,
) -> Result<Sequence, Failure> {
    let run = |count: usize| {
        runtime.block_on(async {
            for _ in 0..count {
                calls::run(client).await?;
            }
            Ok::<(), Failure>(())
        })
    };
    run(WARM_UP.min(runs))?;
    let before = Held::by_idle(runtime, client, daemon.process())?;
    run(runs)?;
    let after = Held::by_idle(runtime, client, daemon.process())?;
    Ok(Sequence { runs, before, after })
}
