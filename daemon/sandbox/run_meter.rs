//! What a run occupies, looked at from its slot's keeper, for hosts where no cgroup counts it.
//!
//! The keeper sees the run's processes below its own `/proc`, whatever the run does, and may look
//! into them, as the owner of their user namespace. Counted are the memory that is nobody else's
//! (what a process shares with its copies counts once as soon as it matters) with its page tables,
//! files in memory that a process holds (memfd_create(2)), the run's own file systems, and kernel
//! memory of mappings and epoll watches ([`objects`]). What lies in sockets, pipes and System V
//! segments is not, nor kernel memory of open files, nor what a process has given back of memory that
//! is shared (madvise(2), MADV_DONTNEED): no file of `/proc` tells of it. Of descriptors in flight
//! (unix(7), SCM_RIGHTS) it tells the number only, and nothing of files that are mapped and closed but
//! that a mapping is there.

mod kernel_objects;

use std::{
    collections::HashSet,
    fs,
    io::{self, ErrorKind},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{StatVfs, makedev, statvfs},
    process::Pid,
};

pub(crate) use self::kernel_objects::MIN_RECOUNT_CPU_US;
use self::kernel_objects::{ObjectCounter, ProcessSample};
use super::wire::{MeasurementBounds, RunMeasurement};

/// Most descriptors that are looked at: a run has no more time than that.
const MAX_SCANNED_DESCRIPTORS: usize = 16 * 1024;
/// Most processes: far more than a run may have.
const MAX_SCANNED_PROCESSES: usize = 64 * 1024;

/// Units of the times in proc_pid_stat(5) per second: sysconf(_SC_CLK_TCK), which is 100 wherever there
/// is a system-call filter for (include/asm-generic/param.h). Before Linux 6.4 asking for it reads a
/// file in /proc that a process like the keeper, which nobody may look into, cannot open.
const USER_HZ: u64 = 100;

/// Measures one run.
#[derive(Debug)]
pub(super) struct RunMeter {
    init: Pid,
    counter: ObjectCounter,
}

impl RunMeter {
    /// For the run below `init`.
    pub(super) fn new(init: Pid) -> Self {
        Self { init, counter: ObjectCounter::new() }
    }

    /// Measures it. Memory is estimated, not below what it is, while that is within the bounds.
    ///
    /// `own_file_systems` says where the run sees those that are its own; what it has in others is
    /// not counted.
    pub(super) fn measure(
        &mut self,
        bounds: &MeasurementBounds,
        own_file_systems: &[&str],
    ) -> RunMeasurement {
        let init = self.init.as_raw_nonzero().get();
        let processes = descendants(init);
        let mut used: Vec<ProcessUsage> =
            processes.iter().filter_map(|pid| ProcessUsage::read_process(*pid)).collect();
        let cpu_us = used.iter().map(|used| used.cpu_us).sum();
        // What it has is the keeper's, or at L1 a copy of that: no run has a part in it.
        used.retain(|used| used.process.pid != init);
        let holders: Vec<ProcessSample> = used.iter().map(|used| used.process).collect();
        let objects = self.counter.objects(&holders, cpu_us, bounds);
        let mut measure = RunMeasurement {
            memory_bytes: 0,
            cpu_us,
            open_files: objects.open_files(),
            epoll_watches: objects.epoll_watches,
        };
        let enough = bounds.memory_bytes;
        if enough == u64::MAX {
            return measure; // the kernel counts it
        }

        let files = MemoryFiles::scan(&holders, own_file_systems);
        let fixed = files.bytes + objects.bytes();
        let sum = |used: &[ProcessUsage]| used.iter().map(ProcessUsage::bytes).sum::<u64>();
        let estimate = sum(&used) + fixed;
        measure.memory_bytes = estimate + self.counter.mapping_bytes_bound(&holders);
        if measure.memory_bytes < enough {
            return measure;
        }
        let mappings = self.counter.mapping_bytes(&holders, cpu_us, enough);
        measure.memory_bytes = estimate + mappings;
        if measure.memory_bytes < enough {
            return measure;
        }

        // Before it is looked closer: what executes a program meanwhile has its own memory then.
        let borrowers = vfork_children(&processes);
        used.retain(|used| !borrowers.contains(&used.process.pid));
        let exact = used.into_iter().map(|used| used.with_proportional_share(&files));
        let exact: Vec<ProcessUsage> = exact.collect();
        measure.memory_bytes = sum(&exact) + fixed + mappings;
        measure
    }
}

/// What one process uses.
#[derive(Debug)]
struct ProcessUsage {
    process: ProcessSample,
    /// Memory that is not a file's, also where it was put off to a disk.
    private_bytes: u64,
    /// Page tables: of memory that is only read, they may be all that there is.
    page_table_bytes: u64,
    /// Memory of files that lie in memory, those without a name included.
    shared_bytes: u64,
    cpu_us: u64,
}

