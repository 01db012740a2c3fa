//! Requests to a slot keeper: build a sandbox, and measure the newest one.

use std::{
    ffi::{OsStr, OsString},
    io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use rustix::{net::sockopt::set_socket_passcred, process::Pid};
use tokio::{
    sync::{Mutex, mpsc, oneshot},
    time::timeout,
};

use crate::daemon::{
    sandbox::{
        cgroup::{Cgroups, RunCgroup},
        channel::Channel,
        kill::{SlotOutcome, kill_sandbox},
        level::IsolationLevel,
        limits::RunLimits,
        loopback_connection::ConnectRequest,
        proxy_listener::ProxyListener,
        recycle::{SandboxHistory, UsedSandbox, WarmShellSwitch},
        running::{HolderRequest, IdleSandbox},
        slot::{MAX_HANDLE_MESSAGE_BYTES, SANDBOX_HANDLE_MESSAGE},
        stage::{Stage, StageFailure},
        warm_shell::Shell,
        wire::{
            MeasurementBounds, RunMeasurement, SANDBOX_REPORT_BYTES, SandboxReport,
            SlotKeeperRequest, seqpacket_pair,
        },
    },
    sys::Errno,
};

/// What all sandboxes of one slot have in common.
#[derive(Debug)]
pub(super) struct SlotBuilder {
    /// Sends the requests of a sandbox's holder to the slot's task.
    pub(super) holder_requests: mpsc::Sender<HolderRequest>,
    pub(super) connect_requests: mpsc::Sender<ConnectRequest>,
    /// The slot's listener, with the network `proxy` only.
    pub(super) proxy_listener: Option<Arc<ProxyListener>>,
    pub(super) level: IsolationLevel,
    /// The generation of protected files that the slot has mounted.
    pub(super) generation: u64,
    /// Where runs get cgroups, if the host has them.
    pub(super) cgroups: Option<Arc<Cgroups>>,
    /// The keeper, which can lower CPU shares.
    pub(super) keeper: Arc<Mutex<Channel>>,
    /// Whether the slot has made no sandbox yet.
    pub(super) is_new_slot: AtomicBool,
    /// The limits of sandboxes that may be recycled. `None` if each serves one run.
    pub(super) recycled_limits: Option<RunLimits>,
    pub(super) warm_shells: Arc<WarmShellSwitch>,
    pub(super) counts: Arc<BuildCounts>,
}

/// How often sandboxes were made ready for a run.
#[derive(Debug, Default)]
pub(in crate::daemon::sandbox) struct BuildCounts {
    in_new_slots: AtomicU64,
    in_reused_slots: AtomicU64,
    recycled: AtomicU64,
    with_warm_shell: AtomicU64,
}

impl BuildCounts {
    /// Sandboxes that were the first of their slot.
    pub(in crate::daemon::sandbox) fn in_new_slots(&self) -> u64 {
        self.in_new_slots.load(Ordering::Relaxed)
    }

    /// Sandboxes of slots that had made others.
    pub(in crate::daemon::sandbox) fn in_reused_slots(&self) -> u64 {
        self.in_reused_slots.load(Ordering::Relaxed)
    }

    /// Times that a sandbox was made ready for another run, without a warm shell.
    pub(in crate::daemon::sandbox) fn recycled(&self) -> u64 {
        self.recycled.load(Ordering::Relaxed)
    }

    /// Times that a sandbox was made ready for another run, with a warm shell.
    pub(in crate::daemon::sandbox) fn with_warm_shell(&self) -> u64 {
        self.with_warm_shell.load(Ordering::Relaxed)
    }
}

/// Timeout of building one sandbox. It normally takes a millisecond.
pub(super) const BUILD_TIMEOUT: Duration = Duration::from_secs(30);

/// Requests a sandbox from the slot keeper and waits until it is built.
///
/// The returned receiver reports what becomes of the slot once the sandbox has been used.
pub(super) async fn build_sandbox(
    slot: &Channel,
    builder: &SlotBuilder,
    limits: &RunLimits,
) -> Result<(IdleSandbox, oneshot::Receiver<SlotOutcome>), StageFailure> {
    let (outcome_sender, outcome) = oneshot::channel();
    let sandbox = timeout(BUILD_TIMEOUT, request_sandbox(slot, outcome_sender, builder, limits))
        .await
        .unwrap_or_else(|_| Err(build_timeout_failure(Stage::RunNamespaces)))?;

    let is_new_slot = builder.is_new_slot.swap(false, Ordering::Relaxed);
    let counts = &builder.counts;
    let count = if is_new_slot { &counts.in_new_slots } else { &counts.in_reused_slots };
    count.fetch_add(1, Ordering::Relaxed);
    Ok((sandbox, outcome))
}

/// Measures the newest sandbox, through its slot keeper.
pub(super) async fn measure_sandbox(
    slot: &Channel,
    bounds: MeasurementBounds,
) -> Result<RunMeasurement, StageFailure> {
    slot.send(&SlotKeeperRequest::Measure(bounds).encode(), &[]).map_err(slot_keeper_failure)?;

    let mut bytes = [0; SANDBOX_REPORT_BYTES];
    let (received, _) = slot.receive(&mut bytes).await.map_err(slot_keeper_failure)?;
    match SandboxReport::decode(bytes.get(..received.length).unwrap_or_default()) {
        Some(SandboxReport::Measured(measurement)) => Ok(measurement),
        _ => Err(slot_keeper_failure(Errno::CONNRESET)),
    }
}

async fn request_sandbox(
    slot: &Channel,
    slot_outcome: oneshot::Sender<SlotOutcome>,
    builder: &SlotBuilder,
    limits: &RunLimits,
) -> Result<IdleSandbox, StageFailure> {
    let (control, sandbox_end) = seqpacket_pair().map_err(slot_keeper_failure)?;
    // Each message on this end then carries the sender's process id in the daemon's namespace.
    set_socket_passcred(&control, true).map_err(slot_keeper_failure)?;

    let request = SlotKeeperRequest::BuildSandbox {
        tmp_bytes: limits.tmp_bytes,
        tmp_inodes: limits.tmp_inodes.into(),
    };
    slot.send(&request.encode(), &[sandbox_end.as_fd()]).map_err(slot_keeper_failure)?;
    drop(sandbox_end);

    let mut bytes = [0; MAX_HANDLE_MESSAGE_BYTES];
    let (received, fds) = slot.receive(&mut bytes).await.map_err(slot_keeper_failure)?;
    let message = bytes.get(..received.length).unwrap_or_default();
    let (pidfd, scratch) = parse_handle_message(message, fds)?;
    let scratch_directory = (!scratch.is_empty()).then(|| OsStr::from_bytes(scratch).to_owned());

    let control = Channel::new(control).map_err(|error| io_failure(&error))?;
    let may_recycle =
        builder.recycled_limits.is_some_and(|recycled| limits.has_same_scratch_as(&recycled));
    let history = SandboxHistory::new(may_recycle);
    let ready = receive_ready(&control).await?;
    let new = UsedSandbox { control, pidfd, history };
    idle_sandbox(new, ready, slot_outcome, builder, limits, scratch_directory)
}

/// Waits until the init of a used sandbox has made it ready for another run. Returns `None` if the
/// run left something in it, or changed what only a new sandbox can restore.
pub(super) async fn recycle_sandbox(
    used: UsedSandbox,
    builder: &SlotBuilder,
    limits: &RunLimits,
) -> Option<(IdleSandbox, oneshot::Receiver<SlotOutcome>)> {
    let UsedSandbox { control, pidfd, history } = used;
    let ready = timeout(BUILD_TIMEOUT, receive_ready(&control)).await;
    let Ok(Ok(ready)) = ready else {
        // Its init has ended, as a rule.
        kill_sandbox(&pidfd, builder.level);
        return None;
    };

    let (slot_outcome, outcome) = oneshot::channel();
    let used = UsedSandbox { control, pidfd, history };
    let sandbox = idle_sandbox(used, ready, slot_outcome, builder, limits, None).ok()?;
    let counts = &builder.counts;
    let count = match sandbox.warm_shell {
        Some(_) => &counts.with_warm_shell,
        None => &counts.recycled,
    };
    count.fetch_add(1, Ordering::Relaxed);
    Some((sandbox, outcome))
}

/// Replaces the waiting shell of a sandbox by a process that can execute any command.
pub(super) async fn replace_warm_shell(sandbox: &mut IdleSandbox) -> Result<(), StageFailure> {
    // Too short for a command.
    sandbox.control.send(&[0], &[]).map_err(slot_keeper_failure)?;
    let ready = timeout(BUILD_TIMEOUT, receive_ready(&sandbox.control))
        .await
        .unwrap_or_else(|_| Err(build_timeout_failure(Stage::CommandProcess)))?;
    (sandbox.vpid, sandbox.command, sandbox.warm_shell) = (ready.vpid, ready.command, None);
    match (&sandbox.cgroup, ready.command) {
        _ if ready.warm_shell.is_some() => Err(slot_keeper_failure(Errno::BADMSG)),
        (None, _) => Ok(()),
        (Some(_), None) => Err(slot_keeper_failure(Errno::SRCH)),
        (Some(cgroup), Some(command)) => cgroup
            .add(command)
            .map_err(|error| StageFailure::other(Stage::Cgroup, error.to_string())),
    }
}

/// The process that becomes the command, by its ids in its own namespace and in the daemon's.
struct ReadyProcess {
    vpid: i32,
    command: Option<Pid>,
    warm_shell: Option<Shell>,
}

/// Waits for a sandbox's report that it is ready.
async fn receive_ready(control: &Channel) -> Result<ReadyProcess, StageFailure> {
    let mut report = [0; SANDBOX_REPORT_BYTES];
    let (received, _) = control.receive(&mut report).await.map_err(slot_keeper_failure)?;
    match SandboxReport::decode(report.get(..received.length).unwrap_or_default()) {
        Some(SandboxReport::Ready { vpid, warm_shell }) => Ok(ReadyProcess {
            vpid,
            command: received.sender,
            warm_shell: Shell::from_number(warm_shell),
        }),
        Some(SandboxReport::Failed { stage, errno }) => {
            Err(build_failure(stage, errno, "building a sandbox"))
        }
        _ => Err(StageFailure::from_errno(
            Stage::RunNamespaces,
            Errno::CONNRESET,
            "a sandbox died while it was built",
        )),
    }
}

fn idle_sandbox(
    UsedSandbox { control, pidfd, history }: UsedSandbox,
    ReadyProcess { vpid, command, warm_shell }: ReadyProcess,
    slot_outcome: oneshot::Sender<SlotOutcome>,
    builder: &SlotBuilder,
    limits: &RunLimits,
    scratch_directory: Option<OsString>,
) -> Result<IdleSandbox, StageFailure> {
    Ok(IdleSandbox {
        cgroup: create_run_cgroup(builder, limits, command)?,
        control,
        pidfd,
        command,
        vpid,
        warm_shell,
        uses_warm_shells: builder.warm_shells.is_on(),
        history,
        slot_outcome,
        holder_requests: builder.holder_requests.clone(),
        connect_requests: builder.connect_requests.clone(),
        proxy_listener: builder.proxy_listener.clone(),
        level: builder.level,
        generation: builder.generation,
        keeper: Arc::clone(&builder.keeper),
        scratch_directory,
    })
}

/// Returns the sandbox's pidfd and, at L1, the path of its scratch directory (else empty).
fn parse_handle_message(
    message: &[u8],
    fds: Vec<OwnedFd>,
) -> Result<(OwnedFd, &[u8]), StageFailure> {
    if let (Some(pidfd), Some(scratch)) =
        (fds.into_iter().next(), message.strip_prefix(SANDBOX_HANDLE_MESSAGE))
    {
        return Ok((pidfd, scratch));
    }

    Err(match SandboxReport::decode(message) {
        Some(SandboxReport::NetnsInUse) => StageFailure::netns_in_use(),
        Some(SandboxReport::Failed { stage, errno }) => {
            build_failure(stage, errno, "starting its init")
        }
        _ => slot_keeper_failure(Errno::CONNRESET),
    })
}

pub(super) fn slot_keeper_failure(errno: Errno) -> StageFailure {
    StageFailure::from_errno(Stage::RunNamespaces, errno, "the slot keeper died")
}

/// A failure that the slot keeper or the sandbox reported while `doing` something.
fn build_failure(stage: Stage, errno: Errno, doing: &'static str) -> StageFailure {
    let detail = match (stage, errno) {
        (Stage::OpenSource, Errno::STALE) => {
            "the workspace or a bind was replaced after the daemon started: restart the daemon"
        }
        _ => doing,
    };
    StageFailure::from_errno(stage, errno, detail)
}

/// Creates the run's cgroup and moves `command`, the process that becomes the command, into it.
fn create_run_cgroup(
    builder: &SlotBuilder,
    limits: &RunLimits,
    command: Option<Pid>,
) -> Result<Option<RunCgroup>, StageFailure> {
    let Some(cgroups) = &builder.cgroups else {
        return Ok(None);
    };
    let failed = |text: String| StageFailure::other(Stage::Cgroup, text);
    let command = command.ok_or_else(|| failed("the command's process is not known".to_owned()))?;
    let run = cgroups.create_run(limits, command).map_err(|error| failed(error.to_string()))?;
    Ok(Some(run))
}

pub(super) fn build_timeout_failure(stage: Stage) -> StageFailure {
    StageFailure::other(
        stage,
        format!("building the sandbox took longer than {} s", BUILD_TIMEOUT.as_secs()),
    )
}

/// The failure when the runtime cannot watch a socket.
pub(super) fn io_failure(error: &io::Error) -> StageFailure {
    StageFailure::from_errno(
        Stage::Launcher,
        Errno::from_io_error(error).unwrap_or(Errno::IO),
        "watching a socket",
    )
}
