//! The dialect of DraCode: five tools that respond with a text, even for errors. Source: its "Tool
//! Specifications".

use std::ops::ControlFlow;

use serde_json::json;

use super::{
    definition::{
        BASE_DIALECT, CanonicalCall, CanonicalTools, Dialect, DialectResponseFuture, DialectTool,
    },
    error_terms::FieldAliases,
    invocation::DialectInvocation,
    paging,
    parameter::{DialectParams, ParameterDefault, ParameterKind, ParameterSpec, UnknownParams},
    paths::{is_not_found, is_path_escape, join_relative, reject_drive_path},
    response::{DialectResponse, MAX_RESULT_TEXT_BYTES, ResponseData, error_code, join_lines},
};
use crate::daemon::error::{Error, Reason};

/// Most bytes of text in a result: more than is read of a file, because invalid bytes expand.
const MAX_TEXT_BYTES: usize = MAX_RESULT_TEXT_BYTES / 8 * 9;
/// Files per page of a listing, and most pages. A model can read no more.
const FILES_PER_PAGE: u32 = 10_000;
const MAX_PAGES: usize = 10;
/// Most matches of a search: the limit of the contract.
const MAX_MATCHES: u32 = 10_000;
/// Binary files, which searches skip.
const BINARY_GLOBS: [&str; 7] = [
    "*.[pP][nN][gG]",
    "*.[jJ][pP][gG]",
    "*.[jJ][pP][eE][gG]",
    "*.[gG][iI][fF]",
    "*.[bB][mM][pP]",
    "*.[pP][dD][fF]",
    "*.[zZ][iI][pP]",
];

pub(super) const DIALECT: Dialect = Dialect {
    name: "dracode",
    tools: &[
        DialectTool {
            name: "list_files",
            description: "List files in a directory with optional recursive search.",
            parameters: &[
                ParameterSpec::new(
                    "directory",
                    ParameterKind::String,
                    "Optional path relative to workspace root to list files from",
                ),
                ParameterSpec::new("recursive", ParameterKind::Bool, "List files recursively")
                    .with_default(ParameterDefault::Bool(false)),
            ],
            uses: &["list_files"],
            call: list_files,
        },
        DialectTool {
            name: "read_file",
            description: "Read the contents of a file in the workspace.",
            parameters: &[FILE_PARAM.required()],
            uses: &["read_file"],
            call: read_file,
        },
        DialectTool {
            name: "write_file",
            description: "Create or overwrite a file with text content.",
            parameters: &[
                FILE_PARAM.required(),
                ParameterSpec::new(
                    "content",
                    ParameterKind::String,
                    "Text content to write to the file",
                )
                .required()
                .redacted(),
                ParameterSpec::new(
                    "create_directories",
                    ParameterKind::Bool,
                    "Create directories if they do not exist",
                )
                .with_default(ParameterDefault::Bool(true)),
            ],
            uses: &["write_file"],
            call: write_file,
        },
        DialectTool {
            name: "search_code",
            description: "Search for text or regex patterns in files with line numbers.",
            parameters: &[
                ParameterSpec::new("query", ParameterKind::String, "Text or regex to search for")
                    .required(),
                ParameterSpec::new(
                    "directory",
                    ParameterKind::String,
                    "Optional subdirectory relative to workspace root to search in",
                ),
                ParameterSpec::new(
                    "pattern",
                    ParameterKind::String,
                    "Optional file glob pattern (e.g., *.cs)",
                )
                .with_default(ParameterDefault::String("*")),
                ParameterSpec::new("recursive", ParameterKind::Bool, "Search recursively")
                    .with_default(ParameterDefault::Bool(true)),
                ParameterSpec::new(
                    "regex",
                    ParameterKind::Bool,
                    "Treat query as regular expression",
                )
                .with_default(ParameterDefault::Bool(false)),
                ParameterSpec::new("case_sensitive", ParameterKind::Bool, "Case sensitive search")
                    .with_default(ParameterDefault::Bool(false)),
            ],
            uses: &["search"],
            call: search_code,
        },
        DialectTool {
            name: "run_command",
            description: "Execute a command, without a shell, with timeout and output capture.",
            parameters: &[
                ParameterSpec::new(
                    "command",
                    ParameterKind::String,
                    "Executable or shell command to run",
                )
                .required(),
                ParameterSpec::new("arguments", ParameterKind::String, "Optional arguments string"),
                ParameterSpec::new(
                    "timeout_seconds",
                    ParameterKind::Number(0.001, 86_400.0),
                    "Optional timeout in seconds",
                )
                .with_default(ParameterDefault::Integer(120)),
            ],
            uses: &["run"],
            call: run_command,
        },
    ],
    unknown_params: UnknownParams::Ignore,
    closed_schemas: false,
    render_error,
    marks_errors: false,
    render_custom_tool: Some(command_response),
    ..BASE_DIALECT
};

