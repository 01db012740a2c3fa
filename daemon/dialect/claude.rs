//! The tools of the Claude Agent SDK (its "Tool Execution Specification"): eleven tools, answered by objects.

use std::{ops::ControlFlow, time::Duration};

use serde_json::{Map, Value as Json, json};

use super::{
    answer::{Answer, Data, MOST_SHOWN, code_of, fitting, on_lines},
    pages,
    parameter::{Default, Kind, Parameter, Params},
    place::{inside, is_link_within, is_outside},
    said::Said,
    told::Names,
    vocabulary::{Answering, Call, Dialect, DialectTool, PLAIN, Tools},
};
use crate::daemon::error::Error;

/// What `Read` and `Write` may take.
const FILES: Duration = Duration::from_secs(30);
/// Most matches of one search.
const MOST_MATCHES: u32 = 1000;
/// Most files of one `Glob`.
const MOST_FILES: u32 = 10_000;

const PATH: Parameter = Parameter::new("path", Kind::Text, "Path of the file").required();
const ENCODING: Parameter = Parameter::new(
    "encoding",
    Kind::OneOf(&["utf-8", "base64"]),
    "How content stands for what is in the file",
)
.or(Default::Text("utf-8"));
const EDIT: [Parameter; 2] = [
    Parameter::new("old_string", Kind::Text, "Text to replace: it must be there once")
        .required()
        .hidden(),
    Parameter::new("new_string", Kind::Text, "Text to replace it with").required().hidden(),
];
const COMMAND: Parameter = Parameter::new("command", Kind::Text, "Shell command").required();
const CWD: Parameter =
    Parameter::new("cwd", Kind::Text, "Directory to run it in").or(Default::Text("."));
const CELL: [Parameter; 2] = [
    Parameter::new("cell_id", Kind::Text, "Id of the cell"),
    Parameter::new(
        "cell_index",
        Kind::Integer(0, u32::MAX as i64),
        "Position of the cell, counted from 0",
    ),
];

/// The vocabulary.
pub(super) const DIALECT: Dialect = Dialect {
    name: "claude",
    tools: &[
        DialectTool {
            name: "Read",
            description: "Read file contents.",
            parameters: &[PATH, ENCODING],
            uses: &["read_file"],
            call: read,
        },
        DialectTool {
            name: "Write",
            description: "Write file contents. Directories are made where they are missing.",
            parameters: &[
                PATH,
                Parameter::new("content", Kind::Text, "What the file is to hold")
                    .required()
                    .hidden(),
                ENCODING,
            ],
            uses: &["write_file"],
            call: write,
        },
        DialectTool {
            name: "Edit",
            description: "Edit file with patches: replace a text that is there once.",
            parameters: &[PATH, EDIT[0], EDIT[1]],
            uses: &["edit_file"],
            call: edit,
        },
        DialectTool {
            name: "MultiEdit",
            description: "Multiple file edits: replace several texts of one file, one after the other. All are replaced, or none.",
            parameters: &[
                PATH,
                Parameter::new("edits", Kind::Objects(&EDIT), "The edits, in their order")
                    .required(),
            ],
            uses: &["edit_file"],
            call: multi_edit,
        },
        DialectTool {
            name: "Glob",
            description: "Find files by pattern. Paths are relative to cwd, and sorted.",
            parameters: &[
                Parameter::new("pattern", Kind::Text, "Glob pattern: **/*.ts").required(),
                Parameter::new("cwd", Kind::Text, "Directory to look in").or(Default::Text(".")),
            ],
            uses: &["list_files"],
            call: glob,
        },
        DialectTool {
            name: "Grep",
            description: "Search file contents by a regular expression. Matches are ordered by file, then line.",
            parameters: &[
                Parameter::new("pattern", Kind::Text, "Regular expression").required(),
                Parameter::new("path", Kind::Text, "Directory to search").or(Default::Text(".")),
                Parameter::new("include", Kind::Text, "Glob pattern of files to search"),
                Parameter::new("exclude", Kind::Text, "Glob pattern of files not to search"),
            ],
            uses: &["search"],
            call: grep,
        },
        DialectTool {
            name: "LS",
            description: "List directory contents.",
            parameters: &[
                Parameter::new("path", Kind::Text, "Directory to list").or(Default::Text("."))
            ],
            uses: &["list_dir"],
            call: ls,
        },
        DialectTool {
            name: "Bash",
            description: "Execute shell commands.",
            parameters: &[
                COMMAND,
                CWD,
                Parameter::new(
                    "timeout",
                    Kind::Number(1.0, 86_400_000.0),
                    "Milliseconds that it may take",
                )
                .or(Default::Number(120_000)),
            ],
            uses: &["run"],
            call: bash,
        },
        DialectTool {
            name: "Task",
            description: "Run background tasks: a shell command without a timeout, as a job whose id is answered.",
            parameters: &[COMMAND, CWD],
            uses: &["run"],
            call: task,
        },
        DialectTool {
            name: "NotebookRead",
            description: "Read Jupyter notebooks: all cells, or one.",
            parameters: &[PATH, CELL[0], CELL[1]],
            uses: &["read_notebook"],
            call: notebook_read,
        },
        DialectTool {
            name: "NotebookEdit",
            description: "Edit Jupyter notebooks: replace, insert or delete a cell.",
            parameters: &[
                PATH,
                CELL[0],
                CELL[1],
                Parameter::new("mode", Kind::OneOf(&["replace", "insert", "delete"]), "What to do")
                    .or(Default::Text("replace")),
                Parameter::new(
                    "cell_type",
                    Kind::OneOf(&["code", "markdown", "raw"]),
                    "Kind of the cell",
                ),
                Parameter::new("source", Kind::Text, "What the cell is to hold").hidden(),
            ],
            uses: &["edit_notebook"],
            call: notebook_edit,
        },
    ],
    refuse,
    reader: "Read",
    ..PLAIN
};

