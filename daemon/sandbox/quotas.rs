//! Kernel quotas: what the kernel counts per user, per user namespace or per machine, and what
//! limits it.
//!
//! The kernel counts `ucounts` per user in each user namespace, and again in all namespaces above.
//! A slot's user namespace limits those. It counts `user_struct` per user id over all namespaces. A
//! root daemon gives each workspace its own user id; all runs of an ordinary user's daemon share
//! that user's counts with the daemon.
//!
//! ucounts (`/proc/sys/user`, user_namespaces(7)):
//!
//! | quota | counted per | limited by | when it is reached |
//! |---|---|---|---|
//! | max_user_namespaces, max_net_namespaces | user, namespace | 0 in a slot; the filter refuses the calls too | EPERM |
//! | max_pid_namespaces, max_mnt_namespaces, max_ipc_namespaces | user, namespace | the filter: a slot makes one of each for its run | EPERM |
//! | max_uts_namespaces, max_cgroup_namespaces, max_time_namespaces | user, namespace | the filter; a template makes one | EPERM |
//! | max_inotify_instances, max_inotify_watches | user, namespace | a quarter of the user's in a slot | EMFILE, ENOSPC in the run |
//! | max_fanotify_groups, max_fanotify_marks | user, namespace | groups: 0 in a slot, so there is nothing to mark | EPERM |
//! | RLIMIT_NPROC | user, namespace | `limits.processes` in a slot; [`limit_total_processes`] over all slots of a user | EAGAIN in the run; EAGAIN in all runs of the user |
//! | RLIMIT_SIGPENDING | user, namespace | 4,096 in a slot | EAGAIN in the run |
//! | RLIMIT_MEMLOCK | user, namespace | the daemon's own limit, for each process | ENOMEM, EPERM in the run |
//! | RLIMIT_MSGQUEUE | user, namespace | the daemon's own limit, and the run's own IPC namespace | EMFILE in the run |
//!
//! user_struct (one count per user id):
//!
//! | quota | limited by | when it is reached |
//! |---|---|---|
//! | epoll watches (fs.epoll.max_user_watches) | `limits.epoll_watches`, by default a sixteenth, counted by the daemon ([`super::run_meter`]); also sets in flight, once the daemon lacks watches | the run is ended, `limit = "epoll"`; ENOSPC if the total is used up |
//! | pipe pages (fs.pipe-user-pages-soft, -hard) | the user's soft limit; nothing of this daemon | new pipes have two pages, and output of the user's other runs is slower |
//! | descriptors in flight (RLIMIT_NOFILE) | `limits.open_files_hard`; the daemon and slots have a higher limit | ETOOMANYREFS in the user's runs |
//! | io_uring, perf and bpf memory | the filter | ENOSYS, EPERM |
//! | keys and their bytes (kernel.keys.maxkeys) | the filter | EPERM |
//!
//! The machine (`/proc/sys/fs`, `/proc/sys/kernel`, `/proc/sys/vm`):
//!
//! | quota | limited by | when it is reached |
//! |---|---|---|
//! | fs.file-max | `limits.open_files_total`, counted by the daemon, including descriptors in flight; mapped and closed files by the memory limit | the run is ended, `limit = "open_files"`; ENFILE if the total is used up |
//! | fs.nr_open | `limits.open_files_hard` | EMFILE in the run |
//! | fs.aio-max-nr | the filter of system calls | see there |
//! | fs.mqueue.* | the run's own IPC namespace, which ends with the run | EMFILE, ENOSPC in the run |
//! | kernel.pid_max, kernel.threads-max | `limits.processes`, [`limit_total_processes`] | EAGAIN |
//! | kernel.pty.max | the run's own devpts (`max=`) | ENOSPC in the run |
//! | kernel.shmall, shmmax, shmmni, sem, msgmni | the run's own IPC namespace, which ends with the run | ENOSPC in the run |
//! | vm.max_map_count | per process; counted as memory of the run if it has no cgroup | the run is ended, `limit = "memory"` |
//! | fs.leases, fs.locks | nothing: counted per file | EAGAIN in the run |
//! | inodes and bytes of file systems | `limits.tmp_bytes`, `limits.tmp_inodes`; a workspace is limited by its disk | ENOSPC |

use std::{fs, io, path::Path};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::stage::{Stage, StageFailure, at_stage};
use crate::daemon::sys::{Errno, from_nix};

const NAMESPACE_QUOTAS: &[(&str, NamespaceQuota)] = &[
    ("/proc/sys/user/max_user_namespaces", NamespaceQuota::Zero),
    ("/proc/sys/user/max_net_namespaces", NamespaceQuota::Zero),
    ("/proc/sys/user/max_fanotify_groups", NamespaceQuota::Zero),
    (
        "/proc/sys/user/max_inotify_instances",
        NamespaceQuota::QuarterOf("/proc/sys/fs/inotify/max_user_instances"),
    ),
    (
        "/proc/sys/user/max_inotify_watches",
        NamespaceQuota::QuarterOf("/proc/sys/fs/inotify/max_user_watches"),
    ),
];

#[derive(Debug)]
enum NamespaceQuota {
    /// Zero: no command needs it.
    Zero,
    /// A quarter of the user's limit in this file, because all runs share the user.
    QuarterOf(&'static str),
}

/// Sets the quotas of the slot's user namespace (namespaces(7), /proc/sys/user). All runs have the
/// same user, so one run must not use up the others' share.
pub(super) fn set_quotas() -> Result<(), StageFailure> {
    let failed = |path: &str, error: &io::Error| {
        let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
        StageFailure::from_errno(Stage::SlotNamespace, errno, path)
    };
    for (path, quota) in NAMESPACE_QUOTAS {
        if !Path::new(path).exists() {
            continue; // this kernel does not count it
        }
        let quota = match quota {
            NamespaceQuota::Zero => 0,
            NamespaceQuota::QuarterOf(all) => {
                let text = fs::read_to_string(all).map_err(|error| failed(all, &error))?;
                text.trim().parse().unwrap_or(0_u64).div_ceil(4)
            }
        };
        fs::write(path, quota.to_string()).map_err(|error| failed(path, &error))?;
    }
    Ok(())
}

/// Limits the processes of all slots that this process makes.
///
/// The kernel gives a new user namespace the soft limit of its creator, and holds the user of the
/// parent namespace to it (Linux 5.14). The hard limit stays: it bounds a single run.
pub(super) fn limit_total_processes(max_processes: u64) -> Result<(), StageFailure> {
    getrlimit(Resource::RLIMIT_NPROC)
        .and_then(|(soft, hard)| setrlimit(Resource::RLIMIT_NPROC, soft.min(max_processes), hard))
        .map_err(from_nix)
        .map_err(at_stage(Stage::ResourceLimits, "processes of all runs"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    #[test]
    fn every_kernel_quota_is_in_the_table() {
        let table = include_str!("quotas.rs");
        let table = table.split("\nuse ").next().unwrap();
        for quota in fs::read_dir("/proc/sys/user").unwrap() {
            let name = quota.unwrap().file_name().into_string().unwrap();
            assert!(table.contains(&name), "{name}: what bounds it?");
        }
        for counted in ["RLIMIT_NPROC", "RLIMIT_SIGPENDING", "RLIMIT_MEMLOCK", "RLIMIT_MSGQUEUE"] {
            assert!(table.contains(counted), "{counted}");
        }
    }
}