const FILE_PARAM: ParameterSpec = ParameterSpec::new(
    "file_path",
    ParameterKind::String,
    "Path to the file relative to workspace root",
);
/// The dialect's names of the contract's fields.
const FILE_ALIASES: FieldAliases = &[("path", "file_path")];

fn list_files(params: DialectParams, tools: &mut dyn CanonicalTools) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let directory = params.text("directory").unwrap_or(".");
        reject_drive_path(directory)?;

        let depth = (!params.flag("recursive")).then_some(1);
        let call = CanonicalCall::new(
            "list_files",
            json!({ "root": directory, "max_depth": depth, "max_results": FILES_PER_PAGE }),
        )
        .with_aliases(&[("root", "directory")]);

        let mut lines = Vec::new();
        let is_complete = paging::for_each_page(tools, call, MAX_PAGES, |page| {
            lines.extend(page.texts("files").map(|file| join_relative(directory, file)));
            ControlFlow::Continue(())
        })
        .await?;

        let response = DialectResponse::text(lines.join("\n"));
        Ok(if is_complete {
            response
        } else {
            response.truncated(format!("these are the first {} files", lines.len()))
        })
    })
}

fn read_file(params: DialectParams, tools: &mut dyn CanonicalTools) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let path = params.str("file_path");
        reject_drive_path(path)?;

        // Binary content is returned as text too.
        let call = CanonicalCall::new(
            "read_file",
            json!({
                "path": path,
                "encoding": "ENCODING_BASE64",
                // A range from the first line on: without one, a long file loses its middle.
                "start_line": 1,
                "max_bytes": MAX_RESULT_TEXT_BYTES,
            }),
        )
        .with_aliases(FILE_ALIASES);
        let file = tools.call(call).await?;

        let bytes = file.bytes("content")?;
        let (mut content, mut shown) = (decode_text(&bytes), bytes.len());
        if content.len() > MAX_TEXT_BYTES {
            // An invalid byte expands to three bytes.
            shown = MAX_RESULT_TEXT_BYTES / 3;
            content = decode_text(bytes.get(..shown).unwrap_or(&bytes));
        }
        let is_truncated = file.is_cut() || shown < bytes.len();
        let total = file.count("size_bytes");

        let response = DialectResponse::text(file.append_next_part(&content));
        Ok(if is_truncated {
            response.truncated(format!("these are the first {shown} of {total} bytes"))
        } else {
            response
        })
    })
}

/// File content as text, without a byte order mark.
fn decode_text(bytes: &[u8]) -> String {
    let content = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    String::from_utf8_lossy(content).into_owned()
}

fn write_file(
    mut params: DialectParams,
    tools: &mut dyn CanonicalTools,
) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let content = params.take("content");
        let path = params.str("file_path");
        reject_drive_path(path)?;

        let call = CanonicalCall::new(
            "write_file",
            json!({
                "path": path,
                "content": content,
                "create_directories": params.flag("create_directories"),
            }),
        )
        .with_aliases(FILE_ALIASES);
        tools.call(call).await?;
        Ok(DialectResponse::text("OK"))
    })
}

fn search_code(params: DialectParams, tools: &mut dyn CanonicalTools) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let directory = params.text("directory").unwrap_or(".");
        reject_drive_path(directory)?;

        let pattern = params.text("pattern").filter(|pattern| *pattern != "*");
        let call = CanonicalCall::new(
            "search",
            json!({
                "query": params.str("query"),
                "path": directory,
                "globs": pattern.into_iter().collect::<Vec<_>>(),
                "exclude_globs": BINARY_GLOBS,
                "max_depth": (!params.flag("recursive")).then_some(1),
                "is_regex": params.flag("regex"),
                "case_sensitive": params.flag("case_sensitive"),
                "context_lines": 0,
                "max_results": MAX_MATCHES,
                "hidden": true,
                "no_ignore": true,
            }),
        )
        .with_aliases(&[("path", "directory"), ("globs[0]", "pattern")]);
        let results = tools.call(call).await?;

        let lines: Vec<String> =
            results.objects("matches").map(|found| format_match(&found)).collect();
        let (shown, total) = (lines.len() as u64, results.count("total_matches"));
        let response = DialectResponse::text(lines.join("\n"));
        Ok(if results.flag("timed_out") {
            response.truncated("the search timed out: these were found until then".to_owned())
        } else if total > shown {
            response.truncated(format!("these are the first {shown} of {total} matches"))
        } else {
            response
        })
    })
}

fn format_match(found: &ResponseData) -> String {
    let (file, line) = (found.text("file"), found.count("line"));
    format!("{file}:{line}: {}", found.text("content"))
}

fn run_command(params: DialectParams, tools: &mut dyn CanonicalTools) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let mut argv = vec![params.str("command").to_owned()];
        argv.extend(split_arguments(params.str("arguments")));
        let timeout = params.seconds("timeout_seconds");
        let call = CanonicalCall::new("run", json!({ "argv": argv }))
            .with_aliases(&[("argv[0]", "command"), ("argv", "arguments")])
            .with_timeout(timeout);

        let result = tools.call(call).await?;
        Ok(command_response(&result))
    })
}

