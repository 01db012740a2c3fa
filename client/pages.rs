//! Paged listing of files, one call per page.

use super::{call::Client, error::CallError};
use crate::api::v1::{ListFilesRequest, ListFilesResponse};

/// Pages of `ListFiles`, fetched one after the other.
#[derive(Debug)]
pub struct FilePages {
    client: Client,
    /// Request for the next page. `None` after the last page.
    next: Option<ListFilesRequest>,
}

impl Client {
    /// Lists all files below a directory, page by page. The deadline applies to each page.
    #[must_use]
    pub fn list_files_by_page(&self, request: ListFilesRequest) -> FilePages {
        FilePages { client: self.clone(), next: Some(request) }
    }
}

impl FilePages {
    /// Fetches the next page. Returns `None` after the last one. After an error it retries the same
    /// page.
    ///
    /// # Errors
    ///
    /// Returns an error if the call fails.
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
