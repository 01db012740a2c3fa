//! One sandbox from the daemon's side: idle, then running, then gone.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Write as _},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create},
    process::Pid,
};
use tokio::{
    sync::{Mutex, mpsc, oneshot},
    time::timeout,
};

use super::{
    cgroup::{CgroupLimitHits, CpuClock, RLIMIT_NPROC_MARGIN, RunCgroup},
    channel::Channel,
    image::{ExecRequest, HEADER_BYTES, ImageFlags, StdioLayout, TerminalSize, probe_image},
    kill::{SlotOutcome, kill_and_wait, kill_sandbox},
    level::IsolationLevel,
    limits::RunLimits,
    loopback_connection::{ConnectRequest, PortConnector},
    no_namespaces::scratch_directory::redirect_to_scratch,
    probe,
    proxy_listener::{ProxyLease, ProxyListener},
    recycle::{SandboxHistory, UsedSandbox},
    run_meter::MIN_RECOUNT_CPU_US,
    stage::{Stage, StageFailure},
    warm_shell::Shell,
    wire::{KeeperRequest, MeasurementBounds, RunMeasurement, SANDBOX_REPORT_BYTES, SandboxReport},
};
use crate::daemon::{
    queue::PrincipalName,
    sys::{
        Errno,
        process::ResourceUsage,
        process_arena::MAX_INLINE_IMAGE_BYTES,
        signal::{self, RelayedSignal},
    },
    task,
};

/// Time that a sandbox may take to run the probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// Request from the holder of a sandbox, the task that runs a command in it, to the task that owns
/// the sandbox's slot.
#[derive(Debug)]
pub(super) enum HolderRequest {
    /// Measure the sandbox's memory, CPU time and open files.
    Measure { bounds: MeasurementBounds, reply: oneshot::Sender<RunMeasurement> },
    /// Build another sandbox with these limits in place of this one.
    Rebuild { limits: RunLimits, reply: oneshot::Sender<Result<IdleSandbox, StageFailure>> },
}

/// A sandbox that is built and waits for its request.
#[derive(Debug)]
pub(crate) struct IdleSandbox {
    pub(super) control: Channel,
    pub(super) pidfd: OwnedFd,
    /// The process that becomes the command, by its id in the daemon's namespace.
    pub(super) command: Option<Pid>,
    /// The same process by its id in the sandbox, which is also the command's process group.
    pub(super) vpid: i32,
    /// The shell that this process is already, if it is one.
    pub(super) warm_shell: Option<Shell>,
    /// Whether the next command in the sandbox may start in a warm shell.
    pub(super) uses_warm_shells: bool,
    pub(super) history: SandboxHistory,
    pub(super) slot_outcome: oneshot::Sender<SlotOutcome>,
    pub(super) holder_requests: mpsc::Sender<HolderRequest>,
    pub(super) connect_requests: mpsc::Sender<ConnectRequest>,
    /// The cgroup of the command, if the host has cgroups.
    pub(super) cgroup: Option<RunCgroup>,
    /// The slot's listener, with the network `proxy` only.
    pub(super) proxy_listener: Option<Arc<ProxyListener>>,
    pub(super) level: IsolationLevel,
    /// The generation of protected files that the sandbox has mounted.
    pub(super) generation: u64,
    /// The socket to the keeper, which can lower CPU shares.
    pub(super) keeper: Arc<Mutex<Channel>>,
    /// The directory for temporary files and `HOME`, at L1 only.
    pub(super) scratch_directory: Option<OsString>,
}

/// A sandbox with a command in it. Dropping it kills everything inside.
#[derive(Debug)]
pub(crate) struct RunningSandbox {
    /// `None` when the command has ended.
    control: Option<Channel>,
    pidfd: Option<OwnedFd>,
    command: Option<Pid>,
    vpid: i32,
    history: SandboxHistory,
    slot_outcome: Option<oneshot::Sender<SlotOutcome>>,
    holder_requests: mpsc::Sender<HolderRequest>,
    cgroup: Option<RunCgroup>,
    proxy_lease: Option<ProxyLease>,
    port_connector: PortConnector,
    level: IsolationLevel,
    keeper: Arc<Mutex<Channel>>,
}

/// Requests measurements of a run from its slot keeper.
#[derive(Debug)]
pub(crate) struct MeasurementClient {
    holder_requests: mpsc::Sender<HolderRequest>,
    /// CPU time of the run, if the kernel enforces its memory limit in a cgroup.
    cpu_clock: Option<CpuClock>,
    /// CPU time at the last request to the slot, if there is a clock.
    last_measured_cpu_us: u64,
}

