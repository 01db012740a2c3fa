//! Messages between the daemon, the launcher's processes and the sandboxes, over SOCK_SEQPACKET
//! sockets.
//!
//! Between long-lived processes they are JSON, few and rare. A sandbox's init answers with a
//! [`Report`] of fixed size, the only thing that it can make without allocating.

use std::{
    io::{IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
        SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg,
        sendmsg, socketpair,
    },
    process::Pid,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{
    level::IsolationLevel,
    plan::SandboxPlan,
    stage::{Stage, StageFailure},
};
use crate::daemon::sys::{Errno, process::ResourceUsage};

/// Most bytes of a JSON message. A plan with a thousand binds fits; the kernel's default send
/// buffer is larger.
const MAX_MESSAGE_BYTES: usize = 128 * 1024;
/// Most descriptors in one message (SCM_MAX_FD of the kernel is 253).
pub(super) const MAX_MESSAGE_FDS: usize = 128;

/// What the daemon tells the keeper. Version 1 of the protocol: both ends are always the same
/// binary.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum KeeperRequest {
    /// What to build. Sent first, with the workspaces' directories.
    Plan(SandboxPlan),
    /// Start a template.
    StartTemplate(TemplateSpec),
    /// Lower the share of the CPUs that the session of a command has, which has this number. Not
    /// answered.
    LowerCpuShare(i32),
}

/// What to start a template for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TemplateSpec {
    /// Index of the workspace in the plan.
    pub(super) workspace: usize,
    /// Level of isolation that its sandboxes give. A template gives this one or none.
    pub(super) level: IsolationLevel,
}

/// What the keeper answers, and the keeper's own orders to the launcher are answered.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SetupReply {
    /// Done; sockets that belong to it come with the message.
    Done {
        /// Index of the workspace in the plan.
        workspace: usize,
        /// As whom its sandboxes run.
        identity: SandboxIdentity,
    },
    /// Not done.
    Failed(StageFailure),
}

/// As whom the sandboxes of a workspace run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct SandboxIdentity {
    /// User id, as commands see it.
    pub(crate) uid: u32,
    /// Group id, as commands see it.
    pub(crate) gid: u32,
    /// User and group id, as the daemon sees them: the same, but where root of a container's user
    /// namespace can only be itself.
    pub(crate) host_ids: (u32, u32),
    /// Whether the workspace is mounted with its owner mapped to that user.
    pub(crate) id_mapped: bool,
}

/// What the keeper tells the launcher: start a template. Its socket comes first, then the trees
/// that the keeper has opened for it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StartTemplateRequest {
    /// What for.
    pub(super) template: TemplateSpec,
    /// As whom it runs.
    pub(super) identity: SandboxIdentity,
    /// Whether trees of the workspace and its binds come with the message, in the plan's order.
    pub(super) has_trees: bool,
}

/// What the daemon tells a template: make a slot.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct MakeSlotRequest;

/// What the daemon tells a slot's keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotCommand {
    /// Make a sandbox. Its end of the socket to the daemon comes with the order: one that was made in
    /// the slot's network namespace would count as left there ([`super::vacancy`]).
    MakeSandbox {
        /// Bytes in each of its own file systems.
        tmp_bytes: u64,
        /// Inodes in each of them.
        tmp_inodes: u64,
    },
    /// Tell what the sandbox that was made last occupies.
    Measure(MeasurementBounds),
}

/// How closely a run is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MeasurementBounds {
    /// Memory up to which an estimate will do, in bytes; the largest number where memory is not
    /// wanted.
    pub(crate) memory_bytes: u64,
    /// Open files beyond which counting ends.
    pub(crate) open_files: u64,
    /// Epoll watches beyond which counting ends.
    pub(crate) epoll_watches: u64,
    /// Whether files and watches are counted again however little CPU time the run has used since
    /// they were.
    pub(crate) recount: bool,
}

/// Bytes of an order on the wire.
pub(super) const SLOT_COMMAND_BYTES: usize = 40;

