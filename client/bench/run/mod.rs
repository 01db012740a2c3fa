//! Benchmark of runs: latency, throughput, output streams, memory and daemon start.

mod bare;
mod calls;
mod new_workspaces;
mod own_daemon;
mod peers;
mod report;
mod sequence;
mod sleeping;
mod start;
mod stream;
mod tree;

use std::num::NonZeroUsize;

use clap::Args;
use jig::client::Client;

use self::{calls::RunScale, own_daemon::OwnDaemonReport, report::RunReport};
use super::{daemon::Daemon, machine::Machine};
use crate::{cli_error::CliError, connection, global::GlobalArgs, output};

/// Measure sandboxed runs of /bin/true against a bare process and bubblewrap.
///
/// Also measures output streams, and the daemon's start, its memory and the remains of many runs.
/// Starts its own daemons. With --address, measures only the runs of that daemon.
#[derive(Debug, Args)]
pub(crate) struct BenchRunArgs {
    /// Number of runs of each kind, with one client and with several.
    #[arg(long, default_value = "2000", value_name = "N")]
    count: NonZeroUsize,
    /// Number of concurrent clients in the second part.
    #[arg(long, default_value = "8", value_name = "N")]
    clients: NonZeroUsize,
    /// Output to stream, in MiB. 0 skips this part.
    #[arg(long, default_value = "2048", value_name = "MIB")]
    stream: usize,
    /// Number of daemons to start. 0 skips this part.
    #[arg(long, default_value = "10", value_name = "N")]
    starts: usize,
    /// Number of concurrent runs that sleep. 0 skips this part.
    #[arg(long, default_value = "1000", value_name = "N")]
    sleeping: usize,
    /// Number of workspaces to create, use and delete. 0 skips this part.
    #[arg(long, default_value = "100", value_name = "N")]
    workspaces: usize,
    /// Number of sequential runs, to detect leaks. 0 skips this part. The target is defined for
    /// 100000.
    #[arg(long, default_value = "5000", value_name = "N")]
    sequence: usize,
}

/// Runs the benchmark and prints the report.
pub(super) fn bench_run(global: &GlobalArgs, args: &BenchRunArgs) -> Result<(), CliError> {
    let scale = RunScale { count: args.count.get(), clients: args.clients.get() };
    let bubblewrap = bare::find_bubblewrap();
    if let Err(reason) = &bubblewrap {
        output::note(&format!("without bubblewrap: {reason}"));
    }

    let runtime = connection::runtime()?;
    let started;
    let (address, own) = match global.address() {
        Some(address) => (address, None),
        None => {
            started = Daemon::start()?;
            (started.address(), Some(&started))
        }
    };

    let connect = || runtime.block_on(Client::connect(address, global.client_options()));
    let clients: Vec<Client> = (0..scale.clients).map(|_| connect()).collect::<Result<_, _>>()?;
    let client = connect()?;
    let calls = calls::measure(&runtime, &client, &clients, scale, bubblewrap.is_ok())?;

    let own_daemon = match own {
        None => OwnDaemonReport::default(),
        Some(daemon) => OwnDaemonReport {
            stream: measure_unless_zero(args.stream, |mib| {
                stream::measure(&runtime, &client, daemon, mib)
            })?,
            sequence: measure_unless_zero(args.sequence, |runs| {
                sequence::measure(&runtime, &client, daemon, runs)
            })?,
            sleeping: measure_unless_zero(args.sleeping, |runs| {
                sleeping::measure(&runtime, &clients, runs)
            })?,
            starts: measure_unless_zero(args.starts, |count| {
                start::measure(&runtime, &global.client_options(), count)
            })?,
            new_workspaces: measure_unless_zero(args.workspaces, |count| {
                new_workspaces::measure(&runtime, &global.client_options(), count)
            })?,
        },
    };

    let report = RunReport { machine: Machine::detect(), scale, calls, own_daemon };
    if global.json {
        output::write_json(&report.to_json())
    } else {
        output::write_stdout(report.to_text().as_bytes())
    }
}

/// Runs a part of the benchmark, unless its size is 0.
fn measure_unless_zero<T>(
    size: usize,
    measure: impl FnOnce(usize) -> Result<T, CliError>,
) -> Result<Option<T>, CliError> {
    (size > 0).then(|| measure(size)).transpose()
}
