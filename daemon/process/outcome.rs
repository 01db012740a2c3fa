//! How a command ended, derived from its wait status and from what the daemon did to it.

use nix::sys::signal::Signal;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommandOutcome {
    /// It exited with this code.
    Exited(i32),
    /// A signal ended it. The daemon sent none, or sent SIGKILL because the command exceeded its
    /// limit of CPU time, open files or epoll watches, or its workspace a bound of its files.
    Signaled(i32),
    /// The daemon stopped it because of its timeout. With the signal that ended it, if one did.
    TimedOut(Option<i32>),
    /// The daemon stopped it because all clients had disconnected, or because the daemon shut down.
    /// With the signal that ended it, if one did.
    Cancelled(Option<i32>),
    /// It exceeded its memory limit and was killed.
    OomKilled,
    /// It exceeded its output limit. With the signal that ended it, if one did.
    OutputLimit(Option<i32>),
}

/// Why the daemon stops a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopReason {
    TimedOut,
    /// All clients have disconnected, or the daemon is shutting down.
    Cancelled,
    Limit(ResourceLimit),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResourceLimit {
    Pids,
    /// CPU time.
    Cpu,
    Memory,
    /// Open files of all processes together.
    OpenFiles,
    /// Watches in the epoll sets of all processes together.
    Epoll,
    /// Size of a file.
    Disk,
    Output,
    /// Disk space of all files of the workspace.
    WorkspaceBytes,
    /// Number of files and directories of the workspace.
    WorkspaceFiles,
}

impl ResourceLimit {
    /// Returns the limit's name in the contract.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pids => "pids",
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::OpenFiles => "open_files",
            Self::Epoll => "epoll",
            Self::Disk => "disk",
            Self::Output => "output",
            Self::WorkspaceBytes => "workspace_bytes",
            Self::WorkspaceFiles => "workspace_files",
        }
    }
}

impl CommandOutcome {
    /// Interprets a wait status (wait(2)). `reason` is why the daemon was stopping the command.
    pub(crate) fn from_status(status: i32, reason: Option<StopReason>) -> Self {
        let signal = libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status));
        match (reason, signal) {
            (Some(StopReason::TimedOut), signal) => Self::TimedOut(signal),
            (Some(StopReason::Cancelled), signal) => Self::Cancelled(signal),
            // It ended before the daemon could kill it.
            (Some(StopReason::Limit(_)) | None, Some(signal)) => Self::Signaled(signal),
            (Some(StopReason::Limit(_)) | None, None) => Self::Exited(libc::WEXITSTATUS(status)),
        }
    }

    /// Returns the outcome of a command that the daemon killed with its sandbox.
    pub(crate) fn killed(reason: StopReason) -> Self {
        match reason {
            StopReason::TimedOut => Self::TimedOut(Some(libc::SIGKILL)),
            StopReason::Cancelled => Self::Cancelled(Some(libc::SIGKILL)),
            StopReason::Limit(ResourceLimit::Memory) => Self::OomKilled,
            StopReason::Limit(ResourceLimit::Output) => Self::OutputLimit(Some(libc::SIGKILL)),
            StopReason::Limit(
                ResourceLimit::Cpu
                | ResourceLimit::Pids
                | ResourceLimit::Disk
                | ResourceLimit::OpenFiles
                | ResourceLimit::Epoll
                | ResourceLimit::WorkspaceBytes
                | ResourceLimit::WorkspaceFiles,
            ) => Self::Signaled(libc::SIGKILL),
        }
    }

    /// Returns the limit that ended the command, if the outcome shows it.
    pub(crate) fn exceeded_limit(self) -> Option<ResourceLimit> {
        match self {
            Self::Signaled(libc::SIGXCPU) => Some(ResourceLimit::Cpu),
            Self::Signaled(libc::SIGXFSZ) => Some(ResourceLimit::Disk),
            Self::OomKilled => Some(ResourceLimit::Memory),
            Self::OutputLimit(_) => Some(ResourceLimit::Output),
            Self::Exited(_) | Self::Signaled(_) | Self::TimedOut(_) | Self::Cancelled(_) => None,
        }
    }

    /// Returns the exit code, unless the daemon or a signal ended the command.
    pub(crate) fn exit_code(self) -> Option<i32> {
        match self {
            Self::Exited(code) => Some(code),
            Self::Signaled(_)
            | Self::TimedOut(_)
            | Self::Cancelled(_)
            | Self::OomKilled
            | Self::OutputLimit(_) => None,
        }
    }

    /// Returns the signal that ended the command, if one did.
    pub(crate) fn signal(self) -> Option<i32> {
        match self {
            Self::Exited(_) => None,
            Self::Signaled(signal) => Some(signal),
            Self::TimedOut(signal) | Self::Cancelled(signal) | Self::OutputLimit(signal) => signal,
            Self::OomKilled => Some(libc::SIGKILL),
        }
    }
}

