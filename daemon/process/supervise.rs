//! One task owns one command from the moment it asks for a sandbox until nothing of it is left.

use std::{
    collections::VecDeque,
    os::fd::AsFd,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::{
    connect::{Connections, connect},
    finished::{Ended, Finished},
    live::{Live, Order, Orders, Process},
    outcome::{Cause, Limit, Outcome},
    spec::Spec,
    stop::{Action, Event, Ladder},
    watch::Watch,
    watchdog::Watchdog,
};
use crate::daemon::{
    descriptors::Attempts,
    queue::Seat,
    sandbox::{
        entrance::Visit,
        pool::Pool,
        running::{End, Running, Word},
        stage::{Failure, Stage},
    },
    store::artifact::Sink,
    sys::{Errno, process::Usage},
    task,
};

/// Dead sandboxes that are passed over: more than a pool keeps warm.
const STALE_AT_MOST: usize = 16;

/// How a command may be ended before it ends.
#[derive(Debug, Clone)]
pub(crate) struct Stop {
    /// At once: nobody waits any more.
    pub(crate) abandon: CancellationToken,
    /// Before it has a sandbox: the daemon begins to shut down.
    pub(crate) draining: CancellationToken,
    /// By the ladder: the daemon is shutting down.
    pub(crate) drain: CancellationToken,
    /// Time between SIGTERM and SIGKILL.
    pub(crate) grace: Duration,
}

/// Where the two streams go.
#[derive(Debug)]
pub(crate) struct Artifacts {
    /// Artifact of the standard output, with the path under which it can be read.
    pub(crate) stdout: (Sink, String),
    /// Artifact of the standard error, likewise.
    pub(crate) stderr: (Sink, String),
}

/// Why a command was not run, or is not known to have ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    /// A step of starting it failed: the sandbox's, or the command's own.
    #[error("the command was not started")]
    NotStarted(#[source] Failure),
    /// No sandbox became free in the time that the command had.
    #[error("no sandbox became free in time")]
    NoSandboxInTime,
    /// Nobody waits any more; nothing was started.
    #[error("the call was cancelled before a sandbox was free")]
    Abandoned,
    /// The daemon is shutting down; nothing was started.
    #[error("the daemon was told to end before a sandbox was free")]
    Draining,
    /// A signal was to end it; nothing was started.
    #[error("the command was ended before a sandbox was free")]
    EndedBefore,
    /// The sandbox was lost while the command ran.
    #[error("the sandbox was lost while the command ran")]
    Lost,
}

/// Told once the command is in its sandbox.
pub(crate) trait Observer: Send {
    /// The command's process id in the daemon's namespace, where it is known.
    fn started(&mut self, pid: Option<i32>);

    /// How the command reaches the daemon's proxy, where it does.
    fn visited(&mut self, _visit: Visit) {}
}

/// Runs a command in a sandbox of the pool, once it has its place there; where somebody watches it, `live` is
/// the side of this task. To be polled to its end: what is to end it early comes through `stop`.
pub(crate) async fn run(
    spec: &Spec,
    pool: &Arc<Pool>,
    seat: Seat,
    artifacts: Artifacts,
    stop: &Stop,
    observer: &mut impl Observer,
    live: Option<Live>,
) -> Result<Finished, RunError> {
    let (process, mut orders) = live.map(|live| (live.process, live.orders)).unzip();
    let deadline = spec.timeout.map(|timeout| Instant::now() + timeout);
    let Artifacts { stdout, stderr } = artifacts;
    let (stdout_path, stderr_path) = (stdout.1, stderr.1);
    let mut held_back = VecDeque::new();
    let place = tokio::select! {
        biased;
        place = seat.place() => place,
        () = task::until(deadline) => return Err(RunError::NoSandboxInTime),
        () = stop.abandon.cancelled() => return Err(RunError::Abandoned),
        () = stop.draining.cancelled() => return Err(RunError::Draining),
        () = told_to_end(&mut orders, &mut held_back) => return Err(RunError::EndedBefore),
    };
    let mut attempts = Attempts::until(deadline);
    let (mut connections, ends) = loop {
        let sinks = (stdout.0.anew(), stderr.0.anew());
        let connected = connect(spec, sinks.0, sinks.1, process.as_ref());
        match connected {
            Err(error) if attempts.another_of_start(&error).await => {}
            connected => break connected.map_err(not_connected)?,
        }
        early(stop)?;
    };
    let streams = ends.streams(spec);
    let command = spec.command();
    let mut stale = 0;
    let (running, dispatched) = loop {
        let warm = tokio::select! {
            biased;
            taken = pool.lend(&spec.limits) => taken,
            () = task::until(deadline) => return Err(RunError::NoSandboxInTime),
            () = stop.abandon.cancelled() => return Err(RunError::Abandoned),
            () = stop.drain.cancelled() => return Err(RunError::Draining),
            () = told_to_end(&mut orders, &mut held_back) => return Err(RunError::EndedBefore),
        };
        let warm = match warm {
            Err(failure) if attempts.another_of_start(&failure.error()).await => {
                early(stop)?;
                continue;
            }
            warm => warm.map_err(RunError::NotStarted)?,
        };
        let dispatched = Instant::now();
        ends.give_to(pool);
        match warm.dispatch(&command, &streams, ends.start.as_ref().map(AsFd::as_fd), &spec.limits)
        {
            Ok(running) => break (running, dispatched),
            // It died while it was warm, as all do when their launcher dies: it has not seen the
            // command, so another can be asked.
            Err(failure) if failure.is_disconnection() && stale < STALE_AT_MOST => stale += 1,
            Err(failure) => return Err(RunError::NotStarted(failure)),
        }
    };
    let outputs = ends.dispatched();
    observer.started(running.pid());
    if let Some(visit) = running.visit() {
        observer.visited(visit);
    }

    let dog = Watchdog::new(&spec.limits, running.is_counted(), cpus());
    let watch = Watch::new(dog, running.measurer());
    let mut watched = Watched {
        running,
        connections: &mut connections,
        process,
        orders,
        held_back,
        ladder: Ladder::Running { until: deadline },
        output_bytes: spec.limits.output_bytes.unwrap_or(u64::MAX),
        cpu_sec: spec.limits.cpu_sec,
        watch,
        share: Share::new(dispatched),
    };
    let ended = watched.wait(stop).await;
    // Kept until now, so that the daemon is not woken by the pipes' end just before it is by the
    // command's: what ends a command is told by its init, who is not to wait for that.
    drop(outputs);
    let duration = dispatched.elapsed();
    // Of one that has to be killed it is not known: it was perhaps killed before.
    let was_executed = matches!(ended, Waited::Ended(Ok(_) | Err(RunError::Lost)));
    if was_executed && let Some(process) = &watched.process {
        // Its end may be known before the word that it was executed has come.
        process.start();
    }
    let ended = match ended {
        Waited::Ended(ended) => ended,
        Waited::ToKill(cause) => Ok(Ended {
            outcome: Outcome::killed(cause),
            usage: None,
            limit: match cause {
                Cause::Limit(limit) => Some(limit),
                Cause::TimeUp | Cause::Cancelled => {
                    watched.running.held().pids.then_some(Limit::Pids)
                }
            },
            kill_pending: !watched.running.kill().await,
        }),
    };
    // The sandbox is gone, and its slot another's.
    drop(place);
    // Also of a command that was lost: what it wrote until then was read.
    let (stdout, stderr) = tokio::join!(
        connections.stdout.finish(&stdout_path),
        connections.stderr.finish(&stderr_path)
    );
    let mut ended = ended?;
    if ended.limit.is_none()
        && stdout.bytes + stderr.bytes > spec.limits.output_bytes.unwrap_or(u64::MAX)
    {
        // It was faster than whoever counts.
        ended.outcome = Outcome::OutputLimit(ended.outcome.signal());
        ended.limit = Some(Limit::Output);
    }
    Ok(Finished { ended, stdout, stderr, duration: duration.max(dispatched.elapsed()) })
}

/// Ends what has not begun, if nobody waits for it any more.
fn early(stop: &Stop) -> Result<(), RunError> {
    match (stop.abandon.is_cancelled(), stop.drain.is_cancelled()) {
        (true, _) => Err(RunError::Abandoned),
        (_, true) => Err(RunError::Draining),
        _ => Ok(()),
    }
}

fn not_connected(error: std::io::Error) -> RunError {
    let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
    RunError::NotStarted(Failure::kernel(Stage::StandardStreams, errno, ""))
}

/// CPUs of the machine: commands can run on others than the daemon does (sched_setaffinity(2)).
fn cpus() -> u64 {
    static CPUS: OnceLock<u64> = OnceLock::new();
    *CPUS.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        // One line for all of them, one for each.
        let lines = text.lines().filter(|line| line.starts_with("cpu")).count();
        (lines as u64).saturating_sub(1)
    })
}

