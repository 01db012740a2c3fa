//! The errors of files in the state directory, in the terms of the contract.

use std::io;

use crate::daemon::{
    error::{Error, Reason},
    fd_exhaustion,
};

/// Why a call cannot begin, as files of the state directory cannot be used. The daemon has made that
/// directory and used it: one that is missing or refused now was removed, replaced or changed by another
/// program, which is no defect.
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
                "the daemon may not use its state directory any more, as if that was replaced ({error}); nothing was started: its operator must put it back, or restart the daemon"
            ),
        ),
        _ => Error::new(
            Reason::Internal,
            format!(
                "the daemon's state directory cannot be used ({error}); nothing was started: its operator must repair it"
            ),
        ),
    };
    error.not_started()
}
