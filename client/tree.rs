//! Transfer of whole directories, as tar archives.

use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use tonic::{Code, Streaming};

use super::{call::Client, deadline::CallDeadline, error::CallError, transfer::hex_digest};
use crate::api::v1::{
    DownloadTreeRequest, DownloadTreeResponse, DownloadTreeSummary, UploadTreeRequest,
    UploadTreeResponse, UploadTreeStart, upload_tree_request::Part,
};

/// Parts of an archive, in order, verified against the daemon's SHA-256.
#[derive(Debug)]
pub struct TreeParts {
    parts: Streaming<DownloadTreeResponse>,
    deadline: CallDeadline,
    hasher: Sha256,
    summary: Option<DownloadTreeSummary>,
}

impl Client {
    /// Uploads an archive, which the daemon extracts into the directory of `start`.
    ///
    /// Each chunk may have at most 1 MiB. Computing the next one may block the thread.
    ///
    /// # Errors
    ///
    /// Returns an error if the call fails. Its metadata `extracted_members` has the number of
    /// members in place, in the order of the archive, and `member` the name of the rejected one.
    pub async fn upload_tree(
        &self,
        start: UploadTreeStart,
        chunks: impl Iterator<Item = Bytes> + Send + 'static,
    ) -> Result<UploadTreeResponse, CallError> {
        let parts = std::iter::once(Part::Start(start)).chain(chunks.map(Part::Data));
        let messages = tokio_stream::iter(parts.map(|part| UploadTreeRequest { part: Some(part) }));
        let mut transfers = self.transfers();
        let call = transfers.upload_tree(self.with_context(messages));
        Ok(self.deadline().enforce(call).await?.into_inner())
    }

    /// Downloads a directory as a stream of parts of an archive.
    ///
    /// # Errors
    ///
    /// Returns an error if the call fails.
    pub async fn download_tree(
        &self,
        request: DownloadTreeRequest,
    ) -> Result<TreeParts, CallError> {
        let deadline = self.deadline();
        let mut transfers = self.transfers();
        let call = transfers.download_tree(self.with_context(request));
        let parts = deadline.enforce(call).await?.into_inner();
        Ok(TreeParts { parts, deadline, hasher: Sha256::new(), summary: None })
    }
}

impl TreeParts {
    /// Waits for the next bytes of the archive. Returns `None` after the last ones.
    ///
    /// # Errors
    ///
    /// Returns an error if the call fails, or if the checksum does not match.
    pub async fn next(&mut self) -> Result<Option<Bytes>, CallError> {
        let Some(part) = self.deadline.enforce(self.parts.message()).await? else {
            if self.summary.is_some() {
                return Ok(None);
            }
            let text = "the daemon ended the download before its last part: retry";
            return Err(CallError::local(Code::Unavailable, text));
        };
        self.hasher.update(&part.data);
        if let Some(summary) = part.summary {
            let received = hex_digest(self.hasher.clone());
            if received != summary.sha256 {
                let text = format!(
                    "the received bytes have the SHA-256 {received}, not {}",
                    summary.sha256
                );
                return Err(CallError::local(Code::DataLoss, text));
            }
            self.summary = Some(summary);
        }
        Ok(Some(part.data))
    }

    /// Returns what the archive contains, after its last part.
    #[must_use]
    pub fn summary(&self) -> Option<&DownloadTreeSummary> {
        self.summary.as_ref()
    }
}
