//! The dialect of Anthropic's models: `bash` (`bash_20250124`) and the text editor
//! (`text_editor_20250728`). Both respond with a text.

use serde_json::json;

use super::{
    definition::{
        BASE_DIALECT, CanonicalCall, CanonicalTools, Dialect, DialectResponseFuture, DialectTool,
    },
    invocation::DialectInvocation,
    parameter::{DialectParams, ParameterDefault, ParameterKind, ParameterSpec},
    paths::is_not_found,
    response::{DialectResponse, MAX_RESULT_TEXT_BYTES, ResponseData, error_code, join_lines},
};
use crate::daemon::{
    error::{Error, Reason},
    process::spec::has_bash,
};

/// Largest file to view or edit.
const MAX_FILE_BYTES: usize = 10 << 20;
/// Levels of a directory in a view, and most of its files.
const MAX_VIEW_DEPTH: u32 = 2;
const MAX_VIEW_FILES: u32 = 1000;
/// Lines before and after a change in the response.
const CONTEXT_LINES: i64 = 4;
/// Largest line number in a request.
const MAX_LINE_NUMBER: i64 = u32::MAX as i64;
/// The shell that commands share, per caller and session.
const SHELL_NAME: &str = "anthropic";
/// The command of a restart, which does nothing.
const RESTART_COMMAND: &str = ":";
/// Characters of a parameter that an error quotes.
const MAX_QUOTED_CHARS: usize = 500;

pub(super) const DIALECT: Dialect = Dialect {
    name: "anthropic",
    tools: &[
        DialectTool {
            name: "bash",
            description: "Run a command in a bash session in the workspace. The current directory, variables, functions and options are kept for the next command; processes in the background are not.",
            parameters: &[
                ParameterSpec::new(
                    "command",
                    ParameterKind::String,
                    "The command to run. Required unless restart is true",
                ),
                ParameterSpec::new(
                    "restart",
                    ParameterKind::Bool,
                    "True to restart the session, which forgets everything",
                )
                .with_default(ParameterDefault::Bool(false)),
            ],
            uses: &["run"],
            call: bash,
        },
        DialectTool {
            name: "str_replace_based_edit_tool",
            description: "View, create and edit files. view shows a file with its line numbers, or a directory; create makes or replaces a file; str_replace replaces a text that occurs exactly once; insert adds text after a line.",
            parameters: &[
                ParameterSpec::new(
                    "command",
                    ParameterKind::Enum(&["view", "create", "str_replace", "insert"]),
                    "What to do",
                )
                .required(),
                ParameterSpec::new("path", ParameterKind::String, "Path of the file or directory")
                    .required(),
                ParameterSpec::new(
                    "view_range",
                    ParameterKind::IntegerList,
                    "First and last line to view, counted from 1; -1 for the end",
                ),
                ParameterSpec::new(
                    "file_text",
                    ParameterKind::String,
                    "New content of the file, for create",
                )
                .redacted(),
                ParameterSpec::new(
                    "old_str",
                    ParameterKind::String,
                    "Text to replace, for str_replace",
                )
                .redacted(),
                ParameterSpec::new(
                    "new_str",
                    ParameterKind::String,
                    "Text to replace it with, for str_replace",
                )
                .redacted(),
                ParameterSpec::new(
                    "insert_line",
                    ParameterKind::Integer(0, MAX_LINE_NUMBER),
                    "Line after which to insert, 0 for the beginning",
                ),
                ParameterSpec::new("insert_text", ParameterKind::String, "Text to insert")
                    .redacted(),
            ],
            uses: &["read_file", "list_files", "write_file", "edit_file"],
            call: edit,
        },
    ],
    render_error,
    artifact_reader: "str_replace_based_edit_tool",
    borrowed_tools: &["wait_job"],
    ..BASE_DIALECT
};

fn bash(params: DialectParams, tools: &mut dyn CanonicalTools) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let restarts = params.flag("restart");
        let Some(command) = params.text("command") else {
            if restarts {
                tools.call(shell_command(RESTART_COMMAND, true)).await?;
                return Ok(DialectResponse::text("tool has been restarted."));
            }
            return Err(Error::invalid_field("command", "is required"));
        };

        let result = tools.call(shell_command(command, restarts)).await?;
        let text = join_lines(result.text("stdout"), result.text("stderr"));
        let outcome = result.enum_name("outcome", "OUTCOME_");
        Ok(match (outcome.as_str(), result.number("exit_code")) {
            ("timed_out", _) => {
                let message = "timed out: the command was ended after 120 seconds";
                DialectResponse::text(join_lines(&text, message)).with_failure("timeout", message)
            }
            ("daemon_lost", _) => {
                let message = "the daemon died while the command ran: look how far it came";
                DialectResponse::text(message).with_failure("daemon_lost", message)
            }
            // An exit code or a signal is part of the result. The call did not fail.
            ("exited", Some(0)) => DialectResponse::text(text),
            ("exited", Some(code)) if text.is_empty() => {
                DialectResponse::text(format!("the command exited with {code}"))
            }
            ("exited", _) => DialectResponse::text(text),
            (outcome, _) => {
                let by = match result.text("signal") {
                    "" => String::new(),
                    signal => format!(" by {signal}"),
                };
                let message = format!("the command was ended{by} ({outcome})");
                DialectResponse::text(join_lines(&text, &message))
            }
        })
    })
}

