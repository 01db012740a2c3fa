//! Measures latency with one client and throughput with several. The kinds of runs alternate in
//! blocks, so that other load on the machine affects all alike.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use jig::{
    api::v1::{Outcome, RunRequest},
    client::Client,
};
use tokio::{runtime::Runtime, task::JoinSet};

use super::{
    super::statistics::Samples,
    bare::{BARE_PROGRAM, SHELL_COMMAND, spawn_bare, spawn_bubblewrap, spawn_shell},
};
use crate::cli_error::CliError;

/// Runs per block: enough to warm caches for the kind, few enough that the machine's load stays the
/// same.
const RUNS_PER_BLOCK: usize = 50;
/// Rounds per kind with several clients.
const ROUND_COUNT: usize = 5;

/// Size of the benchmark.
#[derive(Debug, Clone, Copy)]
pub(super) struct RunScale {
    /// Runs of each kind in each part.
    pub(super) count: usize,
    /// Number of concurrent clients in the second part.
    pub(super) clients: usize,
}

/// Kind of run. Shells run `true`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunBenchCase {
    /// A process without isolation.
    Bare,
    /// A sandboxed run by the daemon.
    Jig,
    /// A shell without isolation.
    BareShell,
    /// The same command by the daemon.
    JigShell,
    /// A process in a sandbox of bubblewrap.
    Bubblewrap,
    /// A health check of the daemon: the cost of a call that does nothing.
    HealthCheck,
}

/// Results per kind.
#[derive(Debug)]
pub(super) struct RunMeasurements {
    /// Isolation level of the daemon's runs.
    pub(super) isolation: String,
    /// Latency with one client.
    pub(super) times: Vec<(RunBenchCase, Samples)>,
    /// Runs per second with several clients.
    pub(super) rates: Vec<(RunBenchCase, f64)>,
}

impl RunMeasurements {
    pub(super) fn times_of(&self, kind: RunBenchCase) -> Option<&Samples> {
        let entry = self.times.iter().find(|(of, _)| *of == kind);
        entry.map(|(_, samples)| samples)
    }

    pub(super) fn rate_of(&self, kind: RunBenchCase) -> Option<f64> {
        let entry = self.rates.iter().find(|(of, _)| *of == kind);
        entry.map(|(_, rate)| *rate)
    }
}

/// Runs both parts.
pub(super) fn measure(
    runtime: &Runtime,
    client: &Client,
    clients: &[Client],
    scale: RunScale,
    has_bubblewrap: bool,
) -> Result<RunMeasurements, CliError> {
    let mut kinds = vec![
        RunBenchCase::Bare,
        RunBenchCase::Jig,
        RunBenchCase::BareShell,
        RunBenchCase::JigShell,
        RunBenchCase::Bubblewrap,
        RunBenchCase::HealthCheck,
    ];
    kinds.retain(|kind| has_bubblewrap || *kind != RunBenchCase::Bubblewrap);

    let isolation = runtime.block_on(client.run(request(RunBenchCase::Jig)))?.isolation;
    let times = measure_one_client(runtime, client, scale.count, &kinds)?;
    kinds.retain(|kind| *kind != RunBenchCase::HealthCheck);
    let rates = measure_many_clients(runtime, clients, scale.count, &kinds)?;
    Ok(RunMeasurements { isolation, times, rates })
}

/// Measures the latency of runs one after the other.
fn measure_one_client(
    runtime: &Runtime,
    client: &Client,
    count: usize,
    kinds: &[RunBenchCase],
) -> Result<Vec<(RunBenchCase, Samples)>, CliError> {
    let mut times: Vec<(RunBenchCase, Vec<Duration>)> =
        kinds.iter().map(|&kind| (kind, Vec::new())).collect();

    for (kind, _) in &times {
        run_block(runtime, client, *kind, RUNS_PER_BLOCK.min(count))?;
    }

    for done in (0..count).step_by(RUNS_PER_BLOCK) {
        for (kind, times) in &mut times {
            times.extend(run_block(runtime, client, *kind, RUNS_PER_BLOCK.min(count - done))?);
        }
    }
    Ok(times.into_iter().map(|(kind, times)| (kind, Samples::new(times))).collect())
}

fn run_block(
    runtime: &Runtime,
    client: &Client,
    kind: RunBenchCase,
    count: usize,
) -> Result<Vec<Duration>, CliError> {
    let processes = |spawn: fn() -> Result<(), CliError>| {
        (0..count)
            .map(|_| {
                let start = Instant::now();
                spawn().map(|()| start.elapsed())
            })
            .collect()
    };

    match kind {
        RunBenchCase::Bare => processes(spawn_bare),
        RunBenchCase::BareShell => processes(spawn_shell),
        RunBenchCase::Bubblewrap => processes(spawn_bubblewrap),
        RunBenchCase::Jig | RunBenchCase::JigShell | RunBenchCase::HealthCheck => {
            runtime.block_on(async {
                let mut times = Vec::with_capacity(count);
                for _ in 0..count {
                    let start = Instant::now();
                    if kind == RunBenchCase::HealthCheck {
                        client.check_health("").await?;
                    } else {
                        run(client, request(kind)).await?;
                    }
                    times.push(start.elapsed());
                }
                Ok(times)
            })
        }
    }
}

