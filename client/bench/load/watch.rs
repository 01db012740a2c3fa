//! Processes, memory and descriptors of a daemon under load.

use std::{collections::HashMap, fs, os::unix::fs::MetadataExt as _, path::Path, time::Duration};

/// Configured size of the stored sessions, with the artifacts of commands with much output.
pub(super) const MAX_SESSION_BYTES: u64 = 256 << 20;
/// Configured size of the stored results of request ids: a long load reaches it.
pub(super) const MAX_REQUEST_BYTES: u64 = 32 << 20;
/// Prefix of the names of the daemon's helper processes.
const HELPER_PREFIX: &str = "jig-";

/// A process. The start time distinguishes it from a later one with the same id.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ProcessId {
    pub(super) pid: i32,
    start_time: u64,
}

/// A process below the daemon.
#[derive(Debug, Clone)]
pub(super) struct Descendant {
    pub(super) id: ProcessId,
    pub(super) name: String,
}

/// State of a daemon at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Sample {
    /// Time since the load began.
    pub(super) time: Duration,
    /// Process id of the daemon, which a restart changes.
    pub(super) daemon: i32,
    /// Proportional set size of the daemon.
    pub(super) daemon_bytes: u64,
    /// Proportional set size of its helpers.
    pub(super) helper_bytes: u64,
    /// Open descriptors of the daemon.
    pub(super) descriptors: u64,
    /// Number of helpers.
    pub(super) helpers: u64,
    /// Number of other processes below the daemon: commands.
    pub(super) commands: u64,
    /// Disk space of the state directory.
    pub(super) state_bytes: u64,
}

impl Sample {
    /// Takes a sample, with the processes below the daemon.
    pub(super) fn take(daemon: i32, state_dir: &Path, time: Duration) -> (Self, Vec<Descendant>) {
        let below = descendants(daemon);
        let is_helper = |process: &&Descendant| process.name.starts_with(HELPER_PREFIX);
        let helpers = below.iter().filter(is_helper);
        let helper_count = helpers.clone().count() as u64;
        let sample = Self {
            time,
            daemon,
            daemon_bytes: proportional_bytes(daemon),
            helper_bytes: helpers.map(|helper| proportional_bytes(helper.id.pid)).sum(),
            descriptors: count_descriptors(daemon),
            helpers: helper_count,
            commands: below.len() as u64 - helper_count,
            state_bytes: allocated_bytes(state_dir),
        };
        (sample, below)
    }
}

/// All processes below `ancestor`.
pub(super) fn descendants(ancestor: i32) -> Vec<Descendant> {
    let mut children: HashMap<i32, Vec<Descendant>> = HashMap::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let pid = entry.file_name().to_str().and_then(|name| name.parse().ok());
        if let Some((process, parent)) = pid.and_then(read_stat) {
            children.entry(parent).or_default().push(process);
        }
    }

    let mut below = children.remove(&ancestor).unwrap_or_default();
    let mut next = 0;
    while let Some(process) = below.get(next) {
        let pid = process.id.pid;
        below.extend(children.remove(&pid).unwrap_or_default());
        next += 1;
    }
    below
}

/// Returns whether a process exists and is not a zombie.
pub(super) fn is_alive(id: &ProcessId) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", id.pid)).unwrap_or_default();
    let is_zombie =
        stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with('Z'));
    !is_zombie && parse_stat(id.pid, &stat).is_some_and(|(process, _)| process.id == *id)
}

fn read_stat(pid: i32) -> Option<(Descendant, i32)> {
    parse_stat(pid, &fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// A process and its parent, from proc_pid_stat(5). The name in parentheses may contain any
/// character.
fn parse_stat(pid: i32, stat: &str) -> Option<(Descendant, i32)> {
    let (head, rest) = stat.rsplit_once(')')?;
    let name = head.split_once('(')?.1.to_owned();
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let start_time = fields.get(19)?.parse().ok()?;
    let parent = fields.get(1)?.parse().ok()?;
    Some((Descendant { id: ProcessId { pid, start_time }, name }, parent))
}

/// `Pss` of proc_pid_smaps(5), in bytes.
fn proportional_bytes(pid: i32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.unwrap_or_default() << 10
}

/// Disk space of the files below a directory, from which the daemon deletes meanwhile.
fn allocated_bytes(directory: &Path) -> u64 {
    let mut bytes = 0;
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if let Ok(metadata) = entry.metadata() {
            // stat(2) counts blocks of 512 bytes.
            bytes += metadata.blocks() * 512;
            if metadata.is_dir() {
                bytes += allocated_bytes(&entry.path());
            }
        }
    }
    bytes
}

fn count_descriptors(pid: i32) -> u64 {
    fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, |entries| entries.count() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_of_a_process_may_contain_parentheses() {
        let stat = format!("7 (a) b) S 3 {} 99 0", "0 ".repeat(17).trim());
        let (process, parent) = parse_stat(7, &stat).unwrap();
        assert_eq!((process.name.as_str(), parent, process.id.start_time), ("a) b", 3, 99));
    }

    #[test]
    fn this_process_is_sampled() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("file"), vec![1; 100_000]).unwrap();
        let (sample, _) = Sample::take(pid, directory.path(), Duration::ZERO);
        assert!(sample.daemon_bytes > 1 << 20 && sample.descriptors > 2, "{sample:?}");
        assert!((100_000..200_000).contains(&sample.state_bytes), "{sample:?}");
        let (process, _) = read_stat(pid).unwrap();
        assert!(is_alive(&process.id));
        assert!(!is_alive(&ProcessId { start_time: 1, ..process.id }));
    }
}
