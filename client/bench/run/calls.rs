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
    bare::{PROGRAM, spawn_bare, spawn_bubblewrap},
};
use crate::failure::Failure;

/// Runs of one kind before another kind has its turn: long enough for caches to be those of the
/// kind, short enough that the machine stays the same.
const BLOCK: usize = 50;
/// Turns of each kind in the second part.
const ROUNDS: usize = 5;

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale {
    /// Runs of each kind in each part.
    pub(super) count: usize,
    /// Clients at one time in the second part.
    pub(super) clients: usize,
}

/// Something of which the time is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A process without isolation.
    Bare,
    /// A sandboxed run by the daemon.
    Jig,
    /// A process in a sandbox of bubblewrap.
    Bubblewrap,
    /// A health check of the daemon: what a call costs that does nothing.
    Check,
}

/// What was measured, by kind.
#[derive(Debug)]
pub(super) struct Measured {
    /// Isolation that the daemon's runs had.
    pub(super) isolation: String,
    /// Times with one client.
    pub(super) times: Vec<(Kind, Samples)>,
    /// Runs per second with several clients.
    pub(super) rates: Vec<(Kind, f64)>,
}

impl Measured {
    pub(super) fn times_of(&self, kind: Kind) -> Option<&Samples> {
        let found = self.times.iter().find(|(of, _)| *of == kind);
        found.map(|(_, samples)| samples)
    }

    pub(super) fn rate_of(&self, kind: Kind) -> Option<f64> {
        let found = self.rates.iter().find(|(of, _)| *of == kind);
        found.map(|(_, rate)| *rate)
    }
}

/// Measures both parts.
pub(super) fn measure(
    runtime: &Runtime,
    client: &Client,
    clients: &[Client],
    scale: Scale,
    has_bubblewrap: bool,
) -> Result<Measured, Failure> {
    let mut kinds = vec![Kind::Bare, Kind::Jig, Kind::Bubblewrap, Kind::Check];
    kinds.retain(|kind| has_bubblewrap || *kind != Kind::Bubblewrap);

    let isolation = runtime.block_on(client.run(request()))?.isolation;
    let times = one_client(runtime, client, scale.count, &kinds)?;
    kinds.retain(|kind| *kind != Kind::Check);
    let rates = many_clients(runtime, clients, scale.count, &kinds)?;
    Ok(Measured { isolation, times, rates })
}

/// The first part: the time of each run, one after the other.
fn one_client(
    runtime: &Runtime,
    client: &Client,
    count: usize,
    kinds: &[Kind],
) -> Result<Vec<(Kind, Samples)>, Failure> {
    let mut times: Vec<(Kind, Vec<Duration>)> =
        kinds.iter().map(|&kind| (kind, Vec::new())).collect();
    for (kind, _) in &times {
        block(runtime, client, *kind, BLOCK.min(count))?;
    }
    for done in (0..count).step_by(BLOCK) {
        for (kind, times) in &mut times {
            times.extend(block(runtime, client, *kind, BLOCK.min(count - done))?);
        }
    }
    Ok(times.into_iter().map(|(kind, times)| (kind, Samples::new(times))).collect())
}

fn block(
    runtime: &Runtime,
    client: &Client,
    kind: Kind,
    count: usize,
) -> Result<Vec<Duration>, Failure> {
    let processes = |spawn: fn() -> Result<(), Failure>| {
        (0..count)
            .map(|_| {
                let start = Instant::now();
                spawn().map(|()| start.elapsed())
            })
            .collect()
    };
    match kind {
        Kind::Bare => processes(spawn_bare),
        Kind::Bubblewrap => processes(spawn_bubblewrap),
        Kind::Jig | Kind::Check => runtime.block_on(async {
            let mut times = Vec::with_capacity(count);
            for _ in 0..count {
                let start = Instant::now();
                if kind == Kind::Jig {
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
fn many_clients(
    runtime: &Runtime,
    clients: &[Client],
    count: usize,
    kinds: &[Kind],
) -> Result<Vec<(Kind, f64)>, Failure> {
    let mut totals: Vec<(Kind, Duration)> =
        kinds.iter().map(|&kind| (kind, Duration::ZERO)).collect();
    let in_round = count.div_ceil(ROUNDS);
    for (kind, _) in &totals {
        round(runtime, clients, *kind, clients.len() * 2)?;
    }
    for _ in 0..ROUNDS {
        for (kind, total) in &mut totals {
            let start = Instant::now();
            round(runtime, clients, *kind, in_round)?;
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
fn round(runtime: &Runtime, clients: &[Client], kind: Kind, count: usize) -> Result<(), Failure> {
    let left = Tickets::new(count);
    match kind {
        Kind::Bare => threads(&left, clients.len(), spawn_bare),
        Kind::Bubblewrap => threads(&left, clients.len(), spawn_bubblewrap),
        Kind::Jig | Kind::Check => runtime.block_on(async {
            let mut tasks = JoinSet::new();
            for client in clients {
                let (client, left) = (client.clone(), left.clone());
                tasks.spawn(async move {
                    while left.take() {
                        run(&client).await?;
                    }
                    Ok::<(), Failure>(())
                });
            }
            while let Some(ended) = tasks.join_next().await {
                ended.map_err(Failure::system)??;
            }
            Ok(())
        }),
    }
}

fn threads(
    left: &Tickets,
    threads: usize,
    spawn: fn() -> Result<(), Failure>,
) -> Result<(), Failure> {
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
            Err(_) => Err(Failure::System("a thread of the bench panicked".to_owned())),
        })
    })
}

/// One run.
pub(super) async fn run(client: &Client) -> Result<(), Failure> {
    let response = client.run(request()).await?;
    if response.outcome() == Outcome::Exited && response.exit_code == Some(0) {
        return Ok(());
    }
    Err(Failure::System(format!(
        "a run of {PROGRAM} ended with {}: {}",
        response.outcome().as_str_name(),
        response.stderr
    )))
}

fn request() -> RunRequest {
    RunRequest { argv: vec![PROGRAM.to_owned()], ..RunRequest::default() }
}

/// Runs that are still to be done, shared by those who do them.
#[derive(Debug, Clone)]
struct Tickets(Arc<AtomicUsize>);

impl Tickets {
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
        let tickets = Tickets::new(2);
        assert_eq!(
            [tickets.take(), tickets.take(), tickets.take(), tickets.take()],
            [true, true, false, false]
        );
    }

    #[test]
    fn threads_do_all_of_it_or_say_why_not() {
        let left = Tickets::new(10);
        threads(&left, 3, || Ok(())).unwrap();
        assert!(!left.take());
        let fails = || Err(Failure::System(String::new()));
        assert!(threads(&Tickets::new(10), 3, fails).is_err());
    }
}
