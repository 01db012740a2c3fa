//! The dialect of the CLI agent (its "Tool API Contracts"). Every response, even for an error, has
//! a text for people and fields for programs.

mod fetch;
mod files;
mod output;
mod search;
mod terminal;

use serde_json::Value as Json;

use self::output::failure_response;
use super::{
    definition::{BASE_DIALECT, Dialect, DialectTool},
    invocation::DialectInvocation,
    parameter::{ParameterDefault, ParameterKind, ParameterSpec},
    paths::{is_link_within, is_not_found, is_path_escape},
    response::{DialectResponse, error_code},
};
use crate::daemon::error::{Error, Reason};

/// Error code of a path outside the workspace.
const PATH_OUTSIDE_CODE: &str = "path_outside_working_dir";

pub(super) const DIALECT: Dialect = Dialect {
    name: "cli_agent",
    tools: &[
        DialectTool {
            name: "create_file",
            description: "Create a new file with specified content",
            parameters: &[
                ParameterSpec::new(
                    "path",
                    ParameterKind::String,
                    "Relative path to the file to create",
                )
                .required(),
                ParameterSpec::new(
                    "content",
                    ParameterKind::String,
                    "Content to write to the file",
                )
                .required()
                .redacted(),
            ],
            uses: &["write_file"],
            call: files::create,
        },
        DialectTool {
            name: "read_file",
            description: "Read the contents of a file, optionally specifying line range",
            parameters: &[
                ParameterSpec::new(
                    "path",
                    ParameterKind::String,
                    "Relative path to the file to read",
                )
                .required(),
                ParameterSpec::new(
                    "start_line",
                    ParameterKind::Integer(1, u32::MAX as i64),
                    "Starting line number (1-indexed, optional)",
                ),
                ParameterSpec::new(
                    "end_line",
                    ParameterKind::Integer(1, u32::MAX as i64),
                    "Ending line number (1-indexed, inclusive, optional)",
                ),
            ],
            uses: &["read_file"],
            call: files::read,
        },
        DialectTool {
            name: "replace_string_in_file",
            description: "Replace a specific string in a file with new content",
            parameters: &[
                ParameterSpec::new(
                    "path",
                    ParameterKind::String,
                    "Relative path to the file to modify",
                )
                .required(),
                ParameterSpec::new(
                    "old_string",
                    ParameterKind::String,
                    "Exact string to find and replace",
                )
                .required()
                .redacted(),
                ParameterSpec::new("new_string", ParameterKind::String, "String to replace with")
                    .required()
                    .redacted(),
            ],
            uses: &["edit_file"],
            call: files::replace,
        },
        DialectTool {
            name: "list_dir",
            description: "List contents of a directory",
            parameters: &[
                ParameterSpec::new(
                    "path",
                    ParameterKind::String,
                    "Relative path to directory (default: current directory)",
                )
                .with_default(ParameterDefault::String(".")),
                ParameterSpec::new(
                    "page_token",
                    ParameterKind::String,
                    "next_page_token of the page before this one, where a directory has more than 1000 entries",
                ),
            ],
            uses: &["list_dir"],
            call: files::list,
        },
        DialectTool {
            name: "file_search",
            description: "Search for files matching a glob pattern",
            parameters: &[
                ParameterSpec::new(
                    "pattern",
                    ParameterKind::String,
                    "Glob pattern (e.g., '**/*.py', 'src/**/*.go')",
                )
                .required(),
                ParameterSpec::new(
                    "base_path",
                    ParameterKind::String,
                    "Base directory to search from (default: current directory)",
                )
                .with_default(ParameterDefault::String(".")),
            ],
            uses: &["list_files"],
            call: search::file_search,
        },
        DialectTool {
            name: "grep_search",
            description: "Search file contents for text or regex pattern",
            parameters: &[
                ParameterSpec::new(
                    "pattern",
                    ParameterKind::String,
                    "Text or regex pattern to search for",
                )
                .required(),
                ParameterSpec::new(
                    "is_regex",
                    ParameterKind::Bool,
                    "Whether pattern is regex (default: false)",
                )
                .with_default(ParameterDefault::Bool(false)),
                ParameterSpec::new(
                    "file_pattern",
                    ParameterKind::String,
                    "Glob pattern to limit files searched (default: all files)",
                ),
                ParameterSpec::new(
                    "max_results",
                    ParameterKind::Integer(1, 1000),
                    "Maximum number of results to return (default: 100)",
                )
                .with_default(ParameterDefault::Integer(100)),
            ],
            uses: &["search"],
            call: search::grep_search,
        },
        DialectTool {
            name: "run_in_terminal",
            description: "Execute a shell command",
            parameters: &[
                ParameterSpec::new("command", ParameterKind::String, "Shell command to execute")
                    .required(),
                ParameterSpec::new(
                    "timeout_seconds",
                    ParameterKind::Integer(1, 300),
                    "Timeout in seconds (default: 30)",
                )
                .with_default(ParameterDefault::Integer(30)),
            ],
            uses: &["run"],
            call: terminal::run,
        },
        DialectTool {
            name: "terminal_last_command",
            description: "Retrieve the last shell command that was executed",
            parameters: &[],
            uses: &["last_command"],
            call: terminal::last_command,
        },
        DialectTool {
            name: "create_directory",
            description: "Create a directory structure (equivalent to mkdir -p)",
            parameters: &[ParameterSpec::new(
                "path",
                ParameterKind::String,
                "Relative path to directory to create",
            )
            .required()],
            uses: &["create_directory"],
            call: files::create_directory,
        },
        DialectTool {
            name: "fetch_webpage",
            description: "Fetch content from a web page",
            parameters: &[
                ParameterSpec::new(
                    "url",
                    ParameterKind::String,
                    "URL to fetch (must be http or https)",
                )
                .required(),
                ParameterSpec::new(
                    "timeout_seconds",
                    ParameterKind::Integer(1, 60),
                    "Request timeout (default: 10)",
                )
                .with_default(ParameterDefault::Integer(10)),
            ],
            uses: &["fetch_url"],
            call: fetch::fetch_webpage,
        },
    ],
    closed_schemas: false,
    render_error,
    failure_code: terminal::failure_code,
    render_result: Some(output::flat_result),
    ..BASE_DIALECT
};

