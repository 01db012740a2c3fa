//! Detects leaks: usage of the daemon before and after many runs.

use jig::client::Client;
use tokio::runtime::Runtime;

use super::{
    super::daemon::Daemon,
    calls::{self, RunBenchCase},
    tree::ProcessTreeUsage,
};
use crate::cli_error::CliError;

/// Unmeasured runs, after which pools and caches are filled.
const WARM_UP_RUNS: usize = 500;

/// Usage before and after the runs.
#[derive(Debug)]
pub(super) struct SequenceUsage {
    pub(super) runs: usize,
    pub(super) before: ProcessTreeUsage,
    pub(super) after: ProcessTreeUsage,
}

pub(super) fn measure(
    runtime: &Runtime,
    client: &Client,
    daemon: &Daemon,
    runs: usize,
) -> Result<SequenceUsage, CliError> {
    let run = |count: usize| {
        runtime.block_on(async {
            for _ in 0..count {
                calls::run(client, calls::request(RunBenchCase::Jig)).await?;
            }
            Ok::<(), CliError>(())
        })
    };

    run(WARM_UP_RUNS.min(runs))?;
    let before = ProcessTreeUsage::measure_idle(runtime, client, daemon.process())?;
    run(runs)?;
    let after = ProcessTreeUsage::measure_idle(runtime, client, daemon.process())?;
    Ok(SequenceUsage { runs, before, after })
}
