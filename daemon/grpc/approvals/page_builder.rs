//! Builds pages of bounded size in bytes.

use prost::Message;

/// Maximum size of a page with more than one entry. Clients accept 4 MiB by default.
const MAX_PAGE_BYTES: usize = 3 << 20;

/// A page that is being filled.
#[derive(Debug)]
pub(super) struct PageBuilder<T> {
    entries: Vec<T>,
    remaining_bytes: usize,
    last_id: Option<String>,
}

impl<T: Message> PageBuilder<T> {
    pub(super) fn new() -> Self {
        Self { entries: Vec::new(), remaining_bytes: MAX_PAGE_BYTES, last_id: None }
    }

    /// Adds an entry. Returns `false` if the page is full. The first entry always fits.
    pub(super) fn try_push(&mut self, id: &str, entry: T) -> bool {
        let size = entry.encoded_len();
        if size > self.remaining_bytes && !self.entries.is_empty() {
            return false;
        }
        self.remaining_bytes = self.remaining_bytes.saturating_sub(size);
        self.entries.push(entry);
        self.skip(id);
        true
    }

    /// Continues after the entry with this id, without adding it.
    pub(super) fn skip(&mut self, id: &str) {
        self.last_id = Some(id.to_owned());
    }

    /// Returns the entries and the token of the next page, which is empty unless `has_more`.
    pub(super) fn finish(self, has_more: bool) -> (Vec<T>, String) {
        let last = self.last_id.filter(|_| has_more);
        (self.entries, last.unwrap_or_default())
    }
}