/// A call of `run` in the dialect's shell. Without bash, each command has a shell of its own.
fn shell_command(command: &str, restarts: bool) -> CanonicalCall {
    let params = if has_bash() {
        json!({ "command": command, "shell": SHELL_NAME, "restart_shell": restarts })
    } else {
        json!({ "command": command })
    };
    CanonicalCall::new("run", params)
}

fn edit(mut params: DialectParams, tools: &mut dyn CanonicalTools) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let path = params.str("path").to_owned();
        match params.str("command") {
            "view" => view(&path, params.integers("view_range"), tools).await,
            "create" => create(&path, &mut params, tools).await,
            "str_replace" => str_replace(&path, &mut params, tools).await,
            _ => {
                let text = required_text(&mut params, "insert_text")?;
                let Some(line) = params.integer("insert_line") else {
                    return Err(Error::invalid_field("insert_line", "is required"));
                };
                insert(&path, line, &text, tools).await
            }
        }
    })
}

async fn create(
    path: &str,
    params: &mut DialectParams,
    tools: &mut dyn CanonicalTools,
) -> Result<DialectResponse, Error> {
    let content = required_text(params, "file_text")?;
    let call = CanonicalCall::new("write_file", json!({ "path": path, "content": content }))
        .with_aliases(&[("content", "file_text")]);
    tools.call(call).await?;
    Ok(DialectResponse::text(format!("File created successfully at: {path}")))
}

async fn str_replace(
    path: &str,
    params: &mut DialectParams,
    tools: &mut dyn CanonicalTools,
) -> Result<DialectResponse, Error> {
    let old = required_text(params, "old_str")?;
    if old.is_empty() {
        return Err(Error::invalid_field("old_str", "must not be empty"));
    }
    let new = params.take("new_str");

    let edits = json!([{ "old_string": old, "new_string": new }]);
    let call = CanonicalCall::new("edit_file", json!({ "path": path, "edits": edits }))
        .with_aliases(&[("edits[0].old_string", "old_str"), ("edits[0].new_string", "new_str")]);
    let edited = tools.call(call).await?;

    let result = edited.objects("edits").next().unwrap_or_default();
    let line = result.list("lines_changed").first().and_then(|line| line.as_i64());
    edited_snippet(path, line.unwrap_or(1), tools).await
}

fn required_text(params: &mut DialectParams, name: &str) -> Result<String, Error> {
    let text = params.text(name).map(str::to_owned);
    text.ok_or_else(|| Error::invalid_field(name, "is required for this command"))
}

async fn view(
    path: &str,
    range: Vec<i64>,
    tools: &mut dyn CanonicalTools,
) -> Result<DialectResponse, Error> {
    let (first, last) = match *range.as_slice() {
        [] => (1, None),
        [first @ 1..=MAX_LINE_NUMBER, -1] => (first, None),
        [first @ 1..=MAX_LINE_NUMBER, last] if first <= last => {
            (first, Some(last.min(MAX_LINE_NUMBER)))
        }
        _ => {
            let text =
                "must be the first line, counted from 1, and the last one, or -1 for the end";
            return Err(Error::invalid_field("view_range", text));
        }
    };

    match read_lines(path, first, last, tools).await {
        Err(error) if error.reason == Reason::NotAFile && range.is_empty() => {
            view_directory(path, tools).await
        }
        file => Ok(DialectResponse::text(render_lines(&file?))),
    }
}

/// Numbered lines. If they exceed a result, as many whole ones as fit, with a hint for the rest.
fn render_lines(file: &ResponseData) -> String {
    let mut text = number_lines(file);
    if text.len() <= MAX_RESULT_TEXT_BYTES && !file.is_cut() {
        return text;
    }

    let limit = text.floor_char_boundary(MAX_RESULT_TEXT_BYTES);
    // The last line may be incomplete.
    match text.get(..limit).and_then(|text| text.rfind('\n')) {
        Some(end) => {
            text.truncate(end);
            let lines = text.lines().count() as u64;
            let (first, total) = (file.count("start_line"), file.count("total_lines"));
            let last = (first + lines).saturating_sub(1);
            text.push_str(&format!(
                "\n[only lines {first} to {last} of {total}: give a view_range for others]"
            ));
        }
        None => {
            text.truncate(limit);
            text.push_str("\n[the line is longer: look at it with a command]");
        }
    }
    text
}

