//! Running commands: how long it takes, how much comes through, and what it holds.

mod bare;
mod calls;
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

use self::{calls::Scale, own_daemon::OfOurDaemon, report::Report};
use super::{daemon::Daemon, machine::Machine};
use crate::{connection, failure::Failure, global::Global, output};

/// Time of a sandboxed run of /bin/true, beside that of a bare process and of bubblewrap; and of a
/// daemon of our own, its output streams, its start, its memory and what many runs leave behind.
///
/// Starts daemons of its own. With --address, that daemon's runs are measured, and nothing else.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// Runs of each kind, in each of the two parts.
    #[arg(long, default_value = "2000", value_name = "N")]
    count: NonZeroUsize,
    /// Clients at one time in the second part.
    #[arg(long, default_value = "8", value_name = "N")]
    clients: NonZeroUsize,
    /// Output to stream, in MiB; 0 leaves this out.
    #[arg(long, default_value = "2048", value_name = "MIB")]
    stream: usize,
    /// Daemons to start; 0 leaves this out.
    #[arg(long, default_value = "10", value_name = "N")]
    starts: usize,
    /// Runs that sleep at one time; 0 leaves this out.
    #[arg(long, default_value = "1000", value_name = "N")]
    sleeping: usize,
    /// Runs one after the other, to see what they leave behind; 0 leaves this out. The design speaks
    /// of 100000.
    #[arg(long, default_value = "5000", value_name = "N")]
    sequence: usize,
}

/// Measures and prints.
pub(super) fn bench_run(global: &Global, args: &RunArgs) -> Result<(), Failure> {
    let scale = Scale { count: args.count.get(), clients: args.clients.get() };
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
    let connect = || runtime.block_on(Client::connect(address, global.options()));
    let clients: Vec<Client> = (0..scale.clients).map(|_| connect()).collect::<Result<_, _>>()?;
    let client = connect()?;
    let calls = calls::measure(&runtime, &client, &clients, scale, bubblewrap.is_ok())?;
    let of_our_daemon = match own {
        None => OfOurDaemon::default(),
        Some(daemon) => OfOurDaemon {
            stream: part(args.stream, |mib| stream::measure(&runtime, &client, daemon, mib))?,
            sequence: part(args.sequence, |runs| {
                sequence::measure(&runtime, &client, daemon, runs)
            })?,
            sleeping: part(args.sleeping, |runs| sleeping::measure(&runtime, &clients, runs))?,
            starts: part(args.starts, |count| start::measure(&runtime, &global.options(), count))?,
        },
    };
    let report = Report { machine: Machine::here(), scale, calls, of_our_daemon };
    if global.json {
        output::json(&report.to_json())
    } else {
        output::stdout(report.to_text().as_bytes())
    }
}

/// A part of the bench, unless it is left out.
fn part<T>(
    size: usize,
    measure: impl FnOnce(usize) -> Result<T, Failure>,
) -> Result<Option<T>, Failure> {
    (size > 0).then(|| measure(size)).transpose()
}
