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
    cgroup::{Clock, Held, PIDS_BEHIND, RunCgroup},
    channel::Channel,
    entrance::{Entrance, Visit},
    image::{Command, HEADER_BYTES, TerminalSize, Wiring, probe_image},
    in_place::scratch::settle,
    kill::{SlotFate, kill, kill_and_wait},
    level::Level,
    limits::Limits,
    measure::RECOUNT_CPU_US,
    priority,
    stage::{Failure, Stage},
    wire::{Measure, MeasureBounds, REPORT_BYTES, Report, ToKeeper},
};
use crate::daemon::{
    sys::{Errno, memory::IMAGE_BYTES, process::Usage, signal},
    task,
};

/// How long a sandbox that says nothing may take to answer the probe.
const PROBE_PATIENCE: Duration = Duration::from_secs(10);

/// What whoever holds a sandbox asks its slot.
#[derive(Debug)]
pub(super) enum Ask {
    /// What the sandbox occupies.
    Measure {
        /// How closely.
        bounds: MeasureBounds,
        /// Where the answer goes.
        reply: oneshot::Sender<Measure>,
    },
    /// Another sandbox instead, for these limits.
    Rebuild {
        /// The limits.
        limits: Limits,
        /// Where it goes.
        reply: oneshot::Sender<Result<Warm, Failure>>,
    },
}

/// A sandbox that waits for its request.
#[derive(Debug)]
pub(crate) struct Warm {
    pub(super) control: Channel,
    pub(super) pidfd: OwnedFd,
    /// The process that becomes the command, as the daemon's namespace numbers it.
    pub(super) command: Option<Pid>,
    pub(super) fate: oneshot::Sender<SlotFate>,
    pub(super) asks: mpsc::Sender<Ask>,
    /// The cgroup that its command is in, where there are such.
    pub(super) cgroup: Option<RunCgroup>,
    /// The slot's listener, where its runs reach the daemon by one.
    pub(super) entrance: Option<Arc<Entrance>>,
    /// The isolation that it gives.
    pub(super) level: Level,
    /// The generation of protected files that it has mounted.
    pub(super) generation: u64,
    /// Who can lower its share of the CPUs.
    pub(super) keeper: Arc<Mutex<Channel>>,
    /// The directory that it has in place of file systems of its own, at L1.
    pub(super) scratch: Option<OsString>,
}

/// A sandbox with a command in it. Dropping it kills everything in it.
#[derive(Debug)]
pub(crate) struct Running {
    control: Channel,
    pidfd: Option<OwnedFd>,
    command: Option<Pid>,
    fate: Option<oneshot::Sender<SlotFate>>,
    asks: mpsc::Sender<Ask>,
    cgroup: Option<RunCgroup>,
    visit: Option<Visit>,
    level: Level,
    keeper: Arc<Mutex<Channel>>,
}

/// Has what runs in a sandbox measured by its slot's keeper.
#[derive(Debug)]
pub(crate) struct Measurer {
    asks: mpsc::Sender<Ask>,
    /// Where the kernel holds the run's memory by itself: its CPU time.
    clock: Option<Clock>,
    /// CPU time at which the keeper was last asked, where there is a clock.
    asked_at_us: u64,
}

impl Measurer {
    /// Begins to measure. Answers nothing where that cannot be, or goes on already.
    pub(crate) fn measure(&mut self, bounds: MeasureBounds) -> Option<oneshot::Receiver<Measure>> {
        let (reply, answer) = oneshot::channel();
        let asked = match self.cpu_us() {
            Some(cpu_us) if !bounds.recount && cpu_us < self.asked_at_us + RECOUNT_CPU_US => {
                // It holds nothing new.
                let measure = Measure { cpu_us, ..Measure::default() };
                reply.send(measure).is_ok()
            }
            cpu_us => {
                self.asked_at_us = cpu_us.unwrap_or(0);
                self.asks.try_send(Ask::Measure { bounds, reply }).is_ok()
            }
        };
        asked.then_some(answer)
    }

    /// CPU time that the run has used, where the kernel counts it.
    pub(crate) fn cpu_us(&self) -> Option<u64> {
        self.clock.as_ref().map(Clock::micros)
    }
}