/// What the model sees of an error.
struct ErrorExplanation {
    code: String,
    output: String,
    /// `None` if the contract's suggestion applies.
    suggestion: Option<&'static str>,
}

impl ErrorExplanation {
    fn new(code: impl Into<String>, output: impl Into<String>, suggestion: &'static str) -> Self {
        Self { code: code.into(), output: output.into(), suggestion: Some(suggestion) }
    }
}

fn render_error(invocation: &DialectInvocation, error: &Error) -> DialectResponse {
    let ErrorExplanation { code, output, suggestion } = explain_error(invocation, error);
    let shown_suggestion = suggestion.unwrap_or_else(|| error.reason.suggestion());

    let mut response =
        failure_response(invocation.started, &code, &output, shown_suggestion, Json::Null);
    if suggestion.is_none()
        && let Some(failure) = &mut response.failure
    {
        failure.suggestion = None;
    }
    response
}

fn explain_error(invocation: &DialectInvocation, error: &Error) -> ErrorExplanation {
    let tool = invocation.tool.as_str();
    let path = match invocation.text("path") {
        "" => invocation.text("base_path"),
        path => path,
    };
    let code = error_code(error);

    if is_link_within(error) {
        return ErrorExplanation::new(
            code,
            format!("Path '{path}' is or passes through a symbolic link"),
            "Use the path that the link leads to",
        );
    }
    if is_path_escape(error) {
        return ErrorExplanation::new(
            PATH_OUTSIDE_CODE,
            format!("Path '{path}' is outside working directory"),
            "Use a path below the working directory",
        );
    }

    if error.reason == Reason::FileNotFound && !matches!(tool, "list_dir" | "create_file") {
        return ErrorExplanation::new(
            "file_not_found",
            format!("File '{path}' not found"),
            "Check the file name and try again, or use file_search to find it",
        );
    }
    if tool != "create_file" && is_not_found(error) {
        return ErrorExplanation::new(
            "directory_not_found",
            format!("Directory '{path}' not found"),
            "Check the directory name and try again, or use list_dir to find it",
        );
    }

    let of_tool = files::explain_error(tool, path, invocation, error)
        .or_else(|| search::explain_error(invocation, error));
    if let Some((output, suggestion)) = of_tool {
        return ErrorExplanation::new(code, output, suggestion);
    }

    if error.reason == Reason::NoCommandHistory {
        return ErrorExplanation::new(
            code,
            "No previous command in this session",
            "Run a command with run_in_terminal first",
        );
    }
    if error.reason == Reason::PermissionDenied {
        return ErrorExplanation::new(
            code,
            format!("Cannot access '{path}' - permission denied"),
            "Use another path",
        );
    }
    ErrorExplanation { code, output: error.to_string(), suggestion: None }
}
