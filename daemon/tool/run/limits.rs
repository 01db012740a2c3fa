//! Lowers the operator's limits as a request asks.

use std::fmt::Display;

use crate::{
    api::v1::LowerLimits,
    daemon::{
        error::Violation,
        sandbox::{level::IsolationLevel, limits::RunLimits},
    },
};

/// The operator's limits, lowered to the values that the request gives.
///
/// A value above the operator's limit is a violation, and so is a limit that isolation `level`
/// cannot enforce.
pub(super) fn lower_limits(
    operator_limits: RunLimits,
    requested: LowerLimits,
    level: IsolationLevel,
    violations: &mut Vec<Violation>,
) -> RunLimits {
    let mut limits = operator_limits;
    let mut lowering = LimitLowering { violations };

    lowering.lower(&mut limits.memory_bytes, requested.memory_bytes, "memory_bytes");
    lowering.lower(&mut limits.processes, requested.processes, "processes");

    lowering.lower(&mut limits.open_files_hard, requested.open_files, "open_files");
    limits.open_files = limits.open_files.min(limits.open_files_hard);
    if requested.open_files.is_some() {
        // The caller asks for a limit, so it applies from the start: soft and hard are the same.
        limits.open_files = limits.open_files_hard;
    }

    lowering.lower(&mut limits.open_files_total, requested.open_files_total, "open_files_total");

    lowering.lower(&mut limits.file_size_bytes, requested.file_size_bytes, "file_size_bytes");

    if level == IsolationLevel::L1 {
        lowering.reject_unenforced(requested.tmp_bytes, "tmp_bytes");
        lowering.reject_unenforced(requested.tmp_inodes, "tmp_inodes");
    } else {
        lowering.lower(&mut limits.tmp_bytes, requested.tmp_bytes, "tmp_bytes");
        lowering.lower(&mut limits.tmp_inodes, requested.tmp_inodes, "tmp_inodes");
    }

    lowering.lower_or_set(&mut limits.cpu_sec, requested.cpu_sec, "cpu_sec");
    lowering.lower_or_set(&mut limits.output_bytes, requested.output_bytes, "output_bytes");
    limits
}

struct LimitLowering<'a> {
    violations: &'a mut Vec<Violation>,
}

impl LimitLowering<'_> {
    fn lower<T: Copy + Ord + Display>(&mut self, limit: &mut T, requested: Option<T>, field: &str) {
        match requested {
            Some(requested) if requested > *limit => {
                let text = format!("must be at most {limit}, the daemon's limit");
                self.violations.push(Violation::new(format!("limits.{field}"), text));
            }
            Some(requested) => *limit = requested,
            None => {}
        }
    }

    /// Rejects a limit on temporary files at L1, where they are in a directory on a disk.
    fn reject_unenforced<T>(&mut self, requested: Option<T>, field: &str) {
        if requested.is_some() {
            let text = "is not enforced at isolation level L1: leave it out";
            self.violations.push(Violation::new(format!("limits.{field}"), text));
        }
    }

    /// Like [`Self::lower`], for a limit that the operator may not have set.
    fn lower_or_set<T: Copy + Ord + Display>(
        &mut self,
        limit: &mut Option<T>,
        requested: Option<T>,
        field: &str,
    ) {
        match limit {
            Some(limit) => self.lower(limit, requested, field),
            None => *limit = requested,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operator_limits() -> RunLimits {
        RunLimits { cpu_sec: Some(10), ..RunLimits::default() }
    }

    /// Lowers the operator's limits at isolation L3.
    fn lower(requested: LowerLimits) -> (RunLimits, Vec<Violation>) {
        let mut violations = Vec::new();
        let limits =
            lower_limits(operator_limits(), requested, IsolationLevel::L3, &mut violations);
        (limits, violations)
    }

    #[test]
    fn limits_are_lowered() {
        assert_eq!(lower(LowerLimits::default()).0, operator_limits());

        let requested = LowerLimits {
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
        let (limits, violations) = lower(requested);
        let expected = RunLimits {
            cpu_sec: Some(10),
            milli_cpus: None,
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
            wall_clock: None,
        };
        assert_eq!((limits, violations.len()), (expected, 0));
    }

    #[test]
    fn limits_are_never_raised() {
        let requested = LowerLimits {
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
        let (limits, violations) = lower(requested);
        assert_eq!(limits.memory_bytes, 2 << 30);

        let fields: Vec<&str> =
            violations.iter().map(|violation| violation.field.as_str()).collect();
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
