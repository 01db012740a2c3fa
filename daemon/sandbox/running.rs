//! One sandbox, from the daemon's side: warm, then running, then gone.

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
    canary,
    cgroup::{CgroupLimitHits, CpuClock, RLIMIT_NPROC_MARGIN, RunCgroup},
    channel::Channel,
    image::{ExecRequest, HEADER_BYTES, StdioLayout, TerminalSize, probe_image},
    kill::{SlotOutcome, kill_and_wait, kill_sandbox},
    level::IsolationLevel,
    limits::RunLimits,
    no_namespaces::scratch_directory::redirect_to_scratch,
    priority,
    proxy_listener::{ProxyLease, ProxyListener},
    run_meter::MIN_RECOUNT_CPU_US,
    stage::{Stage, StageFailure},
    wire::{KeeperRequest, MeasurementBounds, RunMeasurement, SANDBOX_REPORT_BYTES, SandboxReport},
};
use crate::daemon::{
    sys::{Errno, process::ResourceUsage, process_arena::MAX_INLINE_IMAGE_BYTES, signal},
    task,
};

/// How long a sandbox that says nothing may take to answer the probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// What whoever holds a sandbox asks its slot.
#[derive(Debug)]
pub(super) enum SlotRequest {
    /// What the sandbox occupies.
    Measure {
        /// How closely.
        bounds: MeasurementBounds,
        /// Where the answer goes.
        reply: oneshot::Sender<RunMeasurement>,
    },
    /// Another sandbox instead, for these limits.
    Rebuild {
        /// The limits.
        limits: RunLimits,
        /// Where it goes.
        reply: oneshot::Sender<Result<IdleSandbox, StageFailure>>,
    },
}

/// A sandbox that waits for its request.
#[derive(Debug)]
pub(crate) struct IdleSandbox {
    pub(super) control: Channel,
    pub(super) pidfd: OwnedFd,
    /// The process that becomes the command, as the daemon's namespace numbers it.
    pub(super) command: Option<Pid>,
    pub(super) slot_outcome: oneshot::Sender<SlotOutcome>,
    pub(super) slot_requests: mpsc::Sender<SlotRequest>,
    /// The cgroup that its command is in, where there are such.
    pub(super) cgroup: Option<RunCgroup>,
    /// The slot's listener, where its runs reach the daemon by one.
    pub(super) proxy_listener: Option<Arc<ProxyListener>>,
    /// The isolation that it gives.
    pub(super) level: IsolationLevel,
    /// The generation of protected files that it has mounted.
    pub(super) generation: u64,
    /// Who can lower its share of the CPUs.
    pub(super) keeper: Arc<Mutex<Channel>>,
    /// The directory that it has in place of file systems of its own, at L1.
    pub(super) scratch_directory: Option<OsString>,
}

/// A sandbox with a command in it. Dropping it kills everything in it.
#[derive(Debug)]
pub(crate) struct RunningSandbox {
    control: Channel,
    pidfd: Option<OwnedFd>,
    command: Option<Pid>,
    slot_outcome: Option<oneshot::Sender<SlotOutcome>>,
    slot_requests: mpsc::Sender<SlotRequest>,
    cgroup: Option<RunCgroup>,
    proxy_lease: Option<ProxyLease>,
    level: IsolationLevel,
    keeper: Arc<Mutex<Channel>>,
}

/// Has what runs in a sandbox measured by its slot's keeper.
#[derive(Debug)]
pub(crate) struct Measurer {
    slot_requests: mpsc::Sender<SlotRequest>,
    /// Where the kernel holds the run's memory by itself: its CPU time.
    cpu_clock: Option<CpuClock>,
    /// CPU time at which the keeper was last asked, where there is a clock.
    last_measured_cpu_us: u64,
}

