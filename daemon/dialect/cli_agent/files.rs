//! Files and directories.

use std::{fmt::Write as _, time::Instant};

use serde_json::{Value as Json, json};

use super::{
    super::{
        definition::{CanonicalCall, CanonicalTools, DialectResponseFuture},
        invocation::DialectInvocation,
        parameter::DialectParams,
        paths::reject_drive_path,
        response::DialectResponse,
    },
    output::{CliOutput, failure_response},
};
use crate::daemon::error::{Error, Reason};

/// Largest file that is written: 10 MB.
const MAX_WRITE_BYTES: usize = 10 << 20;
/// Most bytes of a file in one result: as text and as data they fit into a message, so that no lines are missing in the
/// middle.
const MOST_READ: usize = 1 << 20;
/// Bytes of a file that is no text that are shown.
const BINARY_PREVIEW_BYTES: usize = 1024;
/// Bytes in a line of these.
const HEX_BYTES_PER_LINE: usize = 16;
/// Entries of a page of a directory.
const PAGE_ENTRIES: u32 = 1000;
/// Longest text that an error repeats.
const MAX_QUOTED_CHARS: usize = 100;

pub(super) fn create(
    mut params: DialectParams,
    tools: &mut dyn CanonicalTools,
) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let since = Instant::now();
        let content = params.take("content");
        let path = params.str("path");
        reject_drive_path(path)?;
        let bytes = content.as_str().map_or(0, str::len);
        if bytes > MAX_WRITE_BYTES {
            let text = format!("Content of {bytes} bytes is too large (limit 10MB)");
            let suggestion = "Create the file with less, and add the rest by other means";
            return Ok(failure_response(since, "content_too_large", &text, suggestion, Json::Null));
        }
        let call = CanonicalCall::new(
            "write_file",
            json!({ "path": path, "content": content, "mode": "WRITE_MODE_CREATE_NEW" }),
        );
        let written = tools.call(call).await?;
        let bytes = written.count("bytes_written");
        let output = CliOutput {
            output: format!("Created file: {path} ({bytes} bytes)"),
            files_affected: vec![path.to_owned()],
            ..CliOutput::default()
        };
        Ok(output.into_response(since))
    })
}

pub(super) fn read(
    params: DialectParams,
    tools: &mut dyn CanonicalTools,
) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let since = Instant::now();
        let path = params.str("path");
        reject_drive_path(path)?;
        // From the first line on: a long file is read whole, too.
        let from = params.integer("start_line").unwrap_or(1);
        let to = params.integer("end_line");
        let is_backwards = to.is_some_and(|to| to < from);
        let call = CanonicalCall::new(
            "read_file",
            match is_backwards {
                // To say how many lines there are.
                true => json!({ "path": path, "start_line": 1, "max_bytes": 1 }),
                false => json!({
                    "path": path,
                    "start_line": from,
                    "end_line": to,
                    "max_bytes": MOST_READ,
                }),
            },
        );
        let read = match tools.call(call).await {
            Err(error) if error.reason == Reason::BinaryFile => {
                return preview_binary(path, since, tools).await;
            }
            read => read?,
        };
        if is_backwards {
            let lines = read.count("total_lines").to_string();
            let error = Error::new(Reason::LineRangeInvalid, "end_line is before start_line");
            return Err(error.with_metadata("total_lines", lines));
        }
        let (first, mut last) = (read.count("start_line"), read.count("end_line"));
        let whole = read.content();
        let mut content = whole.as_str();
        let bytes = read.count("size_bytes");
        let mut warnings = Vec::new();
        if read.flag("truncated") && read.text("next_path").is_empty() {
            let shown = match content.rfind('\n') {
                Some(end) => {
                    // The last line may not be whole.
                    last -= u64::from(end + 1 < content.len());
                    content = content.get(..=end).unwrap_or(content);
                    format!(
                        "showing lines {first}-{last}, ask for more with start_line {}",
                        last + 1
                    )
                }
                None => format!(
                    "showing the first {} bytes of line {first}, which is longer",
                    content.len()
                ),
            };
            warnings.push(format!("Warning: File is {bytes} bytes, {shown}"));
        }
        let lines = match read.count("total_lines") {
            0 => 0,
            _ => (last + 1).saturating_sub(first),
        };
        let output = CliOutput {
            output: format!("Contents of {path} (lines {first}-{last}):\n{content}"),
            metadata: json!({
                "total_lines": read.count("total_lines"),
                "lines_returned": lines,
                "file_size_bytes": bytes,
            }),
            warnings,
            ..CliOutput::default()
        };
        Ok(DialectResponse { is_truncated: read.flag("truncated"), ..output.into_response(since) })
    })
}

