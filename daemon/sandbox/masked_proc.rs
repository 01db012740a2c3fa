//! The daemon's own `/proc` in L2 sandboxes. If a container runtime has masked it, the kernel does
//! not let a user namespace mount a fresh one (mount_namespaces(7)).
//!
//! ```text
//! template     copies /proc with all mounts on it, and makes those read-only     → bind_host_proc
//!              after pivoting: masks what the runtime has left readable          → hide_host_files
//! slot keeper  after writing its id maps: makes the copy read-only               → make_read_only
//! ```
//!
//! It shows ids, states and command lines of processes outside the sandbox. Files that need the
//! right to trace are closed by the kernel: those processes live in a user namespace above
//! (ptrace(2)).

use std::{ffi::CStr, fs, os::fd::AsFd as _};

use rustix::{
    fs::{CWD, StatVfsMountFlags, fstatfs, statvfs},
    mount::{
        MountFlags, MoveMountFlags, OpenTreeFlags, mount_bind, mount_remount, move_mount, open_tree,
    },
};

use super::{
    proc_masks,
    stage::{Stage, StageFailure, at_stage},
};
use crate::daemon::sys::{
    Errno,
    mount::{attribute, set_attributes},
};

const PROC: &CStr = c"/proc";
/// PROC_SUPER_MAGIC of linux/magic.h.
const PROC_MAGIC: rustix::fs::FsWord = 0x9fa0;
/// File systems mounted below `/proc` that mask nothing: kernel interfaces of their own.
const HARMLESS_FILE_SYSTEMS: &[&str] = &["autofs", "binfmt_misc"];
/// Flags that a remount must repeat to keep.
const BIND_FLAGS: MountFlags =
    MountFlags::BIND.union(MountFlags::NOSUID).union(MountFlags::NODEV).union(MountFlags::NOEXEC);

/// Whether mounts mask parts of `/proc`.
pub(super) fn is_masked() -> Result<bool, StageFailure> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(|error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        StageFailure::from_errno(Stage::MountTemplateProc, errno, "/proc/self/mountinfo")
    })?;
    Ok(mounts.lines().any(covers_proc))
}

/// Whether a line of proc_pid_mountinfo(5) is a mount below `/proc` that may mask something.
fn covers_proc(line: &str) -> bool {
    let point = line.split(' ').nth(4).unwrap_or_default();
    let kind = line.split(" - ").nth(1).and_then(|rest| rest.split(' ').next());
    point.starts_with("/proc/") && !HARMLESS_FILE_SYSTEMS.contains(&kind.unwrap_or_default())
}

/// Mounts a copy of `/proc` with all mounts on it at `target`. The mounts on it become read-only.
pub(super) fn bind_host_proc(target: &str) -> Result<(), StageFailure> {
    let failed = |what: &'static str| at_stage(Stage::BindProc, what);
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE;
    let tree = open_tree(CWD, PROC, flags).map_err(failed("opening /proc"))?;
    if fstatfs(&tree).map_err(failed("checking /proc"))?.f_type != PROC_MAGIC {
        return Err(StageFailure::other(Stage::BindProc, "/proc is not a proc file system"));
    }

    let attributes = attribute::RDONLY | attribute::NOSUID | attribute::NODEV | attribute::NOEXEC;
    set_attributes(tree.as_fd(), attributes, None).map_err(failed("making /proc read-only"))?;
    let empty = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(tree.as_fd(), "", CWD, target, empty)
        .map_err(failed("mounting the copy of /proc"))?;

    // The template's own processes write their id maps in it.
    let flags = BIND_FLAGS
        | access_time_flags(target).map_err(failed("reading the mount flags of /proc"))?;
    mount_remount(target, flags, c"").map_err(failed("keeping /proc writable for the template"))
}

/// Masks files that reveal the whole machine and that the sandbox's user could read: with
/// `/dev/null`, or with `empty`, an empty directory.
pub(super) fn hide_host_files(empty: &CStr) -> Result<(), StageFailure> {
    for (path, is_directory) in proc_masks::readable_masks() {
        let cover = if is_directory { empty } else { c"/dev/null" };
        mount_bind(cover, path)
            .map_err(|errno| at_stage(Stage::MaskProc, &path.to_string_lossy())(errno))?;
    }
    Ok(())
}

/// Makes `/proc` read-only for this mount namespace and its descendants.
pub(super) fn make_read_only() -> Result<(), StageFailure> {
    let failed = at_stage(Stage::BindProc, "making /proc read-only");
    access_time_flags(PROC)
        .and_then(|times| mount_remount(PROC, BIND_FLAGS | MountFlags::RDONLY | times, c""))
        .map_err(failed)
}

/// The access-time flags of a mount. A mount from a user namespace above must keep them.
fn access_time_flags(path: impl rustix::path::Arg) -> Result<MountFlags, Errno> {
    let current = statvfs(path)?.f_flag;
    let pairs = [
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ];
    let set = pairs.iter().filter(|(reported, _)| current.contains(*reported));
    Ok(set.fold(MountFlags::empty(), |flags, (_, flag)| flags | *flag))
}

#[cfg(test)]
mod tests {
    use super::covers_proc;

    #[test]
    fn masks_differ_from_mounts_that_belong_to_proc() {
        for (line, covers) in [
            ("22 28 0:21 / /proc rw,nosuid - proc proc rw", false),
            ("33 22 0:27 / /proc/sys/fs/binfmt_misc rw - autofs systemd-1 rw", false),
            ("34 22 0:5 /null /proc/kcore rw - devtmpfs tmpfs rw", true),
            ("35 22 0:21 /sys /proc/sys ro - proc proc rw", true),
            ("36 28 0:40 / /process rw - tmpfs tmpfs rw", false),
            ("", false),
        ] {
            assert_eq!(covers_proc(line), covers, "{line}");
        }
    }
}