/// The output of a command. It is the result, whatever the exit code.
fn command_response(result: &ResponseData) -> DialectResponse {
    if result.text("outcome") == "OUTCOME_TIMED_OUT" {
        return error_response("timeout", "Error: Process timed out");
    }
    DialectResponse::text(join_lines(result.text("stdout"), result.text("stderr")))
}

/// Splits an arguments string as .NET does for `ProcessStartInfo.Arguments`.
///
/// Blanks outside double quotes separate arguments. Two backslashes before a double quote stand for
/// one; a remaining one makes the quote literal. Two double quotes within quotes stand for one.
fn split_arguments(arguments: &str) -> Vec<String> {
    let mut split = Vec::new();
    let mut argument: Option<String> = None;
    let mut is_quoted = false;
    let mut rest = arguments.chars().peekable();
    while let Some(character) = rest.next() {
        match character {
            ' ' | '\t' if !is_quoted => split.extend(argument.take()),
            '\\' => {
                let mut backslashes = 1;
                while rest.next_if_eq(&'\\').is_some() {
                    backslashes += 1;
                }

                let argument = argument.get_or_insert_default();
                if rest.peek() == Some(&'"') {
                    argument.extend(std::iter::repeat_n('\\', backslashes / 2));
                    if backslashes % 2 == 1 {
                        argument.extend(rest.next());
                    }
                } else {
                    argument.extend(std::iter::repeat_n('\\', backslashes));
                }
            }
            '"' if is_quoted && rest.next_if_eq(&'"').is_some() => {
                argument.get_or_insert_default().push('"');
            }
            '"' => {
                is_quoted = !is_quoted;
                argument.get_or_insert_default();
            }
            character => argument.get_or_insert_default().push(character),
        }
    }
    split.extend(argument);
    split
}

fn render_error(invocation: &DialectInvocation, error: &Error) -> DialectResponse {
    let code = error_code(error);
    let workspace = &invocation.mount_path;
    let takes_directory = matches!(invocation.tool.as_str(), "list_files" | "search_code");
    if is_path_escape(error) {
        let what = if takes_directory { "Directory" } else { "File" };
        let text = format!("Error: Access denied. {what} must be in {workspace}");
        return error_response(&code, text);
    }

    let directory = match invocation.text("directory") {
        "" => ".",
        directory => directory,
    };
    let file = invocation.text("file_path");
    let is_directory = error.reason == Reason::NotAFile;
    let text = match invocation.tool.as_str() {
        "list_files" | "search_code"
            if is_not_found(error) || error.reason == Reason::NotADirectory =>
        {
            format!("Error: Directory not found: {directory}")
        }
        "search_code" => format!("Error searching code: {error}"),
        "read_file" if is_not_found(error) => {
            format!("Error reading file: Could not find file '{file}'")
        }
        "read_file" if is_directory => {
            format!("Error reading file: Access to the path '{file}' is denied.")
        }
        "read_file" => format!("Error reading file: {error}"),
        "write_file" if is_not_found(error) => {
            let parent = file.rsplit_once('/').map_or(".", |(parent, _)| parent);
            format!("Error: Directory does not exist: {parent}")
        }
        "write_file" if is_directory => {
            format!("Error writing file: Access to the path '{file}' is denied.")
        }
        "write_file" => format!("Error writing file: {error}"),
        "run_command" if is_start_failure(error) => "Error: Failed to start process".to_owned(),
        "run_command" => format!("Error running command: {error}"),
        _ => format!("Error: {error}"),
    };
    error_response(&code, text)
}

fn is_start_failure(error: &Error) -> bool {
    matches!(error.reason, Reason::SandboxError | Reason::SandboxUnavailable)
}

/// A failure whose text goes to the model unchanged.
fn error_response(code: &str, text: impl Into<String>) -> DialectResponse {
    let text = text.into();
    DialectResponse::text(text.clone()).with_failure(code, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_split_as_dotnet_does() {
        for (text, arguments) in [
            ("", vec![]),
            ("build --no-restore", vec!["build", "--no-restore"]),
            ("  a \t b  ", vec!["a", "b"]),
            (r#""a b" c"#, vec!["a b", "c"]),
            (r#"a"b c"d"#, vec!["ab cd"]),
            (r#""" x"#, vec!["", "x"]),
            (r#""a ""b"" c""#, vec![r#"a "b" c"#]),
            (r#"\"a\" b"#, vec![r#""a""#, "b"]),
            (r#""a\\" b"#, vec![r"a\", "b"]),
            (r#"\\\"a"#, vec![r#"\"a"#]),
            (r"C:\dir\ x", vec![r"C:\dir\", "x"]),
            ("'a b'", vec!["'a", "b'"]),
            (r#""open to the end"#, vec!["open to the end"]),
            ("$(touch x); `y`", vec!["$(touch", "x);", "`y`"]),
        ] {
            assert_eq!(split_arguments(text), arguments, "{text}");
        }
    }
}
