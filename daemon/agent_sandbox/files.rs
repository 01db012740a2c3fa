//! `/v1/files/PATH`: reads, writes and deletes files, and lists directories.
//!
//! The path is everything after `/v1/files/`, decoded, and relative to the workspace, whether or not
//! it begins with a slash. The contract resolves it.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
    time::SystemTime,
};

use axum::{
    Extension, Json, Router,
    body::Body,
    extract::{
        DefaultBodyLimit, FromRequestParts, Path, Query, Request, State, rejection::QueryRejection,
    },
    response::{IntoResponse as _, Response},
    routing::get,
};
use bytes::Bytes;
use http::{
    Method, StatusCode,
    header::{CONTENT_LENGTH, CONTENT_TYPE},
    request::Parts,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_stream::Stream;
use tonic::{Status, Streaming};
use tonic_types::StatusExt as _;

use super::{
    api_error::ApiError, caller_name::CallerName, file_body::read_file, rest_context::RestContext,
};
use crate::{
    api::v1::{
        DeletePathRequest, DirectoryEntry, DownloadRequest, DownloadResponse, FileType,
        ListDirectoryRequest, UploadChunk, UploadRequest, UploadStart,
        tool_service_client::ToolServiceClient, transfer_service_client::TransferServiceClient,
        upload_request::Part,
    },
    daemon::{
        checksum::sha256,
        error::{Error, Reason},
        grpc::status::to_status,
        http::{BodyBuffer, GrpcCaller, HttpService},
        task,
        telemetry::logs::rfc3339_micros,
    },
};

/// Permission bits of a file whose request has none, also if the file exists.
const DEFAULT_FILE_MODE: &str = "0644";
/// Largest file. One caller may have as many bytes on the way.
const MAX_FILE_BYTES: usize = 64 << 20;
/// Largest form: a file, and parts that are ignored.
const MAX_FORM_BYTES: usize = MAX_FILE_BYTES + (1 << 20);
/// Bytes in one message of an upload.
const UPLOAD_CHUNK_BYTES: usize = 1 << 20;
/// Entries in one response of the contract.
const LIST_PAGE_SIZE: u32 = 1000;
/// Entries of a directory that a listing may have.
const MAX_LISTED_ENTRIES: usize = 100_000;

pub(super) fn routes() -> Router<RestContext> {
    let files = || get(read_path).put(put_file).delete(delete_path);
    Router::new()
        .route("/v1/files", files())
        .route("/v1/files/", files())
        .route("/v1/files/{*path}", files())
        // The body of a file is limited while it is read.
        .layer(DefaultBodyLimit::max(MAX_FORM_BYTES))
}

/// The path of a request, relative to the workspace. `.` is the workspace.
#[derive(Debug)]
struct WorkspacePath(String);

impl<S: Send + Sync> FromRequestParts<S> for WorkspacePath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path = Option::<Path<String>>::from_request_parts(parts, state).await;
        let Ok(path) = path else {
            return Err(ApiError::invalid("the path must be percent-encoded UTF-8"));
        };
        let path = path.map(|Path(path)| path).unwrap_or_default();
        let relative = path.trim_start_matches('/');
        Ok(Self(if relative.is_empty() { ".".to_owned() } else { relative.to_owned() }))
    }
}

/// `GET` and `HEAD`: the bytes of a file, or the entries of a directory.
async fn read_path(
    State(context): State<RestContext>,
    caller: GrpcCaller,
    WorkspacePath(path): WorkspacePath,
    method: Method,
) -> Result<Response, ApiError> {
    let is_head = method == Method::HEAD;
    match open_download(&context, &caller, &path, is_head).await {
        Ok((first, events)) => Ok(file_response(first, events, is_head)),
        Err(status) if has_reason(&status, Reason::NotAFile) => {
            let mut lister = ToolServiceClient::with_origin(context.grpc, caller.origin.clone())
                .max_decoding_message_size(usize::MAX);
            match list_directory(&mut lister, &caller, &path, is_head).await {
                Ok(entries) => Ok(Json(json!({
                    "path": format!("/{}", if path == "." { "" } else { &path }),
                    "entries": entries,
                }))
                .into_response()),
                // Neither a file nor a directory.
                Err(error) if has_reason(&error, Reason::NotADirectory) => Err(status.into()),
                Err(error) => Err(error.into()),
            }
        }
        Err(status) => Err(status.into()),
    }
}

