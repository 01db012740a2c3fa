//! The supervisor: one task owns one command, from the request for a sandbox until all of the
//! command's processes are gone.

use std::{
    collections::VecDeque,
    os::fd::AsFd,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio_util::sync::CancellationToken;

use super::{
    control::{PendingControl, next_control, wait_for_end_signal},
    cpu_share::CpuShareSchedule,
    handle::{ControlReceiver, ProcessControl, ProcessHandle, SupervisedProcess},
    limit_monitor::LimitMonitor,
    outcome::{CommandOutcome, ResourceLimit, StopReason},
    result::{CommandResult, Termination},
    run_observer::RunObserver,
    shell_state::file::StateFile,
    spec::CommandSpec,
    stdio::{CommandEnds, DaemonEnds, open_stdio},
    stop_sequence::{StopAction, StopEvent, StopSequence},
};
use crate::daemon::{
    fd_exhaustion::FdRetry,
    queue::{DeferredPermit, Permit, PrincipalName},
    sandbox::{
        image::ExecRequest,
        pool::SandboxPool,
        running::{CommandEnd, IdleSandbox, RunningSandbox, SandboxEvent},
        stage::{Stage, StageFailure},
    },
    store::artifact_writer::ArtifactWriter,
    sys::{Errno, process::ResourceUsage},
    task,
};

/// Dead idle sandboxes to skip: more than a pool holds.
const MAX_STALE_SANDBOXES: usize = 16;

/// Ways to stop a command early.
#[derive(Debug, Clone)]
pub(crate) struct CancelSignals {
    /// Kill it at once: all clients disconnected, the call timed out, or the shutdown is forced.
    pub(crate) abandoned: CancellationToken,
    /// Stop waiting for a sandbox permit: the daemon begins to shut down. A command that has its
    /// permit starts.
    pub(crate) draining: CancellationToken,
    /// Terminate it by the [`StopSequence`]: the daemon is shutting down.
    pub(crate) terminate: CancellationToken,
    /// Time between SIGTERM and SIGKILL.
    pub(crate) grace: Duration,
}

/// The artifacts of the output streams, each with the path under which it can be read.
#[derive(Debug)]
pub(crate) struct OutputArtifacts {
    pub(crate) stdout: (ArtifactWriter, String),
    pub(crate) stderr: (ArtifactWriter, String),
}

/// Why a command was not run, or its end is unknown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    /// A step of starting the sandbox or the command failed.
    #[error("the command was not started")]
    NotStarted(#[source] StageFailure),
    #[error("no sandbox became free in time")]
    SandboxTimeout,
    /// The call was abandoned: see [`CancelSignals`]. Nothing was started.
    #[error("the call was cancelled before a sandbox was free")]
    Abandoned,
    /// Nothing was started.
    #[error("the daemon began to shut down before a sandbox was free")]
    Draining,
    /// Nothing was started.
    #[error("a signal ended the command before a sandbox was free")]
    EndedBeforeStart,
    #[error("the sandbox was lost while the command ran")]
    SandboxLost,
}

/// Runs a command in a sandbox of the pool, once `permit` is granted.
///
/// `supervised` is this task's side of the command's handle, if clients can attach to it. Poll the
/// future to its end; `cancel` stops the command early.
pub(crate) async fn run(
    spec: &CommandSpec,
    pool: &Arc<SandboxPool>,
    permit: DeferredPermit,
    artifacts: OutputArtifacts,
    cancel: &CancelSignals,
    observer: &mut impl RunObserver,
    supervised: Option<SupervisedProcess>,
) -> Result<CommandResult, RunError> {
    let (process, controls) =
        supervised.map(|supervised| (supervised.process, supervised.controls)).unzip();
    let mut launch = Launch::new(spec, pool, cancel, controls);

    let permit = launch.wait_for_permit(permit).await?;
    let (mut daemon_ends, command_ends) = launch.open_stdio(&artifacts, process.as_ref()).await?;
    let (sandbox, dispatched_at) = launch.dispatch(&command_ends, permit.principal()).await?;
    let outputs = command_ends.into_outputs();

    observer.started(sandbox.pid(), sandbox.vpid());
    if let Some(lease) = sandbox.proxy_lease() {
        observer.proxy_opened(lease);
    }
    if let Some(process) = &process {
        process.set_port_connector(sandbox.port_connector());
    }

    let mut supervisor =
        RunSupervisor::new(launch, sandbox, &mut daemon_ends, process, dispatched_at);
    let wait_outcome = supervisor.wait_for_end(cancel, observer).await;
    // Held until now. Otherwise the end of the pipes would wake the daemon just before the
    // command's init reports the end, and delay that report.
    drop(outputs);

    let duration = dispatched_at.elapsed();
    supervisor.mark_executed(&wait_outcome);
    let termination = match wait_outcome {
        WaitOutcome::Ended(result) => result,
        WaitOutcome::MustKill(reason) => Ok(Termination {
            outcome: CommandOutcome::killed(reason),
            usage: None,
            exceeded_limit: supervisor.limit_of_kill(reason),
            kill_pending: !supervisor.sandbox.kill().await,
        }),
    };
    // The sandbox is gone, so its slot is free.
    drop(permit);

    let shell_output = daemon_ends.shell_output.take();
    // Even if the sandbox was lost: collects what was read until then.
    let (stdout, stderr) = tokio::join!(
        daemon_ends.stdout.finish(&artifacts.stdout.1),
        daemon_ends.stderr.finish(&artifacts.stderr.1)
    );
    let output_bytes = stdout.total_bytes + stderr.total_bytes;

    let termination = termination?.with_output_limit(output_bytes, max_output_bytes(spec));
    let has_exited = matches!(termination.outcome, CommandOutcome::Exited(_));

    Ok(CommandResult {
        termination,
        shell_output: shell_output.filter(|_| has_exited).and_then(StateFile::read),
        stdout,
        stderr,
        duration: duration.max(dispatched_at.elapsed()),
    })
}

fn max_output_bytes(spec: &CommandSpec) -> u64 {
    spec.limits.output_bytes.unwrap_or(u64::MAX)
}

fn stdio_failure(error: std::io::Error) -> RunError {
    let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
    RunError::NotStarted(StageFailure::from_errno(Stage::StandardStreams, errno, ""))
}

/// A command before it is in a sandbox.
struct Launch<'a> {
    spec: &'a CommandSpec,
    pool: &'a Arc<SandboxPool>,
    cancel: &'a CancelSignals,
    deadline: Option<Instant>,
    /// Limits retries of steps that lack file descriptors.
    retry: FdRetry,
    controls: Option<ControlReceiver>,
    /// Control requests to apply once the command runs.
    deferred_controls: VecDeque<PendingControl>,
}

