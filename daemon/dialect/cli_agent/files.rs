//! The tools for files and directories.

use std::{fmt::Write as _, time::Instant};

use serde_json::{Value as Json, json};

use super::{
    super::{
        definition::{CanonicalCall, CanonicalTools, DialectResponseFuture},
        invocation::DialectInvocation,
        parameter::DialectParams,
        paths::reject_drive_path,
        response::{DialectResponse, ResponseData},
    },
    output::{CliOutput, failure_response},
};
use crate::daemon::error::{Error, Reason};

/// Most content of a file to create: 10 MB.
const MAX_WRITE_BYTES: usize = 10 << 20;
/// Most bytes of a file in one result. Twice as much, as text and as data, fits into a message, so
/// the result never lacks lines in the middle.
const MAX_READ_BYTES: usize = 1 << 20;
/// Bytes of a binary file in a preview.
const BINARY_PREVIEW_BYTES: usize = 1024;
const HEX_BYTES_PER_LINE: usize = 16;
/// Entries of a directory in one result.
const ENTRIES_PER_PAGE: u32 = 1000;
/// Characters of a parameter that an error quotes.
const MAX_QUOTED_CHARS: usize = 100;

pub(super) fn create(
    mut params: DialectParams,
    tools: &mut dyn CanonicalTools,
) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let started = Instant::now();
        let content = params.take("content");
        let path = params.str("path");
        reject_drive_path(path)?;

        let bytes = content.as_str().map_or(0, str::len);
        if bytes > MAX_WRITE_BYTES {
            let text = format!("Content of {bytes} bytes is too large (limit 10MB)");
            let suggestion = "Create the file with less, and add the rest by other means";
            let code = "content_too_large";
            return Ok(failure_response(started, code, &text, suggestion, Json::Null));
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
        Ok(output.into_response(started))
    })
}

pub(super) fn read(
    params: DialectParams,
    tools: &mut dyn CanonicalTools,
) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let started = Instant::now();
        let path = params.str("path");
        reject_drive_path(path)?;
        let first = params.integer("start_line").unwrap_or(1);
        let last = params.integer("end_line");
        let is_reversed = last.is_some_and(|last| last < first);

        let range = if is_reversed {
            // Reads as little as possible, to report the number of lines.
            json!({ "path": path, "start_line": 1, "max_bytes": 1 })
        } else {
            // Always a range: without one, a long file loses its middle.
            json!({
                "path": path,
                "start_line": first,
                "end_line": last,
                "max_bytes": MAX_READ_BYTES,
            })
        };
        let file = match tools.call(CanonicalCall::new("read_file", range)).await {
            Err(error) if error.reason == Reason::BinaryFile => {
                return preview_binary(path, started, tools).await;
            }
            file => file?,
        };
        if is_reversed {
            let lines = file.count("total_lines").to_string();
            let error = Error::new(Reason::LineRangeInvalid, "end_line is before start_line");
            return Err(error.with_metadata("total_lines", lines));
        }

        let is_truncated = file.flag("truncated");
        let response = render_lines(path, &file).into_response(started);
        Ok(DialectResponse { is_truncated, ..response })
    })
}

/// The lines of a file. Without the last one if it is incomplete, with a warning.
fn render_lines(path: &str, file: &ResponseData) -> CliOutput {
    let (first, mut last) = (file.count("start_line"), file.count("end_line"));
    let (bytes, total_lines) = (file.count("size_bytes"), file.count("total_lines"));
    let full = file.content();
    let mut content = full.as_str();

    let mut warnings = Vec::new();
    if file.is_cut() {
        let shown = match content.rfind('\n') {
            Some(end) => {
                last -= u64::from(end + 1 < content.len());
                content = content.get(..=end).unwrap_or(content);
                format!("showing lines {first}-{last}, ask for more with start_line {}", last + 1)
            }
            None => format!(
                "showing the first {} bytes of line {first}, which is longer",
                content.len()
            ),
        };
        warnings.push(format!("Warning: File is {bytes} bytes, {shown}"));
    }

    let lines_returned = match total_lines {
        0 => 0,
        _ => (last + 1).saturating_sub(first),
    };
    CliOutput {
        output: format!("Contents of {path} (lines {first}-{last}):\n{content}"),
        metadata: json!({
            "total_lines": total_lines,
            "lines_returned": lines_returned,
            "file_size_bytes": bytes,
        }),
        warnings,
        ..CliOutput::default()
    }
}

/// The response for a binary file: its beginning as hex.
async fn preview_binary(
    path: &str,
    started: Instant,
    tools: &mut dyn CanonicalTools,
) -> Result<DialectResponse, Error> {
    let call = CanonicalCall::new(
        "read_file",
        json!({ "path": path, "encoding": "ENCODING_BASE64", "max_bytes": BINARY_PREVIEW_BYTES }),
    );
    let file = tools.call(call).await?;
    let bytes = file.bytes("content")?;

    let output = CliOutput {
        heading: Some("Warning: File appears to be binary, displaying first 1KB as hex"),
        output: hex_dump(&bytes),
        metadata: json!({ "is_binary": true, "file_size_bytes": file.count("size_bytes") }),
        ..CliOutput::default()
    };
    Ok(output.into_response(started))
}

fn hex_dump(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (index, line) in bytes.chunks(HEX_BYTES_PER_LINE).enumerate() {
        // Writing to a `String` cannot fail.
        let _written = write!(text, "{:08x} ", index * HEX_BYTES_PER_LINE);
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
        let started = Instant::now();
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
        Ok(output.into_response(started))
    })
}

