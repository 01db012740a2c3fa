//! Pages that a client takes, however long what is on them is.

use prost::Message;

/// Bytes of a page, which has one entry at least: clients take 4 MiB unless they say otherwise.
const PAGE_BYTES: usize = 3 << 20;

/// A page that is filled.
#[derive(Debug)]
pub(super) struct Page<T> {
    entries: Vec<T>,
    left: usize,
    last: Option<String>,
}

impl<T: Message> Page<T> {
    /// One without entries.
    pub(super) fn new() -> Self {
        Self { entries: Vec::new(), left: PAGE_BYTES, last: None }
    }

    /// Adds what has this id, if there is room for it.
    pub(super) fn add(&mut self, id: &str, entry: T) -> bool {
        let size = entry.encoded_len();
        if size > self.left && !self.entries.is_empty() {
            return false;
        }
        self.left = self.left.saturating_sub(size);
        self.entries.push(entry);
        self.pass(id);
        true
    }

    /// Goes on behind what has this id.
    pub(super) fn pass(&mut self, id: &str) {
        self.last = Some(id.to_owned());
    }

    /// The entries, and where the next page begins: nowhere, unless there `is_more`.
    pub(super) fn end(self, is_more: bool) -> (Vec<T>, String) {
        let last = self.last.filter(|_| is_more);
        (self.entries, last.unwrap_or_default())
    }
}
