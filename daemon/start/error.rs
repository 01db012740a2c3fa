//! Why a daemon does not start.

use std::io;

use super::homes::HomeError;
use crate::daemon::{
    config::ConfigError,
    server::listener::BindError,
    store::{database, state_dir::StateDirError},
};

/// Why the daemon did not start, or did not end well.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The state directory cannot be held.
    #[error("{}", chain(.0))]
    State(#[from] StateDirError),
    /// The database cannot be used.
    #[error("{}", chain(.0))]
    Database(#[from] database::DatabaseOpenError),
    /// An address cannot be listened on.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A workspace cannot be opened.
    #[error("--workspace {path}: {source}")]
    Workspace {
        /// The workspace.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// A workspace cannot be given to the user that commands run as.
    #[error(
        "--chown-workspace: {path} cannot be given to user {user}: {source}: the daemon needs CAP_CHOWN, that user in its user namespace, and a file system that takes owners"
    )]
    Chown {
        /// The workspace.
        path: String,
        /// The user.
        user: u32,
        /// Why.
        source: io::Error,
    },
    /// A home directory that is to be kept cannot be.
    #[error(transparent)]
    Home(#[from] HomeError),
    /// The isolation that was asked for cannot be given. Told by `--check` only: a daemon that
    /// serves says it to its callers.
    #[error("{0}")]
    Isolation(String),
    /// The operating system refused.
    #[error("{what}: {}", chain(.source))]
    Io {
        /// What was being done.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// That the operating system refused.
pub(super) fn io_error(what: &'static str) -> impl FnOnce(io::Error) -> StartError {
    move |source| StartError::Io { what, source }
}

/// An error with all that caused it.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
