//! Measures the memory, CPU time and kernel objects of a run, from its slot keeper. If a cgroup
//! counts the run's memory, only its open files and epoll watches are counted here.
//!
//! The slot keeper sees the run's processes below its own `/proc`, whatever the run does. As owner
//! of their user namespace it may inspect them. It counts:
//!
//! * private memory with its page tables (memory that a process shares with its forks counts once,
//!   when an estimate is not enough),
//! * memory files that a process holds (memfd_create(2)),
//! * the run's own file systems,
//! * kernel memory of mappings and epoll watches ([`kernel_objects`]).
//!
//! It cannot count data in sockets, pipes and System V segments, kernel memory of open files, and
//! shared memory that a process has released (madvise(2), MADV_DONTNEED): no file of `/proc` shows
//! them. For descriptors in flight (unix(7), SCM_RIGHTS), `/proc` shows only the number. For files
//! that are mapped and closed, it shows only the mapping.

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
use super::{
    stage::{Stage, StageFailure},
    wire::{MeasurementBounds, RunMeasurement},
};
use crate::daemon::sys::{STAT_BLOCK_BYTES, arch::VFORK_SYSCALL};

/// Descriptors that one scan examines at most, to bound its time.
const MAX_SCANNED_DESCRIPTORS: usize = 16 * 1024;
/// Processes that one scan examines at most: far more than a run may have.
const MAX_SCANNED_PROCESSES: usize = 64 * 1024;

/// Ticks per second in proc_pid_stat(5), as of sysconf(_SC_CLK_TCK): 100 on every architecture that
/// has a filter of system calls here (include/asm-generic/param.h). It is not queried, because
/// before Linux 6.4 libc reads a file in /proc for it, which a process that is not dumpable cannot
/// open.
const USER_HZ: u64 = 100;

#[derive(Debug)]
pub(super) struct RunMeter {
    init: Pid,
    /// CPU time of the sandbox's earlier runs and of the init until their end, in microseconds.
    /// `/proc` counts it for the init.
    past_cpu_us: u64,
    counter: ObjectCounter,
}

impl RunMeter {
    pub(super) fn new(init: Pid) -> Self {
        Self { init, past_cpu_us: 0, counter: ObjectCounter::new() }
    }

    /// Starts over if the sandbox has another run since the last measurement: the CPU time of its
    /// earlier runs then differs.
    pub(super) fn start_run_after(&mut self, past_cpu_us: u64) {
        if self.past_cpu_us != past_cpu_us {
            self.past_cpu_us = past_cpu_us;
            self.counter = ObjectCounter::new();
        }
    }

    /// Measures the run. Memory is an upper estimate while it is within the bounds.
    ///
    /// `own_file_systems` are the paths at which the run sees its own file systems. Its files in
    /// others are not counted.
    pub(super) fn measure(
        &mut self,
        bounds: &MeasurementBounds,
        own_file_systems: &[&str],
    ) -> RunMeasurement {
        let init = self.init.as_raw_nonzero().get();
        let processes = descendants(init);
        let mut usages: Vec<ProcessUsage> =
            processes.iter().filter_map(|pid| ProcessUsage::read_process(*pid)).collect();
        let cpu_us: u64 = usages.iter().map(|usage| usage.cpu_us).sum();
        let cpu_us = cpu_us.saturating_sub(self.past_cpu_us);
        // The init's memory is the slot keeper's, or at L1 a copy of it. It does not belong to the
        // run.
        usages.retain(|usage| usage.process.pid != init);
        let samples: Vec<ProcessSample> = usages.iter().map(|usage| usage.process).collect();

        let objects = self.counter.objects(&samples, cpu_us, bounds);
        let mut measurement = RunMeasurement {
            memory_bytes: 0,
            cpu_us,
            open_files: objects.open_files(),
            epoll_watches: objects.epoll_watches,
        };
        let bound = bounds.memory_bytes;
        if bound == u64::MAX {
            return measurement; // the kernel counts memory
        }

        // First an upper bound, then with mappings counted, then with shared memory split.
        let files = MemoryFiles::scan(&samples, own_file_systems);
        let fixed = files.bytes + objects.bytes();
        let sum = |usages: &[ProcessUsage]| usages.iter().map(ProcessUsage::bytes).sum::<u64>();
        let estimate = sum(&usages) + fixed;
        measurement.memory_bytes = estimate + self.counter.mapping_bytes_bound(&samples);
        if measurement.memory_bytes < bound {
            return measurement;
        }

        let mappings = self.counter.mapping_bytes(&samples, cpu_us, bound);
        measurement.memory_bytes = estimate + mappings;
        if measurement.memory_bytes < bound {
            return measurement;
        }

        // Found first: a process that executes a program in between has its own memory by then.
        let borrowers = vfork_children(&processes);
        usages.retain(|usage| !borrowers.contains(&usage.process.pid));
        let exact: Vec<ProcessUsage> =
            usages.into_iter().map(|usage| usage.with_proportional_share(&files)).collect();
        measurement.memory_bytes = sum(&exact) + fixed + mappings;
        measurement
    }
}

