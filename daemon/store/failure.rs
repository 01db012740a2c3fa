//! Maps errors of files in the state directory to errors of the contract.

use std::{io, time::Duration};

use crate::daemon::{
    error::{Error, Reason},
    fd_exhaustion,
};

/// Interval between attempts to store what the state directory could not store.
pub(crate) const STORE_RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Returns the error of a call that cannot start because of the state directory.
///
/// The daemon has created and used that directory. If it is missing or inaccessible now, another
/// program has removed, replaced or changed it, so that is not an internal error.
pub(crate) fn state_failure(error: &io::Error) -> Error {
    let error = match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => Error::new(
            Reason::NoSpace,
            "the disk that holds the daemon's state directory is full; nothing was started: make room there, and try again",
        ),
        Some(errno @ (libc::EMFILE | libc::ENFILE)) => fd_exhaustion::fd_exhausted_error(
            io::Error::from_raw_os_error(errno),
            "the records of the call",
        ),
        Some(libc::ENOENT | libc::ENOTDIR) => Error::new(
            Reason::StateLost,
            "the daemon's state directory was removed or replaced; nothing was started: its operator must put it back, or restart the daemon",
        ),
        Some(libc::EACCES | libc::EPERM | libc::ELOOP) => Error::new(
            Reason::StateLost,
            format!(
                "the daemon can no longer access its state directory, which may have been replaced ({error}); nothing was started: its operator must put it back, or restart the daemon"
            ),
        ),
        _ => Error::new(
            Reason::Internal,
            format!(
                "the daemon's state directory cannot be used ({error}); nothing was started: its operator must repair it"
            ),
        ),
    };
    error.with_not_started()
}
