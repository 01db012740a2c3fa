//! The limits of runs.

use std::{fs, time::Duration};

use super::{duration::parse_duration, file};
use crate::daemon::sandbox::limits::RunLimits;

/// Least memory with which a program can be executed: its arguments and environment take up to 2 MiB
/// while its process still has the memory of the slot's keeper, with whom the kernel would kill it.
const MIN_MEMORY_BYTES: u64 = 4 << 20;
/// Part of all epoll watches of a user that one run may have.
const EPOLL_WATCHES_DIVISOR: u64 = 16;

/// Checks the table.
pub(super) fn parse_limits(file: &file::LimitsTable, problems: &mut Vec<String>) -> RunLimits {
    let default = RunLimits::default();
    let limits = RunLimits {
        cpu_sec: file.cpu_sec,
        cpu_millis: parse_cpu_millis(file.cpus, problems),
        memory_bytes: file.memory_bytes.unwrap_or(default.memory_bytes),
        processes: file.processes.unwrap_or(default.processes),
        open_files: file.open_files.unwrap_or(default.open_files),
        open_files_hard: file
            .open_files_hard
            .unwrap_or(default.open_files_hard.max(file.open_files.unwrap_or(0))),
        open_files_total: file.open_files_total.unwrap_or(default.open_files_total),
        epoll_watches: file
            .epoll_watches
            .unwrap_or_else(|| default_epoll_watches().unwrap_or(default.epoll_watches)),
        file_size_bytes: file.file_size_bytes.unwrap_or(default.file_size_bytes),
        tmp_bytes: file.tmp_bytes.unwrap_or(default.tmp_bytes),
        tmp_inodes: file.tmp_inodes.unwrap_or(default.tmp_inodes),
        output_bytes: file.output_bytes,
        wall_time: parse_timeout(
            file.wall_clock.as_deref(),
            "limits.wall_clock",
            "no limit",
            problems,
        ),
    };
    let mut must = |holds: bool, problem: &str| {
        if !holds {
            problems.push(problem.to_owned());
        }
    };
    must(limits.cpu_sec != Some(0), "limits.cpu_sec must be at least 1; leave it out for no limit");
    must(limits.memory_bytes >= MIN_MEMORY_BYTES, "limits.memory_bytes must be at least 4194304");
    must(limits.processes > 0, "limits.processes must be at least 1");
    must(
        limits.open_files >= 16 && limits.open_files <= limits.open_files_hard,
        "limits.open_files must be at least 16, and at most limits.open_files_hard",
    );
    must(
        limits.open_files_total >= limits.open_files,
        "limits.open_files_total must be at least limits.open_files",
    );
    must(limits.epoll_watches >= 1, "limits.epoll_watches must be at least 1");
    // A page, and an inode besides that of the root: the least with which there can be a file.
    must(
        limits.tmp_bytes >= 4096 && limits.tmp_inodes >= 2,
        "limits.tmp_bytes must be at least 4096, and limits.tmp_inodes at least 2",
    );
    must(
        limits.output_bytes != Some(0),
        "limits.output_bytes must be at least 1; leave it out for no limit",
    );
    limits
}

/// The default of `limits.epoll_watches`: the kernel counts them by user (epoll(7)), so that one run
/// must leave some to the others, and to the daemon.
fn default_epoll_watches() -> Option<u64> {
    let text = fs::read_to_string("/proc/sys/fs/epoll/max_user_watches").ok()?;
    let most: u64 = text.trim().parse().ok()?;
    Some(most / EPOLL_WATCHES_DIVISOR).filter(|share| *share > 0)
}

fn parse_cpu_millis(cpus: Option<f64>, problems: &mut Vec<String>) -> Option<u32> {
    let cpus = cpus?;
    if !(0.01..=1024.0).contains(&cpus) {
        problems
            .push("limits.cpus must be from 0.01 to 1024; leave it out for no limit".to_owned());
        return None;
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it lies between 10 and 1,024,000"
    )]
    Some((cpus * 1000.0).round() as u32)
}

/// A time of at least a second; `key` is where it is written.
pub(super) fn parse_timeout(
    text: Option<&str>,
    key: &str,
    otherwise: &str,
    problems: &mut Vec<String>,
) -> Option<Duration> {
    let text = text?;
    let read = parse_duration(text).filter(|read| *read >= Duration::from_secs(1));
    if read.is_none() {
        problems.push(format!(
            "{key} {text}: give a time from 1s to a day, such as 10m or 1h; leave it out for {otherwise}"
        ));
    }
    read
}