impl MeasurementClient {
    /// Starts a measurement. Returns `None` if the slot is gone or busy with another request.
    pub(crate) fn measure(
        &mut self,
        bounds: MeasurementBounds,
    ) -> Option<oneshot::Receiver<RunMeasurement>> {
        let (reply, measurement) = oneshot::channel();
        let requested = match self.cpu_us() {
            Some(cpu_us)
                if !bounds.recount && cpu_us < self.last_measured_cpu_us + MIN_RECOUNT_CPU_US =>
            {
                // So little CPU time since the last measurement cannot have opened much.
                let unchanged = RunMeasurement { cpu_us, ..RunMeasurement::default() };
                reply.send(unchanged).is_ok()
            }
            cpu_us => {
                self.last_measured_cpu_us = cpu_us.unwrap_or(0);
                self.holder_requests.try_send(HolderRequest::Measure { bounds, reply }).is_ok()
            }
        };
        requested.then_some(measurement)
    }

    /// CPU time of the run in microseconds, if the kernel counts it in a cgroup.
    pub(crate) fn cpu_us(&self) -> Option<u64> {
        self.cpu_clock.as_ref().map(CpuClock::micros)
    }
}

#[derive(Debug)]
pub(crate) enum CommandEnd {
    /// The command ended, and no process of the run is left.
    Exited {
        /// Wait status (wait(2)).
        status: i32,
        /// Usage of the command and its descendants.
        usage: ResourceUsage,
    },
    NotStarted {
        stage: Stage,
        errno: Errno,
    },
    /// The control socket closed without a report. Processes of the run may still live.
    SandboxLost,
}

/// What a sandbox reports while a command is in it.
#[derive(Debug)]
pub(crate) enum SandboxEvent {
    /// The command's terminal was opened. This is the daemon's end.
    TerminalOpened(OwnedFd),
    CommandEnded(CommandEnd),
}

#[derive(Debug)]
pub(crate) enum StdioStreams<'a> {
    Descriptors {
        /// Standard input; `None` for an empty input.
        stdin: Option<BorrowedFd<'a>>,
        stdout: BorrowedFd<'a>,
        stderr: BorrowedFd<'a>,
        /// The files that a named shell reads its state from and writes it to.
        shell_files: Option<[BorrowedFd<'a>; 2]>,
    },
    /// A terminal for all three streams. [`SandboxEvent::TerminalOpened`] brings the daemon's end.
    Terminal(TerminalSize),
}

// === impl IdleSandbox ===

