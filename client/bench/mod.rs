//! `jig bench`: benchmarks on this machine against the targets in docs/performance.md.
//!
//! The measurements of a benchmark alternate in blocks within one process, so that their ratios
//! hold despite other load. Times of different processes must not be compared.

mod daemon;
mod fair;
mod files;
mod load;
mod machine;
mod patch;
mod run;
mod statistics;
mod table;
mod ways;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use crate::{exit, global::GlobalArgs, output};

/// Run benchmarks on this machine.
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
    Ways(ways::WaysArgs),
    Load(load::LoadArgs),
    #[command(hide = true)]
    Flood(fair::FloodArgs),
}

pub(crate) fn bench(global: &GlobalArgs, args: BenchArgs) -> ExitCode {
    if cfg!(debug_assertions) {
        output::note("this is a debug build: its times mean nothing; build with --release");
    }

    let result = global.reject_request_id("a benchmark makes many calls").and_then(|()| match args
        .command
    {
        BenchCommand::Run(args) => run::bench_run(global, &args),
        BenchCommand::Files(args) => files::bench_files(global, &args),
        BenchCommand::Ways(args) => ways::bench_ways(global, &args),
        BenchCommand::Load(args) => load::bench_load(global, &args),
        BenchCommand::Fair(args) => fair::bench_fair(global, &args),
        BenchCommand::Flood(args) => fair::bench_flood(global, &args),
    });

    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.report(global.json);
            ExitCode::from(exit::FAILURE)
        }
    }
}