#[derive(Debug)]
struct ProcessUsage {
    process: ProcessSample,
    /// Anonymous memory, including swapped.
    private_bytes: u64,
    /// Page tables. For memory that is only read, they can be the only cost.
    page_table_bytes: u64,
    /// Mapped memory files, including unlinked ones.
    shared_bytes: u64,
    cpu_us: u64,
}

impl ProcessUsage {
    /// Reads proc_pid_stat(5) and proc_pid_status(5). Memory that several processes share counts
    /// for each of them.
    fn read_process(pid: i32) -> Option<Self> {
        let stat = read_lossy(format!("/proc/{pid}/stat")).ok()?;
        // The fields after the name, which may contain blanks.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        // Fields 14 to 17: user and kernel time of the process and of its reaped children.
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

    /// Splits memory that several processes share (proc_pid_smaps(5)), and leaves out what `files`
    /// has counted. If the process cannot be inspected, all its memory counts as its own.
    fn with_proportional_share(self, files: &MemoryFiles) -> Self {
        match Self::read_proportional(self.process.pid, files) {
            Ok((private_bytes, shared_bytes)) => Self { private_bytes, shared_bytes, ..self },
            Err(error) if error.kind() == ErrorKind::PermissionDenied => self,
            // The process has ended and releases its memory.
            Err(_) => Self { private_bytes: 0, page_table_bytes: 0, shared_bytes: 0, ..self },
        }
    }

    /// Returns a process's parts of anonymous memory, and of memory files that are not in `files`.
    fn read_proportional(pid: i32, files: &MemoryFiles) -> io::Result<(u64, u64)> {
        let read = || {
            let rollup = read_lossy(format!("/proc/{pid}/smaps_rollup"))?;
            let bytes = |name: &str| kibibytes(&rollup, name).unwrap_or(0);
            Ok::<_, io::Error>((bytes("Pss_Anon:") + bytes("SwapPss:"), bytes("Pss_Shmem:")))
        };
        let (private, before) = read()?;
        if before == 0 {
            return Ok((private, 0));
        }

        let already_counted = files.mapped_bytes(pid);
        // Read again: the parts change while another process maps the same files, and a process
        // that has ended in between shows no mappings.
        let (_, after) = read()?;
        Ok((private, before.min(after).saturating_sub(already_counted)))
    }
}

/// The processes that use their parent's memory until they execute a program (vfork(2)): the newest
/// child of each thread that waits for such a child.
fn vfork_children(processes: &[i32]) -> HashSet<i32> {
    let mut borrowers = HashSet::new();
    for pid in processes {
        let threads = fs::read_dir(format!("/proc/{pid}/task"));
        for thread in threads.into_iter().flatten().flatten() {
            let call = read_lossy(thread.path().join("syscall")).unwrap_or_default();
            if waits_for_vfork_child(&call) {
                let children = read_lossy(thread.path().join("children")).unwrap_or_default();
                let newest = children.split_ascii_whitespace().next_back();
                borrowers.extend(newest.and_then(|child| child.parse::<i32>().ok()));
            }
        }
    }
    borrowers
}

/// Whether a thread waits for a child that uses its memory, from `/proc/PID/syscall`: the number
/// and arguments of the blocking call.
fn waits_for_vfork_child(call: &str) -> bool {
    let mut words = call.split_ascii_whitespace();
    let number = words.next().and_then(|number| number.parse().ok());
    let flags = words
        .next()
        .and_then(|flags| flags.strip_prefix("0x"))
        .and_then(|flags| u64::from_str_radix(flags, 16).ok());

    let has = |flag: i32| flags.is_some_and(|flags| flags & u64::from(flag.cast_unsigned()) != 0);
    match number {
        Some(_) if number == VFORK_SYSCALL => true,
        // With other flags, clone(2) makes no child of this thread.
        Some(libc::SYS_clone) => {
            has(libc::CLONE_VM)
                && has(libc::CLONE_VFORK)
                && !has(libc::CLONE_PARENT)
                && !has(libc::CLONE_THREAD)
        }
        _ => false,
    }
}

/// Reads proc_pid_status(5) of a process. Returns it with the id that it was read by: a process
/// whose first thread has ended shows its memory and descriptors only through another thread.
fn read_status(pid: i32) -> (i32, String) {
    let read = |pid: i32| read_lossy(format!("/proc/{pid}/status")).unwrap_or_default();
    let first = read(pid);
    if kibibytes(&first, "RssAnon:").is_some() {
        return (pid, first);
    }

    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    threads
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|thread| thread.file_name().to_str()?.parse().ok())
        .map(|thread| (thread, read(thread)))
        .find(|(_, status)| kibibytes(status, "RssAnon:").is_some())
        .unwrap_or((pid, first))
}

