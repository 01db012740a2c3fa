//! Reads the bytes or the lines of a file page by page.
//!
//! Each page is a call of its own, so a slow reader does not hold a call open. The file's version
//! is checked: all pages come from one state of the file.

use tonic::Code;

use super::{call::Client, error::CallError};
use crate::api::v1::DownloadRequest;

/// Maximum size of a page.
const MAX_PAGE_BYTES: u64 = 8 << 20;
/// Size of the first page of a range of lines, which may be short. Each page doubles the size.
const FIRST_LINE_PAGE_BYTES: u64 = 256 << 10;

/// Pages with the bytes of a whole file.
#[derive(Debug)]
pub struct BytePages {
    client: Client,
    /// Request for the next page. `None` after the last page.
    next: Option<DownloadRequest>,
}

/// Pages with the bytes of a range of lines.
#[derive(Debug)]
pub struct LinePages {
    path: String,
    /// `None` after the last line.
    pages: Option<BytePages>,
    lines: LineExtractor,
}

/// Extracts a range of lines from the pages of a file.
#[derive(Debug)]
struct LineExtractor {
    first: u64,
    last: u64,
    /// Line endings in the pages so far.
    line_endings: u64,
    /// Whether the pages so far end in the middle of a line.
    in_partial_line: bool,
}

impl Client {
    /// Reads all bytes of a file, text or binary, page by page. The deadline applies to each page.
    #[must_use]
    pub fn bytes_by_page(&self, path: impl Into<String>) -> BytePages {
        self.byte_pages(path.into(), MAX_PAGE_BYTES)
    }

    /// Reads the lines of a file from `first` to `last`, page by page.
    ///
    /// Lines count from 1; `last` is inclusive, and `None` means the end of the file. The lines
    /// keep their bytes and line endings. The client downloads and discards everything before
    /// `first`. The deadline applies to each page.
    #[must_use]
    pub fn lines_by_page(
        &self,
        path: impl Into<String>,
        first: u32,
        last: Option<u32>,
    ) -> LinePages {
        let path = path.into();
        LinePages {
            pages: Some(self.byte_pages(path.clone(), FIRST_LINE_PAGE_BYTES)),
            path,
            lines: LineExtractor {
                first: first.max(1).into(),
                last: last.map_or(u64::MAX, u64::from),
                line_endings: 0,
                in_partial_line: false,
            },
        }
    }

    fn byte_pages(&self, path: String, first: u64) -> BytePages {
        BytePages {
            client: self.clone(),
            next: Some(DownloadRequest { path, limit: Some(first), ..DownloadRequest::default() }),
        }
    }
}

impl BytePages {
    /// Fetches the next page. Returns `None` after the last one.
    ///
    /// # Errors
    ///
    /// Returns an error if the call fails. The reason is `STALE_FILE` if the file was changed or
    /// replaced since the first page.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, CallError> {
        let Some(request) = &mut self.next else {
            return Ok(None);
        };

        let mut parts = self.client.download(request.clone()).await?;
        let limit = request.limit.unwrap_or(MAX_PAGE_BYTES);

        let (mut page, mut size) = (Vec::new(), 0);
        while let Some(part) = parts.next().await? {
            let version = request.expected_version.get_or_insert_with(|| part.version.clone());
            if *version != part.version {
                return Err(CallError::stale_file(&request.path));
            }
            page.extend_from_slice(&part.data);
            size = part.size_bytes;
        }

        let received = page.len() as u64;
        // The file was truncated before its first bytes were read.
        if received < limit.min(size.saturating_sub(request.offset)) {
            return Err(CallError::stale_file(&request.path));
        }

        request.offset += received;
        request.limit = Some((limit * 2).min(MAX_PAGE_BYTES));
        if received == 0 || request.offset >= size {
            self.next = None;
        }

        Ok(Some(page))
    }
}