/// What a sandbox's init and its command's process tell the daemon, and its slot's keeper.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SandboxReport {
    /// The sandbox is built and waits for its request.
    Ready,
    /// Building it failed.
    Failed {
        /// The step that failed.
        stage: Stage,
        /// Why.
        errno: Errno,
    },
    /// The command was not executed.
    NotStarted {
        /// The step that failed.
        stage: Stage,
        /// Why.
        errno: Errno,
    },
    /// The command ended, and every process that it left behind was killed and waited for.
    Ended {
        /// Wait status of the command (wait(2)).
        status: i32,
        /// What all of them used.
        usage: ResourceUsage,
    },
    /// What the sandbox occupies.
    Measured(RunMeasurement),
    /// No sandbox was made: something of an earlier run is left in the slot's network namespace.
    NetnsInUse,
    /// The command's terminal was made; the descriptor of its other end comes with the report.
    TerminalOpened,
    /// The probe was run: bits of the checks that failed.
    Probed {
        /// Bits by the place of the check in the lists of [`super::canary`].
        failed_checks: u64,
    },
}

/// What a run occupies at one time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RunMeasurement {
    /// Bytes of memory.
    pub(crate) memory_bytes: u64,
    /// Microseconds of CPU time so far, of processes that were waited for included.
    pub(crate) cpu_us: u64,
    /// Open files, when they were last counted.
    pub(crate) open_files: u64,
    /// Watches in epoll sets, likewise.
    pub(crate) epoll_watches: u64,
}

/// Bytes of a report on the wire.
pub(crate) const SANDBOX_REPORT_BYTES: usize = 40;

// === JSON messages ===

