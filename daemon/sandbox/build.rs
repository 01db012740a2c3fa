//! What the daemon asks of a slot's keeper: a sandbox, and what the one that it made last occupies.

use std::{
    ffi::OsStr,
    io,
    os::{fd::AsFd as _, unix::ffi::OsStrExt as _},
    sync::Arc,
    time::Duration,
};

use rustix::{net::sockopt::set_socket_passcred, process::Pid};
use tokio::{
    sync::{Mutex, mpsc, oneshot},
    time::timeout,
};

use super::{
    cgroup::{Cgroups, RunCgroup},
    channel::Channel,
    kill::SlotOutcome,
    level::IsolationLevel,
    limits::RunLimits,
    proxy_listener::ProxyListener,
    running::{IdleSandbox, SlotRequest},
    slot::{MAX_TOKEN_BYTES, SANDBOX_TOKEN},
    stage::{Stage, StageFailure},
    wire::{
        MeasurementBounds, RunMeasurement, SANDBOX_REPORT_BYTES, SandboxReport, SlotCommand,
        seqpacket_pair,
    },
};
use crate::daemon::sys::Errno;

/// What goes with each sandbox of a slot.
#[derive(Debug)]
pub(super) struct SlotBuilder {
    /// Where its holder asks the slot.
    pub(super) slot_requests: mpsc::Sender<SlotRequest>,
    /// The slot's listener, where its runs reach the daemon by one.
    pub(super) proxy_listener: Option<Arc<ProxyListener>>,
    /// The isolation that it gives.
    pub(super) level: IsolationLevel,
    /// The generation of protected files that it has mounted.
    pub(super) generation: u64,
    /// Where each gets a cgroup.
    pub(super) cgroups: Option<Arc<Cgroups>>,
    /// Who can lower shares of CPUs.
    pub(super) keeper: Arc<Mutex<Channel>>,
}

/// How long building a sandbox may take. It takes a millisecond; a machine that needs longer than
/// this is not one to wait for.
pub(super) const BUILD_TIMEOUT: Duration = Duration::from_secs(30);

/// Has the slot's keeper make a sandbox and waits until it is built. Answers what tells its fate,
/// too.
pub(super) async fn build_sandbox(
    slot: &Channel,
    builder: &SlotBuilder,
    limits: &RunLimits,
) -> Result<(IdleSandbox, oneshot::Receiver<SlotOutcome>), StageFailure> {
    let (fate, told) = oneshot::channel();
    let warm = timeout(BUILD_TIMEOUT, request_sandbox(slot, fate, builder, limits))
        .await
        .unwrap_or_else(|_| Err(build_timed_out(Stage::RunNamespaces)))?;
    Ok((warm, told))
}

/// Has the slot's keeper tell what the sandbox that it made last occupies.
pub(super) async fn measure_sandbox(
    slot: &Channel,
    bounds: MeasurementBounds,
) -> Result<RunMeasurement, StageFailure> {
    let failed =
        |errno| StageFailure::from_errno(Stage::RunNamespaces, errno, "the slot's keeper died");
    slot.send(&SlotCommand::Measure(bounds).encode(), &[]).map_err(failed)?;
    let mut bytes = [0; SANDBOX_REPORT_BYTES];
    let (received, _) = slot.receive(&mut bytes).await.map_err(failed)?;
    match SandboxReport::decode(bytes.get(..received.length).unwrap_or_default()) {
        Some(SandboxReport::Measured(measure)) => Ok(measure),
        _ => Err(failed(Errno::CONNRESET)),
    }
}

async fn request_sandbox(
    slot: &Channel,
    slot_outcome: oneshot::Sender<SlotOutcome>,
    builder: &SlotBuilder,
    limits: &RunLimits,
) -> Result<IdleSandbox, StageFailure> {
    let stage = Stage::RunNamespaces;
    let failed = |errno| StageFailure::from_errno(stage, errno, "the slot's keeper died");
    let order = SlotCommand::MakeSandbox {
        tmp_bytes: limits.tmp_bytes,
        tmp_inodes: limits.tmp_inodes.into(),
    };
    let (control, sandbox) = seqpacket_pair().map_err(failed)?;
    // Messages on this end then say by which process, as the daemon numbers it, they were sent.
    set_socket_passcred(&control, true).map_err(failed)?;
    slot.send(&order.encode(), &[sandbox.as_fd()]).map_err(failed)?;
    drop(sandbox);
    let mut bytes = [0; MAX_TOKEN_BYTES];
    let (received, fds) = slot.receive(&mut bytes).await.map_err(failed)?;
    let message = bytes.get(..received.length).unwrap_or_default();
    let token = message.strip_prefix(SANDBOX_TOKEN);
    let (Some(pidfd), Some(scratch)) = (fds.into_iter().next(), token) else {
        return Err(match SandboxReport::decode(message) {
            Some(SandboxReport::NetnsInUse) => StageFailure::netns_in_use(),
            Some(SandboxReport::Failed { stage, errno }) => StageFailure::from_errno(
                stage,
                errno,
                failure_detail(stage, errno, "making a sandbox"),
            ),
            _ => failed(Errno::CONNRESET),
        });
    };
    let scratch = (!scratch.is_empty()).then(|| OsStr::from_bytes(scratch).to_owned());
    let control = Channel::new(control).map_err(|error| io_failure(&error))?;
    let mut bytes = [0; SANDBOX_REPORT_BYTES];
    let (received, _) = control.receive(&mut bytes).await.map_err(failed)?;
    match SandboxReport::decode(bytes.get(..received.length).unwrap_or_default()) {
        Some(SandboxReport::Ready) => Ok(IdleSandbox {
            cgroup: create_run_cgroup(builder, limits, received.sender)?,
            control,
            pidfd,
            command: received.sender,
            slot_outcome,
            slot_requests: builder.slot_requests.clone(),
            proxy_listener: builder.proxy_listener.clone(),
            level: builder.level,
            generation: builder.generation,
            keeper: Arc::clone(&builder.keeper),
            scratch_directory: scratch,
        }),
        Some(SandboxReport::Failed { stage, errno }) => Err(StageFailure::from_errno(
            stage,
            errno,
            failure_detail(stage, errno, "building a sandbox"),
        )),
        _ => Err(StageFailure::from_errno(
            stage,
            Errno::CONNRESET,
            "a sandbox died while it was built",
        )),
    }
}

/// What is known of a step that has failed, beside what was being done.
fn failure_detail(stage: Stage, errno: Errno, doing: &'static str) -> &'static str {
    match (stage, errno) {
        (Stage::OpenSource, Errno::STALE) => {
            "the workspace, or what is bound, is not what it was when the daemon was started: restart it"
        }
        _ => doing,
    }
}

/// Makes the cgroup of a sandbox whose command's process this is.
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
    let run = cgroups.create_run(limits, command);
    run.map(Some).map_err(|error| failed(error.to_string()))
}

/// That something took too long.
pub(super) fn build_timed_out(stage: Stage) -> StageFailure {
    StageFailure::other(stage, format!("it took longer than {} s", BUILD_TIMEOUT.as_secs()))
}

/// That the runtime cannot watch a socket.
pub(super) fn io_failure(error: &io::Error) -> StageFailure {
    StageFailure::from_errno(
        Stage::Launcher,
        Errno::from_io_error(error).unwrap_or(Errno::IO),
        "socket",
    )
}
