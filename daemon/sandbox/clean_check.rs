//! Checks that a run left nothing in its sandbox, so that another run of the same caller may use
//! it.
//!
//! The init takes the state of a new sandbox and compares it with the state after each run. All
//! processes of the run are dead by then. Only what a process can leave behind is compared:
//!
//! | what | how |
//! |---|---|
//! | files, also unlinked ones that are still open | free inodes and blocks of each tmpfs (statfs(2)) |
//! | modes, owners, times and attributes of the top directories | statx(2), listxattr(2) |
//! | modes, owners and times of `/dev/pts` and `/dev/ptmx`, which have no attributes | statx(2) |
//! | segments, semaphores and message queues of System V | their number |
//! | sockets of the network namespace | their number (see [`super::netns_check`]) |
//! | the priority of the init | getpriority(2) |
//!
//! The CPU share of the session is no difference: it is that of all commands of the workspace
//! ([`super::priority`]).
//!
//! A terminal of a run stays usable while the daemon holds its other end. No check shows that, but
//! the command's process sends that end to the daemon by sendmsg(2).
//!
//! A descriptor of the run can live on in another run only if it was passed over a socket. The init
//! sees the calls that pass descriptors ([`super::init`]), and a sandbox in which there was one is
//! not used again. The same holds for calls that direct signals at process groups of later runs, and
//! for mq_open(3): nothing lists POSIX message queues. Mounts cannot be changed.
//!
//! The init holds all this open: to look the paths up took a third of its time. No command inherits
//! these descriptors.

use std::{ffi::CStr, os::fd::OwnedFd};

use rustix::{
    fs::{AtFlags, Mode, OFlags, Statx, StatxFlags, flistxattr_query, fstatfs, open, statx},
    process::getpriority_process,
};

use super::{netns_check::SocketCounts, plan::NetworkMode};
use crate::daemon::sys::{Errno, ipc::sysv_object_count};

/// The state of a new sandbox, and where it is read.
pub(super) struct CleanCheck {
    watched: WatchedFiles,
    new_sandbox: SandboxSnapshot,
}

struct WatchedFiles {
    /// `/dev/shm`, and `/tmp` and the home directory unless they are persistent.
    scratch: [Option<OwnedFd>; 3],
    /// `/dev/pts` and `/dev/pts/ptmx`.
    terminals: [OwnedFd; 2],
    /// Counts of sockets. `None` with the network `host`, where they are not the run's.
    sockets: Option<SocketCounts>,
}

/// What a run can change in its sandbox, apart from the workspace and persistent directories.
#[derive(PartialEq, Eq)]
struct SandboxSnapshot {
    scratch: [Option<ScratchSnapshot>; 3],
    terminals: [InodeSnapshot; 2],
    sysv_objects: u32,
    sockets: Option<u64>,
    priority: i32,
}

/// A file system of the run, and its top directory.
#[derive(PartialEq, Eq)]
struct ScratchSnapshot {
    /// Free blocks and free inodes.
    free: (u64, u64),
    top: InodeSnapshot,
    /// Length of the list of extended attributes.
    xattr_list_bytes: usize,
}

#[derive(PartialEq, Eq)]
struct InodeSnapshot {
    /// Mode, owner, group, links, and flags of the inode.
    attributes: (u16, u32, u32, u32, u64),
    /// Times of the last change of the inode and of its content.
    times: [(i64, u32); 2],
}

impl CleanCheck {
    /// Takes the present state as that of a new sandbox. Called by the init, which allocates nothing.
    ///
    /// `scratch` are `/tmp` and the home directory, unless they are persistent.
    pub(super) fn begin(network: NetworkMode, scratch: [Option<&CStr>; 2]) -> Result<Self, Errno> {
        let watched = WatchedFiles::open(network, scratch)?;
        let new_sandbox = watched.take_snapshot()?;
        Ok(Self { watched, new_sandbox })
    }

    /// Whether the sandbox is as it was.
    pub(super) fn is_clean(&self) -> bool {
        self.watched.take_snapshot().is_ok_and(|now| now == self.new_sandbox)
    }
}

impl WatchedFiles {
    fn open(network: NetworkMode, [tmp, home]: [Option<&CStr>; 2]) -> Result<Self, Errno> {
        let open_as = |path: &CStr, flags| open(path, flags | OFlags::CLOEXEC, Mode::empty());
        let directory = |path| open_as(path, OFlags::RDONLY | OFlags::DIRECTORY);
        // To open the multiplexer itself would make a terminal.
        let terminal = |path| open_as(path, OFlags::PATH);
        Ok(Self {
            scratch: [
                Some(directory(c"/dev/shm")?),
                tmp.map(directory).transpose()?,
                home.map(directory).transpose()?,
            ],
            terminals: [terminal(c"/dev/pts")?, terminal(c"/dev/pts/ptmx")?],
            sockets: match network {
                NetworkMode::Host => None,
                NetworkMode::None | NetworkMode::Proxy => Some(SocketCounts::open()?),
            },
        })
    }

    fn take_snapshot(&self) -> Result<SandboxSnapshot, Errno> {
        let [shm, tmp, home] = &self.scratch;
        let scratch = |fd: &Option<_>| fd.as_ref().map(ScratchSnapshot::of).transpose();
        let [directory, multiplexer] = &self.terminals;
        Ok(SandboxSnapshot {
            scratch: [scratch(shm)?, scratch(tmp)?, scratch(home)?],
            terminals: [InodeSnapshot::of(directory)?, InodeSnapshot::of(multiplexer)?],
            sysv_objects: sysv_object_count()?,
            sockets: self.sockets.as_ref().map(SocketCounts::read).transpose()?,
            priority: getpriority_process(None)?,
        })
    }
}

impl ScratchSnapshot {
    fn of(top: &OwnedFd) -> Result<Self, Errno> {
        let file_system = fstatfs(top)?;
        Ok(Self {
            free: (file_system.f_bfree, file_system.f_ffree),
            top: InodeSnapshot::of(top)?,
            xattr_list_bytes: match flistxattr_query(top) {
                Err(Errno::OPNOTSUPP) => 0,
                bytes => bytes?,
            },
        })
    }
}

impl InodeSnapshot {
    fn of(file: &OwnedFd) -> Result<Self, Errno> {
        let Statx {
            stx_mode,
            stx_uid,
            stx_gid,
            stx_nlink,
            stx_attributes,
            stx_ctime,
            stx_mtime,
            ..
        } = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
        Ok(Self {
            attributes: (stx_mode, stx_uid, stx_gid, stx_nlink, stx_attributes.bits()),
            times: [stx_ctime, stx_mtime].map(|time| (time.tv_sec, time.tv_nsec)),
        })
    }
}