impl Measurer {
    /// Begins to measure. Answers nothing where that cannot be, or goes on already.
    pub(crate) fn measure(
        &mut self,
        bounds: MeasurementBounds,
    ) -> Option<oneshot::Receiver<RunMeasurement>> {
        let (reply, answer) = oneshot::channel();
        let asked = match self.cpu_us() {
            Some(cpu_us)
                if !bounds.recount && cpu_us < self.last_measured_cpu_us + MIN_RECOUNT_CPU_US =>
            {
                // It holds nothing new.
                let measure = RunMeasurement { cpu_us, ..RunMeasurement::default() };
                reply.send(measure).is_ok()
            }
            cpu_us => {
                self.last_measured_cpu_us = cpu_us.unwrap_or(0);
                self.slot_requests.try_send(SlotRequest::Measure { bounds, reply }).is_ok()
            }
        };
        asked.then_some(answer)
    }

    /// CPU time that the run has used, where the kernel counts it.
    pub(crate) fn cpu_us(&self) -> Option<u64> {
        self.cpu_clock.as_ref().map(CpuClock::micros)
    }
}

/// How a command in a sandbox ended.
#[derive(Debug)]
pub(crate) enum CommandEnd {
    /// It ended by itself; nothing of it is left.
    Exited {
        /// Wait status (wait(2)).
        status: i32,
        /// What it and its descendants used.
        usage: ResourceUsage,
    },
    /// It was never executed.
    NotStarted {
        /// The step that failed.
        stage: Stage,
        /// Why.
        errno: Errno,
    },
    /// The sandbox died without a word: it was killed, from here or from elsewhere.
    SandboxDied,
}

/// What a sandbox says while a command is in it.
#[derive(Debug)]
pub(crate) enum SandboxEvent {
    /// The command's terminal was made; this is its other end.
    TerminalOpened(OwnedFd),
    /// It is over.
    CommandEnded(CommandEnd),
}

/// Standard streams of a command.
#[derive(Debug)]
pub(crate) enum StdioStreams<'a> {
    /// Descriptors.
    Descriptors {
        /// What it reads; nothing for an empty input.
        stdin: Option<BorrowedFd<'a>>,
        /// Where it writes.
        stdout: BorrowedFd<'a>,
        /// Where it writes errors.
        stderr: BorrowedFd<'a>,
    },
    /// A terminal for all three, which [`Word::Terminal`] brings the other end of.
    Terminal(TerminalSize),
}

// === impl Warm ===