/// A command that runs, and what is watched meanwhile.
struct Watched<'a> {
    running: Running,
    connections: &'a mut Connections,
    process: Option<Arc<Process>>,
    orders: Option<Orders>,
    /// What it was told before it was there.
    held_back: VecDeque<(Order, oneshot::Sender<()>)>,
    ladder: Ladder,
    /// Bytes that it may write.
    output_bytes: u64,
    /// Seconds of CPU time that it may take; without limit if none.
    cpu_sec: Option<u32>,
    watch: Watch,
    share: Share,
}

/// Lowering the share of the CPUs that a run has. Those that are over soon need not be bothered with.
struct Share {
    /// When to try next, as long as it is worth it.
    next: Option<Instant>,
    pause: Duration,
}

impl Share {
    const FIRST: Duration = Duration::from_millis(25);
    /// No pause between two attempts is longer: the kernel may refuse some.
    const LAST: Duration = Duration::from_secs(5);

    fn new(now: Instant) -> Self {
        Self { next: Some(now + Self::FIRST), pause: Self::FIRST }
    }

    fn tried(&mut self, now: Instant) {
        self.pause *= 3;
        self.next = (self.pause <= Self::LAST).then(|| now + self.pause);
    }
}

enum Waited {
    Ended(Result<Ended, RunError>),
    ToKill(Cause),
}

