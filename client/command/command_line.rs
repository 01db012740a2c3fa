//! Arguments that describe the command to run in a sandbox.

use std::{collections::BTreeMap, ffi::OsString, num::IntErrorKind};

use clap::{Args, ValueEnum as _};
use jig::api::v1::LowerLimits;

/// Command, working directory, environment and limits.
#[derive(Debug, Args)]
pub(crate) struct CommandLine {
    /// Working directory of the command, relative to the workspace. Default: the workspace.
    #[arg(long, value_name = "DIR")]
    pub(super) cwd: Option<String>,
    /// Environment variable for the command, for example `CI=1`. Repeatable.
    #[arg(long, value_name = "K=V", value_parser = parse_variable)]
    env: Vec<(String, String)>,
    /// Limit for this run, lower than the operator's. One of `memory=512M`, `processes=64`,
    /// `cpu=10` (seconds), `open-files=100`, `open-files-total=1000`, `file-size=1G`, `tmp=64M`,
    /// `tmp-inodes=1000` and `output=1M`. Units are K, M and G (powers of 1024). Repeatable.
    #[arg(long = "limit", value_name = "NAME=VALUE", value_parser = parse_limit)]
    limits: Vec<(LimitName, u64)>,
    /// Command for a shell. After `--`: a program and its arguments, without a shell.
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    words: Vec<String>,
    /// Whether `--` precedes the words.
    #[arg(skip)]
    is_argv: bool,
}

impl CommandLine {
    /// Records whether `--` precedes the words. clap does not report it; the words are the end of
    /// `line`.
    pub(crate) fn set_is_argv(&mut self, line: &[OsString]) {
        self.is_argv =
            line.len().checked_sub(self.words.len() + 1).is_some_and(|before| line[before] == "--");
    }

    /// Returns whether no command was given.
    pub(crate) fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Returns the text for a shell, or the program and its arguments.
    pub(super) fn command(&self) -> (Option<String>, Vec<String>) {
        if self.is_argv {
            (None, self.words.clone())
        } else {
            (Some(self.words.join(" ")), Vec::new())
        }
    }

    /// Returns the limits to lower, if any.
    pub(super) fn limits(&self) -> Option<LowerLimits> {
        let mut lower = LowerLimits::default();
        for (name, value) in &self.limits {
            // `parse_limit` rejects values that do not fit.
            let small = u32::try_from(*value).unwrap_or(u32::MAX);
            match name {
                LimitName::Cpu => lower.cpu_sec = Some(small),
                LimitName::Memory => lower.memory_bytes = Some(*value),
                LimitName::Processes => lower.processes = Some(small),
                LimitName::OpenFiles => lower.open_files = Some(small),
                LimitName::OpenFilesTotal => lower.open_files_total = Some(small),
                LimitName::FileSize => lower.file_size_bytes = Some(*value),
                LimitName::Tmp => lower.tmp_bytes = Some(*value),
                LimitName::TmpInodes => lower.tmp_inodes = Some(small),
                LimitName::Output => lower.output_bytes = Some(*value),
            }
        }

        (!self.limits.is_empty()).then_some(lower)
    }

    /// Returns the environment variables to add.
    pub(super) fn env(&self) -> BTreeMap<String, String> {
        self.env.iter().cloned().collect()
    }
}

/// Names of limits on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum LimitName {
    Cpu,
    Memory,
    Processes,
    OpenFiles,
    OpenFilesTotal,
    FileSize,
    Tmp,
    TmpInodes,
    Output,
}

impl LimitName {
    /// Largest value that the contract can carry.
    fn max_value(self) -> u64 {
        match self {
            Self::Memory | Self::FileSize | Self::Tmp | Self::Output => u64::MAX,
            Self::Cpu
            | Self::Processes
            | Self::OpenFiles
            | Self::OpenFilesTotal
            | Self::TmpInodes => u32::MAX.into(),
        }
    }
}

fn parse_limit(text: &str) -> Result<(LimitName, u64), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    let Ok(name) = LimitName::from_str(name, false) else {
        let names: Vec<_> = LimitName::value_variants()
            .iter()
            .filter_map(clap::ValueEnum::to_possible_value)
            .map(|name| name.get_name().to_owned())
            .collect();
        return Err(format!("no such limit: {name:?}; use one of {}", names.join(", ")));
    };

    parse_size_up_to(value, name.max_value()).map(|number| (name, number))
}

/// Parses a number that may end in K, M or G.
pub(super) fn parse_size(text: &str) -> Result<u64, String> {
    parse_size_up_to(text, u64::MAX)
}

fn parse_size_up_to(text: &str, maximum: u64) -> Result<u64, String> {
    let (digits, shift) = match text.strip_suffix(['K', 'M', 'G']) {
        Some(digits) if text.ends_with('K') => (digits, 10),
        Some(digits) if text.ends_with('M') => (digits, 20),
        Some(digits) => (digits, 30),
        None => (text, 0),
    };

    let number = match digits.parse::<u64>() {
        Ok(number) => number.checked_mul(1 << shift),
        Err(error) if *error.kind() == IntErrorKind::PosOverflow => None,
        Err(_) => {
            return Err(format!("not a number: {text:?}; K, M and G stand for KiB, MiB and GiB"));
        }
    };

    match number {
        Some(number) if number <= maximum => Ok(number),
        _ => Err(format!("too large: {text:?}; the maximum is {maximum}")),
    }
}

fn parse_variable(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write NAME=VALUE".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_have_names_and_units() {
        for (text, expected) in [
            ("memory=512M", (LimitName::Memory, 512 << 20)),
            ("output=1K", (LimitName::Output, 1024)),
            ("file-size=2G", (LimitName::FileSize, 2 << 30)),
            ("processes=7", (LimitName::Processes, 7)),
        ] {
            assert_eq!(parse_limit(text), Ok(expected));
        }
        for text in ["memory", "memory=", "memory=x", "memory=1T", "memory=-1", "nothing=1"] {
            assert!(parse_limit(text).is_err(), "{text}");
        }
        assert!(parse_limit("mem=1").unwrap_err().contains("memory, processes"));
    }

    #[test]
    fn limits_that_do_not_fit_are_rejected() {
        for (text, max) in [
            ("memory=99999999999G", u64::MAX),
            ("memory=99999999999999999999", u64::MAX),
            ("processes=5000000000", u32::MAX.into()),
            ("cpu=4G", u32::MAX.into()),
        ] {
            let problem = parse_limit(text).unwrap_err();
            assert!(problem.starts_with("too large"), "{problem}");
            assert!(problem.ends_with(&max.to_string()), "{problem}");
        }
        assert_eq!(parse_limit("processes=4294967295"), Ok((LimitName::Processes, 4_294_967_295)));
    }

    #[test]
    fn variables_have_names() {
        assert_eq!(parse_variable("A=b"), Ok(("A".into(), "b".into())));
        assert!(parse_variable("A").is_err());
        assert!(parse_variable("=b").is_err());
    }
}