impl LinePages {
    /// Fetches the next page. Returns `None` after the last one.
    ///
    /// # Errors
    ///
    /// Returns an error if the call fails. The reason is `STALE_FILE` if the file changed since the
    /// first page, and `LINE_RANGE_INVALID` if the file has fewer than `first` lines.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, CallError> {
        while let Some(pages) = &mut self.pages {
            let Some(page) = pages.next().await? else {
                self.pages = None;
                return self.lines.check_range(&self.path).map_or(Ok(None), Err);
            };
            let wanted = self.lines.extract(page);
            if self.lines.is_complete() {
                self.pages = None;
            }
            if !wanted.is_empty() {
                return Ok(Some(wanted));
            }
        }
        Ok(None)
    }
}

impl LineExtractor {
    /// Returns the part of the next page that is in the range.
    fn extract(&mut self, mut page: Vec<u8>) -> Vec<u8> {
        let endings = page.iter().filter(|byte| **byte == b'\n').count() as u64;
        let end_of_line = |line_endings: u64| {
            let wanted = line_endings.saturating_sub(self.line_endings);
            match usize::try_from(wanted) {
                Ok(0) => 0,
                Ok(wanted) if wanted as u64 <= endings => {
                    let mut endings = page.iter().enumerate().filter(|(_, byte)| **byte == b'\n');
                    endings.nth(wanted - 1).map_or(page.len(), |(at, _)| at + 1)
                }
                _ => page.len(),
            }
        };
        let (start, end) = (end_of_line(self.first - 1), end_of_line(self.last));
        self.line_endings += endings;
        self.in_partial_line = page.last().map_or(self.in_partial_line, |byte| *byte != b'\n');

        page.truncate(end);
        page.drain(..start.min(end));
        page
    }

    /// Returns whether the range is complete, so that further pages are not needed.
    fn is_complete(&self) -> bool {
        self.line_endings >= self.last
    }

    /// Returns an error if the file has ended before the first line of the range. An empty file has
    /// a line 1. Code, reason and metadata are those of the daemon's error.
    fn check_range(&self, path: &str) -> Option<CallError> {
        let total = self.line_endings + u64::from(self.in_partial_line);
        if self.first <= total.max(1) {
            return None;
        }

        let text =
            format!("line {} is beyond the end of {path:?}, which has {total} lines", self.first);
        Some(CallError {
            reason: Some("LINE_RANGE_INVALID".to_owned()),
            metadata: [("path", path.to_owned()), ("total_lines", total.to_string())]
                .map(|(name, value)| (name.to_owned(), value))
                .into(),
            ..CallError::local(Code::FailedPrecondition, text)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_do_not_depend_on_page_size() {
        const FILE: &[u8] = b"one\ntwo\r\n\xff\n\nfive";
        for (first, last, expected) in [
            (1, 1, &b"one\n"[..]),
            (2, 3, b"two\r\n\xff\n"),
            (4, 4, b"\n"),
            (4, u64::MAX, b"\nfive"),
            (5, 5, b"five"),
            (5, 9, b"five"),
            (1, u64::MAX, FILE),
        ] {
            for size in 1..=FILE.len() {
                let mut lines =
                    LineExtractor { first, last, line_endings: 0, in_partial_line: false };
                let mut taken = Vec::new();
                for page in FILE.chunks(size) {
                    taken.extend(lines.extract(page.to_vec()));
                    if lines.is_complete() {
                        break;
                    }
                }
                assert_eq!(taken, expected, "{first} {last} {size}");
                assert_eq!(lines.check_range("f"), None);
            }
        }
    }

    #[test]
    fn missing_lines_are_an_error() {
        for (file, first, total) in [
            ("", 1, None),
            ("", 2, Some("0")),
            ("a\nb\n", 2, None),
            ("a\nb\n", 3, Some("2")),
            ("a\nb", 3, Some("2")),
        ] {
            let mut lines =
                LineExtractor { first, last: u64::MAX, line_endings: 0, in_partial_line: false };
            let _before = lines.extract(file.into());
            let error = lines.check_range("f");
            let reported = error.as_ref().map(|error| error.metadata["total_lines"].as_str());
            assert_eq!(reported, total, "{file:?} {first}");
        }
    }
}
