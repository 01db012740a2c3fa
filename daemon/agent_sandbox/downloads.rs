//! `GET` and `HEAD` of a file: its bytes or a range of them, if the conditions of the request hold.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::SystemTime,
};

use axum::{
    body::Body,
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, StatusCode,
    header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, LAST_MODIFIED},
};
use httpdate::HttpDate;
use tokio_stream::Stream;
use tonic::{Status, Streaming};

use super::{
    api_error::ApiError,
    byte_range::ByteRange,
    preconditions::{Selection, Validators},
    rest_context::RestContext,
};
use crate::{
    api::v1::{DownloadRequest, DownloadResponse, transfer_service_client::TransferServiceClient},
    daemon::{error::Error, grpc::status::to_status, http::GrpcCaller},
};

/// A `GET` or `HEAD` of a file.
#[derive(Debug)]
pub(super) struct FileRequest<'a> {
    pub(super) context: &'a RestContext,
    pub(super) caller: &'a GrpcCaller,
    pub(super) path: &'a str,
    pub(super) headers: &'a HeaderMap,
    pub(super) is_head: bool,
}

/// A part of a file, or all of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct FilePart {
    offset: u64,
    limit: Option<u64>,
}

/// A download of which the first message has arrived.
struct OpenDownload {
    first: DownloadResponse,
    messages: Streaming<DownloadResponse>,
}

impl FileRequest<'_> {
    /// The response, also if a condition is false or the range is beyond the end.
    ///
    /// # Errors
    ///
    /// Those of `TransferService.Download`.
    pub(super) async fn respond(&self) -> Result<Response, Status> {
        let part = self.requested_part().await?;
        let download = self.open(part.unwrap_or_default()).await?;
        let validators = Validators::of(&download.first);
        match validators.evaluate(self.headers) {
            Selection::File => {}
            Selection::NotModified => {
                return Ok((StatusCode::NOT_MODIFIED, validators.headers()).into_response());
            }
            Selection::Failed => return Ok(failed_condition()),
        }

        let size_bytes = download.first.size_bytes;
        match part {
            None => Ok(self.file_response(download, FilePart::default())),
            // An empty file has no range, and clients may ask for one of every file.
            Some(_) if size_bytes == 0 || !validators.allow_range(self.headers) => {
                let download = self.open(FilePart::default()).await?;
                Ok(self.file_response(download, FilePart::default()))
            }
            Some(part) if part.offset >= size_bytes => Ok(unsatisfiable_range(size_bytes)),
            Some(part) => Ok(self.part_response(download, part)),
        }
    }

    /// The range of the request, as an offset.
    async fn requested_part(&self) -> Result<Option<FilePart>, Status> {
        Ok(match ByteRange::of(self.headers) {
            None => None,
            Some(ByteRange::From { offset, limit }) => Some(FilePart { offset, limit }),
            Some(ByteRange::Last { bytes }) => {
                let nothing = FilePart { offset: 0, limit: Some(0) };
                let size_bytes = self.open(nothing).await?.first.size_bytes;
                Some(FilePart { offset: size_bytes.saturating_sub(bytes), limit: Some(bytes) })
            }
        })
    }

    /// Begins a download. One for `HEAD` has no bytes.
    async fn open(&self, part: FilePart) -> Result<OpenDownload, Status> {
        let grpc = self.context.grpc.clone();
        let mut client = TransferServiceClient::with_origin(grpc, self.caller.origin.clone())
            .max_decoding_message_size(usize::MAX);
        let request = DownloadRequest {
            path: self.path.to_owned(),
            offset: part.offset,
            limit: if self.is_head { Some(0) } else { part.limit },
            ..DownloadRequest::default()
        };
        let mut messages = client.download(self.caller.request(request)).await?.into_inner();
        let first = messages.message().await?;
        let first =
            first.ok_or_else(|| to_status(&Error::internal("a download without a message")))?;
        Ok(OpenDownload { first, messages })
    }

    /// The response with a part of a file. The part begins before the end.
    fn part_response(&self, download: OpenDownload, part: FilePart) -> Response {
        let FilePart { offset, .. } = part;
        let size_bytes = download.first.size_bytes;
        let last = offset + part.length(size_bytes) - 1;
        let mut response = self.file_response(download, part);
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        let range = content_range(&format!("{offset}-{last}/{size_bytes}"));
        response.headers_mut().extend(range.map(|range| (CONTENT_RANGE, range)));
        response
    }

    fn file_response(&self, download: OpenDownload, part: FilePart) -> Response {
        let OpenDownload { first, messages } = download;
        let length = part.length(first.size_bytes);
        let headers = [
            (ACCEPT_RANGES, "bytes".to_owned()),
            (CONTENT_TYPE, "application/octet-stream".to_owned()),
            (CONTENT_LENGTH, length.to_string()),
        ];
        let validators = Validators::of(&first);
        let body = if self.is_head {
            Body::empty()
        } else {
            let version = first.version.clone();
            Body::from_stream(FileBytes {
                first: Some(first),
                messages,
                version,
                sent_bytes: 0,
                length,
            })
        };
        (validators.headers(), headers, body).into_response()
    }
}