/// The beginning of a file that is no text.
async fn preview_binary(
    path: &str,
    since: Instant,
    tools: &mut dyn CanonicalTools,
) -> Result<DialectResponse, Error> {
    let call = CanonicalCall::new(
        "read_file",
        json!({ "path": path, "encoding": "ENCODING_BASE64", "max_bytes": BINARY_PREVIEW_BYTES }),
    );
    let read = tools.call(call).await?;
    let bytes = read.bytes("content")?;
    let output = CliOutput {
        heading: Some("Warning: File appears to be binary, displaying first 1KB as hex"),
        output: hex_dump(&bytes),
        metadata: json!({ "is_binary": true, "file_size_bytes": read.count("size_bytes") }),
        ..CliOutput::default()
    };
    Ok(output.into_response(since))
}

fn hex_dump(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (number, line) in bytes.chunks(HEX_BYTES_PER_LINE).enumerate() {
        // Writing to a text does not fail.
        let _written = write!(text, "{:08x} ", number * HEX_BYTES_PER_LINE);
        for byte in line {
            let _written = write!(text, " {byte:02x}");
        }
        text.push('\n');
    }
    text
}

pub(super) fn replace(
    mut params: DialectParams,
    tools: &mut dyn CanonicalTools,
) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let since = Instant::now();
        let (old, new) = (params.take("old_string"), params.take("new_string"));
        if old.as_str().is_none_or(str::is_empty) {
            return Err(Error::invalid_field("old_string", "must not be empty"));
        }
        let path = params.str("path");
        reject_drive_path(path)?;
        let edit = json!({
            "old_string": old,
            "new_string": new,
            "occurrence": "OCCURRENCE_FIRST",
        });
        let call = CanonicalCall::new("edit_file", json!({ "path": path, "edits": [edit] }))
            .with_aliases(&[("edits[0].", "")]);
        let mut edited = tools.call(call).await?.objects("edits").next().unwrap_or_default();
        let found = edited.count("occurrences_found");
        let line = edited.list("lines_changed").first().and_then(Json::as_u64);
        let warning = (found > 1).then(|| {
            format!(
                "Warning: Found {found} occurrences, replaced only the first at line {}",
                line.unwrap_or_default()
            )
        });
        let output = CliOutput {
            output: format!("Replaced 1 occurrence in {path}"),
            files_affected: vec![path.to_owned()],
            metadata: json!({
                "occurrences_found": found,
                "occurrences_replaced": edited.count("replacements"),
                "lines_changed": edited.take("lines_changed"),
            }),
            warnings: warning.into_iter().collect(),
            ..CliOutput::default()
        };
        Ok(output.into_response(since))
    })
}

pub(super) fn list(
    params: DialectParams,
    tools: &mut dyn CanonicalTools,
) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let since = Instant::now();
        let path = params.str("path");
        reject_drive_path(path)?;
        let call = CanonicalCall::new(
            "list_dir",
            json!({
                "path": path,
                "page_size": PAGE_ENTRIES,
                "page_token": params.text("page_token"),
            }),
        );
        let listed = tools.call(call).await?;
        let (mut files, mut directories) = (String::new(), String::new());
        for entry in listed.objects("entries") {
            let name = entry.text("name");
            match entry.text("type") {
                "FILE_TYPE_DIRECTORY" => directories.push_str(&format!("  {name}/\n")),
                _ => files.push_str(&format!("  {name}\n")),
            }
        }
        let place = match path {
            "." => ".".to_owned(),
            path if path.starts_with(['/', '.']) => path.to_owned(),
            path => format!("./{path}"),
        };
        let (of_files, of_directories) =
            (listed.count("file_count"), listed.count("directory_count"));
        let mut metadata = json!({
            "total_entries": of_files + of_directories,
            "files": of_files,
            "directories": of_directories,
        });
        let next = listed.text("next_page_token");
        let mut warnings = Vec::new();
        if !next.is_empty() {
            metadata["next_page_token"] = next.into();
            let text =
                format!("Warning: Showing {PAGE_ENTRIES} entries, ask for more with page_token");
            warnings.push(text);
        }
        let output = CliOutput {
            output: format!("Contents of {place}:\n{files}{directories}"),
            metadata,
            warnings,
            ..CliOutput::default()
        };
        Ok(output.into_response(since))
    })
}