fn read(params: Params, tools: &mut dyn Tools) -> Answering<'_> {
    Box::pin(async move {
        let encoding = params.str("encoding");
        let path = params.str("path");
        inside(path)?;
        // Of Base64 four bytes stand for three.
        let most = match encoding {
            "base64" => MOST_SHOWN / 4 * 3,
            _ => MOST_SHOWN,
        };
        let call = Call::new(
            "read_file",
            json!({
                "path": path,
                "encoding": encoding_of(encoding),
                // From the first line on: a long file is read whole, too.
                "start_line": 1,
                "max_bytes": most,
            }),
        );
        let read = tools.call(call.within(FILES)).await?;
        let mut data = json!({
            "content": match encoding {
                "base64" => read.text("content").to_owned(),
                _ => read.content(),
            },
            "size": read.count("size_bytes"),
            "encoding": encoding,
        });
        if read.flag("truncated") {
            data["truncated"] = true.into();
        }
        Ok(Answer::data(data))
    })
}

fn write(mut params: Params, tools: &mut dyn Tools) -> Answering<'_> {
    Box::pin(async move {
        let content = params.take("content");
        let path = params.str("path");
        inside(path)?;
        let call = Call::new(
            "write_file",
            json!({
                "path": path,
                "content": content,
                "encoding": encoding_of(params.str("encoding")),
            }),
        );
        let written = tools.call(call.within(FILES)).await?;
        let bytes = written.count("bytes_written");
        Ok(Answer::data(json!({ "success": true, "bytesWritten": bytes })))
    })
}

fn encoding_of(name: &str) -> &'static str {
    match name {
        "base64" => "ENCODING_BASE64",
        _ => "ENCODING_UTF8",
    }
}

fn edit(mut params: Params, tools: &mut dyn Tools) -> Answering<'_> {
    Box::pin(async move {
        let (old, new) = (params.take("old_string"), params.take("new_string"));
        let edits = json!([{ "old_string": old, "new_string": new }]);
        edited(params.str("path"), edits, &[("edits[0].", "")], tools).await
    })
}

fn multi_edit(mut params: Params, tools: &mut dyn Tools) -> Answering<'_> {
    Box::pin(async move {
        let edits = params.take("edits");
        edited(params.str("path"), edits, &[], tools).await
    })
}

async fn edited(
    path: &str,
    edits: Json,
    names: Names,
    tools: &mut dyn Tools,
) -> Result<Answer, Error> {
    inside(path)?;
    let call = Call::new("edit_file", json!({ "path": path, "edits": edits }));
    let edited = tools.call(call.naming(names)).await?;
    let replacements: u64 = edited.objects("edits").map(|edit| edit.count("replacements")).sum();
    Ok(Answer::data(json!({ "success": true, "replacements": replacements })))
}

fn glob(params: Params, tools: &mut dyn Tools) -> Answering<'_> {
    Box::pin(async move {
        let call = Call::new(
            "list_files",
            json!({
                "root": params.text("cwd"),
                "glob": params.text("pattern"),
                "max_results": MOST_FILES,
            }),
        )
        .naming(&[("root", "cwd"), ("glob", "pattern")]);
        let mut listed = tools.call(call).await?;
        let found = match listed.take("files") {
            Json::Array(files) => files,
            Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) | Json::Object(_) => {
                Vec::new()
            }
        };
        let (files, fits) = fitting(found);
        let mut data = json!({ "count": files.len(), "files": files });
        if listed.flag("truncated") || !fits {
            data["truncated"] = true.into();
        }
        Ok(Answer::data(data))
    })
}

fn grep(params: Params, tools: &mut dyn Tools) -> Answering<'_> {
    Box::pin(async move {
        let list = |name: &str| params.text(name).into_iter().collect::<Vec<_>>();
        let call = Call::new(
            "search",
            json!({
                "query": params.text("pattern"),
                "is_regex": true,
                "case_sensitive": true,
                "path": params.text("path"),
                "globs": list("include"),
                "exclude_globs": list("exclude"),
                "context_lines": 0,
                "max_results": MOST_MATCHES,
            }),
        )
        .naming(&[
            ("query", "pattern"),
            ("globs[0]", "include"),
            ("exclude_globs[0]", "exclude"),
        ]);
        let found = tools.call(call).await?;
        let matches = found.objects("matches");
        let (matches, fits) =
            fitting(matches.map(|found| found.only(&["file", "line", "content"]).into()));
        let mut data = json!({ "matches": matches });
        if found.flag("truncated") || found.flag("timed_out") || !fits {
            data["truncated"] = true.into();
        }
        Ok(Answer::data(data))
    })
}