type OpenDownload = (DownloadResponse, Streaming<DownloadResponse>);

/// Begins a download. Returns its first message, and the others.
async fn open_download(
    context: &RestContext,
    caller: &GrpcCaller,
    path: &str,
    is_head: bool,
) -> Result<OpenDownload, Status> {
    let mut client =
        TransferServiceClient::with_origin(context.grpc.clone(), caller.origin.clone())
            .max_decoding_message_size(usize::MAX);
    let request = DownloadRequest {
        path: path.to_owned(),
        limit: is_head.then_some(0),
        ..DownloadRequest::default()
    };
    let mut messages = client.download(caller.request(request)).await?.into_inner();
    let first = messages.message().await?;
    let no_message = || to_status(&Error::internal("a download without a message"));
    Ok((first.ok_or_else(no_message)?, messages))
}

fn file_response(
    first: DownloadResponse,
    messages: Streaming<DownloadResponse>,
    is_head: bool,
) -> Response {
    let headers = [
        (CONTENT_TYPE, "application/octet-stream".to_owned()),
        (CONTENT_LENGTH, first.size_bytes.to_string()),
    ];
    let body = if is_head {
        Body::empty()
    } else {
        let (version, size_bytes) = (first.version.clone(), first.size_bytes);
        let bytes = FileBytes { first: Some(first), messages, version, sent_bytes: 0, size_bytes };
        Body::from_stream(bytes)
    };
    (headers, body).into_response()
}

/// The bytes of a file. Ends with an error if the file changes: the client then sees a response that
/// is shorter than announced.
struct FileBytes {
    first: Option<DownloadResponse>,
    messages: Streaming<DownloadResponse>,
    version: String,
    sent_bytes: u64,
    size_bytes: u64,
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
            None if self.sent_bytes == self.size_bytes => None,
            Some(Ok(_)) | None => Some(Err(Status::aborted("the file changed while it was read"))),
        })
    }
}

/// Lists a directory, or only checks that it can be listed.
async fn list_directory(
    client: &mut ToolServiceClient<HttpService>,
    caller: &GrpcCaller,
    path: &str,
    is_head: bool,
) -> Result<Vec<Value>, Status> {
    let mut entries = Vec::new();
    let mut page_token = None;
    loop {
        let request = ListDirectoryRequest {
            path: Some(path.to_owned()),
            page_size: Some(if is_head { 1 } else { LIST_PAGE_SIZE }),
            page_token: page_token.take(),
        };
        let page = client.list_directory(caller.request(request)).await?.into_inner();
        entries.extend(page.entries.iter().filter_map(entry_json));
        if is_head || page.next_page_token.is_empty() {
            return Ok(entries);
        }
        if entries.len() > MAX_LISTED_ENTRIES {
            let text = format!(
                "the directory has more than {MAX_LISTED_ENTRIES} entries: list it with a command"
            );
            return Err(to_status(&Error::new(Reason::ResourceExhausted, text)));
        }
        page_token = Some(page.next_page_token);
    }
}

/// An entry of a listing. The standard has no symbolic links and no special files.
fn entry_json(entry: &DirectoryEntry) -> Option<Value> {
    let kind = match entry.r#type() {
        FileType::File => "file",
        FileType::Directory => "directory",
        FileType::Unspecified
        | FileType::Symlink
        | FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice => return None,
    };
    let modified = entry.modify_time.and_then(|time| SystemTime::try_from(time).ok());
    Some(json!({
        "name": entry.name,
        "size": entry.size_bytes,
        "type": kind,
        "modified_at": rfc3339_micros(modified.unwrap_or(SystemTime::UNIX_EPOCH)),
        "mode": format!("{:04o}", entry.mode & 0o777),
    }))
}

