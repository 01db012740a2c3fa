//! Messages between the daemon, the processes that build sandboxes, and the sandboxes, over
//! SOCK_SEQPACKET sockets.
//!
//! Messages between long-lived processes are JSON, because they are few. A sandbox's init cannot
//! allocate: it sends [`SandboxReport`]s of fixed size.

use std::{
    io::{IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    io::retry_on_intr,
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
    plan::{CreatedWorkspace, SandboxPlan, WorkspacePlan},
    stage::{Stage, StageFailure},
};
use crate::daemon::sys::{Errno, process::ResourceUsage};

/// Maximum length of a JSON message. A plan with a thousand binds fits, and the kernel's default
/// send buffer is larger.
const MAX_MESSAGE_BYTES: usize = 128 * 1024;
/// Maximum number of descriptors in a message (the kernel's limit, SCM_MAX_FD, is 253).
pub(super) const MAX_MESSAGE_FDS: usize = 128;

/// Request of the daemon to the keeper. The protocol has no version: both ends are always the same
/// binary.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum KeeperRequest {
    /// What to build sandboxes from. Sent first, with the directories of the workspaces and the one
    /// that holds created workspaces.
    Plan(Box<SandboxPlan>),
    StartTemplate(TemplateSpec),
    /// Lower the CPU share of the session of the process with this id. Has no reply.
    LowerCpuShare(i32),
    /// Limit the files of a project. The reply is about no workspace.
    LimitProject(ProjectLimit),
}

/// Number in replies about projects, which belong to no workspace.
pub(super) const PROJECT_REPLY: usize = usize::MAX;

/// A limit of a project on the file system of the created workspaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProjectLimit {
    pub(crate) project: u32,
    /// 0: no limit.
    pub(crate) bytes: u64,
    /// 0: no limit.
    pub(crate) files: u64,
    /// Whether to fail with `EEXIST` if the project has files or limits.
    pub(crate) is_new: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TemplateSpec {
    /// Index of the workspace in the plan, or the number of a created one.
    pub(super) workspace: usize,
    /// Set for a workspace that is not in the plan.
    pub(super) created: Option<CreatedWorkspace>,
    /// Isolation level of its sandboxes. A template that cannot give this level fails.
    pub(super) level: IsolationLevel,
}

/// Reply of the keeper to the daemon, and of the launcher to the keeper. Templates and slot keepers
/// send it too.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum SetupReply {
    /// Done. Sockets may come with the message.
    Done {
        /// The `index` of the workspace's plan.
        workspace: usize,
        /// The user that its sandboxes run as.
        identity: SandboxIdentity,
    },
    Failed(StageFailure),
}

/// The user that the sandboxes of a workspace run as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct SandboxIdentity {
    /// User id, as commands see it.
    pub(crate) uid: u32,
    /// Group id, as commands see it.
    pub(crate) gid: u32,
    /// User and group id as the daemon sees them. They differ only for a container's root that
    /// cannot change to another user.
    pub(crate) host_ids: (u32, u32),
    /// Whether the workspace is mounted with its owner mapped to this user.
    pub(crate) id_mapped: bool,
}

/// Request of the keeper to the launcher: start a template. The template's socket comes first, then
/// the mount trees that the keeper has opened for it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct StartTemplateRequest {
    pub(super) workspace: WorkspacePlan,
    pub(super) level: IsolationLevel,
    pub(super) identity: SandboxIdentity,
    /// Whether mount trees of the workspace and its binds come with the message, in the plan's
    /// order.
    pub(super) has_trees: bool,
}

/// Request of the daemon to a template: make a slot.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct MakeSlotRequest;

/// Request of the daemon to a slot keeper.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SlotKeeperRequest {
    /// Make a sandbox. The sandbox's end of its control socket comes with the request: a socket
    /// made in the slot's network namespace would count as left there ([`super::netns_check`]).
    BuildSandbox {
        /// Size of each of its own file systems, in bytes.
        tmp_bytes: u64,
        /// Inodes of each of them.
        tmp_inodes: u64,
    },
    Measure(MeasurementBounds),
    /// Start a connection in the slot's network namespace ([`super::loopback_connection`]).
    Connect(LoopbackPort),
}

