//! Chunks of output.

use bytes::Bytes;

use crate::daemon::store::session::StreamName;

/// A part of a command's output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OutputChunk {
    /// Counts the chunks of both streams, from 1.
    pub(crate) sequence: u64,
    pub(crate) stream: StreamName,
    /// Offset of the first byte in its stream.
    pub(crate) offset: u64,
    /// Never empty.
    pub(crate) data: Bytes,
}

/// Bytes of each stream.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct StreamOffsets {
    pub(super) stdout: u64,
    pub(super) stderr: u64,
}

impl OutputChunk {
    /// Returns the part of the chunk after `offset` of its stream, if any.
    pub(super) fn after_offset(&self, offset: u64) -> Option<Self> {
        let skip = usize::try_from(offset.saturating_sub(self.offset)).unwrap_or(usize::MAX);
        (skip < self.data.len()).then(|| Self {
            offset: self.offset + skip as u64,
            data: self.data.slice(skip..),
            ..*self
        })
    }
}

impl StreamOffsets {
    pub(super) fn get_mut(&mut self, stream: StreamName) -> &mut u64 {
        match stream {
            StreamName::Stdout => &mut self.stdout,
            StreamName::Stderr => &mut self.stderr,
        }
    }

    pub(super) fn total(self) -> u64 {
        self.stdout + self.stderr
    }
}
