//! A list that comes page by page, each a call of its own.

use super::{call::Client, error::CallError};
use crate::api::v1::{ListFilesRequest, ListFilesResponse};

/// All pages of `ListFiles`, asked for one after the other.
#[derive(Debug)]
pub struct FilePages {
    client: Client,
    /// None once the last page has come.
    next: Option<ListFilesRequest>,
}

impl Client {
    /// Lists all files below a directory, page by page. The deadline is that of each page.
    #[must_use]
    pub fn list_files_by_page(&self, request: ListFilesRequest) -> FilePages {
        FilePages { client: self.clone(), next: Some(request) }
    }
}

impl FilePages {
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