/// How a command in a sandbox ended.
#[derive(Debug)]
pub(crate) enum End {
    /// It ended by itself; nothing of it is left.
    Ended {
        /// Wait status (wait(2)).
        status: i32,
        /// What it and its descendants used.
        usage: Usage,
    },
    /// It was never executed.
    NotStarted {
        /// The step that failed.
        stage: Stage,
        /// Why.
        errno: Errno,
    },
    /// The sandbox died without a word: it was killed, from here or from elsewhere.
    Gone,
}

/// What a sandbox says while a command is in it.
#[derive(Debug)]
pub(crate) enum Word {
    /// The command's terminal was made; this is its other end.
    Terminal(OwnedFd),
    /// It is over.
    End(End),
}

/// Standard streams of a command.
#[derive(Debug)]
pub(crate) enum Streams<'a> {
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

impl Warm {
    /// Sends the command in. What comes back is told by [`Running::word`].
    ///
    /// `start` is closed in the sandbox when the command was executed, and written to before when
    /// it could not be.
    pub(crate) fn dispatch(
        mut self,
        command: &Command,
        streams: &Streams<'_>,
        start: Option<BorrowedFd<'_>>,
        limits: &Limits,
    ) -> Result<Running, Failure> {
        let failed = |errno| Failure::kernel(Stage::ReceiveRequest, errno, "sending the request");
        let mut fds: Vec<BorrowedFd<'_>> = start.into_iter().collect();
        let wiring = match *streams {
            Streams::Terminal(size) => Wiring::Terminal(size),
            Streams::Descriptors { stdin, stdout, stderr } => {
                fds.extend(stdin.into_iter().chain([stdout, stderr]));
                Wiring::Descriptors { stdin: stdin.is_some() }
            }
        };
        let mut behind = *limits;
        if let Some(cgroup) = &mut self.cgroup {
            cgroup.set(limits).map_err(|error| Failure::other(Stage::Cgroup, error.to_string()))?;
            // It counts what it refuses, if it is asked first.
            behind.processes = behind.processes.saturating_add(PIDS_BEHIND);
        }
        let limits = &behind;
        let image = match &self.scratch {
            None => command.image(wiring, start.is_some(), limits),
            Some(scratch) => settle(command, scratch).image(wiring, start.is_some(), limits),
        };
        let image = image.ok_or_else(|| failed(Errno::TOOBIG))?;
        let running = self.start();
        if image.len() <= IMAGE_BYTES {
            running.control.send(&image, &fds).map_err(failed)?;
        } else {
            let file = sealed_file(c"jig-request", &image)
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
    pub(crate) async fn probe(self) -> Result<Vec<&'static str>, Failure> {
        let level = self.level;
        let mut running = self.start();
        let failed = |errno| Failure::kernel(Stage::Canary, errno, "sending the probe");
        running.control.send(&probe_image(), &[]).map_err(failed)?;
        let report = timeout(PROBE_PATIENCE, running.report())
            .await
            .map_err(|_| Failure::other(Stage::Canary, "it did not answer"))?;
        let result = match report.map(|(report, _)| report) {
            Some(Report::Probed { failed }) => {
                let checks = canary::failed_checks(level, failed);
                let (left_out, broken): (Vec<_>, Vec<_>) =
                    checks.partition(|check| *check == canary::HOST_NAME);
                if broken.is_empty() {
                    Ok(left_out)
                } else {
                    let text = format!("what must hold does not: {}", broken.join("; "));
                    Err(Failure::other(Stage::Canary, text))
                }
            }
            Some(Report::NotStarted { stage, errno } | Report::Failed { stage, errno }) => {
                Err(Failure::kernel(stage, errno, "probe"))
            }
            Some(
                Report::Ready
                | Report::Ended { .. }
                | Report::Terminal
                | Report::Measured(_)
                | Report::Occupied,
            )
            | None => Err(Failure::other(Stage::Canary, "the sandbox died")),
        };
        while matches!(running.word().await, Word::Terminal(_)) {}
        result
    }

    /// Another sandbox of the same slot, built for `limits`, instead of this one. Answers nothing
    /// where the slot is gone.
    pub(super) async fn rebuilt(self, limits: Limits) -> Option<Result<Self, Failure>> {
        let (reply, answer) = oneshot::channel();
        let Self { asks, fate, .. } = self;
        asks.send(Ask::Rebuild { limits, reply }).await.ok()?;
        let rebuilt = answer.await.ok();
        // Kept until now: to the slot, it being dropped would mean that it is free.
        drop(fate);
        rebuilt
    }

    fn start(self) -> Running {
        Running {
            control: self.control,
            pidfd: Some(self.pidfd),
            command: self.command,
            fate: Some(self.fate),
            asks: self.asks,
            cgroup: self.cgroup,
            visit: self.entrance.as_ref().map(Entrance::open),
            level: self.level,
            keeper: self.keeper,
        }
    }
}

// === impl Running ===

impl Running {
    /// Process id of the command in the daemon's namespace.
    pub(crate) fn pid(&self) -> Option<i32> {
        self.command.map(|pid| pid.as_raw_nonzero().get())
    }

