//! Answers that come in several parts: pages of file names, parts of an artifact.

use std::io;

use tonic::{Code, Streaming};

use super::{call::Client, deadline::Deadline, error::CallError};
use crate::api::v1::{ListFilesRequest, ListFilesResponse, ReadArtifactResponse};

/// All pages of `ListFiles`, asked for one after the other.
#[derive(Debug)]
pub struct FilePages {
    client: Client,
    /// None once the last page has come.
    next: Option<ListFilesRequest>,
}

/// The parts of an artifact, in order and without gaps.
#[derive(Debug)]
pub struct ArtifactParts {
    parts: Streaming<ReadArtifactResponse>,
    deadline: Deadline,
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

impl FilePages {
    pub(super) fn new(client: Client, first: ListFilesRequest) -> Self {
        Self {
            client,
            next: Some(first),
        }
    }

    /// The next page; none after the last. After an error the same page can be asked for again.
    ///
    /// # Errors
    ///
    /// When the call failed.
    pub async fn next(&mut self) -> Result<Option<ListFilesResponse>, CallError> {
        let Some(request) = &self.next else {
            return Ok(None);
        };
        let page = self.client.list_files(request.clone()).await?;
        if page.next_page_token.is_empty() {
            self.next = None;
        } else if let Some(request) = &mut self.next {
            request.page_token = Some(page.next_page_token.clone());
        }
        Ok(Some(page))
    }
}

impl ArtifactParts {
    pub(super) fn new(
        parts: Streaming<ReadArtifactResponse>,
        deadline: Deadline,
        next_offset: u64,
    ) -> Self {
        Self {
            parts,
            deadline,
            next_offset,
        }
    }

    /// The next part; none after the last.
    ///
    /// # Errors
    ///
    /// When the call failed, or a part does not begin where the one before it ended.
    pub async fn next(&mut self) -> Result<Option<ReadArtifactResponse>, CallError> {
        let part = self.deadline.keep(self.parts.message()).await?;
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
