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
    entrance::Entrance,
    kill::SlotFate,
    level::Level,
    limits::Limits,
    running::{Ask, Warm},
    slot::{TOKEN, TOKEN_BYTES},
    stage::{Failure, Stage},
    wire::{Measure, MeasureBounds, REPORT_BYTES, Report, SlotOrder, pair},
};
use crate::daemon::sys::Errno;

/// What goes with each sandbox of a slot.
#[derive(Debug)]
pub(super) struct Lending {
    /// Where its holder asks the slot.
    pub(super) asks: mpsc::Sender<Ask>,
    /// The slot's listener, where its runs reach the daemon by one.
    pub(super) entrance: Option<Arc<Entrance>>,
    /// The isolation that it gives.
    pub(super) level: Level,
    /// The generation of protected files that it has mounted.
    pub(super) generation: u64,
    /// Where each gets a cgroup.
    pub(super) cgroups: Option<Arc<Cgroups>>,
    /// Who can lower shares of CPUs.
    pub(super) keeper: Arc<Mutex<Channel>>,
}

/// How long building a sandbox may take. It takes a millisecond; a machine that needs longer than
/// this is not one to wait for.
pub(super) const BUILD_PATIENCE: Duration = Duration::from_secs(30);

/// Has the slot's keeper make a sandbox and waits until it is built. Answers what tells its fate,
/// too.
pub(super) async fn refill(
    slot: &Channel,
    lending: &Lending,
    limits: &Limits,
) -> Result<(Warm, oneshot::Receiver<SlotFate>), Failure> {
    let (fate, told) = oneshot::channel();
    let warm = timeout(BUILD_PATIENCE, build(slot, fate, lending, limits))
        .await
        .unwrap_or_else(|_| Err(too_slow(Stage::RunNamespaces)))?;
    Ok((warm, told))
}

/// Has the slot's keeper tell what the sandbox that it made last occupies.
pub(super) async fn measure(slot: &Channel, bounds: MeasureBounds) -> Result<Measure, Failure> {
    let failed = |errno| Failure::kernel(Stage::RunNamespaces, errno, "the slot's keeper died");
    slot.send(&SlotOrder::Measure(bounds).encode(), &[]).map_err(failed)?;
    let mut bytes = [0; REPORT_BYTES];
    let (received, _) = slot.receive(&mut bytes).await.map_err(failed)?;
    match Report::decode(bytes.get(..received.length).unwrap_or_default()) {
        Some(Report::Measured(measure)) => Ok(measure),
        _ => Err(failed(Errno::CONNRESET)),
    }
}

async fn build(
    slot: &Channel,
    fate: oneshot::Sender<SlotFate>,
    lending: &Lending,
    limits: &Limits,
) -> Result<Warm, Failure> {
    let stage = Stage::RunNamespaces;
    let failed = |errno| Failure::kernel(stage, errno, "the slot's keeper died");
    let order =
        SlotOrder::Make { tmp_bytes: limits.tmp_bytes, tmp_inodes: limits.tmp_inodes.into() };
    let (control, sandbox) = pair().map_err(failed)?;
    // Messages on this end then say by which process, as the daemon numbers it, they were sent.
    set_socket_passcred(&control, true).map_err(failed)?;
    slot.send(&order.encode(), &[sandbox.as_fd()]).map_err(failed)?;
    drop(sandbox);
    let mut bytes = [0; TOKEN_BYTES];
    let (received, fds) = slot.receive(&mut bytes).await.map_err(failed)?;
    let message = bytes.get(..received.length).unwrap_or_default();
    let token = message.strip_prefix(TOKEN);
    let (Some(pidfd), Some(scratch)) = (fds.into_iter().next(), token) else {
        return Err(match Report::decode(message) {
            Some(Report::Occupied) => Failure::occupied(),
            Some(Report::Failed { stage, errno }) => {
                Failure::kernel(stage, errno, detail(stage, errno, "making a sandbox"))
            }
            _ => failed(Errno::CONNRESET),
        });
    };
    let scratch = (!scratch.is_empty()).then(|| OsStr::from_bytes(scratch).to_owned());
    let control = Channel::new(control).map_err(|error| io_failure(&error))?;
    let mut bytes = [0; REPORT_BYTES];
    let (received, _) = control.receive(&mut bytes).await.map_err(failed)?;
    match Report::decode(bytes.get(..received.length).unwrap_or_default()) {
        Some(Report::Ready) => Ok(Warm {
            cgroup: cgroup(lending, limits, received.sender)?,
            control,
            pidfd,
            command: received.sender,
            fate,
            asks: lending.asks.clone(),
            entrance: lending.entrance.clone(),
            level: lending.level,
            generation: lending.generation,
            keeper: Arc::clone(&lending.keeper),
            scratch,
        }),
        Some(Report::Failed { stage, errno }) => {
            Err(Failure::kernel(stage, errno, detail(stage, errno, "building a sandbox")))
        }
        _ => Err(Failure::kernel(stage, Errno::CONNRESET, "a sandbox died while it was built")),
    }
}

/// What is known of a step that has failed, beside what was being done.
fn detail(stage: Stage, errno: Errno, doing: &'static str) -> &'static str {
    match (stage, errno) {
        (Stage::OpenSource, Errno::STALE) => {
            "the workspace, or what is bound, is not what it was when the daemon was started: restart it"
        }
        _ => doing,
    }
}

/// Makes the cgroup of a sandbox whose command's process this is.
fn cgroup(
    lending: &Lending,
    limits: &Limits,
    command: Option<Pid>,
) -> Result<Option<RunCgroup>, Failure> {
    let Some(cgroups) = &lending.cgroups else {
        return Ok(None);
    };
    let failed = |text: String| Failure::other(Stage::Cgroup, text);
    let command = command.ok_or_else(|| failed("the command's process is not known".to_owned()))?;
    let run = cgroups.run(limits, command);
    run.map(Some).map_err(|error| failed(error.to_string()))
}

/// That something took too long.
pub(super) fn too_slow(stage: Stage) -> Failure {
    Failure::other(stage, format!("it took longer than {} s", BUILD_PATIENCE.as_secs()))
}

/// That the runtime cannot watch a socket.
pub(super) fn io_failure(error: &io::Error) -> Failure {
    Failure::kernel(Stage::Launcher, Errno::from_io_error(error).unwrap_or(Errno::IO), "socket")
}
