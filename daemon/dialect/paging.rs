//! Pagination over listings of canonical tools.

use std::ops::ControlFlow;

use super::{
    definition::{CanonicalCall, CanonicalTools},
    response::ResponseData,
};
use crate::daemon::error::Error;

/// Makes `call` for up to `max_pages` pages and passes each to `visit`, which may stop early.
/// Returns whether the last page was reached.
pub(super) async fn for_each_page(
    tools: &mut dyn CanonicalTools,
    mut call: CanonicalCall,
    max_pages: usize,
    mut visit: impl FnMut(&ResponseData) -> ControlFlow<()> + Send,
) -> Result<bool, Error> {
    for _ in 0..max_pages {
        let page = tools.call(call.clone()).await?;

        let stops = visit(&page).is_break();
        let next = page.text("next_page_token");
        if stops || next.is_empty() {
            return Ok(next.is_empty());
        }

        call.params.insert("page_token".to_owned(), next.into());
    }
    Ok(false)
}
