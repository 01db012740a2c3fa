//! The measurements: one client at a time, then several at once. Each kind of run gets its turn in
//! blocks, so that what else happens on the machine hits all kinds alike.

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
    bare::{BARE_PROGRAM, spawn_bare, spawn_bubblewrap},
};
use crate::cli_error::CliError;

/// Runs of one kind before another kind has its turn: long enough for caches to be those of the
/// kind, short enough that the machine stays the same.
const RUNS_PER_BLOCK: usize = 50;
/// Turns of each kind in the second part.
const ROUNDS: usize = 5;

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub(super) struct RunScale {
    /// Runs of each kind in each part.
    pub(super) count: usize,
    /// Clients at one time in the second part.
    pub(super) clients: usize,
}

/// Something of which the time is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunBenchCase {
    /// A process without isolation.
    Bare,
    /// A sandboxed run by the daemon.
    Jig,
    /// A process in a sandbox of bubblewrap.
    Bubblewrap,
    /// A health check of the daemon: what a call costs that does nothing.
    HealthCheck,
}

/// What was measured, by kind.
#[derive(Debug)]
pub(super) struct RunMeasurements {
    /// Isolation that the daemon's runs had.
    pub(super) isolation: String,
    /// Times with one client.
    pub(super) times: Vec<(RunBenchCase, Samples)>,
    /// Runs per second with several clients.
    pub(super) rates: Vec<(RunBenchCase, f64)>,
}

impl RunMeasurements {
    pub(super) fn times_of(&self, kind: RunBenchCase) -> Option<&Samples> {
        let found = self.times.iter().find(|(of, _)| *of == kind);
        found.map(|(_, samples)| samples)
    }

    pub(super) fn rate_of(&self, kind: RunBenchCase) -> Option<f64> {
        let found = self.rates.iter().find(|(of, _)| *of == kind);
        found.map(|(_, rate)| *rate)
    }
}

/// Measures both parts.
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
        RunBenchCase::Bubblewrap,
        RunBenchCase::HealthCheck,
    ];
    kinds.retain(|kind| has_bubblewrap || *kind != RunBenchCase::Bubblewrap);

    let isolation = runtime.block_on(client.run(request()))?.isolation;
    let times = measure_one_client(runtime, client, scale.count, &kinds)?;
    kinds.retain(|kind| *kind != RunBenchCase::HealthCheck);
    let rates = measure_many_clients(runtime, clients, scale.count, &kinds)?;
    Ok(RunMeasurements { isolation, times, rates })
}

/// The first part: the time of each run, one after the other.
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
        RunBenchCase::Bubblewrap => processes(spawn_bubblewrap),
        RunBenchCase::Jig | RunBenchCase::HealthCheck => runtime.block_on(async {
            let mut times = Vec::with_capacity(count);
            for _ in 0..count {
                let start = Instant::now();
                if kind == RunBenchCase::Jig {
                    run(client).await?;
                } else {
                    client.check_health("").await?;
                }
                times.push(start.elapsed());
            }
            Ok(times)
        }),
    }
}

/// The second part: how many runs there are in a second when several clients run as fast as they
/// can.
fn measure_many_clients(
    runtime: &Runtime,
    clients: &[Client],
    count: usize,
    kinds: &[RunBenchCase],
) -> Result<Vec<(RunBenchCase, f64)>, CliError> {
    let mut totals: Vec<(RunBenchCase, Duration)> =
        kinds.iter().map(|&kind| (kind, Duration::ZERO)).collect();
    let in_round = count.div_ceil(ROUNDS);
    for (kind, _) in &totals {
        run_round(runtime, clients, *kind, clients.len() * 2)?;
    }
    for _ in 0..ROUNDS {
        for (kind, total) in &mut totals {
            let start = Instant::now();
            run_round(runtime, clients, *kind, in_round)?;
            *total += start.elapsed();
        }
    }
    let runs = u32::try_from(in_round * ROUNDS).unwrap_or(u32::MAX);
    Ok(totals
        .into_iter()
        .map(|(kind, total)| (kind, f64::from(runs) / total.as_secs_f64()))
        .collect())
}

/// As many runs as said, by whichever client is free.
fn run_round(
    runtime: &Runtime,
    clients: &[Client],
    kind: RunBenchCase,
    count: usize,
) -> Result<(), CliError> {
    let left = RemainingRuns::new(count);
    match kind {
        RunBenchCase::Bare => run_in_threads(&left, clients.len(), spawn_bare),
        RunBenchCase::Bubblewrap => run_in_threads(&left, clients.len(), spawn_bubblewrap),
        RunBenchCase::Jig | RunBenchCase::HealthCheck => runtime.block_on(async {
            let mut tasks = JoinSet::new();
            for client in clients {
                let (client, left) = (client.clone(), left.clone());
                tasks.spawn(async move {
                    while left.take() {
                        run(&client).await?;
                    }
                    Ok::<(), CliError>(())
                });
            }
            while let Some(ended) = tasks.join_next().await {
                ended.map_err(CliError::system)??;
            }
            Ok(())
        }),
    }
}

fn run_in_threads(
    left: &RemainingRuns,
    threads: usize,
    spawn: fn() -> Result<(), CliError>,
) -> Result<(), CliError> {
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    while left.take() {
                        spawn()?;
                    }
                    Ok(())
                })
            })
            .collect();
        running.into_iter().try_for_each(|thread| match thread.join() {
            Ok(result) => result,
            Err(_) => Err(CliError::System("a thread of the bench panicked".to_owned())),
        })
    })
}

/// One run.
pub(super) async fn run(client: &Client) -> Result<(), CliError> {
    let response = client.run(request()).await?;
    if response.outcome() == Outcome::Exited && response.exit_code == Some(0) {
        return Ok(());
    }
    Err(CliError::System(format!(
        "a run of {BARE_PROGRAM} ended with {}: {}",
        response.outcome().as_str_name(),
        response.stderr
    )))
}

fn request() -> RunRequest {
    RunRequest { argv: vec![BARE_PROGRAM.to_owned()], ..RunRequest::default() }
}

/// Runs that are still to be done, shared by those who do them.
#[derive(Debug, Clone)]
struct RemainingRuns(Arc<AtomicUsize>);

impl RemainingRuns {
    fn new(count: usize) -> Self {
        Self(Arc::new(AtomicUsize::new(count)))
    }

    fn take(&self) -> bool {
        let one_less = |left: usize| left.checked_sub(1);
        // Nothing else is ordered by it.
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_run_out() {
        let tickets = RemainingRuns::new(2);
        assert_eq!(
            [tickets.take(), tickets.take(), tickets.take(), tickets.take()],
            [true, true, false, false]
        );
    }

    #[test]
    fn threads_do_all_of_it_or_say_why_not() {
        let left = RemainingRuns::new(10);
        run_in_threads(&left, 3, || Ok(())).unwrap();
        assert!(!left.take());
        let fails = || Err(CliError::System(String::new()));
        assert!(run_in_threads(&RemainingRuns::new(10), 3, fails).is_err());
    }
}