/// Answers with descriptors; where they cannot be sent, says so instead. An error means that the
/// peer is gone.
///
/// The kernel counts descriptors in flight per user, so commands can make a send fail that is none
/// of their business (ETOOMANYREFS, unix(7)).
pub(super) fn send_reply(
    socket: impl AsFd,
    answer: &SetupReply,
    fds: &[BorrowedFd<'_>],
    stage: Stage,
) -> Result<(), Errno> {
    match send(&socket, answer, fds) {
        Err(errno) if !StageFailure::from_errno(stage, errno, "").is_disconnection() => {
            let failure = StageFailure::from_errno(stage, errno, "sending a descriptor");
            send(&socket, &SetupReply::Failed(failure), &[])
        }
        sent => sent,
    }
}

/// Makes a pair of connected sockets that keep messages apart.
pub(super) fn seqpacket_pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// Sends a message with descriptors; waits while the socket is full.
pub(super) fn send<T: Serialize>(
    socket: impl AsFd,
    message: &T,
    fds: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let bytes = serde_json::to_vec(message).map_err(|_| Errno::INVAL)?;
    send_bytes(socket, &bytes, fds)
}

/// Receives a message with its descriptors; waits for it. Answers nothing when the peer is gone.
pub(super) fn receive<T: DeserializeOwned>(
    socket: impl AsFd,
) -> Result<Option<(T, Vec<OwnedFd>)>, Errno> {
    let mut bytes = vec![0; MAX_MESSAGE_BYTES];
    let mut fds = Vec::new();
    let ReceivedMessage { length, .. } = receive_bytes(socket, &mut bytes, |fd| fds.push(fd))?;
    if length == 0 {
        return Ok(None);
    }
    let message = serde_json::from_slice(bytes.get(..length).unwrap_or_default())
        .map_err(|_| Errno::BADMSG)?;
    Ok(Some((message, fds)))
}

/// Sends bytes as one message. Allocates nothing.
pub(super) fn send_bytes(
    socket: impl AsFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_MESSAGE_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::TOOBIG);
    }
    loop {
        match sendmsg(&socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// A message that was received.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReceivedMessage {
    /// Its length; 0 when the peer is gone.
    pub(super) length: usize,
    /// The process that sent it, as this one's namespace numbers it, where the socket was told to
    /// say so.
    pub(super) sender: Option<Pid>,
}

/// Receives one message, giving each descriptor to `keep`. Allocates nothing by itself.
pub(super) fn receive_bytes(
    socket: impl AsFd,
    bytes: &mut [u8],
    mut keep: impl FnMut(OwnedFd),
) -> Result<ReceivedMessage, Errno> {
    let mut space =
        [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_MESSAGE_FDS), ScmCredentials(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(
            &socket,
            &mut [IoSliceMut::new(bytes)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        ) {
            Ok(received) => break received,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    };
    let mut sender = None;
    for message in ancillary.drain() {
        match message {
            RecvAncillaryMessage::ScmRights(fds) => fds.for_each(&mut keep),
            RecvAncillaryMessage::ScmCredentials(credentials) => sender = Some(credentials.pid),
            _ => {}
        }
    }
    // Descriptors that this process may not have any more of are dropped by the kernel, without a
    // word but this one. A message that lacks some must not pass for one that had none.
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(Errno::MFILE);
    }
    Ok(ReceivedMessage { length: received.bytes, sender })
}

// === impl Identity ===

impl SandboxIdentity {
    /// A user who is the same inside and outside.
    pub(super) fn unmapped(uid: u32, gid: u32) -> Self {
        Self { uid, gid, host_ids: (uid, gid), id_mapped: false }
    }
}

// === impl SlotOrder ===

impl SlotCommand {
    pub(super) fn encode(self) -> [u8; SLOT_COMMAND_BYTES] {
        let values = match self {
            Self::MakeSandbox { tmp_bytes, tmp_inodes } => [1, tmp_bytes, tmp_inodes, 0, 0],
            Self::Measure(bounds) => [
                2,
                bounds.memory_bytes,
                bounds.open_files,
                bounds.epoll_watches,
                u64::from(bounds.recount),
            ],
        };
        let mut bytes = [0; SLOT_COMMAND_BYTES];
        for (chunk, value) in bytes.chunks_exact_mut(8).zip(values) {
            chunk.copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    /// Reads an order. Answers nothing when these bytes are none.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut values = [0; 5];
        if bytes.len() != SLOT_COMMAND_BYTES {
            return None;
        }
        for (value, chunk) in values.iter_mut().zip(bytes.chunks_exact(8)) {
            *value = u64::from_le_bytes(chunk.try_into().ok()?);
        }
        match values {
            [1, tmp_bytes, tmp_inodes, _, _] => Some(Self::MakeSandbox { tmp_bytes, tmp_inodes }),
            [2, memory_bytes, open_files, epoll_watches, recount] => {
                Some(Self::Measure(MeasurementBounds {
                    memory_bytes,
                    open_files,
                    epoll_watches,
                    recount: recount != 0,
                }))
            }
            _ => None,
        }
    }
}

// === impl Report ===
impl SandboxReport {
    /// The report's bytes. Allocates nothing.
    pub(crate) fn encode(&self) -> [u8; SANDBOX_REPORT_BYTES] {
        let mut bytes = [0; SANDBOX_REPORT_BYTES];
        let (kind, words): (u32, [u64; 4]) = match *self {
            Self::Ready => (1, [0; 4]),
            Self::Failed { stage, errno } => {
                (2, [u64::from(stage as u32), u64::from(errno.raw_os_error().unsigned_abs()), 0, 0])
            }
            Self::NotStarted { stage, errno } => {
                (3, [u64::from(stage as u32), u64::from(errno.raw_os_error().unsigned_abs()), 0, 0])
            }
            Self::Ended { status, usage } => (
                4,
                [
                    u64::from(status.cast_unsigned()),
                    usage.user_us,
                    usage.system_us,
                    usage.max_rss_kib,
                ],
            ),
            Self::Probed { failed_checks: failed } => (5, [failed, 0, 0, 0]),
            Self::TerminalOpened => (6, [0; 4]),
            Self::Measured(measure) => (
                7,
                [measure.memory_bytes, measure.cpu_us, measure.open_files, measure.epoll_watches],
            ),
            Self::NetnsInUse => (8, [0; 4]),
        };
        let mut chunks = bytes.chunks_exact_mut(8);
        let values = [u64::from(kind), words[0], words[1], words[2], words[3]];
        for (chunk, value) in chunks.by_ref().zip(values) {
            chunk.copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    /// Reads a report. Answers nothing when these bytes are none.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut values = [0u64; 5];
        if bytes.len() != SANDBOX_REPORT_BYTES {
            return None;
        }
        for (value, chunk) in values.iter_mut().zip(bytes.chunks_exact(8)) {
            *value = u64::from_le_bytes(chunk.try_into().ok()?);
        }
        let [kind, first, second, third, fourth] = values;
        let stage = || Stage::from_number(u32::try_from(first).ok()?);
        let errno = || Some(Errno::from_raw_os_error(i32::try_from(second).ok()?));
        Some(match kind {
            1 => Self::Ready,
            2 => Self::Failed { stage: stage()?, errno: errno()? },
            3 => Self::NotStarted { stage: stage()?, errno: errno()? },
            4 => Self::Ended {
                status: u32::try_from(first).ok()?.cast_signed(),
                usage: ResourceUsage { user_us: second, system_us: third, max_rss_kib: fourth },
            },
            5 => Self::Probed { failed_checks: first },
            6 => Self::TerminalOpened,
            7 => Self::Measured(RunMeasurement {
                memory_bytes: first,
                cpu_us: second,
                open_files: third,
                epoll_watches: fourth,
            }),
            8 => Self::NetnsInUse,
            _ => return None,
        })
    }
}
