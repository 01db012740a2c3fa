//! The dialect of OpenAI's models: `shell`, and `apply_patch` with patches in the V4A format. They
//! respond as `shell_call_output` and `apply_patch_call_output`.

use std::fmt::Write as _;

use serde_json::{Value as Json, json};

use super::{
    definition::{
        BASE_DIALECT, CanonicalCall, CanonicalTools, Dialect, DialectResponseFuture, DialectTool,
    },
    error_terms::FieldAliases,
    invocation::DialectInvocation,
    parameter::{DialectParams, ParameterDefault, ParameterKind, ParameterSpec},
    response::{DialectResponse, error_code},
};
use crate::daemon::{
    error::{Error, Reason},
    text::{
        diff::unified,
        v4a::{self, V4aError, V4aOperation},
    },
};

/// Largest file that a patch may change.
const MAX_FILE_BYTES: usize = 10 << 20;
/// Limit on a generated diff: four times the largest file, for its lines before and after.
const MAX_DIFF_BYTES: usize = 4 * MAX_FILE_BYTES;
/// Most commands of a call.
const MAX_COMMANDS: usize = 20;

/// The dialect's names of fields: for a call with an operation, and for one with a complete patch.
const OPERATION_ALIASES: FieldAliases =
    &[("path", "operation.path"), ("unified_diff", "operation.diff")];
const PATCH_ALIASES: FieldAliases = &[("path", "patch"), ("unified_diff", "patch")];

pub(super) const DIALECT: Dialect = Dialect {
    name: "openai",
    tools: &[
        DialectTool {
            name: "shell",
            description: "Run shell commands, one after the other, each in a shell of its own in the workspace. What each wrote and how it ended is returned.",
            parameters: &[
                ParameterSpec::new(
                    "commands",
                    ParameterKind::StringList,
                    "The commands, in their order",
                )
                .required(),
                ParameterSpec::new(
                    "timeout_ms",
                    ParameterKind::Number(1.0, 86_400_000.0),
                    "Milliseconds that each may take",
                )
                .with_default(ParameterDefault::Integer(120_000)),
                ParameterSpec::new(
                    "max_output_length",
                    ParameterKind::Integer(0, 10_485_760),
                    "Bytes of each stream that are returned",
                ),
            ],
            uses: &["run"],
            call: shell,
        },
        DialectTool {
            name: "apply_patch",
            description: "Create, update and delete files with patches in the V4A format: give either one operation, or a whole patch from *** Begin Patch to *** End Patch. All of it is applied, or nothing.",
            parameters: &[
                ParameterSpec::new(
                    "operation",
                    ParameterKind::Object(&[
                        ParameterSpec::new(
                            "type",
                            ParameterKind::Enum(&["create_file", "update_file", "delete_file"]),
                            "What to do",
                        )
                        .required(),
                        ParameterSpec::new("path", ParameterKind::String, "Path of the file")
                            .required(),
                        ParameterSpec::new(
                            "diff",
                            ParameterKind::String,
                            "V4A diff; not of a file to delete",
                        ),
                    ]),
                    "One operation on one file",
                )
                .redacted(),
                ParameterSpec::new(
                    "patch",
                    ParameterKind::String,
                    "A whole patch, of one file or several",
                )
                .redacted(),
            ],
            uses: &["read_file", "apply_patch"],
            call: apply_patch,
        },
    ],
    render_error,
    borrowed_tools: &["read_file", "wait_job"],
    failure_code: |_| None,
    ..BASE_DIALECT
};

