//! RauskuClaw (its "Agent Tools API"): three tools whose calls are jobs, answered by objects.

use std::ops::ControlFlow;

use serde_json::{Value as Json, json};

use super::{
    answer::Answer,
    pages,
    parameter::{Default, Kind, Parameter, Params},
    place::below,
    said::Said,
    vocabulary::{Answering, Call, Dialect, DialectTool, PLAIN, Tools},
};
use crate::daemon::error::{Error, Reason};

/// Files that are looked through, a page at a time.
const PAGE: u32 = 10_000;
const MOST_PAGES: usize = 100;

/// The vocabulary.
pub(super) const DIALECT: Dialect = Dialect {
    name: "rauskuclaw",
    tools: &[
        DialectTool {
            name: "data_file_read",
            description: "Read a UTF-8 text file from workspace.",
            parameters: &[
                Parameter::new("path", Kind::Text, "Workspace-relative file path.").required(),
                Parameter::new("max_bytes", Kind::Integer(512, 1_048_576), ""),
            ],
            uses: &["read_file"],
            call: file_read,
        },
        DialectTool {
            name: "tools_file_search",
            description: "Search files by path/name under workspace.",
            parameters: &[
                Parameter::new("query", Kind::Text, "").required(),
                Parameter::new("path", Kind::Text, ""),
                Parameter::new("max_results", Kind::Integer(1, 200), ""),
                Parameter::new("include_hidden", Kind::Flag, ""),
            ],
            uses: &["list_files"],
            call: file_search,
        },
        DialectTool {
            name: "tool_exec",
            description: "Run a shell command in workspace.",
            parameters: &[
                Parameter::new("command", Kind::Text, "Shell command.").required(),
                Parameter::new("cwd", Kind::Text, "Workspace-relative directory to run it in."),
                Parameter::new(
                    "timeout_ms",
                    Kind::Number(1.0, 86_400_000.0),
                    "Milliseconds that it may take.",
                )
                .or(Default::Number(120_000)),
            ],
            uses: &["run"],
            call: exec,
        },
    ],
    refuse,
    has_uuids: true,
    job_type,
    reader: "data_file_read",
    has_previews: true,
    ..PLAIN
};

/// Where a call does not say: what a registry says of the largest read.
const MOST_BYTES: i64 = 1_048_576;
const MOST_RESULTS: i64 = 200;

fn file_read(params: Params, tools: &mut dyn Tools) -> Answering<'_> {
    Box::pin(async move {
        let path = params.str("path").to_owned();
        let call = Call::new(
            "read_file",
            json!({
                "path": path,
                // From the first line on: a long file is read whole, too.
                "start_line": 1,
                "max_bytes": params.integer("max_bytes").unwrap_or(MOST_BYTES),
            }),
        );
        let read = tools.call(call).await?;
        let mut data = json!({ "path": path, "content_text": read.content() });
        if read.flag("truncated") {
            data["truncated"] = true.into();
        }
        Ok(Answer::data(data))
    })
}

fn file_search(params: Params, tools: &mut dyn Tools) -> Answering<'_> {
    Box::pin(async move {
        let query = params.str("query").to_lowercase();
        let root = params.text("path").unwrap_or(".");
        let most = params.integer("max_results").unwrap_or(MOST_RESULTS);
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let mut results: Vec<Json> = Vec::new();
        let call = Call::new(
            "list_files",
            json!({
                "root": root,
                "hidden": params.flag("include_hidden"),
                "max_results": PAGE,
            }),
        )
        .naming(&[("root", "path")]);
        // One more, to know whether there is one.
        let is_all = pages::each(tools, call, MOST_PAGES, |listed| {
            let paths = listed.texts("files").map(|file| below(root, file));
            let found = paths.filter(|path| path.to_lowercase().contains(&query));
            let found = found.map(|path| json!({ "path": path, "type": "file" }));
            results.extend(found.take(most + 1 - results.len()));
            match results.len() > most {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        let is_all = is_all.await? && results.len() <= most;
        results.truncate(most);
        let mut data = json!({ "results": results });
        if !is_all {
            data["truncated"] = true.into();
        }
        Ok(Answer::data(data))
    })
}

fn exec(params: Params, tools: &mut dyn Tools) -> Answering<'_> {
    Box::pin(async move {
        let limit = params.seconds("timeout_ms") / 1000;
        let call = Call::new(
            "run",
            json!({ "command": params.text("command"), "cwd": params.text("cwd") }),
        );
        let ran = tools.call(call.within(limit)).await?;
        let outcome = ran.word("outcome", "OUTCOME_");
        let is_late = outcome == "timed_out";
        let answer = Answer::data(json!({
            "exit_code": ran.number("exit_code"),
            "outcome": outcome,
            "stdout": ran.text("stdout"),
            "stderr": ran.text("stderr"),
        }));
        Ok(match is_late {
            true => {
                let text = format!("Command did not complete within {} ms", limit.as_millis());
                answer.because("COMMAND_TIMEOUT", text)
            }
            false => answer,
        })
    })
}

/// `tool.exec` of `tool_exec`.
fn job_type(tool: &str) -> String {
    tool.replacen('_', ".", 1)
}

/// Its codes are those of the contract, in upper case, but for what its document names.
fn refuse(said: &Said, error: &Error) -> Answer {
    let tool = &said.tool;
    let (code, text) = if error.reason == Reason::UnknownTool {
        let text = format!("Tool '{tool}' not found in registry");
        ("UNKNOWN_TOOL", text)
    } else if error.reason == Reason::ToolDisabled {
        let text = format!("Job type '{}' is disabled", job_type(tool));
        ("JOB_TYPE_DISABLED", text)
    } else if error.reason == Reason::InvalidParams {
        ("VALIDATION_ERROR", error.to_string())
    } else {
        (error.reason.name(), error.to_string())
    };
    Answer::default().because(code, text)
}
