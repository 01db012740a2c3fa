//! Errors that keep the daemon from starting.

use std::{io, path::PathBuf};

use super::persistent_directories::PersistentDirectoryError;
use crate::daemon::{
    config::ConfigError,
    server::listener::BindError,
    store::{
        database::{DatabaseError, DatabaseOpenError},
        state_dir::StateDirError,
    },
};

/// Why the daemon did not start, or stopped with an error.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The state directory cannot be opened or locked.
    #[error("{}", chain(.0))]
    State(#[from] StateDirError),
    /// The database cannot be opened.
    #[error("{}", chain(.0))]
    Database(#[from] DatabaseOpenError),
    /// An address cannot be listened on.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A workspace cannot be opened.
    #[error("--workspace {path}: {source}")]
    Workspace { path: String, source: io::Error },
    /// A workspace cannot be given to the user that commands run as.
    #[error(
        "--chown-workspace: {path} cannot be given to user {user}: {source}: the daemon needs CAP_CHOWN, that user in its user namespace, and a file system that takes owners"
    )]
    Chown { path: String, user: u32, source: io::Error },
    /// The audit log cannot be opened.
    #[error("--audit-log {}: {source}", path.display())]
    AuditLog { path: PathBuf, source: io::Error },
    /// A persistent home directory cannot be created.
    #[error(transparent)]
    PersistentDirectory(#[from] PersistentDirectoryError),
    /// The minimum isolation level cannot be reached. Only `--check` returns it: a serving daemon
    /// reports it to its callers.
    #[error("{0}")]
    Isolation(String),
    /// A system call failed while doing `what`.
    #[error("{what}: {}", chain(.source))]
    Io { what: &'static str, source: io::Error },
}

impl StartError {
    /// Whether the same configuration can start later: a disk was full, or something was in use.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::Config(_) | Self::Isolation(_) => false,
            Self::State(error) => {
                matches!(error, StateDirError::InUse { .. } | StateDirError::Full { .. })
            }
            Self::Database(error) => {
                matches!(error, DatabaseOpenError::Busy { .. } | DatabaseOpenError::Full { .. })
            }
            Self::Bind(BindError::Address { kind, .. }) => *kind == io::ErrorKind::AddrInUse,
            Self::Bind(BindError::Settings(_)) => false,
            Self::PersistentDirectory(PersistentDirectoryError { source, .. })
            | Self::Workspace { source, .. }
            | Self::Chown { source, .. }
            | Self::AuditLog { source, .. } => {
                matches!(
                    source.kind(),
                    io::ErrorKind::StorageFull
                        | io::ErrorKind::QuotaExceeded
                        | io::ErrorKind::ResourceBusy
                )
            }
            Self::Io { .. } => true,
        }
    }
}

/// Wraps an I/O error that happened while doing `what`.
pub(super) fn io_error(what: &'static str) -> impl Fn(io::Error) -> StartError + Copy {
    move |source| StartError::Io { what, source }
}

/// Wraps an error of the database.
pub(super) fn database_read_error(error: DatabaseError) -> StartError {
    StartError::Io { what: "reading the database", source: io::Error::other(error) }
}

/// Formats an error and all its sources, separated by colons.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
