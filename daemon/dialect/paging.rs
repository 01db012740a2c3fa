//! Listings that come page by page.

use std::ops::ControlFlow;

use super::{
    definition::{CanonicalCall, CanonicalTools},
    response::ResponseData,
};
use crate::daemon::error::Error;

/// Makes a call for one page after the other, `most` at most, and shows each to `see`, which may have seen
/// enough. Answers whether that was the last page.
pub(super) async fn for_each_page(
    tools: &mut dyn CanonicalTools,
    mut call: CanonicalCall,
    max_pages: usize,
    mut visit: impl FnMut(&ResponseData) -> ControlFlow<()> + Send,
) -> Result<bool, Error> {
    for _ in 0..max_pages {
        let page = tools.call(call.clone()).await?;
        let is_enough = visit(&page).is_break();
        let next = page.text("next_page_token");
        if is_enough || next.is_empty() {
            return Ok(next.is_empty());
        }
        call.params.insert("page_token".to_owned(), next.into());
    }
    Ok(false)
}
