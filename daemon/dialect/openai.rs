//! The tools that OpenAI's models are trained on: `shell`, and `apply_patch` with patches in their own format,
//! answered as `shell_call_output` and `apply_patch_call_output` have it.

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

/// Largest file that is changed.
const MAX_FILE_BYTES: usize = 10 << 20;
/// Lines of context of the diffs that are made: the file was just read, and must not have changed since.
const MAX_DIFF_BYTES: usize = 4 * MAX_FILE_BYTES;
/// Most commands of one call.
const MAX_COMMANDS: usize = 20;

/// What a call has from an operation, and from a whole patch.
const OPERATION_ALIASES: FieldAliases =
    &[("path", "operation.path"), ("unified_diff", "operation.diff")];
const PATCH_ALIASES: FieldAliases = &[("path", "patch"), ("unified_diff", "patch")];

/// The vocabulary.
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
        let limit = params.seconds("timeout_ms") / 1000;
        let most = params.integer("max_output_length");
        let mut output = Vec::new();
        for command in commands {
            let call =
                CanonicalCall::new("run", json!({ "command": command, "max_output_bytes": most }))
                    .with_aliases(&[
                        ("command", "commands"),
                        ("max_output_bytes", "max_output_length"),
                    ]);
            let ran = tools.call(call.with_timeout(limit)).await?;
            let outcome = match ran.text("outcome") {
                "OUTCOME_TIMED_OUT" => json!({ "type": "timeout" }),
                _ => json!({ "type": "exit", "exit_code": ran.exit_code() }),
            };
            output.push(json!({
                "stdout": ran.text("stdout"),
                "stderr": ran.text("stderr"),
                "outcome": outcome,
            }));
        }
        let mut data = json!({ "output": output });
        if let Some(most) = most {
            data["max_output_length"] = most.into();
        }
        Ok(DialectResponse::data(data))
    })
}

fn apply_patch(
    mut params: DialectParams,
    tools: &mut dyn CanonicalTools,
) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let (operations, names) = parse_operations(&mut params)?;
        let mut diff = String::new();
        for operation in &operations {
            diff.push_str(&to_unified_diff(operation, names, tools).await?);
        }
        let call =
            CanonicalCall::new("apply_patch", json!({ "unified_diff": diff, "max_fuzz": 0 }));
        let applied = tools.call(call.with_aliases(names)).await?;
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

/// What is to be done, and what the fields of calls that do it are called.
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
                let text = operation.get(name).and_then(Json::as_str);
                text.unwrap_or_default().to_owned()
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

/// The same as a diff that the contract knows.
async fn to_unified_diff(
    operation: &V4aOperation,
    names: FieldAliases,
    tools: &mut dyn CanonicalTools,
) -> Result<String, Error> {
    let named = |path: &str| check_diff_path(path, names);
    let mut diff = String::new();
    // Writing to a text does not fail.
    match operation {
        V4aOperation::Add { path, content } => {
            named(path)?;
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
            named(path)?;
            let old = read_whole(path, names, tools).await?;
            let new = v4a::apply(&old, change).map_err(|error| patch_apply_error(path, &error))?;
            let to = destination.as_deref().unwrap_or(path);
            named(to)?;
            if to != path {
                let _written = write!(
                    diff,
                    "diff --git a/{path} b/{to}\nrename from {path}\nrename to {to}\n"
                );
            }
            let changed = unified(path, &old, &new, MAX_DIFF_BYTES);
            // Behind the names: those are written here.
            let hunks = changed.find("\n@@ ").map_or("", |at| &changed[at + 1..]);
            if !hunks.is_empty() {
                let _written = write!(diff, "--- a/{path}\n+++ b/{to}\n{hunks}");
            }
        }
        V4aOperation::Delete { path } => {
            named(path)?;
            let old = read_whole(path, names, tools).await?;
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

async fn read_whole(
    path: &str,
    names: FieldAliases,
    tools: &mut dyn CanonicalTools,
) -> Result<String, Error> {
    let call = CanonicalCall::new(
        "read_file",
        // From the first line on: a long file is read whole, too.
        json!({ "path": path, "start_line": 1, "max_bytes": MAX_FILE_BYTES }),
    );
    let mut read = tools.call(call.with_aliases(names)).await?;
    if read.flag("truncated") {
        let text = format!("{path:?} is too large to be patched: change it by a command");
        return Err(Error::new(Reason::FileTooLarge, text).with_metadata("path", path));
    }
    match read.take("content") {
        Json::String(content) => Ok(content),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::Array(_) | Json::Object(_) => {
            Err(Error::internal("a file without content was read"))
        }
    }
}

/// Refuses a path that a diff cannot name.
fn check_diff_path(path: &str, names: FieldAliases) -> Result<(), Error> {
    let is_plain = !path.is_empty()
        && !path.starts_with('/')
        && path.trim() == path
        && !path.contains(|character: char| character.is_control() || character == '"');
    let mut places = names.iter().filter(|(own, _)| *own == "path");
    let place = places.next().map_or("path", |(_, name)| name);
    match is_plain {
        true => Ok(()),
        false => Err(Error::invalid_field(
            place,
            format!(
                "{path:?} must be relative, and without control characters, quotes and blanks around it"
            ),
        )),
    }
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