    /// How the command reaches the daemon's proxy, where it does: until the command has ended and
    /// everything that it left behind is gone, or is being killed.
    pub(crate) fn visit(&self) -> Option<Visit> {
        self.visit.clone()
    }

    /// Waits until the sandbox has something to say; at the latest when the command has ended and
    /// everything that it left behind is gone, or the sandbox has died. May be cancelled and called
    /// again.
    pub(crate) async fn word(&mut self) -> Word {
        loop {
            let end = match self.report().await {
                Some((Report::Ended { status, usage }, _)) => End::Ended { status, usage },
                Some((
                    Report::NotStarted { stage, errno } | Report::Failed { stage, errno },
                    _,
                )) => End::NotStarted { stage, errno },
                Some((Report::Terminal, Some(terminal))) => return Word::Terminal(terminal),
                Some((
                    Report::Ready
                    | Report::Probed { .. }
                    | Report::Terminal
                    | Report::Measured(_)
                    | Report::Occupied,
                    _,
                )) => continue,
                // The socket may close while processes still live: only the pidfd tells.
                None => return Word::End(End::Gone),
            };
            self.free();
            return Word::End(end);
        }
    }

    /// What the kernel has held of the run, where it counts.
    pub(crate) fn held(&self) -> Held {
        self.cgroup.as_ref().map(RunCgroup::held).unwrap_or_default()
    }

    /// Whether the kernel counts the run's memory.
    pub(crate) fn is_counted(&self) -> bool {
        self.cgroup.is_some()
    }

    /// What has it measured.
    pub(crate) fn measurer(&self) -> Measurer {
        Measurer {
            asks: self.asks.clone(),
            clock: self.cgroup.as_ref().map(RunCgroup::clock),
            asked_at_us: 0,
        }
    }

    /// Has the share of the CPUs lowered that the command's session has, where sessions have shares. May
    /// come to nothing.
    pub(crate) fn lower_share(&self) {
        if !priority::sessions_have_shares() {
            return;
        }
        let order = self.pid().map(ToKeeper::Lower);
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
        self.close();
        let (Some(pidfd), Some(fate)) = (self.pidfd.take(), self.fate.take()) else {
            return true;
        };
        kill_and_wait(pidfd, fate, self.level).await
    }

    /// Ends what the command has opened outside of its sandbox: the slot is the next run's soon.
    fn close(&mut self) {
        if let Some(visit) = self.visit.take() {
            visit.close();
        }
    }

    /// What comes next, with the descriptor that came with it.
    async fn report(&self) -> Option<(Report, Option<OwnedFd>)> {
        let mut bytes = [0; REPORT_BYTES];
        let (received, fds) = self.control.receive(&mut bytes).await.ok()?;
        let report = Report::decode(bytes.get(..received.length)?)?;
        Some((report, fds.into_iter().next()))
    }

    fn free(&mut self) {
        self.close();
        self.pidfd = None;
        if let Some(fate) = self.fate.take() {
            // A slot that nobody keeps any more needs no word.
            let _dropped = fate.send(SlotFate::Free);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.close();
        if let (Some(pidfd), Some(fate)) = (self.pidfd.take(), self.fate.take()) {
            // Nobody waits any more, but the slot may be used again only when all is gone.
            let level = self.level;
            kill(&pidfd, level);
            task::spawn("sandbox kill", async move {
                kill_and_wait(pidfd, fate, level).await;
            });
        }
    }
}

/// Makes a file in memory with `content` that nobody can change any more, open for reading from its
/// start.
pub(crate) fn sealed_file(name: &std::ffi::CStr, content: &[u8]) -> io::Result<OwnedFd> {
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
