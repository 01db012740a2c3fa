//! Exit codes of `jig`. They pass on the exit code of a command that ran.

use jig::api::v1::{Outcome, ProcessExited, RunResponse};

/// The command succeeded.
pub(crate) const SUCCESS: u8 = 0;
/// The call failed.
pub(crate) const FAILURE: u8 = 1;
/// Usage error: EX_USAGE of sysexits.h, as the daemon returns.
pub(crate) const USAGE: u8 = 64;
/// `jig run` itself failed. Same code as `timeout`, `env` and `docker run`; commands use lower
/// codes.
pub(crate) const RUN_FAILED: u8 = 125;
/// The command ran into its timeout. Same code as `timeout`.
pub(crate) const TIMED_OUT: u8 = 124;
/// `jig search` found nothing. Same codes as grep and ripgrep, like the next one.
pub(crate) const NO_MATCH: u8 = 1;
/// `jig search` failed, got invalid arguments, or found nothing and some files could not be
/// searched.
pub(crate) const SEARCH_FAILED: u8 = 2;
/// Cancelled, as if by SIGINT.
pub(crate) const CANCELLED: u8 = 130;
/// The reader of standard output has gone, as if SIGPIPE had ended the process.
pub(crate) const BROKEN_PIPE: u8 = 141;
/// `jig health`: usage error. Same codes as `grpc_health_probe`, like the next three.
pub(crate) const HEALTH_USAGE: u8 = 1;
/// `jig health`: the connection failed.
pub(crate) const HEALTH_CONNECT: u8 = 2;
/// `jig health`: the call failed.
pub(crate) const HEALTH_CALL: u8 = 3;
/// `jig health`: the service is not serving.
pub(crate) const HEALTH_NOT_SERVING: u8 = 4;

/// Returns the exit code for a finished command.
pub(crate) fn of_run(response: &RunResponse) -> u8 {
    of_outcome(response.outcome, response.exit_code, &response.signal)
}

/// Returns the exit code for a finished process.
pub(crate) fn of_process(exited: &ProcessExited) -> u8 {
    of_outcome(exited.outcome, exited.exit_code, &exited.signal)
}

fn of_outcome(outcome: i32, exit_code: Option<i32>, signal: &str) -> u8 {
    match Outcome::try_from(outcome) {
        Ok(Outcome::Exited) => {
            exit_code.and_then(|code| u8::try_from(code).ok()).unwrap_or(RUN_FAILED)
        }
        Ok(Outcome::Signaled | Outcome::OomKilled | Outcome::OutputLimit) => {
            signal_number(signal).and_then(|number| number.checked_add(128)).unwrap_or(RUN_FAILED)
        }
        Ok(Outcome::TimedOut) => TIMED_OUT,
        Ok(Outcome::Cancelled) => CANCELLED,
        Ok(Outcome::Unspecified | Outcome::DaemonLost) | Err(_) => RUN_FAILED,
    }
}

/// Returns the number of a signal on Linux, from its name: `SIGKILL`, `SIGRTMIN+3`, `SIG42`.
fn signal_number(name: &str) -> Option<u8> {
    /// First real-time signal. The C library reserves 32 and 33.
    const RTMIN: u8 = 34;
    const RTMAX: u8 = 64;

    let name = name.strip_prefix("SIG")?;
    let number = if let Some(rest) = name.strip_prefix("RTMIN") {
        RTMIN.checked_add(rest.strip_prefix('+').unwrap_or("0").parse().ok()?)
    } else if let Some(rest) = name.strip_prefix("RTMAX") {
        RTMAX.checked_sub(rest.strip_prefix('-').unwrap_or("0").parse().ok()?)
    } else if let Ok(number) = name.parse() {
        Some(number)
    } else {
        let index = SIGNALS.iter().position(|signal| *signal == name)?;
        u8::try_from(index + 1).ok()
    };
    number.filter(|number| (1..=RTMAX).contains(number))
}

/// Names of the signals in the order of their numbers, from 1, as on x86, ARM and RISC-V.
const SIGNALS: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2",
    "PIPE", "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG",
    "XCPU", "XFSZ", "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn response(outcome: Outcome, exit_code: Option<i32>, signal: &str) -> RunResponse {
        RunResponse {
            outcome: outcome.into(),
            exit_code,
            signal: signal.to_owned(),
            ..RunResponse::default()
        }
    }

    #[test]
    fn exit_codes_of_runs() {
        for (outcome, exit_code, signal, expected) in [
            (Outcome::Exited, Some(0), "", 0),
            (Outcome::Exited, Some(7), "", 7),
            (Outcome::Exited, Some(255), "", 255),
            (Outcome::Exited, Some(256), "", 125),
            (Outcome::Exited, None, "", 125),
            (Outcome::Signaled, None, "SIGKILL", 137),
            (Outcome::Signaled, None, "SIGSEGV", 139),
            (Outcome::Signaled, None, "", 125),
            (Outcome::TimedOut, None, "SIGTERM", 124),
            (Outcome::Cancelled, None, "SIGKILL", 130),
            (Outcome::OomKilled, None, "SIGKILL", 137),
            (Outcome::OutputLimit, None, "SIGKILL", 137),
            (Outcome::DaemonLost, None, "", 125),
            (Outcome::Unspecified, Some(0), "", 125),
        ] {
            let response = response(outcome, exit_code, signal);
            assert_eq!(of_run(&response), expected, "{response:?}");
        }
    }

    #[test]
    fn signal_names_have_linux_numbers() {
        for (name, number) in [
            ("SIGHUP", Some(1)),
            ("SIGTERM", Some(15)),
            ("SIGSYS", Some(31)),
            ("SIGRTMIN", Some(34)),
            ("SIGRTMIN+3", Some(37)),
            ("SIGRTMAX", Some(64)),
            ("SIGRTMAX-1", Some(63)),
            ("SIG42", Some(42)),
            ("SIG0", None),
            ("SIG65", None),
            ("SIGRTMIN+40", None),
            ("KILL", None),
            ("", None),
        ] {
            assert_eq!(signal_number(name), number, "{name}");
        }
    }
}
