//! What is wrong with the daemon's database, in the terms of the contract, for calls that were not begun for it.

use std::time::Duration;

use crate::daemon::{
    error::{Error, Reason},
    store::database::DatabaseError,
};

/// How long a client is told to wait when the database is held by another program.
const DATABASE_BUSY_RETRY_AFTER: Duration = Duration::from_secs(1);

/// What is wrong with its database.
pub(in crate::daemon::pipeline) fn state_database_error(error: &DatabaseError) -> Error {
    let error = match error {
        DatabaseError::Full => {
            Error::new(Reason::NoSpace, format!("{error}, and try again; nothing was started"))
        }
        DatabaseError::Busy => Error::new(
            Reason::ResourceExhausted,
            format!("{error}; nothing was started: retry after the time given"),
        )
        .retry_after(DATABASE_BUSY_RETRY_AFTER),
        DatabaseError::Lost => Error::new(
            Reason::StateLost,
            format!(
                "{error}: what needs it could be done twice, so nothing was started: its operator must put it back, or restart the daemon"
            ),
        ),
        DatabaseError::Corrupt(_) | DatabaseError::Failed(_) | DatabaseError::Closed => Error::new(
            Reason::Internal,
            format!("{error}; nothing was started: its operator must repair it"),
        )
        .with_cause(error.clone()),
    };
    error.not_started()
}
