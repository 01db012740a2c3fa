//! Exhaustion of file descriptors, the daemon's own or the system's.
//!
//! An operation that lacks one releases what it holds, waits and tries again a few times, since
//! other calls soon release theirs. Then the call fails without effect, and its error names the
//! limit.

use std::{
    io,
    sync::{LazyLock, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use tokio::sync::watch;

use crate::daemon::{
    error::{Error, Reason},
    task,
};

/// Attempts after the first one.
const MAX_RETRIES: u32 = 3;
/// Pause before the first retry. It doubles for each further one.
const INITIAL_BACKOFF: Duration = Duration::from_millis(100);
/// Pause after accept(2) failed for lack of descriptors or memory: it would fail again at once.
pub(crate) const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Retry delay in errors to clients, after all retries have failed.
const CLIENT_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Minimum time between two reports of a shortage: each triggers a measurement of all runs.
const SHORTAGE_REPORT_INTERVAL: Duration = Duration::from_millis(250);

static SHORTAGE_SENDER: LazyLock<watch::Sender<()>> = LazyLock::new(|| watch::Sender::new(()));

/// Reports an error if it is a shortage of what the daemon shares with runs: epoll watches of its
/// user (ENOSPC) or open files of the machine (ENFILE). Returns whether it is.
///
/// A report triggers a measurement of all runs, which ends those that exceed their limits.
pub(crate) fn report_shortage(error: &io::Error) -> bool {
    static LAST_REPORT: Mutex<Option<Instant>> = Mutex::new(None);
    if !matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::ENFILE)) {
        return false;
    }

    let now = Instant::now();
    let mut last_report = LAST_REPORT.lock().unwrap_or_else(PoisonError::into_inner);
    if last_report.is_none_or(|last| now - last >= SHORTAGE_REPORT_INTERVAL) {
        *last_report = Some(now);
        SHORTAGE_SENDER.send_replace(());
    }
    true
}

/// Returns a receiver that changes with each reported shortage.
pub(crate) fn subscribe_shortages() -> watch::Receiver<()> {
    SHORTAGE_SENDER.subscribe()
}

/// Retries with exponential backoff while file descriptors are exhausted.
#[derive(Debug)]
pub(crate) struct FdRetry {
    retries_left: u32,
    backoff: Duration,
    /// No attempt starts later.
    deadline: Option<Instant>,
}

impl FdRetry {
    pub(crate) fn with_deadline(deadline: Option<Instant>) -> Self {
        Self { retries_left: MAX_RETRIES, backoff: INITIAL_BACKOFF, deadline }
    }

    /// Returns true, after a pause, if an operation that failed with `error` should be retried. The
    /// operation must have had no effect. Cancel safe.
    pub(crate) async fn should_retry(&mut self, error: &Error) -> bool {
        is_fd_exhaustion_error(error) && self.sleep_backoff().await
    }

    /// Like [`Self::should_retry`], for an error of the kernel.
    pub(crate) async fn should_retry_io(&mut self, error: &io::Error) -> bool {
        is_fd_exhaustion(error) && self.sleep_backoff().await
    }

    /// Like [`Self::should_retry_io`], for starting a command, which needs no files on a disk. It
    /// reports a shortage, so that runs that exceed their limits are ended.
    pub(crate) async fn should_retry_spawn(&mut self, error: &io::Error) -> bool {
        (report_shortage(error) || is_fd_exhaustion(error)) && self.sleep_backoff().await
    }

    async fn sleep_backoff(&mut self) -> bool {
        let pause = self.next_backoff();
        if let Some(pause) = pause {
            task::sleep_until(Some(Instant::now() + pause)).await;
        }
        pause.is_some()
    }

    /// Like [`Self::should_retry_io`], and blocks.
    fn should_retry_blocking(&mut self, error: &io::Error) -> bool {
        if !is_fd_exhaustion(error) {
            return false;
        }
        let pause = self.next_backoff();
        if let Some(pause) = pause {
            thread::sleep(pause);
        }
        pause.is_some()
    }

    /// Returns the pause before the next attempt; `None` if there is none.
    fn next_backoff(&mut self) -> Option<Duration> {
        let pause = self.backoff;
        self.retries_left = self.retries_left.checked_sub(1)?;
        self.backoff = pause * 2;

        let next_attempt = Instant::now() + pause;
        self.deadline.is_none_or(|deadline| next_attempt < deadline).then_some(pause)
    }
}

