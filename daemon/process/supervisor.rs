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
    handle::{ControlReceiver, ProcessControl, ProcessHandle, SupervisedProcess},
    limit_monitor::LimitMonitor,
    outcome::{CommandOutcome, ResourceLimit, StopReason},
    result::{CommandResult, Termination},
    spec::CommandSpec,
    stdio::{DaemonEnds, open_stdio},
    stop_sequence::{StopAction, StopEvent, StopSequence},
    watchdog::Watchdog,
};
use crate::daemon::{
    fd_exhaustion::FdRetry,
    queue::DeferredPermit,
    sandbox::{
        pool::SandboxPool,
        proxy_listener::ProxyLease,
        running::{CommandEnd, RunningSandbox, SandboxEvent},
        stage::{Stage, StageFailure},
    },
    store::artifact_writer::ArtifactWriter,
    sys::{Errno, process::ResourceUsage},
    task,
};

/// Dead sandboxes that are passed over: more than a pool keeps warm.
const MAX_STALE_SANDBOXES: usize = 16;

/// How a command may be ended before it ends.
#[derive(Debug, Clone)]
pub(crate) struct CancelSignals {
    /// At once: nobody waits any more.
    pub(crate) abandoned: CancellationToken,
    /// Before it has a sandbox: the daemon begins to shut down.
    pub(crate) draining: CancellationToken,
    /// By the ladder: the daemon is shutting down.
    pub(crate) terminate: CancellationToken,
    /// Time between SIGTERM and SIGKILL.
    pub(crate) grace: Duration,
}

/// Where the two streams go.
#[derive(Debug)]
pub(crate) struct OutputArtifacts {
    /// Artifact of the standard output, with the path under which it can be read.
    pub(crate) stdout: (ArtifactWriter, String),
    /// Artifact of the standard error, likewise.
    pub(crate) stderr: (ArtifactWriter, String),
}

/// Why a command was not run, or is not known to have ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    /// A step of starting it failed: the sandbox's, or the command's own.
    #[error("the command was not started")]
    NotStarted(#[source] StageFailure),
    /// No sandbox became free in the time that the command had.
    #[error("no sandbox became free in time")]
    SandboxTimeout,
    /// Nobody waits any more; nothing was started.
    #[error("the call was cancelled before a sandbox was free")]
    Abandoned,
    /// The daemon is shutting down; nothing was started.
    #[error("the daemon was told to end before a sandbox was free")]
    Draining,
    /// A signal was to end it; nothing was started.
    #[error("the command was ended before a sandbox was free")]
    EndedBeforeStart,
    /// The sandbox was lost while the command ran.
    #[error("the sandbox was lost while the command ran")]
    SandboxLost,
}

/// Told once the command is in its sandbox.
pub(crate) trait RunObserver: Send {
    /// The command's process id in the daemon's namespace, where it is known.
    fn started(&mut self, pid: Option<i32>);

    /// How the command reaches the daemon's proxy, where it does.
    fn proxy_opened(&mut self, _visit: ProxyLease) {}
}

