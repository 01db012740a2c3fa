//! Errors of the command `jig`.

use std::{io, path::Path};

use jig::client::{CallError, Code, ConnectError, CopyError, TransferError};

use crate::local_error::LocalError;

/// Failure of a subcommand.
#[derive(Debug)]
pub(crate) enum CliError {
    /// A call failed.
    Call(Box<CallError>),
    /// The connection failed.
    Connect(ConnectError),
    /// The daemon for this call could not be started. Holds the reason.
    #[cfg_attr(
        all(not(feature = "daemon"), not(test)),
        expect(dead_code, reason = "built without the daemon")
    )]
    Embedded(String),
    /// The arguments cannot be used together, or not here.
    Usage(String),
    /// A local file or another local resource cannot be used.
    Local(LocalError),
    /// Another local failure.
    System(String),
    /// The daemon's response violates the contract.
    Daemon(String),
    /// Standard output cannot be written.
    Output(io::Error),
    /// A signal ended the command. Holds the exit code: 128 plus the signal's number.
    Interrupted(u8),
}

impl CliError {
    /// Converts an error without a variant of its own.
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
    /// Returns whether the error concerns only one of several files.
    ///
    /// Errors of the connection, of the disk space and of the call as a whole would hit the next
    /// file too.
    pub(crate) fn is_file_error(&self) -> bool {
        match self {
            Self::Call(error) => {
                let fatal_codes = [Code::Unavailable, Code::Unauthenticated, Code::Unimplemented];
                let fatal_reasons = ["NO_SPACE", "UNKNOWN_WORKSPACE"];
                !fatal_codes.contains(&error.code) && !fatal_reasons.contains(&error.name())
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

    /// Converts a failed transfer from or to the local file at `path`.
    pub(crate) fn from_transfer(path: &Path, error: TransferError) -> Self {
        match error {
            TransferError::Call(error) => error.into(),
            TransferError::Local(error) => LocalError::file(path, &error).into(),
            error => Self::System(error.to_string()),
        }
    }
}
