//! The dialect of AgentBench: five tools that respond with a `ToolResult`. Source: its "Tool API
//! Documentation".

use serde_json::{Map, Value as Json, json};

use super::{
    definition::{
        BASE_DIALECT, CanonicalCall, CanonicalTools, Dialect, DialectCallSummary,
        DialectResponseFuture, DialectTool,
    },
    invocation::DialectInvocation,
    parameter::{DialectParams, ParameterDefault, ParameterKind, ParameterSpec},
    response::{DialectResponse, ResponseData, error_code},
};
use crate::daemon::error::{Error, Reason};

pub(super) const DIALECT: Dialect = Dialect {
    name: "agentbench",
    tools: &[
        DialectTool {
            name: "list_files",
            description: "List files in a directory within the workspace. Returns at most 1000 paths, relative to root and sorted; .git and symbolic links are left out.",
            parameters: &[
                ParameterSpec::new(
                    "root",
                    ParameterKind::String,
                    "Directory to list (relative to workspace)",
                )
                .with_default(ParameterDefault::String(".")),
                ParameterSpec::new("glob", ParameterKind::String, "Glob pattern to filter files"),
            ],
            uses: &["list_files"],
            call: list_files,
        },
        DialectTool {
            name: "read_file",
            description: "Read file contents with optional line range. Of a file of more than 10,000 lines the first and the last 5,000 are returned.",
            parameters: &[
                ParameterSpec::new(
                    "path",
                    ParameterKind::String,
                    "File path relative to workspace",
                )
                .required(),
                ParameterSpec::new(
                    "start_line",
                    ParameterKind::Integer(1, u32::MAX as i64),
                    "Start line (1-indexed, inclusive)",
                ),
                ParameterSpec::new(
                    "end_line",
                    ParameterKind::Integer(1, u32::MAX as i64),
                    "End line (1-indexed, inclusive)",
                ),
            ],
            uses: &["read_file"],
            call: read_file,
        },
        DialectTool {
            name: "search",
            description: "Search for text patterns across files, whatever their case. Matches are ordered by file path, then line number; binary files are skipped.",
            parameters: &[
                ParameterSpec::new("query", ParameterKind::String, "Text or regex pattern")
                    .required(),
                ParameterSpec::new("glob", ParameterKind::String, "File pattern to search in"),
                ParameterSpec::new(
                    "max_results",
                    ParameterKind::Integer(1, i64::MAX),
                    "Maximum matches to return",
                )
                .with_default(ParameterDefault::Integer(50)),
                ParameterSpec::new(
                    "context_lines",
                    ParameterKind::Integer(0, 10),
                    "Lines of context (0-10)",
                )
                .with_default(ParameterDefault::Integer(2)),
                ParameterSpec::new("is_regex", ParameterKind::Bool, "Treat query as regex")
                    .with_default(ParameterDefault::Bool(false)),
            ],
            uses: &["search"],
            call: search,
        },
        DialectTool {
            name: "apply_patch",
            description: "Apply a unified diff to files: all of it, or nothing.",
            parameters: &[ParameterSpec::new(
                "unified_diff",
                ParameterKind::String,
                "Standard unified diff format",
            )
            .required()
            .redacted()],
            uses: &["apply_patch"],
            call: apply_patch,
        },
        DialectTool {
            name: "run",
            description: "Execute a command in the sandbox, without a network. Its output is kept in the files that are returned.",
            parameters: &[
                ParameterSpec::new("command", ParameterKind::String, "Shell command to execute")
                    .required(),
                ParameterSpec::new(
                    "timeout_sec",
                    ParameterKind::Integer(1, 86_400),
                    "Override default timeout",
                ),
                ParameterSpec::new(
                    "env",
                    ParameterKind::StringMap,
                    "Additional environment variables",
                )
                .redacted(),
            ],
            uses: &["run"],
            call: run,
        },
    ],
    render_error,
    failure_code,
    render_result: Some(tool_result),
    event_names: &[("patch_applied", "PATCH_APPLIED")],
    ..BASE_DIALECT
};

/// Store output up to the operator's limit. The document says "Large output is truncated to 100KB",
/// but the artifacts are the only way to read the rest.
const MAX_ARTIFACT_BYTES: u64 = u64::MAX;
/// The largest limit on matches that the contract accepts.
const MAX_RESULTS: i64 = 10_000;

