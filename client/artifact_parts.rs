//! Stream of the parts of an artifact.

use std::io;

use tonic::{Code, Streaming};

use super::{deadline::CallDeadline, error::CallError};
use crate::api::v1::ReadArtifactResponse;

/// Parts of an artifact, in order and without gaps.
#[derive(Debug)]
pub struct ArtifactParts {
    parts: Streaming<ReadArtifactResponse>,
    deadline: CallDeadline,
    next_offset: u64,
}

/// Reason why an artifact was not copied completely.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// The call failed.
    #[error(transparent)]
    Call(#[from] CallError),
    /// Writing the data that was read failed.
    #[error("cannot write the data of the artifact")]
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

    /// Waits for the next part. Returns `None` after the last one.
    ///
    /// # Errors
    ///
    /// Returns an error if the call fails, or if a part does not start where the previous one
    /// ended.
    pub async fn next(&mut self) -> Result<Option<ReadArtifactResponse>, CallError> {
        let part = self.deadline.enforce(self.parts.message()).await?;

        if let Some(part) = &part
            && !part.data.is_empty()
        {
            if part.offset != self.next_offset {
                return Err(CallError::local(
                    Code::DataLoss,
                    format!(
                        "bytes {} to {} of the artifact are missing",
                        self.next_offset, part.offset
                    ),
                ));
            }
            self.next_offset += part.data.len() as u64;
        }

        Ok(part)
    }
}