/// Runs a command in a sandbox of the pool, once it has its place there; where somebody watches it, `live` is
/// the side of this task. To be polled to its end: what is to end it early comes through `stop`.
pub(crate) async fn run(
    spec: &CommandSpec,
    pool: &Arc<SandboxPool>,
    seat: DeferredPermit,
    artifacts: OutputArtifacts,
    cancel: &CancelSignals,
    observer: &mut impl RunObserver,
    supervised: Option<SupervisedProcess>,
) -> Result<CommandResult, RunError> {
    let (process, mut orders) = supervised.map(|live| (live.process, live.controls)).unzip();
    let deadline = spec.timeout.map(|timeout| Instant::now() + timeout);
    let OutputArtifacts { stdout, stderr } = artifacts;
    let (stdout_path, stderr_path) = (stdout.1, stderr.1);
    let mut held_back = VecDeque::new();
    let place = tokio::select! {
        biased;
        place = seat.wait() => place,
        () = task::sleep_until(deadline) => return Err(RunError::SandboxTimeout),
        () = cancel.abandoned.cancelled() => return Err(RunError::Abandoned),
        () = cancel.draining.cancelled() => return Err(RunError::Draining),
        () = wait_for_end_signal(&mut orders, &mut held_back) => return Err(RunError::EndedBeforeStart),
    };
    let mut attempts = FdRetry::with_deadline(deadline);
    let (mut connections, ends) = loop {
        let sinks = (stdout.0.fresh_copy(), stderr.0.fresh_copy());
        let connected = open_stdio(spec, sinks.0, sinks.1, process.as_ref());
        match connected {
            Err(error) if attempts.should_retry_spawn(&error).await => {}
            connected => break connected.map_err(stdio_failure)?,
        }
        check_cancelled(cancel)?;
    };
    let streams = ends.stdio_streams(spec);
    let command = spec.exec_request();
    let mut stale = 0;
    let (running, dispatched) = loop {
        let warm = tokio::select! {
            biased;
            taken = pool.acquire(&spec.limits) => taken,
            () = task::sleep_until(deadline) => return Err(RunError::SandboxTimeout),
            () = cancel.abandoned.cancelled() => return Err(RunError::Abandoned),
            () = cancel.terminate.cancelled() => return Err(RunError::Draining),
            () = wait_for_end_signal(&mut orders, &mut held_back) => return Err(RunError::EndedBeforeStart),
        };
        let warm = match warm {
            Err(failure) if attempts.should_retry_spawn(&failure.to_io_error()).await => {
                check_cancelled(cancel)?;
                continue;
            }
            warm => warm.map_err(RunError::NotStarted)?,
        };
        let dispatched = Instant::now();
        ends.chown_to_sandbox_user(pool);
        match warm.dispatch(
            &command,
            &streams,
            ends.exec_pipe.as_ref().map(AsFd::as_fd),
            &spec.limits,
        ) {
            Ok(running) => break (running, dispatched),
            // It died while it was warm, as all do when their launcher dies: it has not seen the
            // command, so another can be asked.
            Err(failure) if failure.is_disconnection() && stale < MAX_STALE_SANDBOXES => stale += 1,
            Err(failure) => return Err(RunError::NotStarted(failure)),
        }
    };
    let outputs = ends.into_outputs();
    observer.started(running.pid());
    if let Some(visit) = running.proxy_lease() {
        observer.proxy_opened(visit);
    }

    let dog = Watchdog::new(&spec.limits, running.has_memory_accounting(), machine_cpus());
    let watch = LimitMonitor::new(dog, running.measurer());
    let mut watched = RunSupervisor {
        sandbox: running,
        daemon_ends: &mut connections,
        process,
        controls: orders,
        deferred_controls: held_back,
        stop_sequence: StopSequence::Running { deadline },
        max_output_bytes: spec.limits.output_bytes.unwrap_or(u64::MAX),
        max_cpu_sec: spec.limits.cpu_sec,
        limit_monitor: watch,
        cpu_share: CpuShareSchedule::new(dispatched),
    };
    let ended = watched.wait_for_end(cancel).await;
    // Kept until now, so that the daemon is not woken by the pipes' end just before it is by the
    // command's: what ends a command is told by its init, who is not to wait for that.
    drop(outputs);
    let duration = dispatched.elapsed();
    // Of one that has to be killed it is not known: it was perhaps killed before.
    let was_executed = matches!(ended, WaitOutcome::Ended(Ok(_) | Err(RunError::SandboxLost)));
    if was_executed && let Some(process) = &watched.process {
        // Its end may be known before the word that it was executed has come.
        process.mark_started();
    }
    let ended = match ended {
        WaitOutcome::Ended(ended) => ended,
        WaitOutcome::MustKill(cause) => Ok(Termination {
            outcome: CommandOutcome::killed(cause),
            usage: None,
            exceeded_limit: match cause {
                StopReason::Limit(limit) => Some(limit),
                StopReason::TimedOut | StopReason::Cancelled => {
                    watched.sandbox.limit_hits().pids.then_some(ResourceLimit::Pids)
                }
            },
            kill_pending: !watched.sandbox.kill().await,
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
    if ended.exceeded_limit.is_none()
        && stdout.total_bytes + stderr.total_bytes > spec.limits.output_bytes.unwrap_or(u64::MAX)
    {
        // It was faster than whoever counts.
        ended.outcome = CommandOutcome::OutputLimit(ended.outcome.signal());
        ended.exceeded_limit = Some(ResourceLimit::Output);
    }
    Ok(CommandResult {
        termination: ended,
        stdout,
        stderr,
        duration: duration.max(dispatched.elapsed()),
    })
}

/// Ends what has not begun, if nobody waits for it any more.
fn check_cancelled(cancel: &CancelSignals) -> Result<(), RunError> {
    match (cancel.abandoned.is_cancelled(), cancel.terminate.is_cancelled()) {
        (true, _) => Err(RunError::Abandoned),
        (_, true) => Err(RunError::Draining),
        _ => Ok(()),
    }
}

fn stdio_failure(error: std::io::Error) -> RunError {
    let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
    RunError::NotStarted(StageFailure::from_errno(Stage::StandardStreams, errno, ""))
}

/// CPUs of the machine: commands can run on others than the daemon does (sched_setaffinity(2)).
fn machine_cpus() -> u64 {
    static CPUS: OnceLock<u64> = OnceLock::new();
    *CPUS.get_or_init(|| {
        let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        // One line for all of them, one for each.
        let lines = text.lines().filter(|line| line.starts_with("cpu")).count();
        (lines as u64).saturating_sub(1)
    })
}

/// A command that runs, and what is watched meanwhile.
struct RunSupervisor<'a> {
    sandbox: RunningSandbox,
    daemon_ends: &'a mut DaemonEnds,
    process: Option<Arc<ProcessHandle>>,
    controls: Option<ControlReceiver>,
    /// What it was told before it was there.
    deferred_controls: VecDeque<(ProcessControl, oneshot::Sender<()>)>,
    stop_sequence: StopSequence,
    /// Bytes that it may write.
    max_output_bytes: u64,
    /// Seconds of CPU time that it may take; without limit if none.
    max_cpu_sec: Option<u32>,
    limit_monitor: LimitMonitor,
    cpu_share: CpuShareSchedule,
}

/// Lowering the share of the CPUs that a run has. Those that are over soon need not be bothered with.
struct CpuShareSchedule {
    /// When to try next, as long as it is worth it.
    next_attempt: Option<Instant>,
    delay: Duration,
}

impl CpuShareSchedule {
    const FIRST_DELAY: Duration = Duration::from_millis(25);
    /// No pause between two attempts is longer: the kernel may refuse some.
    const MAX_DELAY: Duration = Duration::from_secs(5);

    fn new(now: Instant) -> Self {
        Self { next_attempt: Some(now + Self::FIRST_DELAY), delay: Self::FIRST_DELAY }
    }

    fn schedule_next(&mut self, now: Instant) {
        self.delay *= 3;
        self.next_attempt = (self.delay <= Self::MAX_DELAY).then(|| now + self.delay);
    }
}

enum WaitOutcome {
    Ended(Result<Termination, RunError>),
    MustKill(StopReason),
}

impl RunSupervisor<'_> {
    /// Waits until the command ends or has to be killed, reading what it writes.
    async fn wait_for_end(&mut self, cancel: &CancelSignals) -> WaitOutcome {
        loop {
            let draining = self.stop_sequence.reason().is_some();
            let event = tokio::select! {
                biased;
                word = self.sandbox.next_event() => match word {
                    SandboxEvent::CommandEnded(end) => return self.interpret_end(end),
                    SandboxEvent::TerminalOpened(end) => match self.daemon_ends.attach_terminal(end) {
                        Ok(()) => continue,
                        // Without its terminal it could not be heard.
                        Err(_) => StopEvent::Abandoned,
                    },
                },
                () = cancel.abandoned.cancelled() => StopEvent::Abandoned,
                () = task::sleep_until(self.stop_sequence.next_deadline()) => StopEvent::DeadlineReached(Instant::now()),
                () = cancel.terminate.cancelled(), if !draining => StopEvent::Terminate(Instant::now()),
                () = self.daemon_ends.drive(self.process.as_deref()) => {
                    if self.daemon_ends.total_bytes() <= self.max_output_bytes {
                        continue;
                    }
                    StopEvent::LimitExceeded(ResourceLimit::Output)
                }
                limit = self.limit_monitor.wait_until_exceeded() => StopEvent::LimitExceeded(limit),
                () = task::sleep_until(self.cpu_share.next_attempt) => {
                    self.sandbox.lower_cpu_share();
                    self.cpu_share.schedule_next(Instant::now());
                    continue;
                }
                (order, done) = next_control(&mut self.controls, &mut self.deferred_controls), if self.daemon_ends.is_start_known() => {
                    self.apply_control(order);
                    // Whoever said so may have gone.
                    let _unheard = done.send(());
                    continue;
                }
            };
            let (ladder, action) = self.stop_sequence.on_event(event, cancel.grace);
            self.stop_sequence = ladder;
            match (action, ladder.reason()) {
                (StopAction::Terminate, _) => {
                    self.sandbox.signal(libc::SIGTERM);
                    // One that was stopped could not mind it.
                    self.sandbox.signal(libc::SIGCONT);
                }
                (StopAction::Kill, Some(cause)) => return WaitOutcome::MustKill(cause),
                (StopAction::Wait | StopAction::Kill, _) => {}
            }
        }
    }

    fn apply_control(&mut self, order: ProcessControl) {
        match order {
            ProcessControl::Signal(signal) => self.sandbox.signal(signal),
            ProcessControl::Resize(size) => self.daemon_ends.resize(size),
        }
    }

    /// Whether it took the CPU time that it may take.
    fn reached_cpu_limit(&self, usage: &ResourceUsage) -> bool {
        let taken = Duration::from_micros(usage.user_us.saturating_add(usage.system_us));
        let limit = self.max_cpu_sec.map(|seconds| Duration::from_secs(u64::from(seconds)));
        // The kernel compares what it counts in ticks, which can be far from what it tells at the end.
        limit.is_some_and(|limit| taken >= limit / 2)
    }

    fn interpret_end(&self, end: CommandEnd) -> WaitOutcome {
        let cause = self.stop_sequence.reason();
        match (end, cause) {
            (CommandEnd::Exited { status, usage }, _) => {
                let held = self.sandbox.limit_hits();
                let mut outcome = CommandOutcome::from_status(status, cause);
                if held.memory && outcome == CommandOutcome::Signaled(libc::SIGKILL) {
                    outcome = CommandOutcome::OomKilled;
                }
                // One that went on all the same, and ended well, was not ended by it.
                let came_to_pids = held.pids && outcome != CommandOutcome::Exited(0);
                let limit = outcome.exceeded_limit();
                // Anybody can send that signal.
                let limit = limit
                    .filter(|limit| *limit != ResourceLimit::Cpu || self.reached_cpu_limit(&usage));
                WaitOutcome::Ended(Ok(Termination {
                    outcome,
                    usage: Some(usage),
                    exceeded_limit: limit.or(came_to_pids.then_some(ResourceLimit::Pids)),
                    kill_pending: false,
                }))
            }
            (CommandEnd::NotStarted { stage, errno }, _) => WaitOutcome::Ended(Err(
                RunError::NotStarted(StageFailure::from_errno(stage, errno, "")),
            )),
            // It did not say that all is gone, so that must be seen to.
            (CommandEnd::SandboxDied, Some(cause)) => WaitOutcome::MustKill(cause),
            (CommandEnd::SandboxDied, None) => WaitOutcome::Ended(Err(RunError::SandboxLost)),
        }
    }
}

/// Waits until a command that is not there yet is told to end; keeps what else it is told.
async fn wait_for_end_signal(
    orders: &mut Option<ControlReceiver>,
    held_back: &mut VecDeque<(ProcessControl, oneshot::Sender<()>)>,
) {
    const END_SIGNALS: [i32; 5] =
        [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGKILL, libc::SIGTERM];
    loop {
        let told = next_control(orders, &mut VecDeque::new()).await;
        if let (ProcessControl::Signal(signal), _) = &told
            && END_SIGNALS.contains(signal)
        {
            let _unheard = told.1.send(());
            return;
        }
        held_back.push_back(told);
    }
}

/// Waits for an order; for ever where nobody can give one.
async fn next_control(
    orders: &mut Option<ControlReceiver>,
    held_back: &mut VecDeque<(ProcessControl, oneshot::Sender<()>)>,
) -> (ProcessControl, oneshot::Sender<()>) {
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
