//! The dialect of the Claude Agent SDK: eleven tools that respond with objects. Source: its "Tool
//! Execution Specification".

mod notebook;

use std::{ops::ControlFlow, time::Duration};

use serde_json::{Value as Json, json};

use super::{
    definition::{
        BASE_DIALECT, CanonicalCall, CanonicalTools, Dialect, DialectResponseFuture, DialectTool,
    },
    error_terms::FieldAliases,
    invocation::DialectInvocation,
    paging,
    parameter::{DialectParams, ParameterDefault, ParameterKind, ParameterSpec},
    paths::{is_link_within, is_path_escape, reject_drive_path},
    response::{
        DialectResponse, MAX_RESULT_TEXT_BYTES, ResponseData, error_code, join_lines, take_fitting,
    },
};
use crate::daemon::error::Error;

/// Time limit of `Read` and `Write`.
const FILE_TIMEOUT: Duration = Duration::from_secs(30);
/// Most matches of a search.
const MAX_MATCHES: u32 = 1000;
/// Most files of a `Glob`.
const MAX_LISTED_FILES: u32 = 10_000;

const PATH_PARAM: ParameterSpec =
    ParameterSpec::new("path", ParameterKind::String, "Path of the file").required();
const ENCODING_PARAM: ParameterSpec = ParameterSpec::new(
    "encoding",
    ParameterKind::Enum(&["utf-8", "base64"]),
    "Encoding of content: utf-8 for text, or base64",
)
.with_default(ParameterDefault::String("utf-8"));
const EDIT_PARAMS: [ParameterSpec; 2] = [
    ParameterSpec::new(
        "old_string",
        ParameterKind::String,
        "Text to replace: it must occur exactly once",
    )
    .required()
    .redacted(),
    ParameterSpec::new("new_string", ParameterKind::String, "Text to replace it with")
        .required()
        .redacted(),
];
const COMMAND_PARAM: ParameterSpec =
    ParameterSpec::new("command", ParameterKind::String, "Shell command").required();
const CWD_PARAM: ParameterSpec =
    ParameterSpec::new("cwd", ParameterKind::String, "Directory to run it in")
        .with_default(ParameterDefault::String("."));
const CELL_PARAMS: [ParameterSpec; 2] = [
    ParameterSpec::new("cell_id", ParameterKind::String, "Id of the cell"),
    ParameterSpec::new(
        "cell_index",
        ParameterKind::Integer(0, u32::MAX as i64),
        "Position of the cell, counted from 0",
    ),
];

pub(super) const DIALECT: Dialect = Dialect {
    name: "claude",
    tools: &[
        DialectTool {
            name: "Read",
            description: "Read file contents.",
            parameters: &[PATH_PARAM, ENCODING_PARAM],
            uses: &["read_file"],
            call: read,
        },
        DialectTool {
            name: "Write",
            description: "Write file contents. Creates missing directories.",
            parameters: &[
                PATH_PARAM,
                ParameterSpec::new("content", ParameterKind::String, "New content of the file")
                    .required()
                    .redacted(),
                ENCODING_PARAM,
            ],
            uses: &["write_file"],
            call: write,
        },
        DialectTool {
            name: "Edit",
            description: "Edit file with patches: replace a text that occurs exactly once.",
            parameters: &[PATH_PARAM, EDIT_PARAMS[0], EDIT_PARAMS[1]],
            uses: &["edit_file"],
            call: edit,
        },
        DialectTool {
            name: "MultiEdit",
            description: "Multiple file edits: replace several texts of one file, one after the other. All are replaced, or none.",
            parameters: &[
                PATH_PARAM,
                ParameterSpec::new(
                    "edits",
                    ParameterKind::ObjectList(&EDIT_PARAMS),
                    "The edits, in their order",
                )
                .required(),
            ],
            uses: &["edit_file"],
            call: multi_edit,
        },
        DialectTool {
            name: "Glob",
            description: "Find files by pattern. Paths are relative to cwd, and sorted.",
            parameters: &[
                ParameterSpec::new("pattern", ParameterKind::String, "Glob pattern: **/*.ts")
                    .required(),
                ParameterSpec::new("cwd", ParameterKind::String, "Directory to search")
                    .with_default(ParameterDefault::String(".")),
            ],
            uses: &["list_files"],
            call: glob,
        },
        DialectTool {
            name: "Grep",
            description: "Search file contents by a regular expression. Matches are ordered by file, then line.",
            parameters: &[
                ParameterSpec::new("pattern", ParameterKind::String, "Regular expression")
                    .required(),
                ParameterSpec::new("path", ParameterKind::String, "Directory to search")
                    .with_default(ParameterDefault::String(".")),
                ParameterSpec::new(
                    "include",
                    ParameterKind::String,
                    "Glob pattern of files to search",
                ),
                ParameterSpec::new(
                    "exclude",
                    ParameterKind::String,
                    "Glob pattern of files not to search",
                ),
            ],
            uses: &["search"],
            call: grep,
        },
        DialectTool {
            name: "LS",
            description: "List directory contents.",
            parameters: &[ParameterSpec::new("path", ParameterKind::String, "Directory to list")
                .with_default(ParameterDefault::String("."))],
            uses: &["list_dir"],
            call: ls,
        },
        DialectTool {
            name: "Bash",
            description: "Execute shell commands.",
            parameters: &[
                COMMAND_PARAM,
                CWD_PARAM,
                ParameterSpec::new(
                    "timeout",
                    ParameterKind::Number(1.0, 86_400_000.0),
                    "Timeout in milliseconds",
                )
                .with_default(ParameterDefault::Integer(120_000)),
            ],
            uses: &["run"],
            call: bash,
        },
        DialectTool {
            name: "Task",
            description: "Run background tasks: a shell command without a timeout, as a job. Returns the job id.",
            parameters: &[COMMAND_PARAM, CWD_PARAM],
            uses: &["run"],
            call: task,
        },
        DialectTool {
            name: "NotebookRead",
            description: "Read Jupyter notebooks: all cells, or one.",
            parameters: &[PATH_PARAM, CELL_PARAMS[0], CELL_PARAMS[1]],
            uses: &["read_notebook"],
            call: notebook::read,
        },
        DialectTool {
            name: "NotebookEdit",
            description: "Edit Jupyter notebooks: replace, insert or delete a cell.",
            parameters: &[
                PATH_PARAM,
                CELL_PARAMS[0],
                CELL_PARAMS[1],
                ParameterSpec::new(
                    "mode",
                    ParameterKind::Enum(&["replace", "insert", "delete"]),
                    "What to do",
                )
                .with_default(ParameterDefault::String("replace")),
                ParameterSpec::new(
                    "cell_type",
                    ParameterKind::Enum(&["code", "markdown", "raw"]),
                    "Kind of the cell",
                ),
                ParameterSpec::new("source", ParameterKind::String, "New content of the cell")
                    .redacted(),
            ],
            uses: &["edit_notebook"],
            call: notebook::edit,
        },
    ],
    render_error,
    artifact_reader: "Read",
    ..BASE_DIALECT
};

