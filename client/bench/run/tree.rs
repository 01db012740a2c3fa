//! Resource usage of a daemon and its child processes, from proc(5).

use std::{
    fs,
    io::{self, ErrorKind},
    path::PathBuf,
    time::{Duration, Instant},
};

use jig::client::Client;
use rustix::io::Errno;
use tokio::runtime::Runtime;

use crate::cli_error::CliError;

/// Maximum time until the remains of runs are gone.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval of the checks. A daemon whose processes, descriptors and mounts stay the same for one
/// interval counts as idle.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Number of idle sandboxes of an idle daemon.
const MIN_IDLE_SANDBOXES: u32 = 2;
/// Process that precedes the command in a sandbox. It shares the memory of its creator.
const INIT_NAME: &str = "jig-init";

/// Resource usage of a daemon and its descendants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProcessTreeUsage {
    /// File descriptors of the daemon.
    pub(super) descriptors: usize,
    /// Processes, including the daemon.
    pub(super) processes: usize,
    /// Zombie processes.
    pub(super) zombies: usize,
    /// Mounts, summed over the processes.
    pub(super) mounts: usize,
    /// Proportional set size: shared pages count once.
    pub(super) bytes: u64,
}

impl ProcessTreeUsage {
    /// Measures a daemon once it is idle.
    pub(super) fn measure_idle(
        runtime: &Runtime,
        client: &Client,
        daemon: i32,
    ) -> Result<Self, CliError> {
        let deadline = Instant::now() + SETTLE_TIMEOUT;
        let mut last_counts = None;
        loop {
            let counts = runtime.block_on(client.get_info())?.counts.unwrap_or_default();
            if counts.runs_active == 0 && counts.sandboxes_idle >= MIN_IDLE_SANDBOXES {
                let now = Self::measure(daemon).map_err(unreadable_process_error)?;
                if last_counts == Some(now.counts()) {
                    return Ok(now);
                }
                last_counts = Some(now.counts());
            }

            if Instant::now() > deadline {
                return Err(CliError::system("the daemon does not become idle"));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Returns what only the daemon changes. The proportional size also changes whenever another
    /// process of the same program starts or ends.
    fn counts(&self) -> [usize; 4] {
        [self.descriptors, self.processes, self.zombies, self.mounts]
    }

    fn measure(daemon: i32) -> io::Result<Self> {
        let processes = process_tree(daemon)?;
        let mut usage = Self {
            descriptors: fs::read_dir(format!("/proc/{daemon}/fd"))?.count(),
            processes: 0,
            zombies: 0,
            mounts: 0,
            bytes: 0,
        };

        for process in processes {
            let directory = PathBuf::from(format!("/proc/{process}"));
            match none_if_gone(fs::read_to_string(directory.join("stat")))? {
                None => continue,
                Some(stat) if matches!(state_and_parent(&stat), Some(("Z", _))) => {
                    usage.zombies += 1;
                    continue;
                }
                Some(_) => usage.processes += 1,
            }

            let Some(mounts) = none_if_gone(fs::read_to_string(directory.join("mountinfo")))?
            else {
                continue;
            };
            usage.mounts += mounts.lines().count();

            let name = none_if_gone(fs::read_to_string(directory.join("comm")))?;
            if name.is_some_and(|name| name.trim_end() == INIT_NAME) {
                continue;
            }
            if let Some(rollup) = none_if_gone(fs::read_to_string(directory.join("smaps_rollup")))?
            {
                usage.bytes += kibibytes(&rollup, "Pss:") * 1024;
            }
        }

        Ok(usage)
    }
}

fn unreadable_process_error(error: io::Error) -> CliError {
    let hint = if error.kind() == ErrorKind::PermissionDenied { ": run as root" } else { "" };
    CliError::system(format_args!("cannot read the usage of the daemon's processes: {error}{hint}"))
}

/// Returns a process and its descendants.
fn process_tree(root: i32) -> io::Result<Vec<i32>> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(process) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        if let Some(stat) = none_if_gone(fs::read_to_string(format!("/proc/{process}/stat")))? {
            parents.extend(state_and_parent(&stat).map(|(_, parent)| (process, parent)));
        }
    }

    let mut tree = vec![root];
    let mut next = 0;
    while let Some(&process) = tree.get(next) {
        let children = parents.iter().filter(|(_, parent)| *parent == process);
        tree.extend(children.map(|(child, _)| *child));
        next += 1;
    }
    Ok(tree)
}

/// Parses state and parent, the third and fourth field of a stat file. The second field, a name,
/// may contain any characters.
fn state_and_parent(stat: &str) -> Option<(&str, i32)> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace();
    Some((fields.next()?, fields.next()?.parse().ok()?))
}

/// Returns the number in a line such as `Pss:  12 kB`. Returns 0 if there is no such line.
pub(super) fn kibibytes(text: &str, label: &str) -> u64 {
    text.lines()
        .find_map(|line| line.strip_prefix(label))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or_default()
}

/// Returns `None` if the process has ended. A zombie has no mount namespace (EINVAL).
fn none_if_gone(read: io::Result<String>) -> io::Result<Option<String>> {
    match read {
        Ok(text) => Ok(Some(text)),
        Err(error)
            if error.kind() == ErrorKind::NotFound
                || [Errno::SRCH, Errno::INVAL]
                    .map(|errno| Some(errno.raw_os_error()))
                    .contains(&error.raw_os_error()) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_parsed() {
        assert_eq!(state_and_parent("12 (a) b) S 7 12 12"), Some(("S", 7)));
        assert_eq!(state_and_parent("12"), None);
        assert_eq!(kibibytes("Rss:  9 kB\nPss:     12 kB\n", "Pss:"), 12);
        assert_eq!(kibibytes("", "Pss:"), 0);
    }

    #[test]
    fn usage_of_this_process_is_measured() {
        let own = i32::try_from(std::process::id()).unwrap();
        let usage = ProcessTreeUsage::measure(own).unwrap();
        assert!(usage.descriptors > 2 && usage.processes >= 1, "{usage:?}");
        assert!(usage.mounts > 0 && usage.bytes > 1 << 20, "{usage:?}");
    }
}