fn shell(mut params: DialectParams, tools: &mut dyn CanonicalTools) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let commands = params.take("commands");
        let commands = commands.as_array().map_or(&[][..], Vec::as_slice);
        if commands.is_empty() || commands.len() > MAX_COMMANDS {
            let text = format!("must have 1 to {MAX_COMMANDS} commands");
            return Err(Error::invalid_field("commands", text));
        }

        let timeout = params.seconds("timeout_ms") / 1000;
        let max_bytes = params.integer("max_output_length");
        let mut output = Vec::new();
        for command in commands {
            let call = CanonicalCall::new(
                "run",
                json!({ "command": command, "max_output_bytes": max_bytes }),
            )
            .with_aliases(&[("command", "commands"), ("max_output_bytes", "max_output_length")])
            .with_timeout(timeout);
            let result = tools.call(call).await?;

            let outcome = match result.text("outcome") {
                "OUTCOME_TIMED_OUT" => json!({ "type": "timeout" }),
                _ => json!({ "type": "exit", "exit_code": result.exit_code() }),
            };
            output.push(json!({
                "stdout": result.text("stdout"),
                "stderr": result.text("stderr"),
                "outcome": outcome,
            }));
        }

        let mut data = json!({ "output": output });
        if let Some(max_bytes) = max_bytes {
            data["max_output_length"] = max_bytes.into();
        }
        Ok(DialectResponse::data(data))
    })
}

fn apply_patch(
    mut params: DialectParams,
    tools: &mut dyn CanonicalTools,
) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let (operations, aliases) = parse_operations(&mut params)?;
        let mut diff = String::new();
        for operation in &operations {
            diff.push_str(&to_unified_diff(operation, aliases, tools).await?);
        }

        // No fuzz: the files were just read, so any difference is a concurrent change.
        let call =
            CanonicalCall::new("apply_patch", json!({ "unified_diff": diff, "max_fuzz": 0 }))
                .with_aliases(aliases);
        let applied = tools.call(call).await?;

        let changed: Vec<String> = applied
            .objects("changed_files")
            .map(|file| {
                let change = file.enum_name("change", "FILE_CHANGE_");
                format!("{change} {}", file.text("path"))
            })
            .collect();
        Ok(DialectResponse::data(json!({ "status": "completed", "output": changed.join("\n") })))
    })
}

/// The requested operations, with the dialect's names of fields for them.
fn parse_operations(
    params: &mut DialectParams,
) -> Result<(Vec<V4aOperation>, FieldAliases), Error> {
    let (operation, patch) = (params.take("operation"), params.take("patch"));
    match (operation.as_object(), patch.as_str()) {
        (None, Some(patch)) => {
            let operations = v4a::parse(patch).map_err(|error| patch_parse_error(&error))?;
            Ok((operations, PATCH_ALIASES))
        }
        (Some(operation), None) => {
            let text = |name: &str| {
                operation.get(name).and_then(Json::as_str).unwrap_or_default().to_owned()
            };
            let (path, diff) = (text("path"), text("diff"));
            let operation = match text("type").as_str() {
                "create_file" => V4aOperation::Add {
                    content: v4a::new_file_content(&diff)
                        .map_err(|error| patch_parse_error(&error))?,
                    path,
                },
                "delete_file" => V4aOperation::Delete { path },
                _ => V4aOperation::Update { path, destination: None, diff },
            };
            Ok((vec![operation], OPERATION_ALIASES))
        }
        _ => Err(Error::invalid_field("operation", "give either operation or patch")),
    }
}

