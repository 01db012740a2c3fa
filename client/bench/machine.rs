//! Describes the machine, which a report needs: times depend on it.

use std::{fs, thread};

/// Properties of a machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Machine {
    /// CPUs that this process may use.
    pub(super) cores: usize,
    pub(super) kernel: String,
    pub(super) cpu: String,
}

impl Machine {
    /// Returns the properties of this machine.
    pub(super) fn detect() -> Self {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        Self {
            cores: thread::available_parallelism().map_or(0, usize::from),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            cpu: cpu_model(&read("/proc/cpuinfo")),
        }
    }
}

fn cpu_model(cpuinfo: &str) -> String {
    cpuinfo
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.trim() == "model name")
        .map_or_else(|| "unknown CPU".to_owned(), |(_, model)| model.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_model_is_read_from_cpuinfo() {
        assert_eq!(cpu_model("processor\t: 0\nmodel name\t: X 1\n"), "X 1");
        assert_eq!(cpu_model(""), "unknown CPU");
    }
}
