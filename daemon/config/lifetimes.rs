//! Lifetimes of connections, and the phases of a shutdown.

use std::time::Duration;

use super::{args::Args, duration::duration_or_default, file::ConfigFile};

/// Time that running calls have after SIGTERM. Below the 30 seconds that Kubernetes gives a pod.
const DEFAULT_DRAIN_TIMEOUT: Duration = Duration::from_secs(25);

/// How long a connection may last.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ConnectionAge {
    /// Age at which a connection gets no new calls.
    pub(crate) max: Option<Duration>,
    /// Time that its calls have after that. `None`: they end by themselves.
    pub(crate) grace: Option<Duration>,
}

/// How long the phases of a shutdown last.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ShutdownTimes {
    /// Time in which calls are accepted although the daemon is not ready.
    pub(crate) delay: Duration,
    /// Time that running calls have afterwards.
    pub(crate) drain_timeout: Duration,
}

/// Checks the age of connections. Zero sets no limit.
pub(super) fn parse_connection_age(
    args: &Args,
    file: &ConfigFile,
    problems: &mut Vec<String>,
) -> ConnectionAge {
    let max = args.max_connection_age.as_ref().or(file.max_connection_age.as_ref());
    let grace = args.max_connection_age_grace.as_ref().or(file.max_connection_age_grace.as_ref());
    let mut parse = |default, text: Option<&String>, flag| {
        let duration = duration_or_default(default, text.map(String::as_str), flag, problems);
        Some(duration).filter(|duration| !duration.is_zero())
    };
    ConnectionAge {
        // No limit by default, as in gRPC. A client of hyper with a long call on the connection
        // fails one new call after GOAWAY before it connects again.
        max: parse(Duration::ZERO, max, "--max-connection-age"),
        grace: parse(Duration::ZERO, grace, "--max-connection-age-grace"),
    }
}

pub(super) fn parse_shutdown_times(
    args: &Args,
    file: &ConfigFile,
    problems: &mut Vec<String>,
) -> ShutdownTimes {
    let delay = args.shutdown_delay.as_deref().or(file.shutdown_delay.as_deref());
    let drain_timeout = args.drain_timeout.as_deref().or(file.drain_timeout.as_deref());
    ShutdownTimes {
        delay: duration_or_default(Duration::ZERO, delay, "--shutdown-delay", problems),
        drain_timeout: duration_or_default(
            DEFAULT_DRAIN_TIMEOUT,
            drain_timeout,
            "--drain-timeout",
            problems,
        ),
    }
}
