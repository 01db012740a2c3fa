//! Limits that a request lowers.

use std::fmt::Display;

use crate::{
    api::v1::LowerLimits,
    daemon::{
        error::Violation,
        sandbox::{level::IsolationLevel, limits::RunLimits},
    },
};

/// The operator's limits, lowered by what a request asks for. What it would raise is a violation, and
/// so is what is not held at this level.
pub(super) fn lower_limits(
    operators: RunLimits,
    asked: LowerLimits,
    level: IsolationLevel,
    violations: &mut Vec<Violation>,
) -> RunLimits {
    let mut limits = operators;
    let mut lower = LimitLowering { violations };
    lower.lower(&mut limits.memory_bytes, asked.memory_bytes, "memory_bytes");
    lower.lower(&mut limits.processes, asked.processes, "processes");
    lower.lower(&mut limits.open_files_hard, asked.open_files, "open_files");
    limits.open_files = limits.open_files.min(limits.open_files_hard);
    if asked.open_files.is_some() {
        // What is asked for is a limit, and not where a process begins.
        limits.open_files = limits.open_files_hard;
    }
    lower.lower(&mut limits.open_files_total, asked.open_files_total, "open_files_total");
    lower.lower(&mut limits.file_size_bytes, asked.file_size_bytes, "file_size_bytes");
    if level == IsolationLevel::L1 {
        lower.reject_unenforced(asked.tmp_bytes, "tmp_bytes");
        lower.reject_unenforced(asked.tmp_inodes, "tmp_inodes");
    } else {
        lower.lower(&mut limits.tmp_bytes, asked.tmp_bytes, "tmp_bytes");
        lower.lower(&mut limits.tmp_inodes, asked.tmp_inodes, "tmp_inodes");
    }
    lower.lower_or_set(&mut limits.cpu_sec, asked.cpu_sec, "cpu_sec");
    lower.lower_or_set(&mut limits.output_bytes, asked.output_bytes, "output_bytes");
    limits
}

struct LimitLowering<'a> {
    violations: &'a mut Vec<Violation>,
}

impl LimitLowering<'_> {
    fn lower<T: Copy + Ord + Display>(&mut self, limit: &mut T, asked: Option<T>, field: &str) {
        match asked {
            Some(asked) if asked > *limit => {
                let text = format!("must be at most {limit}, which the operator set");
                self.violations.push(Violation::new(format!("limits.{field}"), text));
            }
            Some(asked) => *limit = asked,
            None => {}
        }
    }

    /// Refuses a limit on temporary files where those lie in a directory on a disk.
    fn reject_unenforced<T>(&mut self, asked: Option<T>, field: &str) {
        if asked.is_some() {
            let text =
                "cannot be given at isolation L1, where the size of temporary files is not limited";
            self.violations.push(Violation::new(format!("limits.{field}"), text));
        }
    }

    /// As [`Lower::to`], where the operator may have set no limit.
    fn lower_or_set<T: Copy + Ord + Display>(
        &mut self,
        limit: &mut Option<T>,
        asked: Option<T>,
        field: &str,
    ) {
        match limit {
            Some(limit) => self.lower(limit, asked, field),
            None => *limit = asked,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_lowered_and_never_raised() {
        let operators = RunLimits { cpu_sec: Some(10), ..RunLimits::default() };
        let mut violations = Vec::new();
        assert_eq!(
            lower_limits(operators, LowerLimits::default(), IsolationLevel::L3, &mut violations),
            operators
        );
        let asked = LowerLimits {
            cpu_sec: Some(10),
            memory_bytes: Some(1 << 20),
            processes: Some(1),
            open_files: Some(64),
            open_files_total: Some(100),
            file_size_bytes: Some(0),
            tmp_bytes: Some(4096),
            tmp_inodes: Some(2),
            output_bytes: Some(7),
        };
        let limits = lower_limits(operators, asked, IsolationLevel::L3, &mut violations);
        let expected = RunLimits {
            cpu_sec: Some(10),
            cpu_millis: None,
            memory_bytes: 1 << 20,
            processes: 1,
            open_files: 64,
            open_files_hard: 64,
            open_files_total: 100,
            epoll_watches: 65_536,
            file_size_bytes: 0,
            tmp_bytes: 4096,
            tmp_inodes: 2,
            output_bytes: Some(7),
            wall_time: None,
        };
        assert_eq!((limits, violations.len()), (expected, 0));
        let asked = LowerLimits {
            cpu_sec: Some(11),
            memory_bytes: Some(u64::MAX),
            processes: Some(513),
            open_files: Some(4097),
            open_files_total: Some(65_537),
            file_size_bytes: Some((4 << 30) + 1),
            tmp_bytes: Some(u64::MAX),
            tmp_inodes: Some(u32::MAX),
            output_bytes: Some(u64::MAX),
        };
        assert_eq!(
            lower_limits(operators, asked, IsolationLevel::L3, &mut violations).memory_bytes,
            2 << 30
        );
        let fields: Vec<&str> = violations.iter().map(|found| found.field.as_str()).collect();
        let expected = [
            "limits.memory_bytes",
            "limits.processes",
            "limits.open_files",
            "limits.open_files_total",
            "limits.file_size_bytes",
            "limits.tmp_bytes",
            "limits.tmp_inodes",
            "limits.cpu_sec",
        ];
        assert_eq!(fields, expected);
        assert!(violations[1].description.contains("512"), "{violations:?}");
    }
}
