//! Converts database errors into the contract's errors, for calls that were not started.

use std::time::Duration;

use crate::daemon::{
    error::{Error, Reason},
    store::database::DatabaseError,
};

/// Retry delay while another program locks the database.
const DATABASE_BUSY_RETRY_AFTER: Duration = Duration::from_secs(1);

/// Converts an error of the daemon's database. The call was not started.
pub(in crate::daemon::pipeline) fn state_database_error(error: &DatabaseError) -> Error {
    let error = match error {
        DatabaseError::Full => {
            Error::new(Reason::NoSpace, format!("{error}, and retry; nothing was started"))
        }
        DatabaseError::Busy => Error::new(
            Reason::ResourceExhausted,
            format!("{error}; nothing was started: retry after the delay in RetryInfo"),
        )
        .with_retry_after(DATABASE_BUSY_RETRY_AFTER),
        DatabaseError::Lost => Error::new(
            Reason::StateLost,
            format!(
                "{error}: without it, calls could run twice, so nothing was started: the operator must restore it, or restart the daemon"
            ),
        ),
        DatabaseError::Corrupt(_) | DatabaseError::Failed(_) | DatabaseError::Closed => Error::new(
            Reason::Internal,
            format!("{error}; nothing was started: the operator must repair it"),
        )
        .with_cause(error.clone()),
    };

    error.with_not_started()
}
