//! Listings that come page by page.

use std::ops::ControlFlow;

use super::{
    answer::Data,
    vocabulary::{Call, Tools},
};
use crate::daemon::error::Error;

/// Makes a call for one page after the other, `most` at most, and shows each to `see`, which may have seen
/// enough. Answers whether that was the last page.
pub(super) async fn each(
    tools: &mut dyn Tools,
    mut call: Call,
    most: usize,
    mut see: impl FnMut(&Data) -> ControlFlow<()> + Send,
) -> Result<bool, Error> {
    for _ in 0..most {
        let page = tools.call(call.clone()).await?;
        let is_enough = see(&page).is_break();
        let next = page.text("next_page_token");
        if is_enough || next.is_empty() {
            return Ok(next.is_empty());
        }
        call.params.insert("page_token".to_owned(), next.into());
    }
    Ok(false)
}
