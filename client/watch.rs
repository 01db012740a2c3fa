//! RPC of `WatchService`: changes of files as they happen.

use tonic::{Streaming, transport::Channel};

use super::{call::Client, deadline::CallDeadline, error::CallError};
use crate::api::v1::{
    WatchFilesRequest, WatchFilesResponse, watch_files_response::Item,
    watch_service_client::WatchServiceClient,
};

/// Largest message that the client accepts. The daemon sends up to about 1 MiB of paths at once.
const MAX_CHANGES_BYTES: usize = 16 << 20;

/// Stream of the changes below a directory.
#[derive(Debug)]
pub struct FileChanges {
    messages: Streaming<WatchFilesResponse>,
    deadline: CallDeadline,
}

impl Client {
    /// Streams the changes below a directory. The first item is `Ready`: later changes are all
    /// reported.
    ///
    /// # Errors
    ///
    /// Returns an error if the call fails.
    pub async fn watch_files(&self, request: WatchFilesRequest) -> Result<FileChanges, CallError> {
        let deadline = self.deadline();
        let mut watches = self.watches();
        let messages = deadline.enforce(watches.watch_files(self.with_context(request))).await?;
        Ok(FileChanges { messages: messages.into_inner(), deadline })
    }

    fn watches(&self) -> WatchServiceClient<Channel> {
        WatchServiceClient::new(self.channel()).max_decoding_message_size(MAX_CHANGES_BYTES)
    }
}

impl FileChanges {
    /// Waits for the next item. Returns `None` at the end of the stream.
    ///
    /// # Errors
    ///
    /// Returns an error if the call fails. Changes may have been missed then: watch again, and list
    /// the directory after `Ready`.
    pub async fn next(&mut self) -> Result<Option<Item>, CallError> {
        loop {
            match self.deadline.enforce(self.messages.message()).await? {
                None => return Ok(None),
                Some(WatchFilesResponse { item: Some(item) }) => return Ok(Some(item)),
                // A newer daemon may send an item that this client does not know.
                Some(WatchFilesResponse { item: None }) => {}
            }
        }
    }
}
