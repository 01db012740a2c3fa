//! What is wrong with the daemon's state, in the terms of the contract, for calls that were not begun for it.

use std::{io, time::Duration};

use crate::daemon::{
    descriptors,
    error::{Error, Reason},
    store::database::DatabaseError,
};

/// How long a client is told to wait when the database is held by another program.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What is wrong with its files.
pub(in crate::daemon::call) fn of_files(error: &io::Error) -> Error {
    let error = match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => Error::new(
            Reason::NoSpace,
            "the disk that holds the daemon's state directory is full; nothing was started: make room there, and try again",
        ),
        Some(errno @ (libc::EMFILE | libc::ENFILE)) => descriptors::exhausted(
            io::Error::from_raw_os_error(errno),
            "the records of the call",
        ),
        Some(libc::ENOENT) => Error::new(
            Reason::StateLost,
            "the daemon's state directory was removed; nothing was started: its operator must put it back, or restart the daemon",
        ),
        _ => Error::new(
            Reason::Internal,
            format!(
                "the daemon's state directory cannot be used ({error}); nothing was started: its operator must repair it"
            ),
        ),
    };
    error.not_begun()
}

/// What is wrong with its database.
pub(in crate::daemon::call) fn of_database(error: &DatabaseError) -> Error {
    let error = match error {
        DatabaseError::Full => Error::new(
            Reason::NoSpace,
            format!("{error}, and try again; nothing was started"),
        ),
        DatabaseError::Busy => Error::new(
            Reason::ResourceExhausted,
            format!("{error}; nothing was started: retry after the time given"),
        )
        .retry_after(RETRY_AFTER),
        DatabaseError::Lost => Error::new(
            Reason::StateLost,
            format!(
                "{error}: what needs it could be done twice, so nothing was started: its operator must put it back, or restart the daemon"
            ),
        ),
        DatabaseError::Damaged(_) | DatabaseError::Failed(_) | DatabaseError::Closed => Error::new(
            Reason::Internal,
            format!("{error}; nothing was started: its operator must repair it"),
        )
        .caused_by(error.clone()),
    };
    error.not_begun()
}
