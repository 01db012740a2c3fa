//! What can go wrong in `jig` itself.

use std::io;

use jig::client::{CallError, ConnectError, CopyError, TransferError};

/// Why there is no answer to print.
#[derive(Debug)]
pub(crate) enum Failure {
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
    /// The machine does not let us.
    System(String),
    /// Standard output cannot be written.
    Output(io::Error),
    /// A signal told us to stop. Its number plus 128.
    Interrupted(u8),
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        Self::Call(Box::new(error))
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        Self::Connect(error)
    }
}

impl From<CopyError> for Failure {
    fn from(error: CopyError) -> Self {
        match error {
            CopyError::Call(error) => error.into(),
            CopyError::Write(error) => Self::Output(error),
            error => Self::System(error.to_string()),
        }
    }
}

impl From<TransferError> for Failure {
    fn from(error: TransferError) -> Self {
        match error {
            TransferError::Call(error) => error.into(),
            TransferError::Local(error) => Self::System(error.to_string()),
            error => Self::System(error.to_string()),
        }
    }
}