impl IdleSandbox {
    /// Sends the command to the sandbox. [`RunningSandbox::next_event`] then reports its progress.
    ///
    /// `exec_pipe` is closed by a successful execve(2), and written to if the command cannot be
    /// executed.
    pub(crate) fn dispatch(
        mut self,
        command: &ExecRequest,
        streams: &StdioStreams<'_>,
        exec_pipe: Option<BorrowedFd<'_>>,
        limits: &RunLimits,
        caller: &PrincipalName,
    ) -> Result<RunningSandbox, StageFailure> {
        let failed =
            |errno| StageFailure::from_errno(Stage::ReceiveRequest, errno, "sending the request");

        let mut fds: Vec<BorrowedFd<'_>> = exec_pipe.into_iter().collect();
        let mut has_shell_files = false;
        let layout = match *streams {
            StdioStreams::Terminal(size) => StdioLayout::Terminal(size),
            StdioStreams::Descriptors { stdin, stdout, stderr, shell_files } => {
                fds.extend(stdin.into_iter().chain([stdout, stderr]));
                fds.extend(shell_files.into_iter().flatten());
                has_shell_files = shell_files.is_some();
                StdioLayout::Descriptors { stdin: stdin.is_some() }
            }
        };
        let mut rlimits = *limits;
        if let Some(cgroup) = &mut self.cgroup {
            cgroup
                .set_limits(limits)
                .map_err(|error| StageFailure::other(Stage::Cgroup, error.to_string()))?;
            // The cgroup must refuse processes before RLIMIT_NPROC does: only it counts refusals.
            rlimits.processes = rlimits.processes.saturating_add(RLIMIT_NPROC_MARGIN);
        }

        let flags = ImageFlags {
            has_exec_pipe: exec_pipe.is_some(),
            uses_warm_shells: self.uses_warm_shells,
            has_shell_files,
        };
        let image = match &self.scratch_directory {
            None => command.to_image(layout, flags, &rlimits),
            Some(scratch) => {
                redirect_to_scratch(command, scratch).to_image(layout, flags, &rlimits)
            }
        }
        .ok_or_else(|| failed(Errno::TOOBIG))?;

        self.history.add_run(caller);
        let running = self.into_running();
        if image.len() <= MAX_INLINE_IMAGE_BYTES {
            running.send(&image, &fds).map_err(failed)?;
        } else {
            let file = sealed_memory_file(c"jig-request", &image)
                .map_err(|error| failed(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
            fds.push(file.as_fd());
            let header = image.get(..HEADER_BYTES).unwrap_or_default();
            running.send(header, &fds).map_err(failed)?;
        }
        Ok(running)
    }

    /// Runs the probe instead of a command, and fails with the names of the checks that failed.
    ///
    /// Returns the names of failed checks that do not lower the level.
    pub(crate) async fn probe(mut self) -> Result<Vec<&'static str>, StageFailure> {
        let level = self.level;
        self.history = SandboxHistory::new(false);
        let mut running = self.into_running();
        let failed = |errno| StageFailure::from_errno(Stage::Probe, errno, "sending the probe");
        running.send(&probe_image(), &[]).map_err(failed)?;
        let report = timeout(PROBE_TIMEOUT, running.receive_report())
            .await
            .map_err(|_| StageFailure::other(Stage::Probe, "the probe timed out"))?;

        let result = match report.map(|(report, _)| report) {
            Some(SandboxReport::Probed { failed_checks }) => {
                let checks = probe::failed_checks(level, failed_checks);
                let (waived, broken): (Vec<_>, Vec<_>) =
                    checks.partition(|check| *check == probe::HOST_NAME_CHECK);
                if broken.is_empty() {
                    Ok(waived)
                } else {
                    let text = format!("these checks failed: {}", broken.join("; "));
                    Err(StageFailure::other(Stage::Probe, text))
                }
            }
            Some(
                SandboxReport::NotStarted { stage, errno } | SandboxReport::Failed { stage, errno },
            ) => Err(StageFailure::from_errno(stage, errno, "probe")),
            Some(
                SandboxReport::Ready { .. }
                | SandboxReport::Ended { .. }
                | SandboxReport::TerminalOpened
                | SandboxReport::Measured(_)
                | SandboxReport::NetnsInUse,
            )
            | None => Err(StageFailure::other(Stage::Probe, "the sandbox died")),
        };

        while matches!(running.next_event().await, SandboxEvent::TerminalOpened(_)) {}
        result
    }

    /// Replaces this sandbox with one of the same slot built for `limits`. Returns `None` if the
    /// slot is gone.
    pub(super) async fn rebuild_for(self, limits: RunLimits) -> Option<Result<Self, StageFailure>> {
        let (reply, sandbox) = oneshot::channel();
        let Self { holder_requests, slot_outcome, .. } = self;
        holder_requests.send(HolderRequest::Rebuild { limits, reply }).await.ok()?;
        let sandbox = sandbox.await.ok();

        // Dropped only now: earlier, the slot would take this sandbox for dropped and end.
        drop(slot_outcome);
        sandbox
    }

    fn into_running(self) -> RunningSandbox {
        RunningSandbox {
            control: Some(self.control),
            pidfd: Some(self.pidfd),
            command: self.command,
            vpid: self.vpid,
            history: self.history,
            slot_outcome: Some(self.slot_outcome),
            holder_requests: self.holder_requests,
            cgroup: self.cgroup,
            proxy_lease: self.proxy_listener.as_ref().map(ProxyListener::lease),
            port_connector: PortConnector::new(self.connect_requests, self.level),
            level: self.level,
            keeper: self.keeper,
        }
    }
}

// === impl RunningSandbox ===

impl RunningSandbox {
    /// Process id of the command in the daemon's namespace.
    pub(crate) fn pid(&self) -> Option<i32> {
        self.command.map(|pid| pid.as_raw_nonzero().get())
    }

    /// Process id of the command in its own namespace.
    pub(crate) fn vpid(&self) -> i32 {
        self.vpid
    }

    /// The command's access to the daemon's proxy, if it has any. Ends when no process of the run
    /// is left, or when the run is killed.
    pub(crate) fn proxy_lease(&self) -> Option<ProxyLease> {
        self.proxy_lease.clone()
    }

    /// Connects to servers in the sandbox, until no process of the run is left.
    pub(crate) fn port_connector(&self) -> PortConnector {
        self.port_connector.clone()
    }

    /// Waits for the next event. After [`SandboxEvent::CommandEnded`] no process of the run is
    /// left, unless the end is [`CommandEnd::SandboxLost`].
    ///
    /// Cancel safe.
    pub(crate) async fn next_event(&mut self) -> SandboxEvent {
        loop {
            let end = match self.receive_report().await {
                Some((SandboxReport::Ended { status, usage }, _)) => {
                    CommandEnd::Exited { status, usage }
                }
                Some((
                    SandboxReport::NotStarted { stage, errno }
                    | SandboxReport::Failed { stage, errno },
                    _,
                )) => CommandEnd::NotStarted { stage, errno },
                Some((SandboxReport::TerminalOpened, Some(terminal))) => {
                    return SandboxEvent::TerminalOpened(terminal);
                }
                Some((
                    SandboxReport::Ready { .. }
                    | SandboxReport::Probed { .. }
                    | SandboxReport::TerminalOpened
                    | SandboxReport::Measured(_)
                    | SandboxReport::NetnsInUse,
                    _,
                )) => continue,
                // The socket may close while processes still live. Only the pidfd shows their end.
                None => return SandboxEvent::CommandEnded(CommandEnd::SandboxLost),
            };
            self.free_slot();
            return SandboxEvent::CommandEnded(end);
        }
    }