impl IdleSandbox {
    /// Sends the command in. What comes back is told by [`Running::word`].
    ///
    /// `start` is closed in the sandbox when the command was executed, and written to before when
    /// it could not be.
    pub(crate) fn dispatch(
        mut self,
        command: &ExecRequest,
        streams: &StdioStreams<'_>,
        start: Option<BorrowedFd<'_>>,
        limits: &RunLimits,
    ) -> Result<RunningSandbox, StageFailure> {
        let failed =
            |errno| StageFailure::from_errno(Stage::ReceiveRequest, errno, "sending the request");
        let mut fds: Vec<BorrowedFd<'_>> = start.into_iter().collect();
        let wiring = match *streams {
            StdioStreams::Terminal(size) => StdioLayout::Terminal(size),
            StdioStreams::Descriptors { stdin, stdout, stderr } => {
                fds.extend(stdin.into_iter().chain([stdout, stderr]));
                StdioLayout::Descriptors { stdin: stdin.is_some() }
            }
        };
        let mut behind = *limits;
        if let Some(cgroup) = &mut self.cgroup {
            cgroup
                .set_limits(limits)
                .map_err(|error| StageFailure::other(Stage::Cgroup, error.to_string()))?;
            // It counts what it refuses, if it is asked first.
            behind.processes = behind.processes.saturating_add(RLIMIT_NPROC_MARGIN);
        }
        let limits = &behind;
        let image = match &self.scratch_directory {
            None => command.to_image(wiring, start.is_some(), limits),
            Some(scratch) => {
                redirect_to_scratch(command, scratch).to_image(wiring, start.is_some(), limits)
            }
        };
        let image = image.ok_or_else(|| failed(Errno::TOOBIG))?;
        let running = self.into_running();
        if image.len() <= MAX_INLINE_IMAGE_BYTES {
            running.control.send(&image, &fds).map_err(failed)?;
        } else {
            let file = sealed_memory_file(c"jig-request", &image)
                .map_err(|error| failed(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
            fds.push(file.as_fd());
            running
                .control
                .send(image.get(..HEADER_BYTES).unwrap_or_default(), &fds)
                .map_err(failed)?;
        }
        Ok(running)
    }

    /// Runs the probe instead of a command; fails naming the checks that failed. Returns those that
    /// failed and cost no level.
    pub(crate) async fn probe(self) -> Result<Vec<&'static str>, StageFailure> {
        let level = self.level;
        let mut running = self.into_running();
        let failed = |errno| StageFailure::from_errno(Stage::Canary, errno, "sending the probe");
        running.control.send(&probe_image(), &[]).map_err(failed)?;
        let report = timeout(PROBE_TIMEOUT, running.receive_report())
            .await
            .map_err(|_| StageFailure::other(Stage::Canary, "it did not answer"))?;
        let result = match report.map(|(report, _)| report) {
            Some(SandboxReport::Probed { failed_checks: failed }) => {
                let checks = canary::failed_checks(level, failed);
                let (left_out, broken): (Vec<_>, Vec<_>) =
                    checks.partition(|check| *check == canary::HOST_NAME_CHECK);
                if broken.is_empty() {
                    Ok(left_out)
                } else {
                    let text = format!("what must hold does not: {}", broken.join("; "));
                    Err(StageFailure::other(Stage::Canary, text))
                }
            }
            Some(
                SandboxReport::NotStarted { stage, errno } | SandboxReport::Failed { stage, errno },
            ) => Err(StageFailure::from_errno(stage, errno, "probe")),
            Some(
                SandboxReport::Ready
                | SandboxReport::Ended { .. }
                | SandboxReport::TerminalOpened
                | SandboxReport::Measured(_)
                | SandboxReport::NetnsInUse,
            )
            | None => Err(StageFailure::other(Stage::Canary, "the sandbox died")),
        };
        while matches!(running.next_event().await, SandboxEvent::TerminalOpened(_)) {}
        result
    }

    /// Another sandbox of the same slot, built for `limits`, instead of this one. Answers nothing
    /// where the slot is gone.
    pub(super) async fn rebuild_for(self, limits: RunLimits) -> Option<Result<Self, StageFailure>> {
        let (reply, answer) = oneshot::channel();
        let Self { slot_requests: asks, slot_outcome: fate, .. } = self;
        asks.send(SlotRequest::Rebuild { limits, reply }).await.ok()?;
        let rebuilt = answer.await.ok();
        // Kept until now: to the slot, it being dropped would mean that it is free.
        drop(fate);
        rebuilt
    }

    fn into_running(self) -> RunningSandbox {
        RunningSandbox {
            control: self.control,
            pidfd: Some(self.pidfd),
            command: self.command,
            slot_outcome: Some(self.slot_outcome),
            slot_requests: self.slot_requests,
            cgroup: self.cgroup,
            proxy_lease: self.proxy_listener.as_ref().map(ProxyListener::lease),
            level: self.level,
            keeper: self.keeper,
        }
    }
}

// === impl Running ===

impl RunningSandbox {
    /// Process id of the command in the daemon's namespace.
    pub(crate) fn pid(&self) -> Option<i32> {
        self.command.map(|pid| pid.as_raw_nonzero().get())
    }

    /// How the command reaches the daemon's proxy, where it does: until the command has ended and
    /// everything that it left behind is gone, or is being killed.
    pub(crate) fn proxy_lease(&self) -> Option<ProxyLease> {
        self.proxy_lease.clone()
    }

