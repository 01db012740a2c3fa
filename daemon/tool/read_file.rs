//! `read_file`: reads a file of the workspace or an artifact of the session, whole or by lines.
//!
//! [`FileExcerpt`] reads; this file converts request and response.

use base64::{Engine as _, prelude::BASE64_STANDARD};

use super::{
    Tool, ToolContext, ToolOutput, WorkspaceContext, file_work::run_on_files,
    session_artifacts::SessionArtifacts,
};
use crate::{
    api::v1,
    daemon::{
        checksum::to_hex,
        error::{Error, Reason, Violation},
        text::count_lines,
        workspace::{CancelToken, FileExcerpt, ReadOptions, RegularFile},
    },
};

/// Limit on the content of a response, by default.
const DEFAULT_RESPONSE_BYTES: u32 = 3 << 20;

/// Most bytes of an artifact in one response, if the request gives no range of lines. They still
/// fit into a message when escaped as JSON twice.
const MAX_PART_BYTES: u64 = 512 << 10;

/// Largest file that is read without a blocking thread if the kernel has it cached.
const MAX_NONBLOCKING_READ_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(crate) struct ReadFile;

impl Tool for ReadFile {
    const NAME: &'static str = "read_file";
    type Request = v1::ReadFileRequest;
    type Response = v1::ReadFileResponse;
    type Params = v1::ReadFileRequest;

    fn validate(
        request: Self::Request,
        workspace_context: &WorkspaceContext,
        violations: &mut Vec<Violation>,
    ) -> Result<Option<Self::Params>, Error> {
        if let Err(error) = line_range(&request) {
            violations.extend(error.violations);
        }
        if !violations.is_empty() {
            return Ok(None);
        }
        workspace_context.workspace.resolve(&request.path)?;
        Ok(Some(request))
    }

    fn affected_paths(request: &Self::Params, workspace_context: &WorkspaceContext) -> Vec<String> {
        let path = workspace_context.workspace.resolve(&request.path);
        path.iter().map(|path| path.as_str().to_owned()).collect()
    }

    async fn execute(
        request: Self::Request,
        context: ToolContext,
    ) -> Result<ToolOutput<Self::Response>, Error> {
        let path = context.workspace_context.workspace.resolve(&request.path)?;
        // A blocking thread costs two wake-ups, more than the work itself.
        if let Some(file) =
            context.workspace_context.workspace.open_file_cached(&path, MAX_NONBLOCKING_READ_BYTES)
        {
            return read_excerpt(&file, &request, &CancelToken::new()).map(ToolOutput::new);
        }

        let artifacts = SessionArtifacts::for_call(&context);
        run_on_files(context, move |workspace, cancel| match workspace.open_file(&path) {
            Ok(file) => read_excerpt(&file, &request, cancel),
            Err(error) => read_artifact(&artifacts, path.as_str(), error, &request, cancel),
        })
        .await
    }
}

/// Reads the artifact at `path`, which is no file of the workspace. A long one is read in parts.
fn read_artifact(
    artifacts: &SessionArtifacts,
    path: &str,
    not_in_workspace: Error,
    request: &v1::ReadFileRequest,
    cancel: &CancelToken,
) -> Result<v1::ReadFileResponse, Error> {
    let (name, offset) = SessionArtifacts::split_offset(path).unwrap_or((path, 0));
    let file = artifacts.open_fallback(name, not_in_workspace)?;

    let has_range = request.start_line() > 1 || request.end_line.is_some();
    let is_long = file.size() > max_part_bytes(request);
    if offset > 0 || is_long && !has_range {
        read_part(&file, name, offset, request)
    } else {
        read_lossy_excerpt(&file, request, cancel)
    }
}

/// Most bytes of an artifact in one part.
fn max_part_bytes(request: &v1::ReadFileRequest) -> u64 {
    u64::from(request.max_bytes.unwrap_or(DEFAULT_RESPONSE_BYTES)).clamp(1, MAX_PART_BYTES)
}