fn ls(params: Params, tools: &mut dyn Tools) -> Answering<'_> {
    Box::pin(async move {
        let mut entries = Vec::new();
        let call = Call::new("list_dir", json!({ "path": params.text("path") }));
        let is_all = pages::each(tools, call, MOST_FILES as usize, |listed| {
            entries.extend(listed.objects("entries").map(|entry| entry_of(&entry)));
            match entries.len() >= MOST_FILES as usize {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        let is_all = is_all.await?;
        let (entries, fits) = fitting(entries);
        let mut data = json!({ "count": entries.len(), "entries": entries });
        if !is_all || !fits {
            data["truncated"] = true.into();
        }
        Ok(Answer::data(data))
    })
}

fn entry_of(entry: &Data) -> Json {
    json!({
        "name": entry.text("name"),
        "type": entry.word("type", "FILE_TYPE_"),
        "size": entry.count("size_bytes"),
    })
}

fn bash(params: Params, tools: &mut dyn Tools) -> Answering<'_> {
    Box::pin(async move {
        let limit = params.seconds("timeout") / 1000;
        let ran = tools.call(command(&params).within(limit)).await?;
        let mut data = json!({
            "stdout": ran.text("stdout"),
            "stderr": ran.text("stderr"),
            "exitCode": ran.exit_code(),
        });
        let (code, message) = match ran.text("outcome") {
            "OUTCOME_TIMED_OUT" => {
                ("timeout", format!("Command timed out after {} ms", limit.as_millis()))
            }
            "OUTCOME_DAEMON_LOST" => {
                ("daemon_lost", "The daemon died while the command ran".to_owned())
            }
            _ => return Ok(Answer::data(data)),
        };
        data["stderr"] = on_lines(ran.text("stderr"), &message).into();
        data["is_error"] = true.into();
        Ok(Answer::data(data).because(code, message))
    })
}

fn task(params: Params, tools: &mut dyn Tools) -> Answering<'_> {
    Box::pin(async move {
        let id = tools.submit(command(&params)).await?;
        Ok(Answer {
            job_id: Some(id.clone()),
            ..Answer::data(json!({ "success": true, "taskId": id }))
        })
    })
}

fn command(params: &Params) -> Call {
    Call::new("run", json!({ "command": params.text("command"), "cwd": params.text("cwd") }))
}

fn cell(mut params: Params) -> Map<String, Json> {
    let names = ["path", "cell_id", "cell_index"];
    names.map(|name| (name.to_owned(), params.take(name))).into_iter().collect()
}

fn notebook_read(params: Params, tools: &mut dyn Tools) -> Answering<'_> {
    Box::pin(async move {
        let call = Call::new("read_notebook", cell(params).into());
        let mut read = tools.call(call).await?;
        let cells: Vec<Json> = read
            .objects("cells")
            .map(|cell| {
                let kind = cell.word("type", "CELL_TYPE_");
                let mut cell = cell.only(&["id", "index", "source", "execution_count", "outputs"]);
                cell.insert("type".to_owned(), kind.into());
                cell.into()
            })
            .collect();
        Ok(Answer::data(json!({ "cells": cells, "language": read.take("language") })))
    })
}

fn notebook_edit(mut params: Params, tools: &mut dyn Tools) -> Answering<'_> {
    Box::pin(async move {
        let source = params.take("source");
        let mode = format!("CELL_EDIT_{}", params.str("mode").to_uppercase());
        let kind = params.text("cell_type");
        let kind = kind.map(|kind| format!("CELL_TYPE_{}", kind.to_uppercase()));
        let mut fields = cell(params);
        fields.extend([
            ("source".to_owned(), source),
            ("mode".to_owned(), mode.into()),
            ("cell_type".to_owned(), kind.into()),
        ]);
        let mut edited = tools.call(Call::new("edit_notebook", fields.into())).await?;
        Ok(Answer::data(json!({
            "success": true,
            "cell_id": edited.take("cell_id"),
            "cell_count": edited.take("cell_count"),
        })))
    })
}

fn refuse(said: &Said, error: &Error) -> Answer {
    let code = code_of(error);
    let path = match (said.text("path"), said.text("cwd")) {
        ("", cwd) => cwd,
        (path, _) => path,
    };
    let text = if is_link_within(error) {
        format!("Access denied: Path {path} is or passes through a symbolic link")
    } else if is_outside(error) {
        format!("Access denied: Path {path} is outside allowed boundaries")
    } else {
        error.to_string()
    };
    // A shell that could not start has a result as one that could.
    let data = match said.tool.as_str() {
        "Bash" => json!({ "stdout": "", "stderr": text, "exitCode": 1, "is_error": true }),
        _ => json!({ "error": text, "is_error": true }),
    };
    Answer::data(data).because(&code, text)
}