impl<'a> Launch<'a> {
    fn new(
        spec: &'a CommandSpec,
        pool: &'a Arc<SandboxPool>,
        cancel: &'a CancelSignals,
        controls: Option<ControlReceiver>,
    ) -> Self {
        let deadline = spec.timeout.map(|timeout| Instant::now() + timeout);
        Self {
            spec,
            pool,
            cancel,
            deadline,
            retry: FdRetry::with_deadline(deadline),
            controls,
            deferred_controls: VecDeque::new(),
        }
    }

    /// Waits for a sandbox permit. A draining daemon ends this wait, but not a later one: a command
    /// with a permit starts.
    async fn wait_for_permit(&mut self, permit: DeferredPermit) -> Result<Permit, RunError> {
        tokio::select! {
            biased;
            permit = permit.wait() => Ok(permit),
            () = task::sleep_until(self.deadline) => Err(RunError::SandboxTimeout),
            () = self.cancel.abandoned.cancelled() => Err(RunError::Abandoned),
            () = self.cancel.draining.cancelled() => Err(RunError::Draining),
            () = wait_for_end_signal(&mut self.controls, &mut self.deferred_controls) => Err(RunError::EndedBeforeStart),
        }
    }

    /// Opens the standard streams. Retries while the daemon lacks file descriptors.
    async fn open_stdio(
        &mut self,
        artifacts: &OutputArtifacts,
        process: Option<&Arc<ProcessHandle>>,
    ) -> Result<(DaemonEnds, CommandEnds), RunError> {
        loop {
            let writers =
                [&artifacts.stdout.0, &artifacts.stderr.0].map(ArtifactWriter::fresh_copy);
            match open_stdio(self.spec, self.pool, writers, process) {
                Err(error) if self.retry.should_retry_spawn(&error).await => {
                    self.check_cancelled()?
                }
                result => return result.map_err(stdio_failure),
            }
        }
    }