impl ProcessUsage {
    /// From proc_pid_stat(5), whose fields are counted behind the name, and proc_pid_status(5).
    /// Everything that several processes share is counted for each of them.
    fn read_process(pid: i32) -> Option<Self> {
        let stat = read_lossy(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        // Fields 14 to 17: its own time and that of its children, in user and kernel mode.
        let ticks: u64 = (11..=14).filter_map(number).sum();
        let (pid, status) = read_status(pid);
        let bytes = |name: &str| kibibytes(&status, name).unwrap_or(0);
        let count = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|count| count.trim().parse().ok())
        };
        Some(Self {
            process: ProcessSample {
                pid,
                mapped_bytes: bytes("VmSize:"),
                descriptor_table_size: count("FDSize:").unwrap_or(0),
            },
            private_bytes: bytes("RssAnon:") + bytes("VmSwap:"),
            page_table_bytes: bytes("VmPTE:"),
            shared_bytes: bytes("RssShmem:"),
            cpu_us: ticks * (1_000_000 / USER_HZ),
        })
    }

    fn bytes(&self) -> u64 {
        self.private_bytes + self.page_table_bytes + self.shared_bytes
    }

    /// The same with its part only of what several processes share (proc_pid_smaps(5)), and without
    /// what is in `files` already. Where it may not be looked into, all of it stays its own.
    fn with_proportional_share(self, files: &MemoryFiles) -> Self {
        match read_lossy(format!("/proc/{}/smaps_rollup", self.process.pid)) {
            Err(error) if error.kind() == ErrorKind::PermissionDenied => self,
            // It has ended meanwhile, and gives back what it had.
            Err(_) => Self { private_bytes: 0, page_table_bytes: 0, shared_bytes: 0, ..self },
            Ok(rollup) => {
                let bytes = |name: &str| kibibytes(&rollup, name).unwrap_or(0);
                let shared = bytes("Pss_Shmem:");
                let counted = if shared > 0 { files.mapped_bytes(self.process.pid) } else { 0 };
                Self {
                    private_bytes: bytes("Pss_Anon:") + bytes("SwapPss:"),
                    shared_bytes: shared.saturating_sub(counted),
                    ..self
                }
            }
        }
    }
}

/// Those of the processes that have their parent's memory until they execute a program (vfork(2)): the
/// newest child of each thread that waits for such a one.
fn vfork_children(processes: &[i32]) -> HashSet<i32> {
    let mut found = HashSet::new();
    for pid in processes {
        let threads = fs::read_dir(format!("/proc/{pid}/task"));
        for thread in threads.into_iter().flatten().flatten() {
            let call = read_lossy(thread.path().join("syscall")).unwrap_or_default();
            if waits_for_vfork_child(&call) {
                let children = read_lossy(thread.path().join("children")).unwrap_or_default();
                let newest = children.split_ascii_whitespace().next_back();
                found.extend(newest.and_then(|child| child.parse::<i32>().ok()));
            }
        }
    }
    found
}

/// Whether a thread is in a call that ends when the child that it made no longer has its memory, from
/// `/proc/PID/syscall`: number and arguments of the call, where it waits in one.
fn waits_for_vfork_child(call: &str) -> bool {
    let mut words = call.split_ascii_whitespace();
    let number = words.next().and_then(|number| number.parse().ok());
    let flags = words.next().and_then(|flags| flags.strip_prefix("0x"));
    let flags = flags.and_then(|flags| u64::from_str_radix(flags, 16).ok());
    let has = |flag: i32| flags.is_some_and(|flags| flags & u64::from(flag.cast_unsigned()) != 0);
    match number {
        Some(libc::SYS_vfork) => true,
        // With others of its flags, what it makes is no child of this thread.
        Some(libc::SYS_clone) => {
            has(libc::CLONE_VM)
                && has(libc::CLONE_VFORK)
                && !has(libc::CLONE_PARENT)
                && !has(libc::CLONE_THREAD)
        }
        _ => false,
    }
}

/// proc_pid_status(5) of a process, with the number by which it was found: one whose first thread has
/// ended tells of its memory and its descriptors only by another.
fn read_status(pid: i32) -> (i32, String) {
    let of = |pid: i32| read_lossy(format!("/proc/{pid}/status")).unwrap_or_default();
    let first = of(pid);
    if kibibytes(&first, "RssAnon:").is_some() {
        return (pid, first);
    }
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    let threads = threads.into_iter().flatten().flatten();
    threads
        .filter_map(|thread| thread.file_name().to_str()?.parse().ok())
        .map(|thread| (thread, of(thread)))
        .find(|(_, status)| kibibytes(status, "RssAnon:").is_some())
        .unwrap_or((pid, first))
}

/// Reads a file whose text a run may have a part in: processes and files can have any name.
fn read_lossy(path: impl AsRef<Path>) -> io::Result<String> {
    let bytes = fs::read(path)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
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
            found.extend(children.split(' ').filter_map(|text| text.parse::<i32>().ok()));
        }
        if found.len() >= MAX_SCANNED_PROCESSES {
            break;
        }
    }
    found
}

/// What the run has in files in memory, mapped or not.
#[derive(Debug, Default)]
struct MemoryFiles {
    /// Bytes of all of them.
    bytes: u64,
    /// Those that no name leads to: device and number.
    unlinked: HashSet<(u64, u64)>,
    /// Devices of the run's own file systems.
    file_systems: HashSet<u64>,
}