async fn read_lines(
    path: &str,
    first: i64,
    last: Option<i64>,
    tools: &mut dyn CanonicalTools,
) -> Result<ResponseData, Error> {
    let call = CanonicalCall::new(
        "read_file",
        json!({
            "path": path,
            "start_line": first,
            "end_line": last,
            "max_bytes": MAX_FILE_BYTES,
        }),
    )
    .with_aliases(&[("start_line", "view_range"), ("end_line", "view_range")]);
    tools.call(call).await
}

/// Numbers lines as `cat -n` does.
fn number_lines(file: &ResponseData) -> String {
    let first = usize::try_from(file.count("start_line")).unwrap_or(usize::MAX);
    let content = file.content();
    let lines: Vec<_> = content
        .lines()
        .enumerate()
        .map(|(index, line)| format!("{:>6}\t{line}", first + index))
        .collect();
    lines.join("\n")
}

async fn view_directory(
    path: &str,
    tools: &mut dyn CanonicalTools,
) -> Result<DialectResponse, Error> {
    let call = CanonicalCall::new(
        "list_files",
        json!({
            "root": path,
            "max_depth": MAX_VIEW_DEPTH,
            "hidden": false,
            "max_results": MAX_VIEW_FILES,
        }),
    )
    .with_aliases(&[("root", "path")]);

    let listing = tools.call(call).await?;
    let mut text = format!(
        "Here're the files and directories up to {MAX_VIEW_DEPTH} levels deep in {path}, excluding hidden items:"
    );

    for file in listing.texts("files") {
        text.push('\n');
        text.push_str(file);
    }
    if listing.flag("truncated") {
        text.push_str("\n[there are more: view a directory in it]");
    }
    Ok(DialectResponse::text(text))
}

async fn insert(
    path: &str,
    line: i64,
    text: &str,
    tools: &mut dyn CanonicalTools,
) -> Result<DialectResponse, Error> {
    let mut old = read_lines(path, 1, None, tools).await?;
    if old.flag("truncated") {
        let message = format!("{path:?} is too large to be edited: change it by a command");
        return Err(Error::new(Reason::FileTooLarge, message).with_metadata("path", path));
    }

    let sha256 = old.take("sha256");
    let content = old.text("content");
    let lines: Vec<_> = content.split_inclusive('\n').collect();
    let index = usize::try_from(line).unwrap_or(usize::MAX);
    let Some((before, after)) = lines.split_at_checked(index) else {
        let message = format!(
            "Invalid `insert_line` parameter: {line}. It should be within the range of lines of the file: [0, {}]",
            lines.len()
        );
        return Err(Error::new(Reason::LineRangeInvalid, message).with_metadata("path", path));
    };

    let mut new = before.concat();
    if !new.is_empty() && !new.ends_with('\n') {
        new.push('\n');
    }
    new.push_str(text);
    if !after.is_empty() && !new.ends_with('\n') {
        new.push('\n');
    }
    new.push_str(&after.concat());

    let call = CanonicalCall::new(
        "write_file",
        json!({ "path": path, "content": new, "expected_sha256": sha256 }),
    )
    .with_aliases(&[("content", "insert_text")]);

    tools.call(call).await?;
    edited_snippet(path, line + 1, tools).await
}

/// The response to an edit: the changed line with the lines around it.
async fn edited_snippet(
    path: &str,
    line: i64,
    tools: &mut dyn CanonicalTools,
) -> Result<DialectResponse, Error> {
    let first = (line - CONTEXT_LINES).max(1);
    let snippet = match read_lines(path, first, Some(line + CONTEXT_LINES), tools).await {
        Ok(file) => number_lines(&file),
        // The edit succeeded anyway.
        Err(_) => String::new(),
    };
    Ok(DialectResponse::text(format!(
        "The file {path} has been edited. Here's the result around line {line}:\n{snippet}"
    )))
}

fn render_error(invocation: &DialectInvocation, error: &Error) -> DialectResponse {
    let path = invocation.text("path");
    let old: String = invocation.text("old_str").chars().take(MAX_QUOTED_CHARS).collect();

    let text = if error.reason == Reason::StringNotFound {
        format!("No replacement was performed, old_str `{old}` did not appear verbatim in {path}.")
    } else if error.reason == Reason::StringNotUnique {
        format!(
            "No replacement was performed. Multiple occurrences of old_str `{old}` in {path}. Please ensure it is unique"
        )
    } else if is_not_found(error) && !path.is_empty() {
        format!("The path {path} does not exist. Please provide a valid path.")
    } else {
        error.to_string()
    };
    DialectResponse::text(text.clone()).with_failure(&error_code(error), text)
}