/// Reads the part of an artifact at `offset`. The part ends with a line if it contains a line
/// ending.
fn read_part(
    file: &RegularFile,
    name: &str,
    offset: u64,
    request: &v1::ReadFileRequest,
) -> Result<v1::ReadFileResponse, Error> {
    let size = file.size();
    if offset > size {
        let text = format!("{name} has only {size} bytes");
        return Err(Error::invalid_field("path", text));
    }

    let as_text = request.encoding() != v1::Encoding::Base64;
    let length = usize::try_from(max_part_bytes(request)).unwrap_or(usize::MAX);
    let mut bytes = file.bytes_at(offset, length)?;
    if as_text && str::from_utf8(&bytes).is_err_and(|error| error.error_len().is_some()) {
        // Each invalid byte becomes U+FFFD, which takes three bytes.
        bytes.truncate((bytes.len() / 3).max(1));
    }
    if offset + (bytes.len() as u64) < size {
        bytes.truncate(part_length(&bytes));
    }

    let next = offset + bytes.len() as u64;
    let is_last = next >= size;
    let lines = count_lines(&bytes).max(1) as u64;
    Ok(v1::ReadFileResponse {
        content: if as_text {
            String::from_utf8_lossy(&bytes).into_owned()
        } else {
            BASE64_STANDARD.encode(bytes)
        },
        encoding: request.encoding().into(),
        truncated: !is_last,
        start_line: 1,
        end_line: saturating_u32(lines),
        size_bytes: size,
        next_path: if is_last { String::new() } else { format!("{name}@{next}") },
        ..v1::ReadFileResponse::default()
    })
}

/// Length of the part that starts with these bytes. The part ends after the last line ending.
/// Without one, it ends before an incomplete character.
fn part_length(bytes: &[u8]) -> usize {
    let line = memchr::memrchr(b'\n', bytes).map(|end| end + 1);
    line.unwrap_or_else(|| match str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() && error.valid_up_to() > 0 => error.valid_up_to(),
        Ok(_) | Err(_) => bytes.len(),
    })
}

/// Reads an excerpt of an artifact. Command output need not be UTF-8: as in the response of the
/// command, U+FFFD replaces each invalid byte.
fn read_lossy_excerpt(
    file: &RegularFile,
    request: &v1::ReadFileRequest,
    cancel: &CancelToken,
) -> Result<v1::ReadFileResponse, Error> {
    match read_excerpt(file, request, cancel) {
        Err(error) if error.reason == Reason::BinaryFile => {}
        result => return result,
    }

    let max_bytes = request.max_bytes.unwrap_or(DEFAULT_RESPONSE_BYTES);
    let mut request = request.clone();
    request.set_encoding(v1::Encoding::Base64);
    // U+FFFD takes three bytes.
    request.max_bytes = Some((max_bytes / 3).max(1));
    let mut response = read_excerpt(file, &request, cancel)?;
    let bytes = BASE64_STANDARD.decode(&response.content).map_err(Error::internal)?;
    response.content = String::from_utf8_lossy(&bytes).into_owned();
    response.set_encoding(v1::Encoding::Utf8);
    Ok(response)
}

/// Reads the requested lines of a file.
fn read_excerpt(
    file: &RegularFile,
    request: &v1::ReadFileRequest,
    cancel: &CancelToken,
) -> Result<v1::ReadFileResponse, Error> {
    let as_text = request.encoding() != v1::Encoding::Base64;
    let max_bytes = request.max_bytes.unwrap_or(DEFAULT_RESPONSE_BYTES).max(1);
    let options = ReadOptions {
        lines: line_range(request)?,
        max_bytes: usize::try_from(max_bytes).unwrap_or(usize::MAX),
        require_utf8: as_text,
    };

    let excerpt = FileExcerpt::read(file, options, cancel)?;
    let (total_lines, sha256) = excerpt
        .totals
        .map_or((0, String::new()), |totals| (totals.total_lines, to_hex(&totals.sha256)));
    let (encoding, content) = if as_text {
        (v1::Encoding::Utf8, String::from_utf8(excerpt.content).map_err(Error::internal)?)
    } else {
        (v1::Encoding::Base64, BASE64_STANDARD.encode(excerpt.content))
    };
    Ok(v1::ReadFileResponse {
        content,
        encoding: encoding.into(),
        truncated: excerpt.truncated,
        omitted_lines: saturating_u32(excerpt.omitted_lines),
        total_lines: saturating_u32(total_lines),
        start_line: saturating_u32(excerpt.start_line),
        end_line: saturating_u32(excerpt.end_line),
        size_bytes: excerpt.size,
        sha256,
        next_path: String::new(),
    })
}

/// First and last line to read, counted from 1; `None` for the whole file.
fn line_range(request: &v1::ReadFileRequest) -> Result<Option<(u64, u64)>, Error> {
    if request.start_line.is_none() && request.end_line.is_none() {
        return Ok(None);
    }

    let first = request.start_line.unwrap_or(1).max(1);
    let last = request.end_line.map_or(u64::MAX, u64::from);
    if last < u64::from(first) {
        return Err(Error::invalid_field(
            "end_line",
            format!("must not be before start_line, which is {first}"),
        ));
    }
    Ok(Some((first.into(), last)))
}

/// A number of lines for the wire. Only a file with more than 4 GiB of line endings exceeds it.
fn saturating_u32(lines: u64) -> u32 {
    u32::try_from(lines).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
