//! Maps the owner of a directory to the sandboxes' user, so that both the daemon and the commands
//! own the files.
//!
//! An id-mapped mount (mount_setattr(2)) takes its map from a user namespace, which needs no
//! running process. This module starts one, writes its maps, opens the namespace, and kills the
//! process.

use std::{
    fs,
    os::fd::{BorrowedFd, OwnedFd},
};

use rustix::{
    fs::{Mode, OFlags, fstat, open},
    process::{
        DumpableBehavior, Signal, WaitOptions, pidfd_send_signal, set_dumpable_behavior, waitpid,
    },
};

use super::{
    stage::{Stage, StageFailure, at_stage},
    wire::{receive, seqpacket_pair},
};
use crate::daemon::sys::{
    Errno,
    process::{Fork, SingleThreaded, exit_now, fork},
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DirectoryOwner {
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl DirectoryOwner {
    pub(super) fn of(directory: BorrowedFd<'_>) -> Result<Self, Errno> {
        let stat = fstat(directory)?;
        Ok(Self { uid: stat.st_uid, gid: stat.st_gid })
    }
}

/// Makes a user namespace that maps `owner` to `id`, for an id-mapped mount.
pub(super) fn create_user_namespace(
    single_threaded: &SingleThreaded,
    owner: DirectoryOwner,
    id: u32,
) -> Result<OwnedFd, StageFailure> {
    let (keeper, child_end) =
        seqpacket_pair().map_err(at_stage(Stage::MapOwner, "creating a socket pair"))?;

    // Opening the namespace of a process that is not dumpable needs CAP_SYS_PTRACE.
    let set_dumpable = |behavior| {
        set_dumpable_behavior(behavior)
            .map_err(at_stage(Stage::MapOwner, "setting the dumpable flag"))
    };
    set_dumpable(DumpableBehavior::Dumpable)?;
    let forked = fork(single_threaded, libc::CLONE_NEWUSER);
    if !matches!(forked, Ok(Fork::Child)) {
        set_dumpable(DumpableBehavior::NotDumpable)?;
    }
    let (child, pidfd) =
        match forked.map_err(at_stage(Stage::UserNamespace, "cloning a process for an id map"))? {
            Fork::Parent { child, pidfd } => (child, pidfd),
            Fork::Child => {
                drop(keeper);
                let _until_closed = receive::<()>(&child_end);
                exit_now(0)
            }
        };

    let process = child.as_raw_nonzero();
    // If this process may map every id, other owners stay as they are. In a container's user
    // namespace, only its own ids can be mapped.
    let write_map = |file: &str, from: u32| {
        let path = format!("/proc/{process}/{file}");
        write_proc_file(&path, &swap_map(from, id))
            .or_else(|_| write_proc_file(&path, &format!("{from} {id} 1\n")))
    };
    let opened = write_map("uid_map", owner.uid)
        .and_then(|()| write_map("gid_map", owner.gid))
        .and_then(|()| {
            let path = format!("/proc/{process}/ns/user");
            open(path.as_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
                .map_err(at_stage(Stage::MapOwner, &path))
        });

    let _ended = pidfd_send_signal(&pidfd, Signal::KILL);
    // The kernel reaps it: this waits for its end, and then finds no child.
    let _ended = waitpid(Some(child), WaitOptions::empty());
    drop(keeper);
    opened
}

/// Whether `id` exists as a user and a group in this process's user namespace.
pub(super) fn id_exists(id: u32) -> bool {
    is_mapped("/proc/self/uid_map", id) && is_mapped("/proc/self/gid_map", id)
}

/// Formats an id map from sorted pairs (inside, outside). Consecutive ids share a line, because the
/// kernel accepts at most 340 lines.
pub(super) fn format_id_map(ids: &[(u32, u32)]) -> String {
    let mut ranges: Vec<(u32, u32, u32)> = Vec::new();
    for (inside, outside) in ids {
        match ranges.last_mut() {
            Some((first, other, count))
                if *first + *count == *inside && *other + *count == *outside =>
            {
                *count += 1;
            }
            _ => ranges.push((*inside, *outside, 1)),
        }
    }
    ranges.iter().map(|(inside, outside, count)| format!("{inside} {outside} {count}\n")).collect()
}

fn is_mapped(file: &str, id: u32) -> bool {
    fs::read_to_string(file).is_ok_and(|map| {
        map.lines().any(|line| {
            let mut fields = line.split_whitespace().filter_map(|field| field.parse::<u64>().ok());
            let (Some(first), Some(_), Some(count)) = (fields.next(), fields.next(), fields.next())
            else {
                return false;
            };
            (first..first + count).contains(&u64::from(id))
        })
    })
}

/// Writes a file of /proc in one write(2), as the kernel requires for id maps.
pub(super) fn write_proc_file(path: &str, text: &str) -> Result<(), StageFailure> {
    fs::write(path, text).map_err(|error| {
        let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
        StageFailure::from_errno(Stage::IdMap, errno, path)
    })
}

/// Formats an id map (user_namespaces(7)) that swaps two ids and keeps all others.
fn swap_map(first: u32, second: u32) -> String {
    let (low, high) = (first.min(second), first.max(second));
    if low == high {
        return format!("0 0 {}\n", u32::MAX);
    }

    let ranges = [
        (0, 0, low),
        (low, high, 1),
        (low + 1, low + 1, high - low - 1),
        (high, low, 1),
        (high + 1, high + 1, u32::MAX - high - 1),
    ];
    ranges
        .iter()
        .filter(|(.., count)| *count > 0)
        .map(|(inside, outside, count)| format!("{inside} {outside} {count}\n"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{format_id_map, swap_map};

    #[test]
    fn consecutive_ids_share_a_line() {
        let ids = [(5, 5), (6, 6), (7, 7), (9, 9), (10, 0)];
        assert_eq!(format_id_map(&ids), "5 5 3\n9 9 1\n10 0 1\n");
        assert_eq!(format_id_map(&[]), "");
    }

    #[test]
    fn two_ids_are_swapped_and_all_others_stay() {
        assert_eq!(
            swap_map(0, 61_000),
            "0 61000 1\n1 1 60999\n61000 0 1\n61001 61001 4294906294\n"
        );
        assert_eq!(swap_map(5, 4), "0 0 4\n4 5 1\n5 4 1\n6 6 4294967289\n");
        assert_eq!(swap_map(7, 7), "0 0 4294967295\n");
    }
}