/// Reads a file that can contain text of the run: processes and files can have any name.
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

/// Fails on a kernel without the list of children of a thread (proc_tid_children(5)). A run's meter
/// would find only the init, and no limit would hold.
pub(super) fn check_process_tree_is_readable() -> Result<(), StageFailure> {
    fs::metadata("/proc/thread-self/children").map(drop).map_err(|error| {
        let text = format!(
            "no limit of runs can be measured without /proc/thread-self/children ({error}): use a kernel with CONFIG_PROC_CHILDREN"
        );
        StageFailure::other(Stage::Launcher, text)
    })
}

/// `pid` and its descendants. In a process namespace, orphans become children of the init.
fn descendants(pid: i32) -> Vec<i32> {
    let mut pids = vec![pid];
    let mut next = 0;
    while let Some(pid) = pids.get(next).copied() {
        next += 1;
        let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
            continue;
        };

        for thread in threads.flatten() {
            let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            pids.extend(children.split(' ').filter_map(|text| text.parse::<i32>().ok()));
        }
        if pids.len() >= MAX_SCANNED_PROCESSES {
            break;
        }
    }
    pids
}

/// Memory files of a run, mapped or not.
#[derive(Debug, Default)]
struct MemoryFiles {
    /// Size of all of them in bytes.
    bytes: u64,
    /// Unlinked files, by device and inode.
    unlinked: HashSet<(u64, u64)>,
    /// Devices of the run's own file systems.
    file_systems: HashSet<u64>,
}