/// A port on the loopback interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LoopbackPort {
    pub(super) number: u16,
    /// Whether it is that of ::1 instead of 127.0.0.1.
    pub(super) is_ipv6: bool,
}

/// How precisely a run is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MeasurementBounds {
    /// Memory up to which an estimate is enough, in bytes; `u64::MAX` to skip memory.
    pub(crate) memory_bytes: u64,
    /// Open files at which counting stops.
    pub(crate) open_files: u64,
    /// Epoll watches at which counting stops.
    pub(crate) epoll_watches: u64,
    /// Whether to count files and watches again even if the run has used little CPU time since the
    /// last count.
    pub(crate) recount: bool,
}

pub(super) const SLOT_KEEPER_REQUEST_BYTES: usize = 40;

/// Report of a sandbox's init or command process to the daemon, or of a slot keeper.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SandboxReport {
    /// The sandbox is built and waits for a request.
    Ready {
        /// The process that becomes the command, by its id in its own namespace. It is also the
        /// command's process group.
        vpid: i32,
        /// The shell that this process is already, by its number ([`super::warm_shell`]), or 0.
        warm_shell: u32,
    },
    /// Building the sandbox failed.
    Failed { stage: Stage, errno: Errno },
    /// The command was not executed.
    NotStarted { stage: Stage, errno: Errno },
    /// The command ended, and every process that it left behind was killed and reaped.
    Ended {
        /// Wait status of the command (wait(2)).
        status: i32,
        /// Usage of all processes of the run.
        usage: ResourceUsage,
    },
    /// The measurement of the newest sandbox.
    Measured(RunMeasurement),
    /// No sandbox was made: a socket of an earlier run exists in the slot's network namespace.
    NetnsInUse,
    /// The command's terminal was opened. The descriptor of the daemon's end comes with the report.
    TerminalOpened,
    Probed {
        /// The failed checks, one bit each, by index in the lists of [`super::probe`].
        failed_checks: u64,
    },
}

/// The resources that a run uses at one time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RunMeasurement {
    pub(crate) memory_bytes: u64,
    /// CPU time so far in microseconds, including reaped processes.
    pub(crate) cpu_us: u64,
    /// Open files, as of the last count.
    pub(crate) open_files: u64,
    /// Epoll watches, as of the last count.
    pub(crate) epoll_watches: u64,
}

pub(crate) const SANDBOX_REPORT_BYTES: usize = 40;

// === JSON messages ===

/// Sends a reply with descriptors. If the descriptors cannot be sent, it sends a failure instead.
/// An error means that the peer is gone.
///
/// The kernel counts descriptors in flight per user (unix(7), ETOOMANYREFS). Commands of the same
/// user can therefore make this fail.
pub(super) fn send_reply(
    socket: impl AsFd,
    reply: &SetupReply,
    fds: &[BorrowedFd<'_>],
    stage: Stage,
) -> Result<(), Errno> {
    match send(&socket, reply, fds) {
        Err(errno) if !StageFailure::from_errno(stage, errno, "").is_disconnection() => {
            let failure = StageFailure::from_errno(stage, errno, "sending a descriptor");
            send(&socket, &SetupReply::Failed(failure), &[])
        }
        sent => sent,
    }
}

/// Makes a pair of connected SOCK_SEQPACKET sockets.
pub(super) fn seqpacket_pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// Sends a JSON message with descriptors. Waits while the socket is full.
pub(super) fn send<T: Serialize>(
    socket: impl AsFd,
    message: &T,
    fds: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let bytes = serde_json::to_vec(message).map_err(|_| Errno::INVAL)?;
    send_bytes(socket, &bytes, fds)
}

/// Waits for a JSON message and its descriptors. Returns `None` when the peer is gone.
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

/// Sends bytes as one message. Allocates nothing. Without descriptors it does not call sendmsg(2),
/// which the init of a sandbox must not ([`super::init`]).
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

    retry_on_intr(|| match fds {
        [] => rustix::net::send(&socket, bytes, SendFlags::NOSIGNAL),
        _ => sendmsg(&socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL),
    })
    .map(|_| ())
}