/// Calls `attempt` until it succeeds, fails for another reason, or the retries are used up. Blocks.
pub(crate) fn retry_blocking<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut retry = FdRetry::with_deadline(None);
    loop {
        match attempt() {
            Err(error) if retry.should_retry_blocking(&error) => {}
            result => return result,
        }
    }
}

/// Whether an error means that file descriptors are exhausted.
pub(crate) fn is_fd_exhaustion(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Returns what the operator can do about a socket that cannot be created, accepted or polled
/// because a kernel resource is exhausted; `None` for other errors. ENOSPC is from epoll_ctl(2).
pub(crate) fn remedy(error: &io::Error) -> Option<&'static str> {
    Some(match error.raw_os_error()? {
        libc::EMFILE => {
            "raise the limit of open files that the daemon is started with (ulimit -n, LimitNOFILE= of systemd)"
        }
        libc::ENFILE => "raise fs.file-max (sysctl), or end the programs that hold many files",
        libc::ENOSPC => {
            "raise fs.epoll.max_user_watches (sysctl), or end the programs of the daemon's user that hold many epoll watches"
        }
        libc::ENOBUFS | libc::ENOMEM => "give the machine, or the daemon's cgroup, more memory",
        _ => return None,
    })
}

/// Whether a call failed because file descriptors are exhausted.
pub(crate) fn is_fd_exhaustion_error(error: &Error) -> bool {
    let cause = error.cause.as_deref();
    error.reason == Reason::ResourceExhausted
        && cause.and_then(|cause| cause.downcast_ref()).is_some_and(is_fd_exhaustion)
}

/// Returns the error of a call that got no file descriptor for `purpose`.
pub(crate) fn fd_exhausted_error(error: io::Error, purpose: &str) -> Error {
    let (owner, limit) = match error.raw_os_error() {
        Some(libc::ENFILE) => ("the system", "fs.file-max (sysctl)"),
        _ => (
            "the daemon",
            "the limit of open files that it is started with (ulimit -n, LimitNOFILE= of systemd)",
        ),
    };
    let text = format!(
        "{owner} is out of file descriptors ({purpose}). Nothing was done. Retry with fewer concurrent calls. The operator can raise {limit}"
    );
    Error::new(Reason::ResourceExhausted, text)
        .with_retry_after(CLIENT_RETRY_DELAY)
        .with_cause(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing() -> io::Error {
        io::Error::from_raw_os_error(libc::EMFILE)
    }

    #[test]
    fn pauses_double_and_end_with_the_deadline() {
        let mut retry = FdRetry::with_deadline(None);
        let pauses: Vec<_> = std::iter::from_fn(|| retry.next_backoff()).collect();
        assert_eq!(pauses, [100, 200, 400].map(Duration::from_millis));
        let soon = Instant::now() + Duration::from_millis(50);
        assert_eq!(FdRetry::with_deadline(Some(soon)).next_backoff(), None);
    }

    #[test]
    fn only_exhaustion_is_retried() {
        let mut tries = 0;
        let third = retry_blocking(|| {
            tries += 1;
            if tries < 3 { Err(missing()) } else { Ok(tries) }
        });
        assert_eq!(third.unwrap(), 3);
        let mut tries = 0;
        let other = retry_blocking(|| {
            tries += 1;
            Err::<(), _>(io::Error::from_raw_os_error(libc::EACCES))
        });
        assert!(other.is_err() && tries == 1);
    }

    #[test]
    fn error_names_the_exhausted_limit() {
        let own = fd_exhausted_error(missing(), "it");
        let system = fd_exhausted_error(io::Error::from_raw_os_error(libc::ENFILE), "it");
        assert!(own.message.contains("ulimit -n"), "{own}");
        assert!(system.message.contains("fs.file-max"), "{system}");
        assert!(
            is_fd_exhaustion_error(&own)
                && is_fd_exhaustion_error(&system)
                && own.retry_after.is_some()
        );
        assert!(!is_fd_exhaustion_error(&Error::new(Reason::ResourceExhausted, "")));
    }
}
