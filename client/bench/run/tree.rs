//! The processes of a daemon, as proc(5) shows them.

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

/// How long what a run has left may take to be gone.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(10);
/// How often is looked whether it is; what has not changed meanwhile is taken for the rest.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Sandboxes that are warm when nothing is going on.
const IDLE_WARM_SANDBOXES: u32 = 2;
/// What runs in a sandbox before its command does: it shares the memory of whoever made it.
const INIT_NAME: &str = "jig-init";

/// What a daemon and the processes below it hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ProcessTreeUsage {
    /// Descriptors of the daemon.
    pub(super) descriptors: usize,
    /// Processes, itself too.
    pub(super) processes: usize,
    /// Processes that have ended and wait to be reaped.
    pub(super) zombies: usize,
    /// Mounts that they see, each counted in each process.
    pub(super) mounts: usize,
    /// Memory in bytes, each page that several share counted once.
    pub(super) bytes: u64,
}

impl ProcessTreeUsage {
    /// What the daemon of this process id holds while nothing is going on.
    pub(super) fn measure_idle(
        runtime: &Runtime,
        client: &Client,
        daemon: i32,
    ) -> Result<Self, CliError> {
        let until = Instant::now() + SETTLE_TIMEOUT;
        let mut last = None;
        loop {
            let counts = runtime.block_on(client.get_info())?.counts;
            let counts = counts.unwrap_or_default();
            if counts.runs_active == 0 && counts.sandboxes_warm >= IDLE_WARM_SANDBOXES {
                let now = Some(Self::measure(daemon).map_err(unreadable_process_error)?);
                if let (Some(now), true) = (now, now == last) {
                    return Ok(now);
                }
                last = now;
            }
            if Instant::now() > until {
                return Err(CliError::system("the daemon does not come to rest"));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    fn measure(daemon: i32) -> io::Result<Self> {
        let all = process_tree(daemon)?;
        let mut held = Self {
            descriptors: fs::read_dir(format!("/proc/{daemon}/fd"))?.count(),
            processes: 0,
            zombies: 0,
            mounts: 0,
            bytes: 0,
        };
        for process in all {
            let directory = PathBuf::from(format!("/proc/{process}"));
            match none_if_gone(fs::read_to_string(directory.join("stat")))? {
                None => continue,
                Some(stat) if matches!(state_and_parent(&stat), Some(("Z", _))) => {
                    held.zombies += 1;
                    continue;
                }
                Some(_) => held.processes += 1,
            }
            let Some(mounts) = none_if_gone(fs::read_to_string(directory.join("mountinfo")))?
            else {
                continue;
            };
            held.mounts += mounts.lines().count();
            let name = none_if_gone(fs::read_to_string(directory.join("comm")))?;
            if name.is_some_and(|name| name.trim_end() == INIT_NAME) {
                continue;
            }
            if let Some(rollup) = none_if_gone(fs::read_to_string(directory.join("smaps_rollup")))?
            {
                held.bytes += kibibytes(&rollup, "Pss:") * 1024;
            }
        }
        Ok(held)
    }
}

fn unreadable_process_error(error: io::Error) -> CliError {
    let may = if error.kind() == ErrorKind::PermissionDenied { ": root may look" } else { "" };
    CliError::system(format_args!("what the daemon's processes hold cannot be seen: {error}{may}"))
}

/// A process and all below it.
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
    let mut found = vec![root];
    let mut next = 0;
    while let Some(&process) = found.get(next) {
        let children = parents.iter().filter(|(_, parent)| *parent == process);
        found.extend(children.map(|(child, _)| *child));
        next += 1;
    }
    Ok(found)
}

/// The state in a stat file, and the parent: its third and fourth field. The second, a name, may hold
/// anything.
fn state_and_parent(stat: &str) -> Option<(&str, i32)> {
    let (_, behind_name) = stat.rsplit_once(')')?;
    let mut fields = behind_name.split_whitespace();
    Some((fields.next()?, fields.next()?.parse().ok()?))
}

/// A number of a file of lines such as `Pss:  12 kB`; 0 where it is not there.
pub(super) fn kibibytes(text: &str, label: &str) -> u64 {
    text.lines()
        .find_map(|line| line.strip_prefix(label))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or_default()
}

/// Nothing where the process has ended meanwhile. One that is a zombie is in no mount namespace any
/// more (EINVAL).
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
    fn what_proc_shows_is_read() {
        assert_eq!(state_and_parent("12 (a) b) S 7 12 12"), Some(("S", 7)));
        assert_eq!(state_and_parent("12"), None);
        assert_eq!(kibibytes("Rss:  9 kB\nPss:     12 kB\n", "Pss:"), 12);
        assert_eq!(kibibytes("", "Pss:"), 0);
    }

    #[test]
    fn this_process_is_seen_with_its_mounts_and_memory() {
        let own = i32::try_from(std::process::id()).unwrap();
        let held = ProcessTreeUsage::measure(own).unwrap();
        assert!(held.descriptors > 2 && held.processes >= 1, "{held:?}");
        assert!(held.mounts > 0 && held.bytes > 1 << 20, "{held:?}");
    }
}
