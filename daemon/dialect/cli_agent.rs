//! The CLI agent (its "Tool API Contracts"): its tools, answered by what people read and what programs do, also
//! where they failed.

mod fetch;
mod files;
mod output;
mod search;
mod terminal;

use serde_json::Value as Json;

use self::output::failed;
use super::{
    answer::{Answer, code_of},
    parameter::{Default, Kind, Parameter},
    place::{is_link_within, is_missing, is_outside},
    said::Said,
    vocabulary::{Dialect, DialectTool, PLAIN},
};
use crate::daemon::error::{Error, Reason};

/// What it calls a path outside of the workspace.
const OUTSIDE: &str = "path_outside_working_dir";

/// The vocabulary.
pub(super) const DIALECT: Dialect = Dialect {
    name: "cli_agent",
    tools: &[
        DialectTool {
            name: "create_file",
            description: "Create a new file with specified content",
            parameters: &[
                Parameter::new("path", Kind::Text, "Relative path to the file to create")
                    .required(),
                Parameter::new("content", Kind::Text, "Content to write to the file")
                    .required()
                    .hidden(),
            ],
            uses: &["write_file"],
            call: files::create,
        },
        DialectTool {
            name: "read_file",
            description: "Read the contents of a file, optionally specifying line range",
            parameters: &[
                Parameter::new("path", Kind::Text, "Relative path to the file to read").required(),
                Parameter::new(
                    "start_line",
                    Kind::Integer(1, u32::MAX as i64),
                    "Starting line number (1-indexed, optional)",
                ),
                Parameter::new(
                    "end_line",
                    Kind::Integer(1, u32::MAX as i64),
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
                Parameter::new("path", Kind::Text, "Relative path to the file to modify")
                    .required(),
                Parameter::new("old_string", Kind::Text, "Exact string to find and replace")
                    .required()
                    .hidden(),
                Parameter::new("new_string", Kind::Text, "String to replace with")
                    .required()
                    .hidden(),
            ],
            uses: &["edit_file"],
            call: files::replace,
        },
        DialectTool {
            name: "list_dir",
            description: "List contents of a directory",
            parameters: &[
                Parameter::new(
                    "path",
                    Kind::Text,
                    "Relative path to directory (default: current directory)",
                )
                .or(Default::Text(".")),
                Parameter::new(
                    "page_token",
                    Kind::Text,
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
                Parameter::new(
                    "pattern",
                    Kind::Text,
                    "Glob pattern (e.g., '**/*.py', 'src/**/*.go')",
                )
                .required(),
                Parameter::new(
                    "base_path",
                    Kind::Text,
                    "Base directory to search from (default: current directory)",
                )
                .or(Default::Text(".")),
            ],
            uses: &["list_files"],
            call: search::files,
        },
        DialectTool {
            name: "grep_search",
            description: "Search file contents for text or regex pattern",
            parameters: &[
                Parameter::new("pattern", Kind::Text, "Text or regex pattern to search for")
                    .required(),
                Parameter::new("is_regex", Kind::Flag, "Whether pattern is regex (default: false)")
                    .or(Default::Flag(false)),
                Parameter::new(
                    "file_pattern",
                    Kind::Text,
                    "Glob pattern to limit files searched (default: all files)",
                ),
                Parameter::new(
                    "max_results",
                    Kind::Integer(1, 1000),
                    "Maximum number of results to return (default: 100)",
                )
                .or(Default::Number(100)),
            ],
            uses: &["search"],
            call: search::contents,
        },
        DialectTool {
            name: "run_in_terminal",
            description: "Execute a shell command",
            parameters: &[
                Parameter::new("command", Kind::Text, "Shell command to execute").required(),
                Parameter::new(
                    "timeout_seconds",
                    Kind::Integer(1, 300),
                    "Timeout in seconds (default: 30)",
                )
                .or(Default::Number(30)),
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
            parameters: &[Parameter::new(
                "path",
                Kind::Text,
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
                Parameter::new("url", Kind::Text, "URL to fetch (must be http or https)")
                    .required(),
                Parameter::new(
                    "timeout_seconds",
                    Kind::Integer(1, 60),
                    "Request timeout (default: 10)",
                )
                .or(Default::Number(10)),
            ],
            uses: &["fetch_url"],
            call: fetch::page,
        },
    ],
    is_closed: false,
    refuse,
    failure: terminal::failure,
    result: Some(output::flat),
    ..PLAIN
};

fn refuse(said: &Said, error: &Error) -> Answer {
    let tool = said.tool.as_str();
    let path = match said.text("path") {
        "" => said.text("base_path"),
        path => path,
    };
    let code = code_of(error);
    let is_permission = error.reason == Reason::PermissionDenied;
    let (code, output, suggestion) = if is_link_within(error) {
        (
            code.as_str(),
            format!("Path '{path}' is or passes through a symbolic link"),
            "Use the path that the link leads to",
        )
    } else if is_outside(error) {
        (
            OUTSIDE,
            format!("Path '{path}' is outside working directory"),
            "Use a path below the working directory",
        )
    } else if error.reason == Reason::FileNotFound && !matches!(tool, "list_dir" | "create_file") {
        (
            "file_not_found",
            format!("File '{path}' not found"),
            "Check the file name and try again, or use file_search to find it",
        )
    } else if tool != "create_file" && is_missing(error) {
        (
            "directory_not_found",
            format!("Directory '{path}' not found"),
            "Check the directory name and try again, or use list_dir to find it",
        )
    } else if let Some(told) = files::refusal(tool, path, said, error) {
        (code.as_str(), told.0, told.1)
    } else if let Some(told) = search::refusal(said, error) {
        (code.as_str(), told.0, told.1)
    } else if error.reason == Reason::NoCommandHistory {
        (
            code.as_str(),
            "No previous command in this session".to_owned(),
            "Run a command with run_in_terminal first",
        )
    } else if is_permission {
        (code.as_str(), format!("Cannot access '{path}' - permission denied"), "Use another path")
    } else {
        (code.as_str(), error.to_string(), "")
    };
    let mut answer = failed(said.since, code, &output, suggestion, Json::Null);
    if suggestion.is_empty() {
        // That of the contract will do.
        let suggestion = error.reason.suggestion();
        if let Some(failure) = &mut answer.failure {
            failure.suggestion = None;
        }
        if let Some(data) = &mut answer.data {
            data["error"]["suggestion"] = suggestion.into();
        }
    }
    answer
}
