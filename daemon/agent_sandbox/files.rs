//! `/v1/files/PATH`: reads, writes and deletes files, and lists directories.
//!
//! The path is everything after `/v1/files/`, decoded, and relative to the workspace, whether or not
//! it begins with a slash. The contract resolves it.

use std::time::SystemTime;

use axum::{
    Extension, Json, Router,
    extract::{
        DefaultBodyLimit, FromRequestParts, Path, Query, Request, State, rejection::QueryRejection,
    },
    response::{IntoResponse as _, Response},
    routing::get,
};
use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, StatusCode,
    header::{CONTENT_ENCODING, CONTENT_RANGE},
    request::Parts,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tonic::Status;

use super::{
    api_error::ApiError,
    caller_name::CallerName,
    downloads::FileRequest,
    file_body::read_file,
    preconditions::{is_create_only, reject_conditions},
    rest_context::RestContext,
};
use crate::{
    api::v1::{
        DeletePathRequest, DirectoryEntry, FileType, ListDirectoryRequest, UploadChunk,
        UploadRequest, UploadStart, WriteMode, tool_service_client::ToolServiceClient,
        transfer_service_client::TransferServiceClient, upload_request::Part,
    },
    daemon::{
        checksum::sha256,
        error::{Error, Reason},
        grpc::status::{has_reason, to_status},
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

/// The query of `GET` and `HEAD`, which has no fields.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NoQuery {}

fn parse_query<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, ApiError> {
    let Query(query) = query.map_err(|rejection| ApiError::invalid(rejection.body_text()))?;
    Ok(query)
}

/// `GET` and `HEAD`: the bytes of a file, or the entries of a directory.
async fn read_path(
    State(context): State<RestContext>,
    caller: GrpcCaller,
    WorkspacePath(path): WorkspacePath,
    query: Result<Query<NoQuery>, QueryRejection>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    parse_query(query)?;
    let is_head = method == Method::HEAD;
    let (path, headers) = (&*path, &headers);
    let request = FileRequest { context: &context, caller: &caller, path, headers, is_head };
    match request.respond().await {
        Ok(response) => Ok(response),
        Err(status) if has_reason(&status, Reason::NotAFile) => {
            let mut lister = ToolServiceClient::with_origin(context.grpc, caller.origin.clone())
                .max_decoding_message_size(usize::MAX);
            match list_directory(&mut lister, &caller, path, is_head).await {
                Ok(entries) => Ok(Json(json!({
                    "path": format!("/{}", if path == "." { "" } else { path }),
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
#[serde(deny_unknown_fields)]
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
    let file_mode = parse_file_mode(parse_query(query)?)?;
    reject_conditions(&Method::PUT, request.headers())?;
    reject_partial_content(request.headers())?;
    let is_create_only = is_create_only(request.headers());

    let body = BodyBuffer::new(&context.buffered, &owner.0, MAX_FILE_BYTES);
    let body = read_file(body, request).await?;
    let data = body.data.clone();
    let sha256 = task::spawn_blocking(move || sha256(&data));
    let sha256 = sha256.await.map_err(|error| to_status(&Error::internal(error)))?;

    let start = UploadStart {
        path,
        size_bytes: body.data.len() as u64,
        sha256,
        mode: is_create_only.then_some(WriteMode::CreateNew.into()),
        create_directories: Some(true),
        file_mode: Some(file_mode),
        ..UploadStart::default()
    };
    let parts = std::iter::once(Part::Start(start)).chain(chunks(body.data.clone()));
    let parts = tokio_stream::iter(parts.map(|part| UploadRequest { part: Some(part) }));
    let mut client = TransferServiceClient::with_origin(context.grpc, caller.origin.clone());
    match client.upload(caller.request(parts)).await {
        Ok(_response) => Ok(StatusCode::NO_CONTENT),
        Err(status) if is_create_only && has_reason(&status, Reason::FileExists) => {
            Err(ApiError::failed_condition(status.message()))
        }
        Err(status) => Err(status.into()),
    }
}

/// Rejects a body that is not the bytes of the whole file.
fn reject_partial_content(headers: &HeaderMap) -> Result<(), ApiError> {
    if headers.contains_key(CONTENT_RANGE) {
        let text = "PUT writes whole files: send all bytes, without content-range";
        return Err(ApiError::invalid(text));
    }
    let is_identity =
        |coding: &HeaderValue| coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity");
    if headers.get_all(CONTENT_ENCODING).into_iter().all(is_identity) {
        return Ok(());
    }
    let text = "PUT stores the bytes as they are: send them without content-encoding";
    Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "INVALID_ARGUMENT", text))
}

fn parse_file_mode(query: PutQuery) -> Result<u32, ApiError> {
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
#[serde(deny_unknown_fields)]
struct DeleteQuery {
    #[serde(default)]
    recursive: String,
}

/// `DELETE`: removes a file or a directory.
async fn delete_path(
    State(context): State<RestContext>,
    caller: GrpcCaller,
    WorkspacePath(path): WorkspacePath,
    query: Result<Query<DeleteQuery>, QueryRejection>,
    headers: HeaderMap,
) -> Result<StatusCode, ApiError> {
    let recursive = parse_bool(&parse_query(query)?.recursive)?;
    reject_conditions(&Method::DELETE, &headers)?;
    let request = DeletePathRequest { path, recursive: Some(recursive) };
    let mut client = ToolServiceClient::with_origin(context.grpc, caller.origin.clone());
    client.delete_path(caller.request(request)).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The words of the standard's server, in which an empty value is false.
fn parse_bool(text: &str) -> Result<bool, ApiError> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "" | "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => Err(ApiError::invalid(format!("recursive {text:?} must be true or false"))),
    }
}
