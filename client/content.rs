//! The bytes of a file, or of some lines of it, page by page. Each page is a call of its own, so
//! that whoever takes them may take their time; that all of them are of one file in one state is
//! checked.

use base64::{DecodeError, Engine as _, prelude::BASE64_STANDARD};
use tonic::Code;

use super::{call::Client, error::CallError};
use crate::api::v1::{DownloadRequest, Encoding, ReadFileRequest, ReadFileResponse};

/// Bytes of a page of a whole file.
const PAGE: u64 = 8 << 20;
/// Bytes of a page of lines: the most that one answer has.
const PAGE_OF_LINES: u32 = 10 << 20;

/// The bytes of a whole file.
#[derive(Debug)]
pub struct BytePages {
    client: Client,
    /// None once the last page has come.
    next: Option<DownloadRequest>,
}

/// The bytes of a range of lines.
#[derive(Debug)]
pub struct LinePages {
    client: Client,
    /// None once the last page has come.
    next: Option<ReadFileRequest>,
    /// Size and SHA-256 of the file, as the first page told them.
    file: Option<(u64, String)>,
}

impl Client {
    /// Reads all bytes of a file, whatever they are, page by page. The deadline is that of each
    /// page.
    #[must_use]
    pub fn bytes_by_page(&self, path: impl Into<String>) -> BytePages {
        BytePages {
            client: self.clone(),
            next: Some(DownloadRequest {
                path: path.into(),
                limit: Some(PAGE),
                ..DownloadRequest::default()
            }),
        }
    }

    /// Reads the lines that `request` asks for, page by page, as bytes; its `max_bytes` is not
    /// looked at. The deadline is that of each page.
    #[must_use]
    pub fn lines_by_page(&self, request: ReadFileRequest) -> LinePages {
        LinePages {
            client: self.clone(),
            next: Some(ReadFileRequest {
                // Without a range the middle would be left out.
                start_line: Some(request.start_line.unwrap_or(1)),
                max_bytes: Some(PAGE_OF_LINES),
                ..request
            }),
            file: None,
        }
    }
}

impl BytePages {
    /// The next page; none after the last.
    ///
    /// # Errors
    ///
    /// When the call failed; `STALE_FILE` when the file is not the one any more, or not as it was,
    /// when the first page was read.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, CallError> {
        let Some(request) = &mut self.next else {
            return Ok(None);
        };
        let mut parts = self.client.download(request.clone()).await?;
        let (mut page, mut size) = (Vec::new(), 0);
        while let Some(part) = parts.next().await? {
            let version = request
                .expected_version
                .get_or_insert_with(|| part.version.clone());
            if *version != part.version {
                return Err(stale(&request.path));
            }
            page.extend_from_slice(&part.data);
            size = part.size_bytes;
        }
        request.offset += page.len() as u64;
        if page.is_empty() || request.offset >= size {
            self.next = None;
        }
        Ok(Some(page))
    }
}

impl LinePages {
    /// The next page; none after the last.
    ///
    /// # Errors
    ///
    /// When the call failed; `STALE_FILE` when the file is not as it was when the first page was
    /// read; `FILE_TOO_LARGE` when a line does not fit into an answer.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, CallError> {
        let Some(request) = &mut self.next else {
            return Ok(None);
        };
        let response = match self.client.read_file(request.clone()).await {
            // There were more lines.
            Err(error) if self.file.is_some() && error.name() == "LINE_RANGE_INVALID" => {
                return Err(stale(&request.path));
            }
            response => response?,
        };
        let file = (response.size_bytes, response.sha256.clone());
        if *self.file.get_or_insert_with(|| file.clone()) != file {
            return Err(stale(&request.path));
        }
        let is_last = !response.truncated;
        let mut bytes = bytes_of(response).map_err(|error| {
            CallError::local(Code::DataLoss, format!("what came is no base64: {error}"))
        })?;
        if is_last {
            self.next = None;
            return Ok(Some(bytes));
        }
        // The last line is perhaps not whole: it comes again with the next page.
        let whole = bytes.iter().rposition(|byte| *byte == b'\n');
        bytes.truncate(whole.map_or(0, |ending| ending + 1));
        let endings = bytes.iter().filter(|byte| **byte == b'\n').count();
        let start = request.start_line.unwrap_or(1);
        let next = u32::try_from(endings)
            .ok()
            .and_then(|lines| start.checked_add(lines));
        request.start_line = next.filter(|_| endings > 0);
        if request.start_line.is_none() {
            return Err(too_long(&request.path, start));
        }
        Ok(Some(bytes))
    }
}

fn bytes_of(response: ReadFileResponse) -> Result<Vec<u8>, DecodeError> {
    match response.encoding() {
        Encoding::Base64 => BASE64_STANDARD.decode(response.content),
        Encoding::Utf8 | Encoding::Unspecified => Ok(response.content.into_bytes()),
    }
}

fn stale(path: &str) -> CallError {
    let text = format!("{path:?} was changed while it was read: read it again");
    with_reason("STALE_FILE", Code::Aborted, text)
}

fn too_long(path: &str, line: u32) -> CallError {
    let text = format!("line {line} of {path:?} has more than 10 MiB: read the whole file");
    with_reason("FILE_TOO_LARGE", Code::FailedPrecondition, text)
}

fn with_reason(reason: &str, code: Code, text: String) -> CallError {
    CallError {
        reason: Some(reason.to_owned()),
        ..CallError::local(code, text)
    }
}
