//! Pages that a client takes, however long what is on them is.

use prost::Message;

/// Bytes of a page, which has one entry at least: clients take 4 MiB unless they say otherwise.
const MAX_PAGE_BYTES: usize = 3 << 20;

/// A page that is filled.
#[derive(Debug)]
pub(super) struct PageBuilder<T> {
    entries: Vec<T>,
    remaining_bytes: usize,
    last_id: Option<String>,
}

impl<T: Message> PageBuilder<T> {
    /// One without entries.
    pub(super) fn new() -> Self {
        Self { entries: Vec::new(), remaining_bytes: MAX_PAGE_BYTES, last_id: None }
    }

    /// Adds what has this id, if there is room for it.
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

    /// Goes on behind what has this id.
    pub(super) fn skip(&mut self, id: &str) {
        self.last_id = Some(id.to_owned());
    }

    /// The entries, and where the next page begins: nowhere, unless there `is_more`.
    pub(super) fn finish(self, is_more: bool) -> (Vec<T>, String) {
        let last = self.last_id.filter(|_| is_more);
        (self.entries, last.unwrap_or_default())
    }
}