impl MemoryFiles {
    fn scan(processes: &[ProcessSample], own_file_systems: &[&str]) -> Self {
        let mut files = Self::default();
        files.find_unlinked(processes);

        // Any process that can still be inspected will do.
        for ProcessSample { pid, .. } in processes {
            let usages: Option<Vec<_>> =
                own_file_systems.iter().map(|path| file_system_usage(*pid, path)).collect();
            if let Some(usages) = usages {
                files.bytes += usages.iter().map(|(_, bytes)| bytes).sum::<u64>();
                files.file_systems = usages.into_iter().map(|(device, _)| device).collect();
                break;
            }
        }
        files
    }

    /// Finds unlinked memory files that processes hold, and counts each once.
    fn find_unlinked(&mut self, processes: &[ProcessSample]) {
        let mut examined = 0;
        for ProcessSample { pid, .. } in processes {
            let Ok(descriptors) = fs::read_dir(format!("/proc/{pid}/fd")) else {
                continue;
            };
            for descriptor in descriptors.flatten() {
                examined += 1;
                if examined > MAX_SCANNED_DESCRIPTORS {
                    return;
                }

                let path = descriptor.path();
                let target = fs::read_link(&path).unwrap_or_default();
                if !target.as_os_str().as_encoded_bytes().starts_with(b"/memfd:") {
                    continue;
                }
                if let Ok(file) = fs::metadata(&path)
                    && self.unlinked.insert((file.dev(), file.ino()))
                {
                    self.bytes += file.blocks() * STAT_BLOCK_BYTES;
                }
            }
        }
    }

    /// Bytes of these files that a process has mapped. Of shared pages, it counts the process's
    /// part (proc_pid_smaps(5)).
    fn mapped_bytes(&self, pid: i32) -> u64 {
        let smaps = read_lossy(format!("/proc/{pid}/smaps")).unwrap_or_default();
        let (mut is_counted_file, mut bytes) = (false, 0_u64);

        for line in smaps.lines() {
            if let Some((device, inode)) = mapped_file(line) {
                is_counted_file =
                    self.file_systems.contains(&device) || self.unlinked.contains(&(device, inode));
            } else if is_counted_file {
                bytes += kibibytes(line, "Pss:").unwrap_or(0);
                // A private mapping holds anonymous copies besides the file's pages.
                bytes = bytes.saturating_sub(kibibytes(line, "Anonymous:").unwrap_or(0));
            }
        }
        bytes
    }
}

/// Device and inode of a mapping's file, from the first line of its entry:
/// `7f0000000000-7f0000001000 rw-s 00000000 00:1f 1024 /path`.
fn mapped_file(line: &str) -> Option<(u64, u64)> {
    let mut words = line.split_ascii_whitespace();
    words.next().filter(|range| range.contains('-'))?;
    let (major, minor) = words.nth(2)?.split_once(':')?;
    let device =
        makedev(u32::from_str_radix(major, 16).ok()?, u32::from_str_radix(minor, 16).ok()?);
    Some((device, words.next()?.parse().ok()?))
}

/// Device and used bytes of the file system at `path`, as a process of the run sees it.
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
    fn first_line_of_a_mapping_names_its_file() {
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
    fn only_a_parent_of_a_vfork_child_waits_for_it() {
        let clone =
            |flags: &str| format!("{} {flags} 0x7f00 0x0 0x0 0x0 0x0 0x7f", libc::SYS_clone);
        for (flags, expected) in [
            ("0x4111", true),   // posix_spawn(3)
            ("0x4011", false),  // memory is copied
            ("0x111", false),   // does not wait
            ("0xc111", false),  // a sibling
            ("0x14911", false), // a thread
        ] {
            assert_eq!(waits_for_vfork_child(&clone(flags)), expected, "{flags}");
        }

        let vfork = VFORK_SYSCALL.map(|number| format!("{number} 0x0 0x0 0x0 0x0 0x0 0x0 0x7f"));
        assert!(vfork.is_none_or(|call| waits_for_vfork_child(&call)));
        for call in ["0 0x4111 0x7f00", "running", "-1 0x7ffe 0x7f00", ""] {
            assert!(!waits_for_vfork_child(call), "{call}");
        }
    }
}
