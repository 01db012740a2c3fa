//! `jig bench`: measures on this machine what the design promises. The measurements of a bench
//! alternate in blocks within one run of the program, so that their ratios hold whatever else the
//! machine does meanwhile; times of different runs of it must not be compared.

mod daemon;
mod fair;
mod files;
mod machine;
mod patch;
mod run;
mod statistics;
mod table;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::{exit, global::GlobalArgs, output};

/// Measure this machine.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    Run(run::BenchRunArgs),
    Files(files::FilesArgs),
    Fair(fair::FairArgs),
    #[command(hide = true)]
    Flood(fair::FloodArgs),
}

pub(crate) fn bench(global: &GlobalArgs, args: BenchArgs) -> ExitCode {
    if cfg!(debug_assertions) {
        output::note("a debug build: its times say nothing; build with --release");
    }
    let one_call = global.reject_request_id("a benchmark makes many calls");
    let measured = one_call.and_then(|()| match args.command {
        BenchCommand::Run(args) => run::bench_run(global, &args),
        BenchCommand::Files(args) => files::bench_files(global, &args),
        BenchCommand::Fair(args) => fair::bench_fair(global, &args),
        BenchCommand::Flood(args) => fair::bench_flood(global, &args),
    });
    match measured {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.report(global.json);
            ExitCode::from(exit::FAILURE)
        }
    }
}
