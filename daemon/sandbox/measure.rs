//! What a run occupies, looked at from its slot's keeper, for hosts where no cgroup counts it.
//!
//! The keeper sees the run's processes below its own `/proc`, whatever the run does, and may look
//! into them, as the owner of their user namespace. Counted are the memory that is nobody else's
//! (what a process shares with its copies counts once as soon as it matters), files in memory that a
//! process holds (memfd_create(2)), and the run's own file systems. What lies in sockets, pipes and
//! System V segments is not.

use std::{
    collections::HashSet,
    fs,
    io::ErrorKind,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{StatVfs, statvfs},
    process::Pid,
};

use super::wire::Measure;

/// Most descriptors that are looked at: a run has no more time than that.
const DESCRIPTORS_AT_MOST: usize = 16 * 1024;
/// Most processes: far more than a run may have.
const PROCESSES_AT_MOST: usize = 64 * 1024;

/// Units of the times in proc_pid_stat(5) per second: sysconf(_SC_CLK_TCK), which is 100 wherever there
/// is a system-call filter for (include/asm-generic/param.h). Before Linux 6.4 asking for it reads a
/// file in /proc that a process like the keeper, which nobody may look into, cannot open.
const USER_HZ: u64 = 100;

/// Measures the run below `init`. Memory is estimated, not below what it is, while that is below
/// `enough`.
///
/// `own_file_systems` says where the run sees those that are its own; what it has in others is not
/// counted.
pub(super) fn run(init: Pid, enough: u64, own_file_systems: &[&str]) -> Measure {
    let processes = descendants(init.as_raw_nonzero().get());
    let used: Vec<Used> = processes.iter().filter_map(|pid| Used::of(*pid)).collect();
    let cpu_us = used.iter().map(|used| used.cpu_us).sum();
    let mut files = files_in_memory(&processes);
    files += bytes_in(own_file_systems, &processes);
    let sum = |used: &[Used]| {
        let own = used.iter().map(|used| used.own_bytes).sum::<u64>();
        (own, used.iter().map(|used| used.shared_bytes).sum::<u64>())
    };
    let (own, shared) = sum(&used);
    let estimate = own + shared + files;
    let memory_bytes = if estimate < enough {
        estimate
    } else {
        let exact: Vec<Used> = used.into_iter().map(Used::apportioned).collect();
        let (own, shared) = sum(&exact);
        // Files in memory may be mapped, too: then they are in both.
        own + shared.max(files)
    };
    Measure {
        memory_bytes,
        cpu_us,
    }
}

/// What one process uses.
#[derive(Debug)]
struct Used {
    pid: i32,
    /// Memory that is not a file's.
    own_bytes: u64,
    /// Memory of files that lie in memory, those without a name included.
    shared_bytes: u64,
    cpu_us: u64,
}

impl Used {
    /// From proc_pid_stat(5), whose fields are counted behind the name, and proc_pid_status(5).
    /// Everything that several processes share is counted for each of them.
    fn of(pid: i32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        // Fields 14 to 17: its own time and that of its children, in user and kernel mode.
        let ticks: u64 = (11..=14).filter_map(number).sum();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        Some(Self {
            pid,
            own_bytes: kibibytes(&status, "RssAnon:").unwrap_or(0),
            shared_bytes: kibibytes(&status, "RssShmem:").unwrap_or(0),
            cpu_us: ticks * (1_000_000 / USER_HZ),
        })
    }

    /// The same with its part only of what several processes share (proc_pid_smaps(5)). Where it may
    /// not be looked into, all of it stays its own.
    fn apportioned(self) -> Self {
        let path = format!("/proc/{}/smaps_rollup", self.pid);
        match fs::read_to_string(path) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => self,
            // It has ended meanwhile, and gives back what it had.
            rollup => {
                let rollup = rollup.unwrap_or_default();
                Self {
                    own_bytes: kibibytes(&rollup, "Pss_Anon:").unwrap_or(0),
                    shared_bytes: kibibytes(&rollup, "Pss_Shmem:").unwrap_or(0),
                    ..self
                }
            }
        }
    }
}

/// The value of a line `Name:   123 kB`, in bytes.
fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let number: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(number * 1024)
}

/// `pid` and everything that descends from it: in a process namespace, what loses its parent becomes
/// a child of the init.
fn descendants(pid: i32) -> Vec<i32> {
    let mut found = vec![pid];
    let mut next = 0;
    while let Some(pid) = found.get(next).copied() {
        next += 1;
        let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
            continue;
        };
        for thread in threads.flatten() {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            found.extend(
                children
                    .split(' ')
                    .filter_map(|text| text.parse::<i32>().ok()),
            );
        }
        if found.len() >= PROCESSES_AT_MOST {
            break;
        }
    }
    found
}

/// Bytes of files that lie in memory and that no name leads to, each once.
fn files_in_memory(processes: &[i32]) -> u64 {
    let (mut seen, mut bytes, mut looked_at) = (HashSet::new(), 0, 0);
    for pid in processes {
        let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else {
            continue;
        };
        for descriptor in descriptors.flatten() {
            looked_at += 1;
            if looked_at > DESCRIPTORS_AT_MOST {
                return bytes;
            }
            let path = descriptor.path();
            let leads_to = fs::read_link(&path).unwrap_or_default();
            if !leads_to
                .as_os_str()
                .as_encoded_bytes()
                .starts_with(b"/memfd:")
            {
                continue;
            }
            if let Ok(file) = fs::metadata(&path)
                && seen.insert((file.dev(), file.ino()))
            {
                bytes += file.blocks() * 512;
            }
        }
    }
    bytes
}

/// Bytes in the file systems at `paths`, as one of the run's processes sees them.
fn bytes_in(paths: &[&str], processes: &[i32]) -> u64 {
    let used = |path: PathBuf| {
        let StatVfs {
            f_blocks,
            f_bfree,
            f_frsize,
            ..
        } = statvfs(&path).ok()?;
        Some((f_blocks.saturating_sub(f_bfree)).saturating_mul(f_frsize))
    };
    for pid in processes {
        let root = PathBuf::from(format!("/proc/{pid}/root"));
        let sizes = paths.iter().map(|path| {
            let below = Path::new(path).strip_prefix("/").unwrap_or(Path::new(path));
            used(root.join(below))
        });
        if let Some(bytes) = sizes.sum() {
            return bytes;
        }
    }
    0
}
