//! `read_file`: a file of the workspace, whole or by lines.
//!
//! [`Excerpt`] reads; this file translates what is asked for and what is answered.

use base64::{Engine as _, prelude::BASE64_STANDARD};

use super::{
    Tool, ToolContext, ToolOutput, WorkspaceContext, run_on_files,
    session_artifacts::SessionArtifacts,
};
use crate::{
    api::v1,
    daemon::{
        checksum::to_hex,
        error::{Error, Reason, Violation},
        workspace::{CancelToken, FileExcerpt, ReadOptions, RegularFile},
    },
};

/// Bytes to answer with when a request says nothing about it.
const DEFAULT_RESPONSE_BYTES: u32 = 3 << 20;

/// Most bytes of an artifact in one answer, where no lines are asked for. As JSON in JSON they still fit into a message.
const PART_BYTES: u64 = 512 << 10;

/// Largest file that is read without a thread that may block, where the kernel has it in memory.
const MAX_NONBLOCKING_READ_BYTES: usize = 64 << 10;

/// The tool.
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
        // Handing the work to a thread that may block costs two wake-ups, more than the work.
        if let Some(file) =
            context.workspace_context.workspace.open_file_cached(&path, MAX_NONBLOCKING_READ_BYTES)
        {
            return read_excerpt(&file, &request, &CancelToken::new()).map(ToolOutput::new);
        }
        let artifacts = SessionArtifacts::for_call(&context);
        run_on_files(context, move |workspace, stop| match workspace.open_file(&path) {
            Ok(file) => read_excerpt(&file, &request, stop),
            Err(error) => {
                let (name, offset) =
                    SessionArtifacts::part(path.as_str()).unwrap_or((path.as_str(), 0));
                let file = artifacts.open_fallback(name, error)?;
                let has_range = request.start_line() > 1 || request.end_line.is_some();
                let most = u64::from(request.max_bytes.unwrap_or(DEFAULT_RESPONSE_BYTES));
                let is_long = file.size() > most.min(PART_BYTES);
                match offset > 0 || is_long && !has_range {
                    true => part(&file, name, offset, &request),
                    false => read_artifact(&file, &request, stop),
                }
            }
        })
        .await
    }
}

/// Answers a part of an artifact, up to the end of a line if it has one.
fn part(
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
    let most = u64::from(request.max_bytes.unwrap_or(DEFAULT_RESPONSE_BYTES)).clamp(1, PART_BYTES);
    let length = usize::try_from(most).unwrap_or(usize::MAX);
    let mut bytes = file.bytes_at(offset, length)?;
    if as_text && str::from_utf8(&bytes).is_err_and(|error| error.error_len().is_some()) {
        // U+FFFD takes three bytes.
        bytes.truncate((bytes.len() / 3).max(1));
    }
    if offset + (bytes.len() as u64) < size {
        bytes.truncate(end_of_part(&bytes));
    }
    let next = offset + bytes.len() as u64;
    let is_unfinished = !bytes.ends_with(b"\n");
    let lines = memchr::memchr_iter(b'\n', &bytes).count() as u64 + u64::from(is_unfinished);
    Ok(v1::ReadFileResponse {
        content: match as_text {
            true => String::from_utf8_lossy(&bytes).into_owned(),
            false => BASE64_STANDARD.encode(bytes),
        },
        encoding: request.encoding().into(),
        truncated: next < size,
        start_line: 1,
        end_line: saturating_u32(lines),
        size_bytes: size,
        next_path: match next < size {
            true => format!("{name}@{next}"),
            false => String::new(),
        },
        ..v1::ReadFileResponse::default()
    })
}

/// Where a part ends, of which there are these bytes: behind its last line ending, else before a character that is not
/// whole.
fn end_of_part(bytes: &[u8]) -> usize {
    let line = memchr::memrchr(b'\n', bytes).map(|end| end + 1);
    line.unwrap_or_else(|| match str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() && error.valid_up_to() > 0 => error.valid_up_to(),
        Ok(_) | Err(_) => bytes.len(),
    })
}

/// Answers what is asked of an artifact. What a command writes need not be UTF-8: as in the answer of the command,
/// U+FFFD stands for each byte that is not.
fn read_artifact(
    file: &RegularFile,
    request: &v1::ReadFileRequest,
    stop: &CancelToken,
) -> Result<v1::ReadFileResponse, Error> {
    match read_excerpt(file, request, stop) {
        Err(error) if error.reason == Reason::BinaryFile => {}
        result => return result,
    }
    let most = request.max_bytes.unwrap_or(DEFAULT_RESPONSE_BYTES);
    let mut request = request.clone();
    request.set_encoding(v1::Encoding::Base64);
    // U+FFFD takes three bytes.
    request.max_bytes = Some((most / 3).max(1));
    let mut response = read_excerpt(file, &request, stop)?;
    let bytes = BASE64_STANDARD.decode(&response.content);
    let bytes = bytes.map_err(Error::internal)?;
    response.content = String::from_utf8_lossy(&bytes).into_owned();
    response.set_encoding(v1::Encoding::Utf8);
    Ok(response)
}

/// Answers what is asked of a file.
fn read_excerpt(
    file: &RegularFile,
    request: &v1::ReadFileRequest,
    stop: &CancelToken,
) -> Result<v1::ReadFileResponse, Error> {
    let as_text = request.encoding() != v1::Encoding::Base64;
    let most = request.max_bytes.unwrap_or(DEFAULT_RESPONSE_BYTES).max(1);
    let wish = ReadOptions {
        lines: line_range(request)?,
        max_bytes: usize::try_from(most).unwrap_or(usize::MAX),
        require_utf8: as_text,
    };
    let excerpt = FileExcerpt::read(file, wish, stop)?;
    let (total_lines, sha256) = excerpt
        .totals
        .map_or((0, String::new()), |whole| (whole.total_lines, to_hex(&whole.sha256)));
    Ok(v1::ReadFileResponse {
        content: match as_text {
            true => String::from_utf8(excerpt.content).map_err(Error::internal)?,
            false => BASE64_STANDARD.encode(excerpt.content),
        },
        encoding: match as_text {
            true => v1::Encoding::Utf8,
            false => v1::Encoding::Base64,
        }
        .into(),
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

/// First and last line to read, counted from 1; none for the whole file.
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

/// A number of lines for the wire. Only a file of more than 4 GiB of line endings alone reaches the
/// limit.
fn saturating_u32(lines: u64) -> u32 {
    u32::try_from(lines).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