pub(super) fn list(
    params: DialectParams,
    tools: &mut dyn CanonicalTools,
) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let started = Instant::now();
        let path = params.str("path");
        reject_drive_path(path)?;

        let call = CanonicalCall::new(
            "list_dir",
            json!({
                "path": path,
                "page_size": ENTRIES_PER_PAGE,
                "page_token": params.text("page_token"),
            }),
        );
        let page = tools.call(call).await?;

        let (mut files, mut directories) = (String::new(), String::new());
        for entry in page.objects("entries") {
            let name = entry.text("name");
            match entry.text("type") {
                "FILE_TYPE_DIRECTORY" => directories.push_str(&format!("  {name}/\n")),
                _ => files.push_str(&format!("  {name}\n")),
            }
        }

        let shown_path = match path {
            "." => ".".to_owned(),
            path if path.starts_with(['/', '.']) => path.to_owned(),
            path => format!("./{path}"),
        };

        let (file_count, directory_count) =
            (page.count("file_count"), page.count("directory_count"));
        let mut metadata = json!({
            "total_entries": file_count + directory_count,
            "files": file_count,
            "directories": directory_count,
        });
        let mut warnings = Vec::new();
        let next = page.text("next_page_token");
        if !next.is_empty() {
            metadata["next_page_token"] = next.into();
            warnings.push(format!(
                "Warning: Showing {ENTRIES_PER_PAGE} entries, ask for more with page_token"
            ));
        }
        let output = CliOutput {
            output: format!("Contents of {shown_path}:\n{files}{directories}"),
            metadata,
            warnings,
            ..CliOutput::default()
        };
        Ok(output.into_response(started))
    })
}

pub(super) fn create_directory(
    params: DialectParams,
    tools: &mut dyn CanonicalTools,
) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let started = Instant::now();
        let path = params.str("path");
        reject_drive_path(path)?;
        let response =
            tools.call(CanonicalCall::new("create_directory", json!({ "path": path }))).await?;

        let created = response.list("created");
        let parents = created.len().saturating_sub(1);
        let is_new = !created.is_empty();
        let output = CliOutput {
            output: if is_new {
                format!("Created directory: {path}")
            } else {
                format!("Directory already exists: {path}")
            },
            files_affected: is_new.then(|| path.to_owned()).into_iter().collect(),
            metadata: json!({ "created_parents": created.get(..parents) }),
            ..CliOutput::default()
        };
        Ok(output.into_response(started))
    })
}

/// Message and suggestion for an error of these tools, if it has its own.
pub(super) fn explain_error(
    tool: &str,
    path: &str,
    invocation: &DialectInvocation,
    error: &Error,
) -> Option<(String, &'static str)> {
    let explanation = match tool {
        "create_file" => explain_create_error(path, error),
        "list_dir" | "create_directory" => explain_directory_error(tool, path, error),
        "read_file" if error.reason == Reason::LineRangeInvalid => {
            let total_lines = error.metadata.iter().find(|(name, _)| name == "total_lines");
            let lines = total_lines.map_or("", |(_, value)| value.as_str());
            let first = invocation.number("start_line", 1.0);
            let last = match invocation.number("end_line", 0.0) {
                0.0 => String::new(),
                last => last.to_string(),
            };
            Some((
                format!("Line range invalid - file has {lines} lines, requested {first}-{last}"),
                "Ask for lines that the file has",
            ))
        }
        "replace_string_in_file" if error.reason == Reason::StringNotFound => {
            let old: String =
                invocation.text("old_string").chars().take(MAX_QUOTED_CHARS).collect();
            Some((
                format!("String '{old}' not found in file"),
                "Read the file to see what it holds, and use a string that is there",
            ))
        }
        _ => None,
    };

    explanation.or_else(|| {
        let text = format!("Path '{path}' is not a regular file");
        (error.reason == Reason::NotAFile).then_some((text, "Use list_dir to see its entries"))
    })
}

fn explain_create_error(path: &str, error: &Error) -> Option<(String, &'static str)> {
    let is = |reason| error.reason == reason;
    if is(Reason::FileNotFound) {
        // Missing directories are created, so only a name that is too long is not found.
        Some((format!("Cannot create file '{path}' - the name is too long"), "Use a shorter name"))
    } else if is(Reason::FileExists) {
        Some((
            format!("File '{path}' already exists. Use replace_string_in_file to modify"),
            "Use replace_string_in_file to modify it, or choose another name",
        ))
    } else if is(Reason::PermissionDenied) {
        let text = format!("Cannot create file '{path}' - permission denied");
        Some((text, "Use another path"))
    } else {
        None
    }
}

fn explain_directory_error(
    tool: &str,
    path: &str,
    error: &Error,
) -> Option<(String, &'static str)> {
    let is = |reason| error.reason == reason;
    let verb = if tool == "list_dir" { "list" } else { "create" };

    if is(Reason::PermissionDenied) {
        Some((format!("Cannot {verb} directory - permission denied"), "Use another path"))
    } else if tool == "list_dir" && is(Reason::NotADirectory) {
        Some((format!("Path '{path}' is not a directory"), "Use read_file to read a file"))
    } else if tool == "create_directory"
        && (is(Reason::FileExists) || is(Reason::NotADirectory) || is(Reason::NotAFile))
    {
        Some((
            format!("Path '{path}' exists as a file, cannot create directory"),
            "Choose another name",
        ))
    } else {
        None
    }
}