/// The query of `PUT`.
#[derive(Debug, Deserialize)]
struct PutQuery {
    mode: Option<String>,
}

/// `PUT`: writes a whole file.
async fn put_file(
    State(context): State<RestContext>,
    caller: GrpcCaller,
    Extension(owner): Extension<CallerName>,
    WorkspacePath(path): WorkspacePath,
    query: Result<Query<PutQuery>, QueryRejection>,
    request: Request,
) -> Result<StatusCode, ApiError> {
    let file_mode = parse_file_mode(query)?;
    let body = BodyBuffer::new(&context.buffered, &owner.0, MAX_FILE_BYTES);
    let body = read_file(body, request).await?;
    let data = body.data.clone();
    let sha256 = task::spawn_blocking(move || sha256(&data));
    let sha256 = sha256.await.map_err(|error| to_status(&Error::internal(error)))?;

    let start = UploadStart {
        path,
        size_bytes: body.data.len() as u64,
        sha256,
        create_directories: Some(true),
        file_mode: Some(file_mode),
        ..UploadStart::default()
    };
    let parts = std::iter::once(Part::Start(start)).chain(chunks(body.data.clone()));
    let parts = tokio_stream::iter(parts.map(|part| UploadRequest { part: Some(part) }));
    let mut client = TransferServiceClient::with_origin(context.grpc, caller.origin.clone());
    client.upload(caller.request(parts)).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn parse_file_mode(query: Result<Query<PutQuery>, QueryRejection>) -> Result<u32, ApiError> {
    let Query(query) = query.map_err(|rejection| ApiError::invalid(rejection.body_text()))?;
    let mode = query.mode.filter(|mode| !mode.is_empty());
    let mode = mode.as_deref().unwrap_or(DEFAULT_FILE_MODE);
    let is_octal = |mode: &str| mode.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
    let is_valid = mode.len() == 4 && mode.starts_with('0') && is_octal(mode);
    u32::from_str_radix(mode, 8).ok().filter(|_| is_valid).ok_or_else(|| {
        ApiError::invalid(format!("mode {mode:?} must match ^0[0-7]{{3}}$, as \"0755\""))
    })
}

fn chunks(data: Bytes) -> impl Iterator<Item = Part> + Send + 'static {
    let offsets = (0..data.len()).step_by(UPLOAD_CHUNK_BYTES);
    offsets.map(move |offset| {
        let end = data.len().min(offset + UPLOAD_CHUNK_BYTES);
        Part::Chunk(UploadChunk { offset: offset as u64, data: data.slice(offset..end) })
    })
}

/// The query of `DELETE`.
#[derive(Debug, Deserialize)]
struct DeleteQuery {
    recursive: Option<bool>,
}

/// `DELETE`: removes a file or a directory.
async fn delete_path(
    State(context): State<RestContext>,
    caller: GrpcCaller,
    WorkspacePath(path): WorkspacePath,
    query: Result<Query<DeleteQuery>, QueryRejection>,
) -> Result<StatusCode, ApiError> {
    let Query(query) = query.map_err(|_| ApiError::invalid("'recursive' must be true or false"))?;
    let request = DeletePathRequest { path, recursive: query.recursive };
    let mut client = ToolServiceClient::with_origin(context.grpc, caller.origin.clone());
    client.delete_path(caller.request(request)).await?;
    Ok(StatusCode::NO_CONTENT)
}

fn has_reason(status: &Status, reason: Reason) -> bool {
    status.get_details_error_info().is_some_and(|info| info.reason == reason.name())
}