/// The operation as a unified diff. Reads the file that it updates or deletes.
async fn to_unified_diff(
    operation: &V4aOperation,
    aliases: FieldAliases,
    tools: &mut dyn CanonicalTools,
) -> Result<String, Error> {
    let mut diff = String::new();
    // Writing to a `String` cannot fail.
    match operation {
        V4aOperation::Add { path, content } => {
            check_diff_path(path, aliases)?;
            let _written = write!(diff, "diff --git a/{path} b/{path}\nnew file mode 100644\n");

            if !content.is_empty() {
                let lines = content.lines().count();
                let _written = write!(diff, "--- /dev/null\n+++ b/{path}\n@@ -0,0 +1,{lines} @@\n");
                for line in content.lines() {
                    let _written = writeln!(diff, "+{line}");
                }
            }
        }
        V4aOperation::Update { path, destination, diff: change } => {
            check_diff_path(path, aliases)?;
            let old = read_whole(path, aliases, tools).await?;
            let new = v4a::apply(&old, change).map_err(|error| patch_apply_error(path, &error))?;
            let to = destination.as_deref().unwrap_or(path);
            check_diff_path(to, aliases)?;

            if to != path {
                let _written = write!(
                    diff,
                    "diff --git a/{path} b/{to}\nrename from {path}\nrename to {to}\n"
                );
            }

            let changed = unified(path, &old, &new, MAX_DIFF_BYTES);
            // Only the hunks: the file header is written here.
            let hunks = changed.find("\n@@ ").map_or("", |at| &changed[at + 1..]);
            if !hunks.is_empty() {
                let _written = write!(diff, "--- a/{path}\n+++ b/{to}\n{hunks}");
            }
        }
        V4aOperation::Delete { path } => {
            check_diff_path(path, aliases)?;
            let old = read_whole(path, aliases, tools).await?;
            let _written = write!(diff, "diff --git a/{path} b/{path}\ndeleted file mode 100644\n");

            let lines = old.lines().count();
            if lines > 0 {
                let _written = write!(diff, "--- a/{path}\n+++ /dev/null\n@@ -1,{lines} +0,0 @@\n");
                for line in old.split_inclusive('\n') {
                    let _written = write!(diff, "-{line}");
                }
                if !old.ends_with('\n') {
                    diff.push_str("\n\\ No newline at end of file\n");
                }
            }
        }
    }
    Ok(diff)
}

/// The content of a file. Fails if it exceeds [`MAX_FILE_BYTES`].
async fn read_whole(
    path: &str,
    aliases: FieldAliases,
    tools: &mut dyn CanonicalTools,
) -> Result<String, Error> {
    let call = CanonicalCall::new(
        "read_file",
        // A range from the first line on: without one, a long file loses its middle.
        json!({ "path": path, "start_line": 1, "max_bytes": MAX_FILE_BYTES }),
    )
    .with_aliases(aliases);
    let mut file = tools.call(call).await?;

    if file.flag("truncated") {
        let text = format!("{path:?} is too large to be patched: change it by a command");
        return Err(Error::new(Reason::FileTooLarge, text).with_metadata("path", path));
    }

    match file.take("content") {
        Json::String(content) => Ok(content),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::Array(_) | Json::Object(_) => {
            Err(Error::internal("a file without content was read"))
        }
    }
}

/// Rejects a path that a diff cannot contain.
fn check_diff_path(path: &str, aliases: FieldAliases) -> Result<(), Error> {
    let is_plain = !path.is_empty()
        && !path.starts_with('/')
        && path.trim() == path
        && !path.contains(|character: char| character.is_control() || character == '"');
    if is_plain {
        return Ok(());
    }

    let alias = aliases.iter().find(|(field, _)| *field == "path");
    let text = format!(
        "{path:?} must be relative, and without control characters, quotes and blanks around it"
    );
    Err(Error::invalid_field(alias.map_or("path", |(_, name)| name), text))
}

fn patch_parse_error(error: &V4aError) -> Error {
    Error::new(Reason::PatchParseError, error.to_string())
}

fn patch_apply_error(path: &str, error: &V4aError) -> Error {
    let reason = match error {
        V4aError::Malformed(_) => Reason::PatchParseError,
        V4aError::ContextNotFound(_) => Reason::PatchHunkFail,
    };
    Error::new(reason, format!("{path}: {error}")).with_metadata("path", path)
}

fn render_error(invocation: &DialectInvocation, error: &Error) -> DialectResponse {
    let text = error.to_string();
    let data = match invocation.tool.as_str() {
        "apply_patch" => json!({ "status": "failed", "output": text }),
        _ => json!({ "output": [], "error": text }),
    };
    DialectResponse::data(data).with_failure(&error_code(error), text)
}
