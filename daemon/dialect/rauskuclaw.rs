//! The dialect of RauskuClaw: three tools whose calls are jobs and respond with objects. Source:
//! its "Agent Tools API".

use std::ops::ControlFlow;

use serde_json::{Value as Json, json};

use super::{
    definition::{
        BASE_DIALECT, CanonicalCall, CanonicalTools, Dialect, DialectResponseFuture, DialectTool,
    },
    invocation::DialectInvocation,
    paging,
    parameter::{DialectParams, ParameterDefault, ParameterKind, ParameterSpec},
    paths::join_relative,
    response::DialectResponse,
};
use crate::daemon::error::{Error, Reason};

/// Files per page of a search, and most pages.
const FILES_PER_PAGE: u32 = 10_000;
const MAX_PAGES: usize = 100;

pub(super) const DIALECT: Dialect = Dialect {
    name: "rauskuclaw",
    tools: &[
        DialectTool {
            name: "data_file_read",
            description: "Read a UTF-8 text file from workspace.",
            parameters: &[
                ParameterSpec::new("path", ParameterKind::String, "Workspace-relative file path.")
                    .required(),
                ParameterSpec::new("max_bytes", ParameterKind::Integer(512, 1_048_576), ""),
            ],
            uses: &["read_file"],
            call: file_read,
        },
        DialectTool {
            name: "tools_file_search",
            description: "Search files by path/name under workspace.",
            parameters: &[
                ParameterSpec::new("query", ParameterKind::String, "").required(),
                ParameterSpec::new("path", ParameterKind::String, ""),
                ParameterSpec::new("max_results", ParameterKind::Integer(1, 200), ""),
                ParameterSpec::new("include_hidden", ParameterKind::Bool, ""),
            ],
            uses: &["list_files"],
            call: file_search,
        },
        DialectTool {
            name: "tool_exec",
            description: "Run a shell command in workspace.",
            parameters: &[
                ParameterSpec::new("command", ParameterKind::String, "Shell command.").required(),
                ParameterSpec::new(
                    "cwd",
                    ParameterKind::String,
                    "Workspace-relative directory to run it in.",
                ),
                ParameterSpec::new(
                    "timeout_ms",
                    ParameterKind::Number(1.0, 86_400_000.0),
                    "Timeout in milliseconds.",
                )
                .with_default(ParameterDefault::Integer(120_000)),
            ],
            uses: &["run"],
            call: exec,
        },
    ],
    render_error,
    uuid_job_ids: true,
    job_type,
    artifact_reader: "data_file_read",
    has_previews: true,
    ..BASE_DIALECT
};

/// Defaults of a call: the registry's limit on a read, and the most results.
const DEFAULT_MAX_BYTES: i64 = 1_048_576;
const DEFAULT_MAX_RESULTS: i64 = 200;

fn file_read(params: DialectParams, tools: &mut dyn CanonicalTools) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let path = params.str("path").to_owned();
        let call = CanonicalCall::new(
            "read_file",
            json!({
                "path": path,
                // A range from the first line on: without one, a long file loses its middle.
                "start_line": 1,
                "max_bytes": params.integer("max_bytes").unwrap_or(DEFAULT_MAX_BYTES),
            }),
        );
        let file = tools.call(call).await?;

        let mut data = json!({ "path": path, "content_text": file.content() });
        if file.flag("truncated") {
            data["truncated"] = true.into();
        }
        Ok(DialectResponse::data(data))
    })
}

fn file_search(params: DialectParams, tools: &mut dyn CanonicalTools) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let query = params.str("query").to_lowercase();
        let root = params.text("path").unwrap_or(".");
        let max_results = params.integer("max_results").unwrap_or(DEFAULT_MAX_RESULTS);
        let max_results = usize::try_from(max_results).unwrap_or(usize::MAX);
        let call = CanonicalCall::new(
            "list_files",
            json!({
                "root": root,
                "hidden": params.flag("include_hidden"),
                "max_results": FILES_PER_PAGE,
            }),
        )
        .with_aliases(&[("root", "path")]);

        // Collects one result more than the limit, to know whether the results are complete.
        let mut results: Vec<Json> = Vec::new();
        let reached_end = paging::for_each_page(tools, call, MAX_PAGES, |page| {
            let found = page
                .texts("files")
                .map(|file| join_relative(root, file))
                .filter(|path| path.to_lowercase().contains(&query))
                .map(|path| json!({ "path": path, "type": "file" }));
            results.extend(found.take(max_results + 1 - results.len()));
            if results.len() > max_results {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })
        .await?;
        let is_complete = reached_end && results.len() <= max_results;
        results.truncate(max_results);

        let mut data = json!({ "results": results });
        if !is_complete {
            data["truncated"] = true.into();
        }
        Ok(DialectResponse::data(data))
    })
}

fn exec(params: DialectParams, tools: &mut dyn CanonicalTools) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let timeout = params.seconds("timeout_ms") / 1000;
        let call = CanonicalCall::new(
            "run",
            json!({ "command": params.text("command"), "cwd": params.text("cwd") }),
        )
        .with_timeout(timeout);
        let result = tools.call(call).await?;

        let outcome = result.enum_name("outcome", "OUTCOME_");
        let timed_out = outcome == "timed_out";
        let response = DialectResponse::data(json!({
            "exit_code": result.number("exit_code"),
            "outcome": outcome,
            "stdout": result.text("stdout"),
            "stderr": result.text("stderr"),
        }));
        Ok(if timed_out {
            let text = format!("Command did not complete within {} ms", timeout.as_millis());
            response.with_failure("COMMAND_TIMEOUT", text)
        } else {
            response
        })
    })
}

/// The job type of a tool: `tool.exec` for `tool_exec`.
fn job_type(tool: &str) -> String {
    tool.replacen('_', ".", 1)
}

/// The error codes are the contract's in upper case, except for those that the document names.
fn render_error(invocation: &DialectInvocation, error: &Error) -> DialectResponse {
    let tool = &invocation.tool;
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
    DialectResponse::default().with_failure(code, text)
}