/// SIGRTMIN: the kernel's first is 32, of which the C library reserves two.
const FIRST_REAL_TIME_SIGNAL: i32 = 34;
/// SIGRTMAX.
const LAST_SIGNAL: i32 = 64;

/// Returns the name of a signal, such as `SIGKILL`.
pub(crate) fn signal_name(signal: i32) -> String {
    match Signal::try_from(signal) {
        Ok(standard) => standard.as_str().to_owned(),
        Err(_) if signal >= FIRST_REAL_TIME_SIGNAL => {
            format!("SIGRTMIN+{}", signal - FIRST_REAL_TIME_SIGNAL)
        }
        // The two reserved ones have no names.
        Err(_) => format!("SIG{signal}"),
    }
}

/// Parses a signal: its name with or without `SIG`, in any case, or its number.
pub(crate) fn signal_number(text: &str) -> Option<i32> {
    let number = if let Ok(number) = text.parse() {
        number
    } else {
        let text = text.to_ascii_uppercase();
        let name = text.strip_prefix("SIG").unwrap_or(&text);
        match name.strip_prefix("RTMIN") {
            Some("") => FIRST_REAL_TIME_SIGNAL,
            Some(offset) => {
                FIRST_REAL_TIME_SIGNAL + i32::from(offset.strip_prefix('+')?.parse::<u8>().ok()?)
            }
            None if name.bytes().all(|byte| byte.is_ascii_digit()) => name.parse().ok()?,
            None => format!("SIG{name}").parse::<Signal>().ok()? as i32,
        }
    };
    (1..=LAST_SIGNAL).contains(&number).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::{CommandOutcome, StopReason, signal_name, signal_number};

    #[test]
    fn signals_parse_by_name_and_number() {
        for signal in 1..=64 {
            assert_eq!(signal_number(&signal.to_string()), Some(signal));
            assert_eq!(signal_number(&signal_name(signal)), Some(signal));
        }
        for (text, signal) in [("TERM", 15), ("sigint", 2), ("SIGRTMIN", 34), ("RTMIN+1", 35)] {
            assert_eq!(signal_number(text), Some(signal), "{text}");
        }
        for text in ["", "0", "65", "-1", "SIG", "NOPE", "RTMIN+31", "RTMIN-1", "RTMIN+-1"] {
            assert_eq!(signal_number(text), None, "{text}");
        }
    }

    #[test]
    fn wait_status_is_interpreted_with_the_stop_reason() {
        let (exited_3, killed_9) = (3 << 8, 9);
        for (status, reason, outcome) in [
            (exited_3, None, CommandOutcome::Exited(3)),
            (0, None, CommandOutcome::Exited(0)),
            (killed_9, None, CommandOutcome::Signaled(9)),
            (killed_9 | 0x80, None, CommandOutcome::Signaled(9)), // with a core dump
            (exited_3, Some(StopReason::TimedOut), CommandOutcome::TimedOut(None)),
            (15, Some(StopReason::TimedOut), CommandOutcome::TimedOut(Some(15))),
            (15, Some(StopReason::Cancelled), CommandOutcome::Cancelled(Some(15))),
        ] {
            assert_eq!(
                CommandOutcome::from_status(status, reason),
                outcome,
                "{status:#x} {reason:?}"
            );
        }
    }
}