pub(super) fn create_directory(
    params: DialectParams,
    tools: &mut dyn CanonicalTools,
) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let since = Instant::now();
        let path = params.str("path");
        reject_drive_path(path)?;
        let made =
            tools.call(CanonicalCall::new("create_directory", json!({ "path": path }))).await?;
        let created = made.list("created");
        let parents = created.len().saturating_sub(1);
        let is_new = !created.is_empty();
        let output = CliOutput {
            output: match is_new {
                true => format!("Created directory: {path}"),
                false => format!("Directory already exists: {path}"),
            },
            files_affected: is_new.then(|| path.to_owned()).into_iter().collect(),
            metadata: json!({ "created_parents": created.get(..parents) }),
            ..CliOutput::default()
        };
        Ok(output.into_response(since))
    })
}

/// What its tools say of an error, and what to do about it.
pub(super) fn explain_error(
    tool: &str,
    path: &str,
    invocation: &DialectInvocation,
    error: &Error,
) -> Option<(String, &'static str)> {
    let metadata_value = |name: &str| {
        let mut metadata = error.metadata.iter();
        let found = metadata.find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value.as_str())
    };
    let is = |reason| error.reason == reason;
    let is_in_the_way = is(Reason::FileExists) || is(Reason::NotADirectory) || is(Reason::NotAFile);
    let denied = is(Reason::PermissionDenied);
    let other_path = "Use another path";
    Some(match tool {
        "create_file" if is(Reason::FileNotFound) => (
            // Directories are made: only a name that is too long cannot be there.
            format!("Cannot create file '{path}' - the name is too long"),
            "Use a shorter name",
        ),
        "create_file" if is(Reason::FileExists) => (
            format!("File '{path}' already exists. Use replace_string_in_file to modify"),
            "Use replace_string_in_file to modify it, or choose another name",
        ),
        "create_file" if denied => {
            (format!("Cannot create file '{path}' - permission denied"), other_path)
        }
        "read_file" if is(Reason::LineRangeInvalid) => {
            let lines = metadata_value("total_lines");
            let first = invocation.number("start_line", 1.0);
            let last = match invocation.number("end_line", 0.0) {
                0.0 => String::new(),
                last => last.to_string(),
            };
            (
                format!("Line range invalid - file has {lines} lines, requested {first}-{last}"),
                "Ask for lines that the file has",
            )
        }
        "replace_string_in_file" if is(Reason::StringNotFound) => {
            let old: String =
                invocation.text("old_string").chars().take(MAX_QUOTED_CHARS).collect();
            (
                format!("String '{old}' not found in file"),
                "Read the file to see what it holds, and use a string that is there",
            )
        }
        "list_dir" if is(Reason::NotADirectory) => {
            (format!("Path '{path}' is not a directory"), "Use read_file to read a file")
        }
        "list_dir" if denied => {
            ("Cannot list directory - permission denied".to_owned(), other_path)
        }
        "create_directory" if is_in_the_way => (
            format!("Path '{path}' exists as a file, cannot create directory"),
            "Choose another name",
        ),
        "create_directory" if denied => {
            ("Cannot create directory - permission denied".to_owned(), other_path)
        }
        _ if is(Reason::NotAFile) => {
            (format!("Path '{path}' is not a regular file"), "Use list_dir to see what is there")
        }
        _ => return None,
    })
}
