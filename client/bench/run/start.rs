//! Measures the start of daemons, until the health check returns SERVING after the isolation check.

use std::time::Instant;

use jig::client::{Client, Options, ServingStatus};
use tokio::runtime::Runtime;

use super::{
    super::{daemon::Daemon, statistics::Samples},
    tree::ProcessTreeUsage,
};
use crate::cli_error::CliError;

/// Results for daemons that were started one after the other.
#[derive(Debug)]
pub(super) struct DaemonStarts {
    /// Time from the start of the process to SERVING.
    pub(super) times: Samples,
    /// Maximum memory of an idle daemon without earlier calls, all processes together.
    pub(super) idle_bytes: u64,
}

pub(super) fn measure(
    runtime: &Runtime,
    options: &Options,
    count: usize,
) -> Result<DaemonStarts, CliError> {
    let mut times = Vec::new();
    let mut idle_bytes = 0;
    for _ in 0..count {
        let start = Instant::now();
        let daemon = Daemon::start()?;
        let client = runtime.block_on(Client::connect(daemon.address(), options.clone()))?;
        let status = runtime.block_on(client.check_health(""))?;
        times.push(start.elapsed());

        if status != ServingStatus::Serving {
            return Err(CliError::system(format_args!("the daemon is {}", status.name())));
        }

        let usage = ProcessTreeUsage::measure_idle(runtime, &client, daemon.process())?;
        idle_bytes = usage.bytes.max(idle_bytes);
    }
    Ok(DaemonStarts { times: Samples::new(times), idle_bytes })
}
