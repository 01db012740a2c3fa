//! How a command ended, told from its wait status and from what the daemon did to it.

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
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
pub(crate) enum Cause {
    /// Its time was up.
    TimeUp,
    /// Nobody waits for it any more, or the daemon is shutting down.
    Cancelled,
    /// It was over a limit.
    Limit(Limit),
}

/// What ended a run, besides its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
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

impl Limit {
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

impl Outcome {
    /// Reads a wait status (wait(2)) in the light of what the daemon did.
    pub(crate) fn from_status(status: i32, cause: Option<Cause>) -> Self {
        let signal = libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status));
        match (cause, signal) {
            (Some(Cause::TimeUp), signal) => Self::TimedOut(signal),
            (Some(Cause::Cancelled), signal) => Self::Cancelled(signal),
            // It ended by itself before it was killed.
            (Some(Cause::Limit(_)) | None, Some(signal)) => Self::Signaled(signal),
            (Some(Cause::Limit(_)) | None, None) => Self::Exited(libc::WEXITSTATUS(status)),
        }
    }

    /// What became of a command that the daemon killed with its whole sandbox.
    pub(crate) fn killed(cause: Cause) -> Self {
        match cause {
            Cause::TimeUp => Self::TimedOut(Some(libc::SIGKILL)),
            Cause::Cancelled => Self::Cancelled(Some(libc::SIGKILL)),
            Cause::Limit(Limit::Memory) => Self::OomKilled,
            Cause::Limit(Limit::Output) => Self::OutputLimit(Some(libc::SIGKILL)),
            Cause::Limit(
                Limit::Cpu | Limit::Pids | Limit::Disk | Limit::OpenFiles | Limit::Epoll,
            ) => Self::Signaled(libc::SIGKILL),
        }
    }

    /// The limit that ended it, where the way it ended says so.
    pub(crate) fn limit(self) -> Option<Limit> {
        match self {
            Self::Signaled(libc::SIGXCPU) => Some(Limit::Cpu),
            Self::Signaled(libc::SIGXFSZ) => Some(Limit::Disk),
            Self::OomKilled => Some(Limit::Memory),
            Self::OutputLimit(_) => Some(Limit::Output),
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
const SIGNALS: &[(i32, &str)] = &[
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
const FIRST_REAL_TIME: i32 = 34;
/// The last one.
const LAST_SIGNAL: i32 = 64;

/// Name of a signal: `SIGKILL`.
pub(crate) fn signal_name(signal: i32) -> String {
    let known = SIGNALS.iter().find(|(number, _)| *number == signal);
    match known {
        Some((_, name)) => (*name).to_owned(),
        None if signal >= FIRST_REAL_TIME => format!("SIGRTMIN+{}", signal - FIRST_REAL_TIME),
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
            Some("") => FIRST_REAL_TIME,
            Some(offset) => {
                FIRST_REAL_TIME + i32::from(offset.strip_prefix('+')?.parse::<u8>().ok()?)
            }
            None if name.bytes().all(|byte| byte.is_ascii_digit()) => name.parse().ok()?,
            None => SIGNALS.iter().find(|(_, known)| &known[3..] == name)?.0,
        }
    };
    (1..=LAST_SIGNAL).contains(&number).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::{Cause, Outcome, signal_name, signal_number};

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
            (exited_3, None, Outcome::Exited(3)),
            (0, None, Outcome::Exited(0)),
            (killed_9, None, Outcome::Signaled(9)),
            (killed_9 | 0x80, None, Outcome::Signaled(9)), // with a core dump
            (exited_3, Some(Cause::TimeUp), Outcome::TimedOut(None)),
            (15, Some(Cause::TimeUp), Outcome::TimedOut(Some(15))),
            (15, Some(Cause::Cancelled), Outcome::Cancelled(Some(15))),
        ] {
            assert_eq!(Outcome::from_status(status, cause), outcome, "{status:#x} {cause:?}");
        }
    }
}