#[derive(Debug, Clone, Copy)]
pub(super) struct ReceivedMessage {
    /// Its length in bytes; 0 when the peer is gone.
    pub(super) length: usize,
    /// Process id of the sender in this process's namespace, if the socket has SO_PASSCRED.
    pub(super) sender: Option<Pid>,
}

/// Receives one message and passes each descriptor to `on_fd`. Does not allocate.
pub(super) fn receive_bytes(
    socket: impl AsFd,
    bytes: &mut [u8],
    mut on_fd: impl FnMut(OwnedFd),
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
            RecvAncillaryMessage::ScmRights(fds) => fds.for_each(&mut on_fd),
            RecvAncillaryMessage::ScmCredentials(credentials) => sender = Some(credentials.pid),
            _ => {}
        }
    }

    // The kernel silently drops descriptors beyond this process's limit, and only sets this flag. A
    // message that lacks descriptors must not pass for one without.
    if received.flags.contains(ReturnFlags::CTRUNC) {
        return Err(Errno::MFILE);
    }
    Ok(ReceivedMessage { length: received.bytes, sender })
}

// === impl SandboxIdentity ===

impl SandboxIdentity {
    /// A user with the same ids inside and outside.
    pub(super) fn unmapped(uid: u32, gid: u32) -> Self {
        Self { uid, gid, host_ids: (uid, gid), id_mapped: false }
    }
}

// === impl SlotKeeperRequest ===

impl SlotKeeperRequest {
    pub(super) fn encode(self) -> [u8; SLOT_KEEPER_REQUEST_BYTES] {
        let values = match self {
            Self::BuildSandbox { tmp_bytes, tmp_inodes } => [1, tmp_bytes, tmp_inodes, 0, 0],
            Self::Measure(bounds) => [
                2,
                bounds.memory_bytes,
                bounds.open_files,
                bounds.epoll_watches,
                u64::from(bounds.recount),
            ],
            Self::Connect(port) => [3, port.number.into(), port.is_ipv6.into(), 0, 0],
        };

        let mut bytes = [0; SLOT_KEEPER_REQUEST_BYTES];
        for (chunk, value) in bytes.chunks_exact_mut(8).zip(values) {
            chunk.copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    /// Decodes a command. Returns `None` if these bytes are no command.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut values = [0; 5];
        if bytes.len() != SLOT_KEEPER_REQUEST_BYTES {
            return None;
        }
        for (value, chunk) in values.iter_mut().zip(bytes.chunks_exact(8)) {
            *value = u64::from_le_bytes(chunk.try_into().ok()?);
        }

        match values {
            [1, tmp_bytes, tmp_inodes, _, _] => Some(Self::BuildSandbox { tmp_bytes, tmp_inodes }),
            [2, memory_bytes, open_files, epoll_watches, recount] => {
                Some(Self::Measure(MeasurementBounds {
                    memory_bytes,
                    open_files,
                    epoll_watches,
                    recount: recount != 0,
                }))
            }
            [3, number, is_ipv6, _, _] => {
                let number = number.try_into().ok()?;
                Some(Self::Connect(LoopbackPort { number, is_ipv6: is_ipv6 != 0 }))
            }
            _ => None,
        }
    }
}

// === impl SandboxReport ===

impl SandboxReport {
    /// Encodes the report. Allocates nothing.
    pub(crate) fn encode(&self) -> [u8; SANDBOX_REPORT_BYTES] {
        let mut bytes = [0; SANDBOX_REPORT_BYTES];
        let (kind, words): (u32, [u64; 4]) = match *self {
            Self::Ready { vpid, warm_shell } => {
                (1, [u64::from(vpid.cast_unsigned()), u64::from(warm_shell), 0, 0])
            }
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
            Self::Probed { failed_checks } => (5, [failed_checks, 0, 0, 0]),
            Self::TerminalOpened => (6, [0; 4]),
            Self::Measured(measurement) => (
                7,
                [
                    measurement.memory_bytes,
                    measurement.cpu_us,
                    measurement.open_files,
                    measurement.epoll_watches,
                ],
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

    /// Decodes a report. Returns `None` if these bytes are no report.
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
            1 => Self::Ready {
                vpid: u32::try_from(first).ok()?.cast_signed(),
                warm_shell: u32::try_from(second).ok()?,
            },
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
