//! Limits of a run. The operator sets them; a request can lower them.

use std::time::Duration;

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunLimits {
    /// CPU time of all processes together, in seconds; `None` for no limit.
    pub(crate) cpu_sec: Option<u32>,
    /// CPUs in thousandths, enforced where cgroup v2 is available; `None` for no limit.
    pub(crate) milli_cpus: Option<u32>,
    /// Memory of all processes together, in bytes.
    pub(crate) memory_bytes: u64,
    /// Processes and threads at a time (RLIMIT_NPROC in the run's own user namespace).
    pub(crate) processes: u32,
    /// Open files per process, soft limit (RLIMIT_NOFILE).
    pub(crate) open_files: u32,
    pub(crate) open_files_hard: u32,
    /// Open files of all processes together, counted by the daemon.
    pub(crate) open_files_total: u32,
    /// Epoll watches of all processes together, counted by the daemon.
    pub(crate) epoll_watches: u64,
    /// Size of a written file, in bytes (RLIMIT_FSIZE).
    pub(crate) file_size_bytes: u64,
    /// Size of each of `/tmp`, `/dev/shm` and the home directory, in bytes.
    pub(crate) tmp_bytes: u64,
    /// Inodes in each of `/tmp`, `/dev/shm` and the home directory.
    pub(crate) tmp_inodes: u32,
    /// Output on both streams together, in bytes; `None` for no limit.
    pub(crate) output_bytes: Option<u64>,
    /// Longest duration. A request may not have a longer timeout. `None` for no limit.
    pub(crate) wall_clock: Option<Duration>,
}

/// Number of resource limits (setrlimit(2)) in an image.
pub(super) const RLIMIT_COUNT: usize = 5;

/// The defaults of the configuration, except for `epoll_watches`: the configuration derives that
/// from the kernel's limit, and falls back to this value.
impl Default for RunLimits {
    fn default() -> Self {
        Self {
            cpu_sec: None,
            milli_cpus: None,
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
            wall_clock: None,
        }
    }
}

impl RunLimits {
    /// The resource limits of an image, in order: processes, open files soft and hard, file size in
    /// bytes, CPU time in seconds (0 for no limit).
    pub(super) fn rlimits(&self) -> [u64; RLIMIT_COUNT] {
        [
            u64::from(self.processes),
            u64::from(self.open_files),
            u64::from(self.open_files_hard),
            self.file_size_bytes,
            u64::from(self.cpu_sec.unwrap_or(0)),
        ]
    }

    /// Whether a sandbox built for `other` has the temporary file systems of these limits. All other
    /// limits are set when the command is executed.
    pub(super) fn has_same_scratch_as(&self, other: &Self) -> bool {
        (self.tmp_bytes, self.tmp_inodes) == (other.tmp_bytes, other.tmp_inodes)
    }
}