fn list_files(params: DialectParams, tools: &mut dyn CanonicalTools) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let call = CanonicalCall::new(
            "list_files",
            json!({
                "root": params.text("root"),
                "glob": params.text("glob"),
                "max_results": 1000,
            }),
        );

        let mut listing = tools.call(call).await?;
        let mut data = json!({ "files": listing.take("files") });

        if listing.flag("truncated") {
            data["truncated"] = true.into();
        }
        Ok(DialectResponse::data(data))
    })
}

fn read_file(params: DialectParams, tools: &mut dyn CanonicalTools) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let call = CanonicalCall::new(
            "read_file",
            json!({
                "path": params.text("path"),
                "start_line": params.integer("start_line"),
                "end_line": params.integer("end_line"),
            }),
        );

        let file = tools.call(call).await?;

        let mut names = vec!["content", "truncated", "total_lines", "start_line", "end_line"];
        if file.flag("truncated") {
            names.extend(["omitted_lines", "size_bytes"]);
        }
        let content = file.content();
        let mut data = file.select(&names);
        data.insert("content".to_owned(), content.into());
        Ok(DialectResponse::data(data.into()))
    })
}

fn search(params: DialectParams, tools: &mut dyn CanonicalTools) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let call = CanonicalCall::new(
            "search",
            json!({
                "query": params.text("query"),
                "globs": params.text("glob").into_iter().collect::<Vec<_>>(),
                "max_results": params.integer("max_results").map(|max| max.min(MAX_RESULTS)),
                "context_lines": params.integer("context_lines"),
                "is_regex": params.flag("is_regex"),
            }),
        )
        .with_aliases(&[("globs[0]", "glob")]);

        let results = tools.call(call).await?;
        if results.flag("timed_out") {
            let text = "the search timed out: search fewer files, or for something simpler";
            return Ok(DialectResponse::default().with_failure("timeout", text));
        }

        let matches: Vec<Json> = results.objects("matches").map(match_json).collect();
        Ok(DialectResponse::data(json!({
            "matches": matches,
            "truncated": results.flag("truncated"),
            "total_matches": results.count("total_matches"),
        })))
    })
}

fn match_json(found: ResponseData) -> Json {
    let names = ["file", "line", "content", "context_before", "context_after"];
    found.select(&names).into()
}

fn apply_patch(
    mut params: DialectParams,
    tools: &mut dyn CanonicalTools,
) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let diff = params.take("unified_diff");
        let text = diff.as_str().unwrap_or_default();
        if text.trim().is_empty() {
            return Err(malformed_patch_error("the diff is empty"));
        }
        if let Some(line) = first_malformed_header(text) {
            return Err(malformed_patch_error(&format!(
                "line {line} is not a hunk header: it must read @@ -LINE,COUNT +LINE,COUNT @@"
            )));
        }

        let applied =
            tools.call(CanonicalCall::new("apply_patch", json!({ "unified_diff": diff }))).await?;

        let changed: Vec<Json> =
            applied.objects("changed_files").map(|mut file| file.take("path")).collect();
        Ok(DialectResponse::data(json!({
            "changed_files": changed,
            "patch_size_bytes": applied.count("patch_size_bytes"),
        })))
    })
}

fn malformed_patch_error(why: &str) -> Error {
    Error::new(Reason::PatchParseError, why.to_owned())
}

/// Number of the first line that starts like a hunk header but is malformed. The contract accepts
/// some of these, because it finds hunks by their content; `patch` does not.
fn first_malformed_header(diff: &str) -> Option<usize> {
    let mut is_in_file = false;
    diff.lines().enumerate().find_map(|(index, line)| {
        is_in_file |= line.starts_with("+++ ");
        let is_malformed = is_in_file && line.starts_with("@@") && !is_hunk_header(line);
        is_malformed.then_some(index + 1)
    })
}

/// Whether a line starts with `@@ -1,2 +1,2 @@`, with or without the counts.
fn is_hunk_header(line: &str) -> bool {
    let is_range = |range: &str, sign: char| {
        range.strip_prefix(sign).is_some_and(|numbers| {
            let mut numbers = numbers.splitn(2, ',');
            numbers.all(|number| number.parse::<u64>().is_ok())
        })
    };
    let mut words = line.split(' ');
    words.next() == Some("@@")
        && words.next().is_some_and(|range| is_range(range, '-'))
        && words.next().is_some_and(|range| is_range(range, '+'))
        && words.next().is_some_and(|word| word.starts_with("@@"))
}

