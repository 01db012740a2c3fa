//! Fairness benchmark: latency of one client while another saturates the daemon. Each has its own
//! key, so that the daemon can distinguish them.

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

/// Calls of the measured client.
const VICTIM_CASES: [FairBenchCase; 3] =
    [FairBenchCase::Run, FairBenchCase::ReadFile, FairBenchCase::ListDirectory];
/// Calls of the client that saturates the daemon.
const FLOOD_CASES: [FairBenchCase; 4] = [
    FairBenchCase::Run,
    FairBenchCase::Search,
    FairBenchCase::ListFiles,
    FairBenchCase::CreateDirectory,
];
/// Size of the tree in the workspace. A search takes some ten milliseconds.
const DIRECTORY_COUNT: usize = 100;
const FILES_PER_DIRECTORY: usize = 20;
/// Size of each file.
const FILE_BYTES: usize = 4096;
/// Rounds without and with the flood.
const ROUND_COUNT: usize = 4;
/// Time for the flood to build up before measuring.
const FLOOD_WARM_UP: Duration = Duration::from_millis(500);
/// Unmeasured calls of each kind.
const WARM_UP_CALLS: usize = 20;

/// Measure the latency of one client while another saturates the daemon.
///
/// Starts a daemon with two keys.
#[derive(Debug, Args)]
pub(crate) struct FairArgs {
    /// Number of calls of each kind, alone and beside each kind of flood.
    #[arg(long, default_value = "400", value_name = "N")]
    count: NonZeroUsize,
    /// Number of concurrent calls of the flood.
    #[arg(long, default_value = "256", value_name = "N")]
    streams: NonZeroUsize,
}

/// Runs the benchmark and prints the report.
pub(super) fn bench_fair(global: &GlobalArgs, args: &FairArgs) -> Result<(), CliError> {
    let (daemon, [victim_key, flooder_key]) = Daemon::start_with_keys(["victim", "flooder"])?;
    let workspace = daemon.workspace();

    for directory in 0..DIRECTORY_COUNT {
        let directory = workspace.join(format!("tree/{directory}"));
        fs::create_dir_all(&directory).map_err(CliError::system)?;
        for file in 0..FILES_PER_DIRECTORY {
            let content = vec![b'x'; FILE_BYTES];
            fs::write(directory.join(file.to_string()), content).map_err(CliError::system)?;
        }
    }
    case::create_test_file(&workspace).map_err(CliError::system)?;

    let runtime = connection::runtime()?;
    let options = Options { key: Some(victim_key), ..Options::default() };
    let client = runtime.block_on(Client::connect(daemon.address(), options))?;

    let mut measurements = Vec::new();
    for flood in FLOOD_CASES {
        let start = || Flood::start(daemon.address(), &flooder_key, flood, args.streams.get());
        measurements.extend(measure_beside(&runtime, &client, flood, args.count.get(), start)?);
    }
    let report = FairReport {
        machine: Machine::detect(),
        streams: args.streams.get(),
        count: args.count.get(),
        measurements,
    };

    if global.json {
        output::write_json(&report.to_json())
    } else {
        output::write_stdout(report.to_text().as_bytes())
    }
}

/// Measures all calls beside one kind of flood, which `start` starts.
fn measure_beside(
    runtime: &Runtime,
    client: &Client,
    flood: FairBenchCase,
    count: usize,
    start: impl Fn() -> Result<Flood, CliError>,
) -> Result<Vec<FloodMeasurement>, CliError> {
    let time_calls = |kind: FairBenchCase, count: usize| {
        runtime.block_on(async {
            let mut times = Vec::with_capacity(count);
            for _ in 0..count {
                let start = Instant::now();
                kind.call(client).await?;
                times.push(start.elapsed());
            }
            Ok::<_, CliError>(times)
        })
    };
    let calls_finished = || {
        let counts = runtime.block_on(client.get_info())?.counts;
        Ok::<_, CliError>(counts.unwrap_or_default().calls_finished)
    };
    let calls_per_round = count.div_ceil(ROUND_COUNT);

    time_calls(flood, WARM_UP_CALLS)?;
    let (mut flood_alone, mut rates) = (Vec::new(), Vec::new());
    let mut times = VICTIM_CASES.map(|kind| (kind, Vec::new(), Vec::new()));
    for _ in 0..ROUND_COUNT {
        flood_alone.extend(time_calls(flood, calls_per_round)?);
        for (kind, alone, _) in &mut times {
            time_calls(*kind, WARM_UP_CALLS)?;
            alone.extend(time_calls(*kind, calls_per_round)?);
        }

        let running_flood = start()?;
        std::thread::sleep(FLOOD_WARM_UP);
        let (finished_before, begin) = (calls_finished()?, Instant::now());
        for (kind, _, beside_flood) in &mut times {
            beside_flood.extend(time_calls(*kind, calls_per_round)?);
        }
        let victim_calls = (calls_per_round * VICTIM_CASES.len()) as u64;
        let finished = calls_finished()?.saturating_sub(finished_before);
        let flood_calls = finished.saturating_sub(victim_calls);
        rates.push(flood_calls as f64 / begin.elapsed().as_secs_f64());
        drop(running_flood);
        wait_until_idle(runtime, client)?;
    }

    let flood_alone = Samples::new(flood_alone);
    let flood_calls_per_second = rates.iter().sum::<f64>() / rates.len() as f64;
    let measurements = times.into_iter().map(|(victim, alone, beside_flood)| FloodMeasurement {
        flood,
        victim,
        alone: Samples::new(alone),
        beside_flood: Samples::new(beside_flood),
        flood_alone: flood_alone.clone(),
        flood_calls_per_second,
    });
    Ok(measurements.collect())
}

/// Waits until the remaining calls of a flood have ended.
fn wait_until_idle(runtime: &Runtime, client: &Client) -> Result<(), CliError> {
    loop {
        let counts = runtime.block_on(client.get_info())?.counts.unwrap_or_default();
        if counts.calls_running == 0 && counts.runs_active == 0 {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