fn read(params: DialectParams, tools: &mut dyn CanonicalTools) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let encoding = params.str("encoding");
        let path = params.str("path");
        reject_drive_path(path)?;

        // Base64 encodes three bytes as four.
        let max_bytes = match encoding {
            "base64" => MAX_RESULT_TEXT_BYTES / 4 * 3,
            _ => MAX_RESULT_TEXT_BYTES,
        };
        let call = CanonicalCall::new(
            "read_file",
            json!({
                "path": path,
                "encoding": contract_encoding(encoding),
                // A range from the first line on: without one, a long file loses its middle.
                "start_line": 1,
                "max_bytes": max_bytes,
            }),
        )
        .with_timeout(FILE_TIMEOUT);
        let file = tools.call(call).await?;
        let mut data = json!({
            "content": match encoding {
                "base64" => file.text("content").to_owned(),
                _ => file.content(),
            },
            "size": file.count("size_bytes"),
            "encoding": encoding,
        });
        if file.flag("truncated") {
            data["truncated"] = true.into();
        }
        Ok(DialectResponse::data(data))
    })
}

fn write(mut params: DialectParams, tools: &mut dyn CanonicalTools) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let content = params.take("content");
        let path = params.str("path");
        reject_drive_path(path)?;

        let call = CanonicalCall::new(
            "write_file",
            json!({
                "path": path,
                "content": content,
                "encoding": contract_encoding(params.str("encoding")),
            }),
        )
        .with_timeout(FILE_TIMEOUT);
        let written = tools.call(call).await?;
        let bytes = written.count("bytes_written");
        Ok(DialectResponse::data(json!({ "success": true, "bytesWritten": bytes })))
    })
}

fn contract_encoding(name: &str) -> &'static str {
    match name {
        "base64" => "ENCODING_BASE64",
        _ => "ENCODING_UTF8",
    }
}

fn edit(mut params: DialectParams, tools: &mut dyn CanonicalTools) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let (old, new) = (params.take("old_string"), params.take("new_string"));
        let edits = json!([{ "old_string": old, "new_string": new }]);
        edit_file(params.str("path"), edits, &[("edits[0].", "")], tools).await
    })
}

fn multi_edit(
    mut params: DialectParams,
    tools: &mut dyn CanonicalTools,
) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let edits = params.take("edits");
        edit_file(params.str("path"), edits, &[], tools).await
    })
}

async fn edit_file(
    path: &str,
    edits: Json,
    aliases: FieldAliases,
    tools: &mut dyn CanonicalTools,
) -> Result<DialectResponse, Error> {
    reject_drive_path(path)?;
    let call = CanonicalCall::new("edit_file", json!({ "path": path, "edits": edits }))
        .with_aliases(aliases);
    let edited = tools.call(call).await?;

    let replacements: u64 = edited.objects("edits").map(|edit| edit.count("replacements")).sum();
    Ok(DialectResponse::data(json!({ "success": true, "replacements": replacements })))
}