    /// Waits until the sandbox has something to say; at the latest when the command has ended and
    /// everything that it left behind is gone, or the sandbox has died. May be cancelled and called
    /// again.
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
                    SandboxReport::Ready
                    | SandboxReport::Probed { .. }
                    | SandboxReport::TerminalOpened
                    | SandboxReport::Measured(_)
                    | SandboxReport::NetnsInUse,
                    _,
                )) => continue,
                // The socket may close while processes still live: only the pidfd tells.
                None => return SandboxEvent::CommandEnded(CommandEnd::SandboxDied),
            };
            self.free_slot();
            return SandboxEvent::CommandEnded(end);
        }
    }

    /// What the kernel has held of the run, where it counts.
    pub(crate) fn limit_hits(&self) -> CgroupLimitHits {
        self.cgroup.as_ref().map(RunCgroup::limit_hits).unwrap_or_default()
    }

    /// Whether the kernel counts the run's memory.
    pub(crate) fn has_memory_accounting(&self) -> bool {
        self.cgroup.is_some()
    }

    /// What has it measured.
    pub(crate) fn measurer(&self) -> Measurer {
        Measurer {
            slot_requests: self.slot_requests.clone(),
            cpu_clock: self.cgroup.as_ref().map(RunCgroup::cpu_clock),
            last_measured_cpu_us: 0,
        }
    }

    /// Has the share of the CPUs lowered that the command's session has, where sessions have shares. May
    /// come to nothing.
    pub(crate) fn lower_cpu_share(&self) {
        if !priority::has_autogroups() {
            return;
        }
        let order = self.pid().map(KeeperRequest::LowerCpuShare);
        let order = order.and_then(|order| serde_json::to_vec(&order).ok());
        // One who makes something has no time for this.
        if let (Some(order), Ok(keeper)) = (order, self.keeper.try_lock()) {
            let _best_effort = keeper.send(&order, &[]);
        }
    }

    /// Asks the init to send `signal` to the command's process group.
    pub(crate) fn signal(&self, signal: i32) {
        if let Some(pidfd) = &self.pidfd {
            // An init that is gone has no command to signal.
            let _gone = signal::send_through_init(pidfd.as_fd(), signal);
        }
    }

    /// Kills everything in the sandbox and waits until it is gone. Answers whether it is; if not,
    /// the slot is set aside and keeps waiting by itself.
    pub(crate) async fn kill(mut self) -> bool {
        self.close_proxy_lease();
        let (Some(pidfd), Some(fate)) = (self.pidfd.take(), self.slot_outcome.take()) else {
            return true;
        };
        kill_and_wait(pidfd, fate, self.level).await
    }

    /// Ends what the command has opened outside of its sandbox: the slot is the next run's soon.
    fn close_proxy_lease(&mut self) {
        if let Some(visit) = self.proxy_lease.take() {
            visit.close();
        }
    }

    /// What comes next, with the descriptor that came with it.
    async fn receive_report(&self) -> Option<(SandboxReport, Option<OwnedFd>)> {
        let mut bytes = [0; SANDBOX_REPORT_BYTES];
        let (received, fds) = self.control.receive(&mut bytes).await.ok()?;
        let report = SandboxReport::decode(bytes.get(..received.length)?)?;
        Some((report, fds.into_iter().next()))
    }

    fn free_slot(&mut self) {
        self.close_proxy_lease();
        self.pidfd = None;
        if let Some(fate) = self.slot_outcome.take() {
            // A slot that nobody keeps any more needs no word.
            let _dropped = fate.send(SlotOutcome::Free);
        }
    }
}

impl Drop for RunningSandbox {
    fn drop(&mut self) {
        self.close_proxy_lease();
        if let (Some(pidfd), Some(fate)) = (self.pidfd.take(), self.slot_outcome.take()) {
            // Nobody waits any more, but the slot may be used again only when all is gone.
            let level = self.level;
            kill_sandbox(&pidfd, level);
            task::spawn("sandbox kill", async move {
                kill_and_wait(pidfd, fate, level).await;
            });
        }
    }
}

/// Makes a file in memory with `content` that nobody can change any more, open for reading from its
/// start.
pub(crate) fn sealed_memory_file(name: &std::ffi::CStr, content: &[u8]) -> io::Result<OwnedFd> {
    let file = memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    let mut writer = File::from(file);
    writer.write_all(content)?;
    fcntl_add_seals(
        &writer,
        SealFlags::WRITE | SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL,
    )?;
    let read_only = rustix::fs::open(
        format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&writer)),
        rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )?;
    Ok(read_only)
}
