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
//! | modes and attributes of `/dev/pts` and `/dev/ptmx` | the same |
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

use std::ffi::CStr;

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, listxattr_query, open, statfs, statx},
    io::read,
    process::getpriority_process,
};

use super::{
    netns_check::{SOCKSTAT_PATH, count_sockets},
    plan::NetworkMode,
};
use crate::daemon::sys::{Errno, ipc::sysv_object_count};

/// What a run can change in its sandbox, apart from the workspace and a persistent home directory.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SandboxSnapshot {
    /// `/tmp`, `/dev/shm`, the directory and the multiplexer of terminals.
    fixed_paths: [PathSnapshot; 4],
    /// `None` if the home directory is persistent.
    home: Option<PathSnapshot>,
    sysv_objects: u32,
    /// Sockets of the network namespace. `None` with the network `host`, where they are not the run's.
    sockets: Option<u64>,
    priority: i32,
}

#[derive(Debug, PartialEq, Eq)]
struct PathSnapshot {
    /// Free blocks and free inodes of the file system.
    free: (u64, u64),
    /// Mode, owner, group, links, and flags of the inode.
    attributes: (u16, u32, u32, u32, u64),
    /// Times of the last change of the inode and of its content.
    times: [(i64, u32); 2],
    /// Length of the list of extended attributes.
    xattr_list_bytes: usize,
}

impl SandboxSnapshot {
    /// Takes the present state. Called by the init, which allocates nothing.
    ///
    /// `home` is the home directory, unless it is persistent.
    pub(super) fn take(network: NetworkMode, home: Option<&CStr>) -> Result<Self, Errno> {
        Ok(Self {
            fixed_paths: [
                PathSnapshot::of(c"/tmp")?,
                PathSnapshot::of(c"/dev/shm")?,
                PathSnapshot::of(c"/dev/pts")?,
                PathSnapshot::of(c"/dev/pts/ptmx")?,
            ],
            home: home.map(PathSnapshot::of).transpose()?,
            sysv_objects: sysv_object_count()?,
            sockets: match network {
                NetworkMode::Host => None,
                NetworkMode::None | NetworkMode::Proxy => {
                    let mut counts = [0; 64];
                    let file =
                        open(SOCKSTAT_PATH, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
                    read(file, &mut counts)?;
                    let text = str::from_utf8(&counts).unwrap_or_default();
                    Some(count_sockets(text).ok_or(Errno::IO)?)
                }
            },
            priority: getpriority_process(None)?,
        })
    }
}

impl PathSnapshot {
    fn of(path: &CStr) -> Result<Self, Errno> {
        let file_system = statfs(path)?;
        let file = statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::BASIC_STATS)?;
        Ok(Self {
            free: (file_system.f_bfree, file_system.f_ffree),
            attributes: (
                file.stx_mode,
                file.stx_uid,
                file.stx_gid,
                file.stx_nlink,
                file.stx_attributes.bits(),
            ),
            times: [file.stx_ctime, file.stx_mtime].map(|time| (time.tv_sec, time.tv_nsec)),
            xattr_list_bytes: match listxattr_query(path) {
                Err(Errno::OPNOTSUPP) => 0,
                bytes => bytes?,
            },
        })
    }
}