    /// Limits that the kernel has enforced on the run, if it has a cgroup.
    pub(crate) fn limit_hits(&self) -> CgroupLimitHits {
        self.cgroup.as_ref().map(RunCgroup::limit_hits).unwrap_or_default()
    }

    /// Whether the kernel counts the run's memory (in a cgroup).
    pub(crate) fn has_memory_accounting(&self) -> bool {
        self.cgroup.is_some()
    }

    pub(crate) fn measurement_client(&self) -> MeasurementClient {
        MeasurementClient {
            holder_requests: self.holder_requests.clone(),
            cpu_clock: self.cgroup.as_ref().map(RunCgroup::cpu_clock),
            last_measured_cpu_us: 0,
        }
    }

    /// Lowers the CPU share of a run that takes long. Best effort.
    pub(crate) fn lower_cpu_share(&self) {
        let request =
            self.pid().and_then(|pid| serde_json::to_vec(&KeeperRequest::LowerCpuShare(pid)).ok());
        // Skipped while the keeper is busy with another request.
        if let (Some(request), Ok(keeper)) = (request, self.keeper.try_lock()) {
            let _best_effort = keeper.send(&request, &[]);
        }
    }

    /// Makes the init send `signal` to the command's process group.
    pub(crate) fn signal(&self, signal: i32) {
        if let Some(pidfd) = &self.pidfd {
            // An init that is gone has no command to signal.
            let relayed = RelayedSignal { signal, group: self.vpid };
            let _gone = signal::send_through_init(pidfd.as_fd(), relayed);
        }
    }

    /// Kills everything in the sandbox and waits until it is gone.
    ///
    /// Returns false if it is not gone in time. The slot is then quarantined.
    pub(crate) async fn kill(mut self) -> bool {
        self.close_connections();
        let (Some(pidfd), Some(slot_outcome)) = (self.pidfd.take(), self.slot_outcome.take())
        else {
            return true;
        };
        kill_and_wait(pidfd, slot_outcome, self.level).await
    }

    /// Ends the command's proxy connections, and those to its ports: the slot's next run starts soon.
    fn close_connections(&mut self) {
        self.port_connector.end_run();
        if let Some(lease) = self.proxy_lease.take() {
            lease.close();
        }
    }

    /// Receives the next report, with the descriptor that it carries.
    async fn receive_report(&self) -> Option<(SandboxReport, Option<OwnedFd>)> {
        let mut bytes = [0; SANDBOX_REPORT_BYTES];
        let (received, fds) = self.control.as_ref()?.receive(&mut bytes).await.ok()?;
        let report = SandboxReport::decode(bytes.get(..received.length)?)?;
        Some((report, fds.into_iter().next()))
    }

    fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
        self.control.as_ref().ok_or(Errno::NOTCONN)?.send(bytes, fds)
    }

    fn free_slot(&mut self) {
        self.close_connections();
        let used = match (self.control.take(), self.pidfd.take()) {
            (Some(control), Some(pidfd)) if self.history.permits_another_run() => {
                Some(UsedSandbox { control, pidfd, history: self.history.clone() })
            }
            _ => None,
        };
        if let Some(slot_outcome) = self.slot_outcome.take() {
            // The receiver is gone if the slot's task has ended.
            let _dropped = slot_outcome.send(SlotOutcome::Free(used));
        }
    }
}

impl Drop for RunningSandbox {
    fn drop(&mut self) {
        self.close_connections();
        if let (Some(pidfd), Some(slot_outcome)) = (self.pidfd.take(), self.slot_outcome.take()) {
            // No caller waits, but the slot may be reused only when all processes are gone.
            let level = self.level;
            kill_sandbox(&pidfd, level);
            task::spawn("sandbox kill", async move {
                kill_and_wait(pidfd, slot_outcome, level).await;
            });
        }
    }
}

/// Creates a sealed memory file with `content`. The descriptor is read-only and at offset 0.
pub(crate) fn sealed_memory_file(name: &std::ffi::CStr, content: &[u8]) -> io::Result<OwnedFd> {
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut writer = File::from(file);
    writer.write_all(content)?;
    let seals = SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL;
    fcntl_add_seals(&writer, seals)?;

    let read_only = rustix::fs::open(
        format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&writer)),
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )?;
    Ok(read_only)
}