impl MemoryFiles {
    fn scan(processes: &[ProcessSample], own_file_systems: &[&str]) -> Self {
        let mut files = Self::default();
        files.find_unlinked(processes);
        for ProcessSample { pid, .. } in processes {
            let found: Option<Vec<_>> =
                own_file_systems.iter().map(|path| file_system_usage(*pid, path)).collect();
            if let Some(found) = found {
                files.bytes += found.iter().map(|(_, bytes)| bytes).sum::<u64>();
                files.file_systems = found.into_iter().map(|(device, _)| device).collect();
                break;
            }
        }
        files
    }

    /// Finds files that no name leads to, each once.
    fn find_unlinked(&mut self, processes: &[ProcessSample]) {
        let mut looked_at = 0;
        for ProcessSample { pid, .. } in processes {
            let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else {
                continue;
            };
            for descriptor in descriptors.flatten() {
                looked_at += 1;
                if looked_at > MAX_SCANNED_DESCRIPTORS {
                    return;
                }
                let path = descriptor.path();
                let leads_to = fs::read_link(&path).unwrap_or_default();
                if !leads_to.as_os_str().as_encoded_bytes().starts_with(b"/memfd:") {
                    continue;
                }
                if let Ok(file) = fs::metadata(&path)
                    && self.unlinked.insert((file.dev(), file.ino()))
                {
                    self.bytes += file.blocks() * 512;
                }
            }
        }
    }

    /// Bytes that a process has mapped of them: its part of what several share (proc_pid_smaps(5)).
    fn mapped_bytes(&self, pid: i32) -> u64 {
        let smaps = read_lossy(format!("/proc/{pid}/smaps")).unwrap_or_default();
        let (mut is_ours, mut bytes) = (false, 0_u64);
        for line in smaps.lines() {
            if let Some((device, inode)) = mapped_file(line) {
                is_ours =
                    self.file_systems.contains(&device) || self.unlinked.contains(&(device, inode));
            } else if is_ours {
                bytes += kibibytes(line, "Pss:").unwrap_or(0);
                // Copies of its own, which a private mapping holds beside the file's pages.
                bytes = bytes.saturating_sub(kibibytes(line, "Anonymous:").unwrap_or(0));
            }
        }
        bytes
    }
}

/// Device and number of the file of a mapping, from the line that begins it:
/// `7f0000000000-7f0000001000 rw-s 00000000 00:1f 1024 /path`.
fn mapped_file(line: &str) -> Option<(u64, u64)> {
    let mut words = line.split_ascii_whitespace();
    words.next().filter(|range| range.contains('-'))?;
    let (major, minor) = words.nth(2)?.split_once(':')?;
    let device =
        makedev(u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
    Some((device, words.next()?.parse().ok()?))
}

/// Device of the file system at `path`, as a process of the run sees it, and the bytes in it.
fn file_system_usage(pid: i32, path: &str) -> Option<(u64, u64)> {
    let below = Path::new(path).strip_prefix("/").unwrap_or(Path::new(path));
    let path = PathBuf::from(format!("/proc/{pid}/root")).join(below);
    let StatVfs { f_blocks, f_bfree, f_frsize, .. } = statvfs(&path).ok()?;
    let bytes = f_blocks.saturating_sub(f_bfree).saturating_mul(f_frsize);
    Some((fs::metadata(&path).ok()?.dev(), bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_that_begin_a_mapping_name_its_file() {
        for (line, expected) in [
            (
                "7f00-7f01 rw-s 00000000 00:01 1024    /memfd:a b (deleted)",
                Some((makedev(0, 1), 1024)),
            ),
            ("7f00-7f01 r--p 00000000 fe:1f 7 /x", Some((makedev(0xfe, 0x1f), 7))),
            ("7f00-7f01 rw-p 00000000 00:00 0 ", Some((0, 0))),
            ("Pss:                  12 kB", None),
            ("VmFlags: rd wr", None),
            ("THPeligible-x", None),
        ] {
            assert_eq!(mapped_file(line), expected, "{line}");
        }
    }

    #[test]
    fn only_a_parent_that_lent_its_memory_waits_for_it() {
        for (call, expected) in [
            ("58 0x0 0x0 0x0 0x0 0x0 0x0 0x7ffe 0x7f00", true),
            ("56 0x4111 0x7f00 0x0 0x0 0x0 0x0 0x7ffe 0x7f00", true), // posix_spawn(3)
            ("56 0x4011 0x7f00", false),                              // a copy
            ("56 0x111 0x7f00", false),                               // it does not wait
            ("56 0xc111 0x7f00", false),                              // a child of its parent's
            ("56 0x14911 0x7f00", false),                             // a thread
            ("0 0x4111 0x7f00", false),
            ("running", false),
            ("-1 0x7ffe 0x7f00", false),
            ("", false),
        ] {
            assert_eq!(waits_for_vfork_child(call), expected, "{call}");
        }
    }
}
