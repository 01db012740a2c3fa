//! An answer that comes in several parts.

use std::io;

use tonic::{Code, Streaming};

use super::{deadline::CallDeadline, error::CallError};
use crate::api::v1::ReadArtifactResponse;

/// The parts of an artifact, in order and without gaps.
#[derive(Debug)]
pub struct ArtifactParts {
    parts: Streaming<ReadArtifactResponse>,
    deadline: CallDeadline,
    next_offset: u64,
}

/// Why an artifact was not copied to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// The call failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// What was read could not be written.
    #[error("the artifact cannot be written")]
    Write(#[source] io::Error),
}

impl ArtifactParts {
    pub(super) fn new(
        parts: Streaming<ReadArtifactResponse>,
        deadline: CallDeadline,
        next_offset: u64,
    ) -> Self {
        Self { parts, deadline, next_offset }
    }

    /// The next part; none after the last.
    ///
    /// # Errors
    ///
    /// When the call failed, or a part does not begin where the one before it ended.
    pub async fn next(&mut self) -> Result<Option<ReadArtifactResponse>, CallError> {
        let part = self.deadline.enforce(self.parts.message()).await?;
        if let Some(part) = &part
            && !part.data.is_empty()
        {
            if part.offset != self.next_offset {
                return Err(CallError::local(
                    Code::DataLoss,
                    format!(
                        "bytes {} to {} of the artifact did not come",
                        self.next_offset, part.offset
                    ),
                ));
            }
            self.next_offset += part.data.len() as u64;
        }
        Ok(part)
    }
}
