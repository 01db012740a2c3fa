//! Why the database did not do what was asked.

use std::sync::Arc;

use rusqlite::ErrorCode;

/// Display says what to do.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum DatabaseError {
    #[error("the disk that holds the daemon's state directory is full: make room there")]
    Full,
    #[error("the daemon's database is locked by another program, or its disk is too slow")]
    Busy,
    #[error(
        "the daemon's database is damaged: stop the daemon and restore jig.db, or move it away to start with an empty one"
    )]
    Corrupt(#[source] Arc<rusqlite::Error>),
    /// Writes to a removed file would be lost when the daemon exits.
    #[error("the daemon's state directory was removed or replaced")]
    Lost,
    #[error("the daemon's database cannot be used")]
    Failed(#[source] Arc<rusqlite::Error>),
    /// The thread has ended.
    #[error("the daemon's database is closed")]
    Closed,
}

impl From<rusqlite::Error> for DatabaseError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Self::Full,
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Busy,
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                Self::Corrupt(Arc::new(error))
            }
            _ => Self::Failed(Arc::new(error)),
        }
    }
}
