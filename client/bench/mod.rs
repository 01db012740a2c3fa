//! `jig bench`: measures on this machine what the design promises. The measurements of a bench
//! alternate in blocks within one run of the program, so that their ratios hold whatever else the
//! machine does meanwhile; times of different runs of it must not be compared.

mod bare;
mod daemon;
mod files;
mod machine;
mod measure;
mod patch;
mod report;
mod statistics;

use std::{num::NonZeroUsize, process::ExitCode};

use clap::{Args, Subcommand};

use crate::{connection, exit, failure::Failure, global::Global, output};
use measure::Scale;

/// Measure this machine.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Run(RunArgs),
    Files(files::FilesArgs),
}

/// Time of a sandboxed run of /bin/true, beside that of a bare process and of bubblewrap.
///
/// Starts a daemon of its own, unless --address names one.
#[derive(Debug, Args)]
struct RunArgs {
    /// Runs of each kind, in each of the two parts.
    #[arg(long, default_value = "2000", value_name = "N")]
    count: NonZeroUsize,
    /// Clients at one time in the second part.
    #[arg(long, default_value = "8", value_name = "N")]
    clients: NonZeroUsize,
}

pub(crate) fn bench(global: &Global, args: BenchArgs) -> ExitCode {
    let measured = match args.what {
        What::Run(args) => bench_run(global, &args),
        What::Files(args) => files::bench_files(global, &args),
    };
    match measured {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.report(global.json);
            ExitCode::from(exit::FAILURE)
        }
    }
}

fn bench_run(global: &Global, args: &RunArgs) -> Result<(), Failure> {
    let scale = Scale {
        count: args.count.get(),
        clients: args.clients.get(),
    };
    if cfg!(debug_assertions) {
        output::note("a debug build: its times say nothing; build with --release");
    }
    let bubblewrap = bare::find_bubblewrap();
    if let Err(reason) = &bubblewrap {
        output::note(&format!("without bubblewrap: {reason}"));
    }
    let own;
    let address = match global.address() {
        Some(address) => address,
        None => {
            own = daemon::Daemon::start()?;
            own.address()
        }
    };
    let runtime = connection::runtime()?;
    let measured = measure::measure(
        &runtime,
        address,
        &global.options(),
        scale,
        bubblewrap.is_ok(),
    )?;
    let report = report::Report {
        machine: machine::Machine::here(),
        scale,
        measured,
    };
    if global.json {
        output::json(&report.to_json())
    } else {
        output::stdout(report.to_text().as_bytes())
    }
}