    /// Sends the command to a sandbox of the pool. Returns the sandbox and the time of dispatch.
    async fn dispatch(
        &mut self,
        command_ends: &CommandEnds,
        caller: &PrincipalName,
    ) -> Result<(RunningSandbox, Instant), RunError> {
        let streams = command_ends.stdio_streams(self.spec);
        let command = self.spec.exec_request();
        let mut stale_sandboxes = 0;
        loop {
            let for_shell = command_ends.suit_warm_shell().then_some(&command);
            let Some(sandbox) = self.acquire_sandbox(caller, for_shell).await? else {
                self.check_cancelled()?;
                continue;
            };
            let dispatched_at = Instant::now();
            command_ends.chown_to_sandbox_user(self.pool);
            match sandbox.dispatch(
                &command,
                &streams,
                command_ends.exec_pipe.as_ref().map(AsFd::as_fd),
                &self.spec.limits,
                caller,
            ) {
                Ok(running) => return Ok((running, dispatched_at)),
                // It died while it was idle, as all do when their launcher dies. It has not
                // received the command, so another sandbox can.
                Err(failure)
                    if failure.is_disconnection() && stale_sandboxes < MAX_STALE_SANDBOXES =>
                {
                    stale_sandboxes += 1;
                }
                Err(failure) => return Err(RunError::NotStarted(failure)),
            }
        }
    }

    /// Waits for an idle sandbox. Returns `None` if the caller should retry after a shortage of
    /// file descriptors.
    async fn acquire_sandbox(
        &mut self,
        caller: &PrincipalName,
        command: Option<&ExecRequest>,
    ) -> Result<Option<IdleSandbox>, RunError> {
        let acquired = tokio::select! {
            biased;
            acquired = self.pool.acquire(&self.spec.limits, caller, command) => acquired,
            () = task::sleep_until(self.deadline) => return Err(RunError::SandboxTimeout),
            () = self.cancel.abandoned.cancelled() => return Err(RunError::Abandoned),
            () = self.cancel.terminate.cancelled() => return Err(RunError::Draining),
            () = wait_for_end_signal(&mut self.controls, &mut self.deferred_controls) => return Err(RunError::EndedBeforeStart),
        };
        match acquired {
            Err(failure) if self.retry.should_retry_spawn(&failure.to_io_error()).await => Ok(None),
            acquired => acquired.map(Some).map_err(RunError::NotStarted),
        }
    }

    fn check_cancelled(&self) -> Result<(), RunError> {
        if self.cancel.abandoned.is_cancelled() {
            Err(RunError::Abandoned)
        } else if self.cancel.terminate.is_cancelled() {
            Err(RunError::Draining)
        } else {
            Ok(())
        }
    }
}

/// A running command.
struct RunSupervisor<'a> {
    sandbox: RunningSandbox,
    daemon_ends: &'a mut DaemonEnds,
    process: Option<Arc<ProcessHandle>>,
    controls: Option<ControlReceiver>,
    /// Control requests received before the command was in the sandbox.
    deferred_controls: VecDeque<PendingControl>,
    stop_sequence: StopSequence,
    max_output_bytes: u64,
    /// Limit of CPU time in seconds.
    max_cpu_sec: Option<u32>,
    limit_monitor: LimitMonitor,
    cpu_share: CpuShareSchedule,
}

enum WaitOutcome {
    Ended(Result<Termination, RunError>),
    MustKill(StopReason),
}

impl<'a> RunSupervisor<'a> {
    fn new(
        launch: Launch<'_>,
        sandbox: RunningSandbox,
        daemon_ends: &'a mut DaemonEnds,
        process: Option<Arc<ProcessHandle>>,
        dispatched_at: Instant,
    ) -> Self {
        Self {
            limit_monitor: LimitMonitor::new(&launch.spec.limits, &sandbox),
            sandbox,
            daemon_ends,
            process,
            controls: launch.controls,
            deferred_controls: launch.deferred_controls,
            stop_sequence: StopSequence::Running { deadline: launch.deadline },
            max_output_bytes: max_output_bytes(launch.spec),
            max_cpu_sec: launch.spec.limits.cpu_sec,
            cpu_share: CpuShareSchedule::new(dispatched_at),
        }
    }