impl FilePart {
    /// Number of bytes that a file of a size has of it.
    fn length(self, size_bytes: u64) -> u64 {
        let available = size_bytes.saturating_sub(self.offset);
        self.limit.map_or(available, |limit| limit.min(available))
    }
}

impl Validators {
    fn of(first: &DownloadResponse) -> Self {
        let modified = first.modify_time.and_then(|time| SystemTime::try_from(time).ok());
        // Commands can set any time. A date of HTTP is neither in the future nor before 1970.
        let modified =
            modified.filter(|time| (SystemTime::UNIX_EPOCH..=SystemTime::now()).contains(time));
        Self { etag: format!("\"{}\"", first.version), modified: modified.map(HttpDate::from) }
    }

    fn headers(&self) -> HeaderMap {
        let modified = self.modified.map(|date| (LAST_MODIFIED, date.to_string()));
        let lines = [(ETAG, self.etag.clone())].into_iter().chain(modified);
        lines.filter_map(|(name, value)| Some((name, value.try_into().ok()?))).collect()
    }
}

fn failed_condition() -> Response {
    let text = "the file exists, but a condition of the request is false: read its etag again";
    ApiError::failed_condition(text).into_response()
}

fn unsatisfiable_range(size_bytes: u64) -> Response {
    let text = format!("the range begins beyond the end of the file, which has {size_bytes} bytes");
    let error = ApiError::new(StatusCode::RANGE_NOT_SATISFIABLE, "OUT_OF_RANGE", text);
    let range = content_range(&format!("*/{size_bytes}"));
    (range.map(|range| [(CONTENT_RANGE, range)]), error).into_response()
}

fn content_range(range: &str) -> Option<HeaderValue> {
    format!("bytes {range}").try_into().ok()
}

/// The bytes of a file. Ends with an error if the file changes: the client then sees a response that
/// is shorter than announced.
struct FileBytes {
    first: Option<DownloadResponse>,
    messages: Streaming<DownloadResponse>,
    version: String,
    sent_bytes: u64,
    length: u64,
}

impl Stream for FileBytes {
    type Item = Result<Bytes, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let message = match self.first.take() {
            Some(first) => Some(Ok(first)),
            None => ready!(Pin::new(&mut self.messages).poll_next(context)),
        };
        Poll::Ready(match message {
            Some(Ok(message)) if message.version == self.version => {
                self.sent_bytes += message.data.len() as u64;
                Some(Ok(message.data))
            }
            Some(Err(status)) => Some(Err(status)),
            None if self.sent_bytes == self.length => None,
            Some(Ok(_)) | None => Some(Err(Status::aborted("the file changed while it was read"))),
        })
    }
}
