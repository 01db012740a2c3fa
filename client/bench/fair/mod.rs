//! Two callers: how much longer one waits beside the other, who calls as much as he can. They have
//! keys of their own, so that the daemon can tell them apart.

mod case;
mod flood;
mod report;

use std::{
    fs,
    num::NonZeroUsize,
    time::{Duration, Instant},
};

use clap::Args;
use jig::client::{Client, Options};
use tokio::runtime::Runtime;

pub(super) use self::flood::{FloodArgs, bench_flood};
use self::{
    case::FairBenchCase,
    flood::Flood,
    report::{FairReport, FloodMeasurement},
};
use super::{daemon::Daemon, machine::Machine, statistics::Samples};
use crate::{cli_error::CliError, connection, global::GlobalArgs, output};

/// What the caller calls whose times are taken.
const VICTIM_CASES: [FairBenchCase; 3] =
    [FairBenchCase::Run, FairBenchCase::ReadFile, FairBenchCase::ListDirectory];
/// What the other one floods the daemon with.
const FLOOD_CASES: [FairBenchCase; 4] = [
    FairBenchCase::Run,
    FairBenchCase::Search,
    FairBenchCase::ListFiles,
    FairBenchCase::CreateDirectory,
];
/// Directories of the workspace, and files in each: a search lasts some ten milliseconds.
const DIRECTORIES: usize = 100;
const FILES_PER_DIRECTORY: usize = 20;
/// Bytes of each file.
const FILE_BYTES: usize = 4096;
/// Turns with the other caller and without him.
const ROUNDS: usize = 4;
/// How long the flood rises before it is measured beside it.
const FLOOD_WARM_UP: Duration = Duration::from_millis(500);
/// Calls of each kind before any is measured.
const WARM_UP_CALLS: usize = 20;

/// How much longer one caller waits while another calls as much as he can.
///
/// Starts a daemon of its own, with two keys.
#[derive(Debug, Args)]
pub(crate) struct FairArgs {
    /// Calls of each kind, alone and beside each kind of flood.
    #[arg(long, default_value = "400", value_name = "N")]
    count: NonZeroUsize,
    /// Calls that the other one makes at one time.
    #[arg(long, default_value = "256", value_name = "N")]
    streams: NonZeroUsize,
}

/// Measures and prints.
pub(super) fn bench_fair(global: &GlobalArgs, args: &FairArgs) -> Result<(), CliError> {
    let (daemon, [victim, flooder]) = Daemon::start_with_keys(["victim", "flooder"])?;
    let workspace = daemon.workspace();
    for directory in 0..DIRECTORIES {
        let directory = workspace.join(format!("tree/{directory}"));
        fs::create_dir_all(&directory).map_err(CliError::system)?;
        for file in 0..FILES_PER_DIRECTORY {
            let content = vec![b'x'; FILE_BYTES];
            fs::write(directory.join(file.to_string()), content).map_err(CliError::system)?;
        }
    }
    case::create_test_file(&workspace).map_err(CliError::system)?;
    let runtime = connection::runtime()?;
    let options = Options { key: Some(victim), ..Options::default() };
    let client = runtime.block_on(Client::connect(daemon.address(), options))?;
    let mut measured = Vec::new();
    for flood in FLOOD_CASES {
        let start = || Flood::start(daemon.address(), &flooder, flood, args.streams.get());
        measured.extend(measure_beside(&runtime, &client, flood, args.count.get(), start)?);
    }
    let report = FairReport {
        machine: Machine::detect(),
        streams: args.streams.get(),
        count: args.count.get(),
        measurements: measured,
    };
    if global.json {
        output::write_json(&report.to_json())
    } else {
        output::write_stdout(report.to_text().as_bytes())
    }
}

/// Measures beside one kind of flood, which `start` begins.
fn measure_beside(
    runtime: &Runtime,
    client: &Client,
    flood: FairBenchCase,
    count: usize,
    start: impl Fn() -> Result<Flood, CliError>,
) -> Result<Vec<FloodMeasurement>, CliError> {
    let calls = |kind: FairBenchCase, count: usize| {
        runtime.block_on(async {
            let mut times = Vec::with_capacity(count);
            for _ in 0..count {
                let begun = Instant::now();
                kind.call(client).await?;
                times.push(begun.elapsed());
            }
            Ok::<_, CliError>(times)
        })
    };
    let finished = || {
        let counts = runtime.block_on(client.get_info())?.counts;
        Ok::<_, CliError>(counts.unwrap_or_default().calls_finished)
    };
    let in_round = count.div_ceil(ROUNDS);
    calls(flood, WARM_UP_CALLS)?;
    let (mut own, mut rate) = (Vec::new(), Vec::new());
    let mut times = VICTIM_CASES.map(|kind| (kind, Vec::new(), Vec::new()));
    for _ in 0..ROUNDS {
        own.extend(calls(flood, in_round)?);
        for (kind, alone, _) in &mut times {
            calls(*kind, WARM_UP_CALLS)?;
            alone.extend(calls(*kind, in_round)?);
        }
        let running = start()?;
        std::thread::sleep(FLOOD_WARM_UP);
        let (before, begun) = (finished()?, Instant::now());
        for (kind, _, beside) in &mut times {
            beside.extend(calls(*kind, in_round)?);
        }
        let victims = (in_round * VICTIM_CASES.len()) as u64;
        let ended = finished()?.saturating_sub(before).saturating_sub(victims);
        rate.push(ended as f64 / begun.elapsed().as_secs_f64());
        drop(running);
        wait_until_idle(runtime, client)?;
    }
    let own = Samples::new(own);
    let rate = rate.iter().sum::<f64>() / rate.len() as f64;
    let measured = times.into_iter().map(|(victim, alone, beside)| FloodMeasurement {
        flood,
        victim,
        alone: Samples::new(alone),
        beside_flood: Samples::new(beside),
        flood_alone: own.clone(),
        flood_calls_per_second: rate,
    });
    Ok(measured.collect())
}

/// Waits until what a flood has left has ended.
fn wait_until_idle(runtime: &Runtime, client: &Client) -> Result<(), CliError> {
    loop {
        let counts = runtime.block_on(client.get_info())?.counts;
        let counts = counts.unwrap_or_default();
        if counts.calls_active == 0 && counts.runs_active == 0 {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