fn run(mut params: DialectParams, tools: &mut dyn CanonicalTools) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let call = CanonicalCall::new(
            "run",
            json!({
                "command": params.text("command"),
                "timeout_sec": params.integer("timeout_sec"),
                "env": params.take("env"),
            }),
        )
        .with_artifact_bytes(MAX_ARTIFACT_BYTES);
        let result = tools.call(call).await?;

        let response = DialectResponse::data(json!({
            "exit_code": result.number("exit_code"),
            "stdout_path": result.text("stdout_path"),
            "stderr_path": result.text("stderr_path"),
        }));
        Ok(match result.text("outcome") {
            "OUTCOME_TIMED_OUT" => response.with_failure(
                "timeout",
                "the command exceeded its timeout, and was killed: allow more time, or do less",
            ),
            "OUTCOME_DAEMON_LOST" => response.with_failure(
                "sandbox_error",
                "the daemon died while the command ran: look how far it came",
            ),
            _ => response,
        })
    })
}

/// The document's `ToolResult`. Absent fields are null.
fn tool_result(summary: &DialectCallSummary<'_>, data: Option<Map<String, Json>>) -> Json {
    let path = |path: &str| (!path.is_empty()).then(|| path.to_owned());
    let error = summary.error.as_ref().map(|(code, message, details)| {
        json!({ "error_type": code, "message": message, "details": details })
    });

    json!({
        "request_id": summary.request_id,
        "tool": summary.tool,
        "status": if summary.is_success { "success" } else { "error" },
        "started_at": summary.started_at,
        "ended_at": summary.ended_at,
        "duration_sec": summary.duration_sec,
        "data": data,
        "error": error,
        "exit_code": summary.exit_code,
        "stdout_path": path(summary.stdout_path),
        "stderr_path": path(summary.stderr_path),
    })
}

fn failure_code(record: &Map<String, Json>) -> Option<&'static str> {
    let timed_out = record.get("outcome") == Some(&"TIMED_OUT".into())
        || record.get("timed_out") == Some(&true.into());
    timed_out.then_some("timeout")
}

/// The error codes are the contract's, except for errors of ripgrep and of the sandbox.
fn render_error(invocation: &DialectInvocation, error: &Error) -> DialectResponse {
    let is_ripgrep_error = matches!(error.reason, Reason::InvalidRegex | Reason::InvalidGlob);
    let is_sandbox_error = matches!(
        error.reason,
        Reason::CommandNotFound | Reason::CommandNotExecutable | Reason::SandboxUnavailable
    );

    let code = match invocation.tool.as_str() {
        "search" if is_ripgrep_error => "ripgrep_error".to_owned(),
        "run" if is_sandbox_error => "sandbox_error".to_owned(),
        _ => error_code(error),
    };
    DialectResponse::default().with_failure(&code, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::{DIALECT, first_malformed_header, is_hunk_header};
    use crate::daemon::catalog::Catalog;

    #[test]
    fn hunk_headers_are_recognized_as_patch_does() {
        for (line, expected) in [
            ("@@ -1,4 +1,4 @@", true),
            ("@@ -1 +1 @@", true),
            ("@@ -0,0 +1,2 @@ fn main() {", true),
            ("@@ bad @@", false),
            ("@@", false),
            ("@@ -1,4 +1,4", false),
            ("@@ -a +1 @@", false),
            ("@@ -1,2,3 +1 @@", false),
        ] {
            assert_eq!(is_hunk_header(line), expected, "{line}");
        }

        assert_eq!(
            first_malformed_header("@@ note\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n@@ x @@\n"),
            Some(5)
        );
    }

    #[test]
    fn default_timeouts_match_the_document() {
        let catalog = Catalog::load().unwrap();
        for (name, seconds) in
            [("list_files", 30), ("read_file", 10), ("search", 60), ("apply_patch", 10)]
        {
            let tool = DIALECT.tools.iter().find(|tool| tool.name == name).unwrap();
            assert_eq!(tool.uses, [name]);
            let options = &catalog.tool(name).unwrap().options;
            assert_eq!(options.default_timeout_sec, seconds, "{name}");
        }
    }
}
