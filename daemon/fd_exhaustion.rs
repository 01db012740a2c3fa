//! What is done when file descriptors run out, the daemon's own or the system's: who needs one gives back
//! what he has, waits a moment and tries again, a few times, as those who hold many are soon done. Then
//! the call fails, says which limit it was, and has done nothing.

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
/// Pause before the first of them; before each other one, twice as long as before.
const INITIAL_BACKOFF: Duration = Duration::from_millis(100);
/// No pause is longer.
const MAX_BACKOFF: Duration = Duration::from_secs(5);
/// When a caller is told to try again: the pauses together were not long enough.
const CLIENT_RETRY_DELAY: Duration = Duration::from_secs(1);

/// Pause between two reports of a shortage: each has all runs measured.
const SHORTAGE_REPORT_INTERVAL: Duration = Duration::from_millis(250);

/// Reports of shortages.
static SHORTAGE_SENDER: LazyLock<watch::Sender<()>> = LazyLock::new(|| watch::Sender::new(()));

/// Reports what the daemon could not do because the kernel had no more of what runs share with it:
/// epoll watches of its user (ENOSPC) or open files of the machine (ENFILE). All runs are measured at
/// once, and those over their limits are ended. Answers whether the error is such a shortage.
pub(crate) fn report_shortage(error: &io::Error) -> bool {
    static LAST_REPORT: Mutex<Option<Instant>> = Mutex::new(None);
    let is_shortage = matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::ENFILE));
    if is_shortage {
        let now = Instant::now();
        let mut last = LAST_REPORT.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none_or(|last| now - last >= SHORTAGE_REPORT_INTERVAL) {
            *last = Some(now);
            SHORTAGE_SENDER.send_replace(());
        }
    }
    is_shortage
}

/// Changes with each shortage that is reported from now on.
pub(crate) fn subscribe_shortages() -> watch::Receiver<()> {
    SHORTAGE_SENDER.subscribe()
}

/// Attempts at something that descriptors are needed for.
#[derive(Debug)]
pub(crate) struct FdRetry {
    retries_left: u32,
    backoff: Duration,
    /// No attempt begins later.
    deadline: Option<Instant>,
}

impl FdRetry {
    /// Some, as long as somebody waits for what comes of them.
    pub(crate) fn with_deadline(until: Option<Instant>) -> Self {
        Self { retries_left: MAX_RETRIES, backoff: INITIAL_BACKOFF, deadline: until }
    }

    /// Whether what failed so is to be tried again; then it is time to. To be asked of what has done
    /// nothing. May be cancelled.
    pub(crate) async fn should_retry(&mut self, error: &Error) -> bool {
        is_fd_exhaustion_error(error) && self.sleep_backoff().await
    }

    /// As [`Self::another`], of an error of the kernel's.
    pub(crate) async fn should_retry_io(&mut self, error: &io::Error) -> bool {
        is_fd_exhaustion(error) && self.sleep_backoff().await
    }

    /// As [`Self::another_of_kernel`], of starting a command, which files on no disk are needed for: a
    /// run that holds what is missing is ended meanwhile.
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

    /// As [`Self::another_of_kernel`], on a thread that may block.
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

    /// How long to wait before the next attempt, if there is to be one.
    fn next_backoff(&mut self) -> Option<Duration> {
        let pause = self.backoff;
        self.retries_left = self.retries_left.checked_sub(1)?;
        self.backoff = (pause * 2).min(MAX_BACKOFF);
        let begins = Instant::now() + pause;
        self.deadline.is_none_or(|until| begins < until).then_some(pause)
    }
}

/// Does something until it does not fail for want of descriptors, or has done so too often. Blocks.
pub(crate) fn retry_blocking<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut attempts = FdRetry::with_deadline(None);
    loop {
        match attempt() {
            Err(error) if attempts.should_retry_blocking(&error) => {}
            result => return result,
        }
    }
}

/// Whether descriptors ran out.
pub(crate) fn is_fd_exhaustion(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// What the operator can do about a socket that cannot be made, accepted or driven for want of
/// something that the kernel bounds; none for other errors. epoll_ctl(2) says ENOSPC.
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

/// Whether a call failed because descriptors ran out.
pub(crate) fn is_fd_exhaustion_error(error: &Error) -> bool {
    let cause = error.cause.as_deref();
    error.reason == Reason::ResourceExhausted
        && cause.and_then(|cause| cause.downcast_ref()).is_some_and(is_fd_exhaustion)
}

/// The error for who needed a descriptor for `what`, and did not get one.
pub(crate) fn fd_exhausted_error(error: io::Error, what: &str) -> Error {
    let (whose, remedy) = match error.raw_os_error() {
        Some(libc::ENFILE) => ("the system", "fs.file-max (sysctl)"),
        _ => (
            "the daemon",
            "the limit of open files that it is started with (ulimit -n, LimitNOFILE= of systemd)",
        ),
    };
    let text = format!(
        "{whose} has no file descriptors left for {what}; nothing was done: try again, with fewer calls at a time; its operator can raise {remedy}"
    );
    Error::new(Reason::ResourceExhausted, text).retry_after(CLIENT_RETRY_DELAY).with_cause(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing() -> io::Error {
        io::Error::from_raw_os_error(libc::EMFILE)
    }

    #[test]
    fn pauses_double_and_end_with_the_deadline() {
        let mut attempts = FdRetry::with_deadline(None);
        let pauses: Vec<_> = std::iter::from_fn(|| attempts.next_backoff()).collect();
        assert_eq!(pauses, [100, 200, 400].map(Duration::from_millis));
        let soon = Instant::now() + Duration::from_millis(50);
        assert_eq!(FdRetry::with_deadline(Some(soon)).next_backoff(), None);
    }

    #[test]
    fn only_want_of_descriptors_is_tried_again() {
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
    fn it_is_told_whose_they_are() {
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
