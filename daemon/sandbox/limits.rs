//! Limits of a run: what the operator sets, and what a request lowers.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Limits of one run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunLimits {
    /// Seconds of CPU time, of all its processes together; without limit if none.
    pub(crate) cpu_sec: Option<u32>,
    /// Thousandths of a CPU at one time, where cgroup v2 is there to hold it; without limit if none.
    pub(crate) cpu_millis: Option<u32>,
    /// Bytes of memory, of all its processes together.
    pub(crate) memory_bytes: u64,
    /// Processes and threads at one time (RLIMIT_NPROC in the run's own user namespace).
    pub(crate) processes: u32,
    /// Open files of each process, soft (RLIMIT_NOFILE).
    pub(crate) open_files: u32,
    /// Open files of each process, hard.
    pub(crate) open_files_hard: u32,
    /// Open files of all processes of a run together, counted beside the run.
    pub(crate) open_files_total: u32,
    /// Watches in epoll sets of all processes of a run together, counted beside the run.
    pub(crate) epoll_watches: u64,
    /// Size of a file that is written, in bytes (RLIMIT_FSIZE).
    pub(crate) file_size_bytes: u64,
    /// Bytes in each of `/tmp`, `/dev/shm` and the home directory.
    pub(crate) tmp_bytes: u64,
    /// Inodes in each of `/tmp`, `/dev/shm` and the home directory.
    pub(crate) tmp_inodes: u32,
    /// Bytes that it may write to both outputs together; without limit if none.
    pub(crate) output_bytes: Option<u64>,
    /// How long it may take, whatever its request says; without limit if none.
    pub(crate) wall_time: Option<Duration>,
}

/// What each process of a run is limited to by the kernel (setrlimit(2)), in the order of a request.
pub(super) const RLIMIT_COUNT: usize = 5;

impl Default for RunLimits {
    fn default() -> Self {
        Self {
            cpu_sec: None,
            cpu_millis: None,
            memory_bytes: 2 << 30,
            processes: 512,
            open_files: 1024,
            open_files_hard: 4096,
            open_files_total: 65_536,
            epoll_watches: 65_536,
            file_size_bytes: 4 << 30,
            tmp_bytes: 512 << 20,
            tmp_inodes: 65_536,
            output_bytes: None,
            wall_time: None,
        }
    }
}

impl RunLimits {
    /// What travels with a request: processes, open files soft and hard, size of a file, seconds of
    /// CPU time; 0 for no limit.
    pub(super) fn rlimits(&self) -> [u64; RLIMIT_COUNT] {
        [
            u64::from(self.processes),
            u64::from(self.open_files),
            u64::from(self.open_files_hard),
            self.file_size_bytes,
            u64::from(self.cpu_sec.unwrap_or(0)),
        ]
    }

    /// Whether sandboxes that were built for `other` hold these limits, too: the rest is set when a
    /// command is executed.
    pub(super) fn has_same_scratch_as(&self, other: &Self) -> bool {
        (self.tmp_bytes, self.tmp_inodes) == (other.tmp_bytes, other.tmp_inodes)
    }
}