fn glob(params: DialectParams, tools: &mut dyn CanonicalTools) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let call = CanonicalCall::new(
            "list_files",
            json!({
                "root": params.text("cwd"),
                "glob": params.text("pattern"),
                "max_results": MAX_LISTED_FILES,
            }),
        )
        .with_aliases(&[("root", "cwd"), ("glob", "pattern")]);
        let mut listing = tools.call(call).await?;

        let files = match listing.take("files") {
            Json::Array(files) => files,
            Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) | Json::Object(_) => {
                Vec::new()
            }
        };
        let (files, fits) = take_fitting(files);
        let mut data = json!({ "count": files.len(), "files": files });
        if listing.flag("truncated") || !fits {
            data["truncated"] = true.into();
        }
        Ok(DialectResponse::data(data))
    })
}

fn grep(params: DialectParams, tools: &mut dyn CanonicalTools) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let list = |name: &str| params.text(name).into_iter().collect::<Vec<_>>();
        let call = CanonicalCall::new(
            "search",
            json!({
                "query": params.text("pattern"),
                "is_regex": true,
                "case_sensitive": true,
                "path": params.text("path"),
                "globs": list("include"),
                "exclude_globs": list("exclude"),
                "context_lines": 0,
                "max_results": MAX_MATCHES,
            }),
        )
        .with_aliases(&[
            ("query", "pattern"),
            ("globs[0]", "include"),
            ("exclude_globs[0]", "exclude"),
        ]);
        let results = tools.call(call).await?;

        let matches = results
            .objects("matches")
            .map(|found| found.select(&["file", "line", "content"]).into());
        let (matches, fits) = take_fitting(matches);
        let mut data = json!({ "matches": matches });
        if results.flag("truncated") || results.flag("timed_out") || !fits {
            data["truncated"] = true.into();
        }
        Ok(DialectResponse::data(data))
    })
}

fn ls(params: DialectParams, tools: &mut dyn CanonicalTools) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let call = CanonicalCall::new("list_dir", json!({ "path": params.text("path") }));
        let mut entries = Vec::new();
        let is_complete = paging::for_each_page(tools, call, MAX_LISTED_FILES as usize, |page| {
            entries.extend(page.objects("entries").map(|entry| entry_json(&entry)));
            if entries.len() >= MAX_LISTED_FILES as usize {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })
        .await?;

        let (entries, fits) = take_fitting(entries);
        let mut data = json!({ "count": entries.len(), "entries": entries });
        if !is_complete || !fits {
            data["truncated"] = true.into();
        }
        Ok(DialectResponse::data(data))
    })
}

fn entry_json(entry: &ResponseData) -> Json {
    json!({
        "name": entry.text("name"),
        "type": entry.enum_name("type", "FILE_TYPE_"),
        "size": entry.count("size_bytes"),
    })
}

fn bash(params: DialectParams, tools: &mut dyn CanonicalTools) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let timeout = params.seconds("timeout") / 1000;
        let result = tools.call(run_call(&params).with_timeout(timeout)).await?;
        let mut data = json!({
            "stdout": result.text("stdout"),
            "stderr": result.text("stderr"),
            "exitCode": result.exit_code(),
        });
        let (code, message) = match result.text("outcome") {
            "OUTCOME_TIMED_OUT" => {
                ("timeout", format!("Command timed out after {} ms", timeout.as_millis()))
            }
            "OUTCOME_DAEMON_LOST" => {
                ("daemon_lost", "The daemon died while the command ran".to_owned())
            }
            _ => return Ok(DialectResponse::data(data)),
        };

        data["stderr"] = join_lines(result.text("stderr"), &message).into();
        data["is_error"] = true.into();
        Ok(DialectResponse::data(data).with_failure(code, message))
    })
}

fn task(params: DialectParams, tools: &mut dyn CanonicalTools) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let id = tools.submit(run_call(&params)).await?;
        Ok(DialectResponse {
            job_id: Some(id.clone()),
            ..DialectResponse::data(json!({ "success": true, "taskId": id }))
        })
    })
}

fn run_call(params: &DialectParams) -> CanonicalCall {
    CanonicalCall::new(
        "run",
        json!({ "command": params.text("command"), "cwd": params.text("cwd") }),
    )
}

fn render_error(invocation: &DialectInvocation, error: &Error) -> DialectResponse {
    let code = error_code(error);
    let path = match (invocation.text("path"), invocation.text("cwd")) {
        ("", cwd) => cwd,
        (path, _) => path,
    };

    let text = if is_link_within(error) {
        format!("Access denied: Path {path} is or passes through a symbolic link")
    } else if is_path_escape(error) {
        format!("Access denied: Path {path} is outside allowed boundaries")
    } else {
        error.to_string()
    };

    // A shell that failed to start responds like one that ran.
    let data = match invocation.tool.as_str() {
        "Bash" => json!({ "stdout": "", "stderr": text, "exitCode": 1, "is_error": true }),
        _ => json!({ "error": text, "is_error": true }),
    };
    DialectResponse::data(data).with_failure(&code, text)
}