/// Measures the throughput of several clients, each as fast as possible.
fn measure_many_clients(
    runtime: &Runtime,
    clients: &[Client],
    count: usize,
    kinds: &[RunBenchCase],
) -> Result<Vec<(RunBenchCase, f64)>, CliError> {
    let mut totals: Vec<(RunBenchCase, Duration)> =
        kinds.iter().map(|&kind| (kind, Duration::ZERO)).collect();
    let runs_per_round = count.div_ceil(ROUND_COUNT);

    for (kind, _) in &totals {
        run_round(runtime, clients, *kind, clients.len() * 2)?;
    }

    for _ in 0..ROUND_COUNT {
        for (kind, total) in &mut totals {
            let start = Instant::now();
            run_round(runtime, clients, *kind, runs_per_round)?;
            *total += start.elapsed();
        }
    }

    let runs = u32::try_from(runs_per_round * ROUND_COUNT).unwrap_or(u32::MAX);
    Ok(totals
        .into_iter()
        .map(|(kind, total)| (kind, f64::from(runs) / total.as_secs_f64()))
        .collect())
}

/// Makes `count` runs, each by the next free client.
fn run_round(
    runtime: &Runtime,
    clients: &[Client],
    kind: RunBenchCase,
    count: usize,
) -> Result<(), CliError> {
    let remaining = RemainingRuns::new(count);
    match kind {
        RunBenchCase::Bare => run_in_threads(&remaining, clients.len(), spawn_bare),
        RunBenchCase::BareShell => run_in_threads(&remaining, clients.len(), spawn_shell),
        RunBenchCase::Bubblewrap => run_in_threads(&remaining, clients.len(), spawn_bubblewrap),
        RunBenchCase::Jig | RunBenchCase::JigShell | RunBenchCase::HealthCheck => {
            runtime.block_on(async {
                let mut tasks = JoinSet::new();
                for client in clients {
                    let (client, remaining) = (client.clone(), remaining.clone());
                    tasks.spawn(async move {
                        while remaining.take() {
                            run(&client, request(kind)).await?;
                        }
                        Ok::<(), CliError>(())
                    });
                }
                while let Some(ended) = tasks.join_next().await {
                    ended.map_err(CliError::system)??;
                }
                Ok(())
            })
        }
    }
}

fn run_in_threads(
    remaining: &RemainingRuns,
    threads: usize,
    spawn: fn() -> Result<(), CliError>,
) -> Result<(), CliError> {
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    while remaining.take() {
                        spawn()?;
                    }
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(result) => result,
            Err(_) => Err(CliError::System("a thread of the benchmark panicked".to_owned())),
        })
    })
}

pub(super) async fn run(client: &Client, request: RunRequest) -> Result<(), CliError> {
    let response = client.run(request).await?;
    if response.outcome() == Outcome::Exited && response.exit_code == Some(0) {
        return Ok(());
    }
    Err(CliError::System(format!(
        "a run ended with {}: {}",
        response.outcome().as_str_name(),
        response.stderr
    )))
}

/// A request for the command of a kind of run.
pub(super) fn request(kind: RunBenchCase) -> RunRequest {
    if kind == RunBenchCase::JigShell {
        return RunRequest { command: Some(SHELL_COMMAND.to_owned()), ..RunRequest::default() };
    }
    RunRequest { argv: vec![BARE_PROGRAM.to_owned()], ..RunRequest::default() }
}

/// Number of remaining runs, shared by the clients.
#[derive(Debug, Clone)]
struct RemainingRuns(Arc<AtomicUsize>);

impl RemainingRuns {
    fn new(count: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(count)))
    }

    fn take(&self) -> bool {
        let one_less = |remaining: usize| remaining.checked_sub(1);
        // Relaxed: no other memory access depends on it.
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_runs_are_limited() {
        let remaining = RemainingRuns::new(2);
        assert_eq!(
            [remaining.take(), remaining.take(), remaining.take(), remaining.take()],
            [true, true, false, false]
        );
    }

    #[test]
    fn threads_make_all_runs_or_report_the_error() {
        let remaining = RemainingRuns::new(10);
        run_in_threads(&remaining, 3, || Ok(())).unwrap();
        assert!(!remaining.take());
        let fails = || Err(CliError::System(String::new()));
        assert!(run_in_threads(&RemainingRuns::new(10), 3, fails).is_err());
    }
}