impl Watched<'_> {
    /// Waits until the command ends or has to be killed, reading what it writes.
    async fn wait(&mut self, stop: &Stop) -> Waited {
        loop {
            let draining = self.ladder.cause().is_some();
            let event = tokio::select! {
                biased;
                word = self.running.word() => match word {
                    Word::End(end) => return self.ended(end),
                    Word::Terminal(end) => match self.connections.connect_terminal(end) {
                        Ok(()) => continue,
                        // Without its terminal it could not be heard.
                        Err(_) => Event::Abandoned,
                    },
                },
                () = stop.abandon.cancelled() => Event::Abandoned,
                () = task::until(self.ladder.next()) => Event::Timer(Instant::now()),
                () = stop.drain.cancelled(), if !draining => Event::Drain(Instant::now()),
                () = self.connections.advance(self.process.as_deref()) => {
                    if self.connections.bytes() <= self.output_bytes {
                        continue;
                    }
                    Event::Over(Limit::Output)
                }
                limit = self.watch.over() => Event::Over(limit),
                () = task::until(self.share.next) => {
                    self.running.lower_share();
                    self.share.tried(Instant::now());
                    continue;
                }
                (order, done) = next_order(&mut self.orders, &mut self.held_back), if self.connections.know_the_start() => {
                    self.obey(order);
                    // Whoever said so may have gone.
                    let _unheard = done.send(());
                    continue;
                }
            };
            let (ladder, action) = self.ladder.on(event, stop.grace);
            self.ladder = ladder;
            match (action, ladder.cause()) {
                (Action::Terminate, _) => {
                    self.running.signal(libc::SIGTERM);
                    // One that was stopped could not mind it.
                    self.running.signal(libc::SIGCONT);
                }
                (Action::Kill, Some(cause)) => return Waited::ToKill(cause),
                (Action::Wait | Action::Kill, _) => {}
            }
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Signal(signal) => self.running.signal(signal),
            Order::Resize(size) => self.connections.resize(size),
        }
    }

    /// Whether it took the CPU time that it may take.
    fn came_to_cpu(&self, usage: &Usage) -> bool {
        let taken = Duration::from_micros(usage.user_us.saturating_add(usage.system_us));
        let limit = self.cpu_sec.map(|seconds| Duration::from_secs(u64::from(seconds)));
        // The kernel compares what it counts in ticks, which can be far from what it tells at the end.
        limit.is_some_and(|limit| taken >= limit / 2)
    }

    fn ended(&self, end: End) -> Waited {
        let cause = self.ladder.cause();
        match (end, cause) {
            (End::Ended { status, usage }, _) => {
                let held = self.running.held();
                let mut outcome = Outcome::from_status(status, cause);
                if held.memory && outcome == Outcome::Signaled(libc::SIGKILL) {
                    outcome = Outcome::OomKilled;
                }
                // One that went on all the same, and ended well, was not ended by it.
                let came_to_pids = held.pids && outcome != Outcome::Exited(0);
                let limit = outcome.limit();
                // Anybody can send that signal.
                let limit = limit.filter(|limit| *limit != Limit::Cpu || self.came_to_cpu(&usage));
                Waited::Ended(Ok(Ended {
                    outcome,
                    usage: Some(usage),
                    limit: limit.or(came_to_pids.then_some(Limit::Pids)),
                    kill_pending: false,
                }))
            }
            (End::NotStarted { stage, errno }, _) => {
                Waited::Ended(Err(RunError::NotStarted(Failure::kernel(stage, errno, ""))))
            }
            // It did not say that all is gone, so that must be seen to.
            (End::Gone, Some(cause)) => Waited::ToKill(cause),
            (End::Gone, None) => Waited::Ended(Err(RunError::Lost)),
        }
    }
}

/// Waits until a command that is not there yet is told to end; keeps what else it is told.
async fn told_to_end(
    orders: &mut Option<Orders>,
    held_back: &mut VecDeque<(Order, oneshot::Sender<()>)>,
) {
    const ENDING: [i32; 5] =
        [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGKILL, libc::SIGTERM];
    loop {
        let told = next_order(orders, &mut VecDeque::new()).await;
        if let (Order::Signal(signal), _) = &told
            && ENDING.contains(signal)
        {
            let _unheard = told.1.send(());
            return;
        }
        held_back.push_back(told);
    }
}

/// Waits for an order; for ever where nobody can give one.
async fn next_order(
    orders: &mut Option<Orders>,
    held_back: &mut VecDeque<(Order, oneshot::Sender<()>)>,
) -> (Order, oneshot::Sender<()>) {
    if let Some(order) = held_back.pop_front() {
        return order;
    }
    let order = match orders {
        Some(orders) => orders.recv().await,
        None => None,
    };
    match order {
        Some(order) => order,
        None => std::future::pending().await,
    }
}
