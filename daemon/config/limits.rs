//! The `[limits]` table: limits of each run.

use std::{fs, time::Duration};

use super::{duration::parse_duration, file};
use crate::daemon::sandbox::limits::RunLimits;

/// Least memory in which a program can start.
///
/// Before execve(2), the command's process shares the memory of the slot keeper, and its arguments
/// and environment take up to 2 MiB. With a lower limit, the kernel would kill the slot keeper
/// together with the command.
const MIN_MEMORY_BYTES: u64 = 4 << 20;
/// One run may have this fraction of all epoll watches of a user.
const EPOLL_WATCHES_DIVISOR: u64 = 16;
const MIN_OPEN_FILES: u32 = 16;
/// One page.
const MIN_TMP_BYTES: u64 = 4096;
/// The root directory and one file.
const MIN_TMP_INODES: u32 = 2;

/// Checks the table.
pub(super) fn parse_limits(file: &file::LimitsTable, problems: &mut Vec<String>) -> RunLimits {
    let default = RunLimits::default();
    let wall_clock = file.wall_clock.as_deref();
    let limits = RunLimits {
        cpu_sec: file.cpu_sec,
        milli_cpus: parse_milli_cpus(file.cpus, problems),
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
        wall_clock: parse_timeout(wall_clock, "limits.wall_clock", "no limit", problems),
    };

    check_limits(&limits, problems);
    limits
}

fn check_limits(limits: &RunLimits, problems: &mut Vec<String>) {
    let mut require = |condition: bool, problem: &str| {
        if !condition {
            problems.push(problem.to_owned());
        }
    };

    require(
        limits.cpu_sec != Some(0),
        "limits.cpu_sec must be at least 1; leave it out for no limit",
    );
    require(
        limits.memory_bytes >= MIN_MEMORY_BYTES,
        &format!("limits.memory_bytes must be at least {MIN_MEMORY_BYTES}"),
    );
    require(limits.processes > 0, "limits.processes must be at least 1");
    require(
        limits.open_files >= MIN_OPEN_FILES && limits.open_files <= limits.open_files_hard,
        &format!(
            "limits.open_files must be at least {MIN_OPEN_FILES}, and at most limits.open_files_hard"
        ),
    );
    require(
        limits.open_files_total >= limits.open_files,
        "limits.open_files_total must be at least limits.open_files",
    );
    require(limits.epoll_watches >= 1, "limits.epoll_watches must be at least 1");
    require(
        limits.tmp_bytes >= MIN_TMP_BYTES && limits.tmp_inodes >= MIN_TMP_INODES,
        &format!(
            "limits.tmp_bytes must be at least {MIN_TMP_BYTES}, and limits.tmp_inodes at least {MIN_TMP_INODES}"
        ),
    );
    require(
        limits.output_bytes != Some(0),
        "limits.output_bytes must be at least 1; leave it out for no limit",
    );
}

/// Returns the default of `limits.epoll_watches`.
///
/// The kernel limits epoll watches per user (epoll(7)). One run has a fraction of them, so that
/// other runs and the daemon keep the rest.
fn default_epoll_watches() -> Option<u64> {
    let text = fs::read_to_string("/proc/sys/fs/epoll/max_user_watches").ok()?;
    let all: u64 = text.trim().parse().ok()?;
    Some(all / EPOLL_WATCHES_DIVISOR).filter(|share| *share > 0)
}

fn parse_milli_cpus(cpus: Option<f64>, problems: &mut Vec<String>) -> Option<u32> {
    let cpus = cpus?;
    if !(0.01..=1024.0).contains(&cpus) {
        problems
            .push("limits.cpus must be from 0.01 to 1024; leave it out for no limit".to_owned());
        return None;
    }
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the value is from 10 to 1,024,000"
    )]
    Some((cpus * 1000.0).round() as u32)
}

/// Reads a timeout of at least one second.
///
/// `key` is the key of `text`, and `fallback` names what applies without it.
pub(super) fn parse_timeout(
    text: Option<&str>,
    key: &str,
    fallback: &str,
    problems: &mut Vec<String>,
) -> Option<Duration> {
    let text = text?;
    let timeout = parse_duration(text).filter(|timeout| *timeout >= Duration::from_secs(1));
    if timeout.is_none() {
        problems.push(format!(
            "{key} {text}: give a time from 1s to a day, such as 10m or 1h; leave it out for {fallback}"
        ));
    }
    timeout
}
