//! How a command ended, told from its wait status and from what the daemon did to it.

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CommandOutcome {
    /// It exited with this code.
    Exited(i32),
    /// A signal ended it: one that the daemon did not send, or its limit of CPU time.
    Signaled(i32),
    /// Its time was up; the signal that ended it, if one did.
    TimedOut(Option<i32>),
    /// The daemon ended it because it was told to; the signal that ended it, if one did.
    Cancelled(Option<i32>),
    /// It was killed because it used more memory than it may.
    OomKilled,
    /// It was killed because it wrote more than it may, or had written that when it ended.
    OutputLimit(Option<i32>),
}

/// Why the daemon ended a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StopReason {
    /// Its time was up.
    TimedOut,
    /// Nobody waits for it any more, or the daemon is shutting down.
    Cancelled,
    /// It was over a limit.
    Limit(ResourceLimit),
}

/// What ended a run, besides its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ResourceLimit {
    /// Processes.
    Pids,
    /// CPU time.
    Cpu,
    /// Memory.
    Memory,
    /// Open files of all processes.
    OpenFiles,
    /// Watches in epoll sets of all processes.
    Epoll,
    /// Size of a file.
    Disk,
    /// Output.
    Output,
}

impl ResourceLimit {
    /// Its name in the contract.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pids => "pids",
            Self::Cpu => "cpu",
            Self::Memory => "memory",
            Self::OpenFiles => "open_files",
            Self::Epoll => "epoll",
            Self::Disk => "disk",
            Self::Output => "output",
        }
    }
}

impl CommandOutcome {
    /// Reads a wait status (wait(2)) in the light of what the daemon did.
    pub(crate) fn from_status(status: i32, cause: Option<StopReason>) -> Self {
        let signal = libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status));
        match (cause, signal) {
            (Some(StopReason::TimedOut), signal) => Self::TimedOut(signal),
            (Some(StopReason::Cancelled), signal) => Self::Cancelled(signal),
            // It ended by itself before it was killed.
            (Some(StopReason::Limit(_)) | None, Some(signal)) => Self::Signaled(signal),
            (Some(StopReason::Limit(_)) | None, None) => Self::Exited(libc::WEXITSTATUS(status)),
        }
    }

    /// What became of a command that the daemon killed with its whole sandbox.
    pub(crate) fn killed(cause: StopReason) -> Self {
        match cause {
            StopReason::TimedOut => Self::TimedOut(Some(libc::SIGKILL)),
            StopReason::Cancelled => Self::Cancelled(Some(libc::SIGKILL)),
            StopReason::Limit(ResourceLimit::Memory) => Self::OomKilled,
            StopReason::Limit(ResourceLimit::Output) => Self::OutputLimit(Some(libc::SIGKILL)),
            StopReason::Limit(
                ResourceLimit::Cpu
                | ResourceLimit::Pids
                | ResourceLimit::Disk
                | ResourceLimit::OpenFiles
                | ResourceLimit::Epoll,
            ) => Self::Signaled(libc::SIGKILL),
        }
    }

    /// The limit that ended it, where the way it ended says so.
    pub(crate) fn exceeded_limit(self) -> Option<ResourceLimit> {
        match self {
            Self::Signaled(libc::SIGXCPU) => Some(ResourceLimit::Cpu),
            Self::Signaled(libc::SIGXFSZ) => Some(ResourceLimit::Disk),
            Self::OomKilled => Some(ResourceLimit::Memory),
            Self::OutputLimit(_) => Some(ResourceLimit::Output),
            Self::Exited(_) | Self::Signaled(_) | Self::TimedOut(_) | Self::Cancelled(_) => None,
        }
    }

    /// The code it exited with, if it did by itself.
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

    /// The signal that ended it, if one did.
    pub(crate) fn signal(self) -> Option<i32> {
        match self {
            Self::Exited(_) => None,
            Self::Signaled(signal) => Some(signal),
            Self::TimedOut(signal) | Self::Cancelled(signal) | Self::OutputLimit(signal) => signal,
            Self::OomKilled => Some(libc::SIGKILL),
        }
    }
}

