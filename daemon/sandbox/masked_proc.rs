//! The daemon's own `/proc`, for sandboxes at L2: where a container runtime has masked it, the
//! kernel does not let a user namespace mount a fresh one (mount_namespaces(7)).
//!
//! ```text
//! template     a copy of /proc with all that is mounted on it, those read-only   → bind
//!              pivoted: what the runtime has left open of our own masks          → hide
//! slot keeper  has written its maps, needs it no more: read-only                 → seal
//! ```
//!
//! What it shows of processes outside the sandbox is their numbers, states and command lines. The
//! files that need the right to trace are closed by the kernel: those processes live in a user
//! namespace above (ptrace(2)).

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
/// What is mounted below `/proc` without hiding anything: interfaces to the kernel of their own.
const HARMLESS_FILE_SYSTEMS: &[&str] = &["autofs", "binfmt_misc"];
/// Flags that are never taken off again.
const BIND_FLAGS: MountFlags =
    MountFlags::BIND.union(MountFlags::NOSUID).union(MountFlags::NODEV).union(MountFlags::NOEXEC);

/// Whether something covers parts of `/proc`.
pub(super) fn is_masked() -> Result<bool, StageFailure> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").map_err(|error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        StageFailure::from_errno(Stage::MountTemplateProc, errno, "/proc/self/mountinfo")
    })?;
    Ok(mounts.lines().any(covers_proc))
}

/// Whether a line of proc_pid_mountinfo(5) is a mount below `/proc` that may hide something.
fn covers_proc(line: &str) -> bool {
    let point = line.split(' ').nth(4).unwrap_or_default();
    let kind = line.split(" - ").nth(1).and_then(|rest| rest.split(' ').next());
    point.starts_with("/proc/") && !HARMLESS_FILE_SYSTEMS.contains(&kind.unwrap_or_default())
}

/// Mounts a copy of `/proc`, with everything on it, at `target`. What is mounted on it can only be
/// read from now on.
pub(super) fn bind_host_proc(target: &str) -> Result<(), StageFailure> {
    let failed = |what: &'static str| at_stage(Stage::BindProc, what);
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE;
    let tree = open_tree(CWD, PROC, flags).map_err(failed("opening /proc"))?;
    if fstatfs(&tree).map_err(failed("/proc"))?.f_type != PROC_MAGIC {
        return Err(StageFailure::other(Stage::BindProc, "/proc is something else"));
    }
    let attributes = attribute::RDONLY | attribute::NOSUID | attribute::NODEV | attribute::NOEXEC;
    set_attributes(tree.as_fd(), attributes, None).map_err(failed("making it read-only"))?;
    let empty = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    move_mount(tree.as_fd(), "", CWD, target, empty).map_err(failed("mounting it"))?;
    // The template's own processes write their maps in it.
    let flags = BIND_FLAGS | access_time_flags(target).map_err(failed("its flags"))?;
    mount_remount(target, flags, c"").map_err(failed("keeping it writable for the template"))
}

/// Covers what the sandbox's user could read of the whole machine, with `empty`, an empty
/// directory, and `/dev/null`.
pub(super) fn hide_host_files(empty: &CStr) -> Result<(), StageFailure> {
    for (path, is_directory) in proc_masks::readable_masks() {
        let cover = if is_directory { empty } else { c"/dev/null" };
        let shown = || path.to_string_lossy();
        mount_bind(cover, path).map_err(|errno| at_stage(Stage::MaskProc, &shown())(errno))?;
    }
    Ok(())
}

/// Makes it read-only for this mount namespace and all made from it.
pub(super) fn make_read_only() -> Result<(), StageFailure> {
    let failed = at_stage(Stage::BindProc, "making it read-only");
    let flags = access_time_flags(PROC).map(|times| BIND_FLAGS | MountFlags::RDONLY | times);
    flags.and_then(|flags| mount_remount(PROC, flags, c"")).map_err(failed)
}

/// The flags about times of access, which a mount from a user namespace above must keep.
fn access_time_flags(path: impl rustix::path::Arg) -> Result<MountFlags, Errno> {
    let held = statvfs(path)?.f_flag;
    let pairs = [
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ];
    let kept = pairs.iter().filter(|(held_as, _)| held.contains(*held_as));
    Ok(kept.fold(MountFlags::empty(), |flags, (_, flag)| flags | *flag))
}

#[cfg(test)]
mod tests {
    use super::covers_proc;

    #[test]
    fn masks_are_told_from_what_belongs_to_proc() {
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
