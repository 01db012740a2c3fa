//! What can go wrong in `jig` itself.

use std::{io, path::Path};

use jig::client::{CallError, Code, ConnectError, CopyError, TransferError};

use crate::local_error::LocalError;

/// Why there is no answer to print.
#[derive(Debug)]
pub(crate) enum CliError {
    /// The call failed.
    Call(Box<CallError>),
    /// There is no connection.
    Connect(ConnectError),
    /// Our own daemon could not be started, which says why.
    #[cfg_attr(
        all(not(feature = "daemon"), not(test)),
        expect(dead_code, reason = "there is none of our own then")
    )]
    Embedded(String),
    /// What was asked for cannot be done.
    Usage(String),
    /// Something on this side cannot be used.
    Local(LocalError),
    /// Something else went wrong on this side.
    System(String),
    /// The daemon answers what it must not.
    Daemon(String),
    /// Standard output cannot be written.
    Output(io::Error),
    /// A signal told us to stop. Its number plus 128.
    Interrupted(u8),
}

impl CliError {
    /// Something else went wrong on this side.
    pub(crate) fn system(error: impl std::fmt::Display) -> Self {
        Self::System(error.to_string())
    }
}

impl From<CallError> for CliError {
    fn from(error: CallError) -> Self {
        Self::Call(Box::new(error))
    }
}

impl From<ConnectError> for CliError {
    fn from(error: ConnectError) -> Self {
        Self::Connect(error)
    }
}

impl From<CopyError> for CliError {
    fn from(error: CopyError) -> Self {
        match error {
            CopyError::Call(error) => error.into(),
            CopyError::Write(error) => Self::Output(error),
            error => Self::System(error.to_string()),
        }
    }
}

impl From<LocalError> for CliError {
    fn from(local: LocalError) -> Self {
        Self::Local(local)
    }
}

impl CliError {
    /// Whether it is about one of several files, and not about whom we call, the place that there is,
    /// or the call as a whole, which the next file would come to as well.
    pub(crate) fn is_file_error(&self) -> bool {
        match self {
            Self::Call(error) => {
                let is_general = [Code::Unavailable, Code::Unauthenticated, Code::Unimplemented];
                let of_all = ["NO_SPACE", "UNKNOWN_WORKSPACE"];
                !is_general.contains(&error.code) && !of_all.contains(&error.name())
            }
            Self::Local(local) => local.reason != Some("NO_SPACE"),
            Self::System(_) | Self::Daemon(_) => true,
            Self::Connect(_)
            | Self::Embedded(_)
            | Self::Usage(_)
            | Self::Output(_)
            | Self::Interrupted(_) => false,
        }
    }

    /// A transfer from or to the file at `path` of this side has failed.
    pub(crate) fn from_transfer(path: &Path, error: TransferError) -> Self {
        match error {
            TransferError::Call(error) => error.into(),
            TransferError::Local(error) => LocalError::file(path, &error).into(),
            error => Self::System(error.to_string()),
        }
    }
}