    /// Reads the command's output until the command ends or has to be killed.
    async fn wait_for_end(
        &mut self,
        cancel: &CancelSignals,
        observer: &mut impl RunObserver,
    ) -> WaitOutcome {
        loop {
            let stopping = self.stop_sequence.reason().is_some();
            let event = tokio::select! {
                biased;
                event = self.sandbox.next_event() => match event {
                    SandboxEvent::CommandEnded(end) => return self.interpret_end(end),
                    SandboxEvent::TerminalOpened(end) => match self.daemon_ends.attach_terminal(end) {
                        Ok(()) => continue,
                        Err(_) => StopEvent::TerminalLost,
                    },
                },
                () = cancel.abandoned.cancelled() => StopEvent::Abandoned,
                () = task::sleep_until(self.stop_sequence.next_deadline()) => StopEvent::DeadlineReached(Instant::now()),
                () = cancel.terminate.cancelled(), if !stopping => StopEvent::Terminate(Instant::now()),
                () = self.daemon_ends.drive(self.process.as_deref()) => {
                    if self.daemon_ends.total_bytes() <= self.max_output_bytes {
                        continue;
                    }
                    StopEvent::LimitExceeded(ResourceLimit::Output)
                }
                limit = self.limit_monitor.wait_until_exceeded() => StopEvent::LimitExceeded(limit),
                limit = observer.limit_exceeded() => StopEvent::LimitExceeded(limit),
                () = task::sleep_until(self.cpu_share.next_attempt()) => {
                    self.sandbox.lower_cpu_share();
                    self.cpu_share.schedule_next(Instant::now());
                    continue;
                }
                (control, applied) = next_control(&mut self.controls, &mut self.deferred_controls), if self.daemon_ends.is_start_known() => {
                    self.apply_control(control);
                    let _sender_has_gone = applied.send(());
                    continue;
                }
            };

            let (stop_sequence, action) = self.stop_sequence.on_event(event, cancel.grace);
            self.stop_sequence = stop_sequence;
            match (action, stop_sequence.reason()) {
                (StopAction::Terminate, _) => {
                    self.sandbox.signal(libc::SIGTERM);
                    // A stopped process would not receive it.
                    self.sandbox.signal(libc::SIGCONT);
                }
                (StopAction::Kill, Some(reason)) => return WaitOutcome::MustKill(reason),
                (StopAction::Wait | StopAction::Kill, _) => {}
            }
        }
    }

    fn apply_control(&mut self, control: ProcessControl) {
        match control {
            ProcessControl::Signal(signal) => self.sandbox.signal(signal),
            ProcessControl::Resize(size) => self.daemon_ends.resize(size),
        }
    }

    /// Marks the process as started if its end shows that it was executed. The end may be known
    /// before the daemon has read the signal for that.
    fn mark_executed(&self, wait_outcome: &WaitOutcome) {
        // A command that must be killed may not have been executed yet.
        let was_executed =
            matches!(wait_outcome, WaitOutcome::Ended(Ok(_) | Err(RunError::SandboxLost)));
        if was_executed && let Some(process) = &self.process {
            process.mark_started();
        }
    }

    /// Returns the limit to report for a command that must be killed.
    fn limit_of_kill(&self, reason: StopReason) -> Option<ResourceLimit> {
        match reason {
            StopReason::Limit(limit) => Some(limit),
            StopReason::TimedOut | StopReason::Cancelled => {
                self.sandbox.limit_hits().pids.then_some(ResourceLimit::Pids)
            }
        }
    }

    /// Whether the command used the CPU time of its limit.
    fn reached_cpu_limit(&self, usage: &ResourceUsage) -> bool {
        let used = Duration::from_micros(usage.user_us.saturating_add(usage.system_us));
        let limit = self.max_cpu_sec.map(|seconds| Duration::from_secs(u64::from(seconds)));
        // The kernel enforces the limit by a count of ticks, which can differ much from the usage
        // that it reports at the end.
        limit.is_some_and(|limit| used >= limit / 2)
    }

    fn interpret_end(&self, end: CommandEnd) -> WaitOutcome {
        let reason = self.stop_sequence.reason();
        match (end, reason) {
            (CommandEnd::Exited { status, usage }, _) => {
                WaitOutcome::Ended(Ok(self.interpret_exit(status, usage)))
            }
            (CommandEnd::NotStarted { stage, errno }, _) => WaitOutcome::Ended(Err(
                RunError::NotStarted(StageFailure::from_errno(stage, errno, "")),
            )),
            // The sandbox has not reported that all processes are gone, so kill them.
            (CommandEnd::SandboxLost, Some(reason)) => WaitOutcome::MustKill(reason),
            (CommandEnd::SandboxLost, None) => WaitOutcome::Ended(Err(RunError::SandboxLost)),
        }
    }

    fn interpret_exit(&self, status: i32, usage: ResourceUsage) -> Termination {
        let limit_hits = self.sandbox.limit_hits();
        let mut outcome = CommandOutcome::from_status(status, self.stop_sequence.reason());
        if limit_hits.memory && outcome == CommandOutcome::Signaled(libc::SIGKILL) {
            outcome = CommandOutcome::OomKilled;
        }

        // A command that hit the limit of processes and still succeeded was not ended by it.
        let ended_by_pids = limit_hits.pids && outcome != CommandOutcome::Exited(0);
        // Any process can send SIGXCPU.
        let limit = outcome
            .exceeded_limit()
            .filter(|limit| *limit != ResourceLimit::Cpu || self.reached_cpu_limit(&usage));
        Termination {
            outcome,
            usage: Some(usage),
            exceeded_limit: limit.or(ended_by_pids.then_some(ResourceLimit::Pids)),
            kill_pending: false,
        }
    }
}