/// Names of the signals that have one (signal(7)).
const SIGNAL_NAMES: &[(i32, &str)] = &[
    (libc::SIGHUP, "SIGHUP"),
    (libc::SIGINT, "SIGINT"),
    (libc::SIGQUIT, "SIGQUIT"),
    (libc::SIGILL, "SIGILL"),
    (libc::SIGTRAP, "SIGTRAP"),
    (libc::SIGABRT, "SIGABRT"),
    (libc::SIGBUS, "SIGBUS"),
    (libc::SIGFPE, "SIGFPE"),
    (libc::SIGKILL, "SIGKILL"),
    (libc::SIGUSR1, "SIGUSR1"),
    (libc::SIGSEGV, "SIGSEGV"),
    (libc::SIGUSR2, "SIGUSR2"),
    (libc::SIGPIPE, "SIGPIPE"),
    (libc::SIGALRM, "SIGALRM"),
    (libc::SIGTERM, "SIGTERM"),
    (libc::SIGSTKFLT, "SIGSTKFLT"),
    (libc::SIGCHLD, "SIGCHLD"),
    (libc::SIGCONT, "SIGCONT"),
    (libc::SIGSTOP, "SIGSTOP"),
    (libc::SIGTSTP, "SIGTSTP"),
    (libc::SIGTTIN, "SIGTTIN"),
    (libc::SIGTTOU, "SIGTTOU"),
    (libc::SIGURG, "SIGURG"),
    (libc::SIGXCPU, "SIGXCPU"),
    (libc::SIGXFSZ, "SIGXFSZ"),
    (libc::SIGVTALRM, "SIGVTALRM"),
    (libc::SIGPROF, "SIGPROF"),
    (libc::SIGWINCH, "SIGWINCH"),
    (libc::SIGIO, "SIGIO"),
    (libc::SIGPWR, "SIGPWR"),
    (libc::SIGSYS, "SIGSYS"),
];
/// The first real-time signal: the kernel's begin at 32, of which the C library keeps two to itself.
const FIRST_REAL_TIME_SIGNAL: i32 = 34;
/// The last one.
const LAST_SIGNAL: i32 = 64;

/// Name of a signal: `SIGKILL`.
pub(crate) fn signal_name(signal: i32) -> String {
    let known = SIGNAL_NAMES.iter().find(|(number, _)| *number == signal);
    match known {
        Some((_, name)) => (*name).to_owned(),
        None if signal >= FIRST_REAL_TIME_SIGNAL => {
            format!("SIGRTMIN+{}", signal - FIRST_REAL_TIME_SIGNAL)
        }
        // The C library's own have no names.
        None => format!("SIG{signal}"),
    }
}

/// The signal of a name, with or without `SIG`, in any case; or of a number.
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
            None => SIGNAL_NAMES.iter().find(|(_, known)| &known[3..] == name)?.0,
        }
    };
    (1..=LAST_SIGNAL).contains(&number).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::{CommandOutcome, StopReason, signal_name, signal_number};

    #[test]
    fn signals_are_known_by_their_names_and_numbers() {
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
    fn a_wait_status_is_read_in_the_light_of_what_the_daemon_did() {
        let (exited_3, killed_9) = (3 << 8, 9);
        for (status, cause, outcome) in [
            (exited_3, None, CommandOutcome::Exited(3)),
            (0, None, CommandOutcome::Exited(0)),
            (killed_9, None, CommandOutcome::Signaled(9)),
            (killed_9 | 0x80, None, CommandOutcome::Signaled(9)), // with a core dump
            (exited_3, Some(StopReason::TimedOut), CommandOutcome::TimedOut(None)),
            (15, Some(StopReason::TimedOut), CommandOutcome::TimedOut(Some(15))),
            (15, Some(StopReason::Cancelled), CommandOutcome::Cancelled(Some(15))),
        ] {
            assert_eq!(
                CommandOutcome::from_status(status, cause),
                outcome,
                "{status:#x} {cause:?}"
            );
        }
    }
}
