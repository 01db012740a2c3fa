//! API stability: names, defaults and limits on which clients rely and that must not change.

use jig::api::v1::{Risk, field_rules::DefaultValue};
use prost_reflect::{EnumDescriptor, Kind, MethodDescriptor};

use super::descriptors::{field_rules, fields_of, methods, pool, tool_options, upper_snake};
use crate::tidy::assert_none;

/// Default and range of a number.
const fn number(default: i64, minimum: i64, maximum: i64) -> StableRules {
    StableRules { default: Some(StableDefault::Number(default)), range: Some((minimum, maximum)) }
}

const fn range(minimum: i64, maximum: i64) -> StableRules {
    StableRules { default: None, range: Some((minimum, maximum)) }
}

const fn text(default: &'static str) -> StableRules {
    StableRules { default: Some(StableDefault::Text(default)), range: None }
}

const fn flag(default: bool) -> StableRules {
    StableRules { default: Some(StableDefault::Flag(default)), range: None }
}

/// The stable default and range of a request field.
#[derive(Debug, Clone, Copy)]
struct StableRules {
    default: Option<StableDefault>,
    range: Option<(i64, i64)>,
}

#[derive(Debug, Clone, Copy)]
enum StableDefault {
    Number(i64),
    Text(&'static str),
    Flag(bool),
}

/// RPC, name, risk and default timeout in seconds of every stable tool. A tool that does not
/// exist yet must match its entry.
const STABLE_TOOLS: &[(&str, &str, Risk, u32)] = &[
    ("ListFiles", "list_files", Risk::ReadOnly, 30),
    ("ListDirectory", "list_dir", Risk::ReadOnly, 30),
    ("ReadFile", "read_file", Risk::ReadOnly, 10),
    ("StatPath", "stat", Risk::ReadOnly, 10),
    ("WriteFile", "write_file", Risk::SafeWrite, 30),
    ("EditFile", "edit_file", Risk::Dangerous, 30),
    ("ApplyPatch", "apply_patch", Risk::Dangerous, 10),
    ("Search", "search", Risk::ReadOnly, 60),
    ("CreateDirectory", "create_directory", Risk::SafeWrite, 10),
    ("MovePath", "move_path", Risk::Dangerous, 10),
    ("DeletePath", "delete_path", Risk::Dangerous, 30),
    ("ReadNotebook", "read_notebook", Risk::ReadOnly, 10),
    ("EditNotebook", "edit_notebook", Risk::Dangerous, 30),
    ("Run", "run", Risk::Dangerous, 120),
    ("LastCommand", "last_command", Risk::ReadOnly, 5),
    ("AwaitJob", "wait_job", Risk::ReadOnly, 60),
    ("FetchUrl", "fetch_url", Risk::Dangerous, 10),
];

/// RPCs that must exist: service, RPC, and whether the response is a stream.
const STABLE_RPCS: &[(&str, &str, bool)] = &[
    ("ToolService", "ListFiles", false),
    ("ToolService", "ReadFile", false),
    ("ToolService", "Run", false),
    ("ApprovalService", "ListApprovals", false),
    ("ApprovalService", "WatchApprovals", true),
    ("ApprovalService", "DecideApproval", false),
    ("ApprovalService", "ListRules", false),
    ("ApprovalService", "CreateRule", false),
    ("ApprovalService", "DeleteRule", false),
    ("ArtifactService", "ReadArtifact", true),
    ("TransferService", "GetUpload", false),
    ("TransferService", "Download", true),
    ("TransferService", "DownloadTree", true),
    ("WatchService", "WatchFiles", true),
    ("DaemonService", "GetInfo", false),
];

/// Fields that messages must have.
const STABLE_FIELDS: &[(&str, &[&str])] = &[
    (
        "ListFilesRequest",
        &["root", "glob", "max_results", "respect_ignore", "hidden", "max_depth", "page_token"],
    ),
    ("ListFilesResponse", &["files", "truncated", "next_page_token", "skipped_names"]),
    ("ReadFileRequest", &["path", "start_line", "end_line", "encoding", "max_bytes"]),
    (
        "ReadFileResponse",
        &[
            "content",
            "encoding",
            "truncated",
            "omitted_lines",
            "total_lines",
            "start_line",
            "end_line",
            "size_bytes",
            "sha256",
        ],
    ),
    ("RunRequest", &["command", "argv", "cwd", "env", "stdin", "timeout_sec", "max_output_bytes"]),
    (
        "RunResponse",
        &[
            "outcome",
            "exit_code",
            "signal",
            "stdout",
            "stderr",
            "stdout_bytes",
            "stderr_bytes",
            "stdout_truncated",
            "stderr_truncated",
            "stdout_path",
            "stderr_path",
            "limit",
            "kill_pending",
            "duration_ms",
            "usage",
            "isolation",
        ],
    ),
    ("FetchUrlRequest", &["url", "timeout_sec", "format", "max_bytes"]),
    (
        "FetchUrlResponse",
        &["final_url", "status_code", "content_type", "content_length", "content", "truncated"],
    ),
    ("ResourceUsage", &["user_ms", "system_ms", "max_rss_bytes"]),
    ("ReadArtifactRequest", &["path", "offset", "limit", "job_id"]),
    (
        "UploadStart",
        &[
            "path",
            "size_bytes",
            "sha256",
            "mode",
            "create_directories",
            "expected_sha256",
            "file_mode",
            "upload_id",
        ],
    ),
    ("UploadChunk", &["offset", "data"]),
    ("DownloadRequest", &["path", "offset", "limit"]),
    ("DownloadResponse", &["data", "offset", "size_bytes", "sha256"]),
];

/// Defaults and limits of request fields.
const STABLE_LIMITS: &[(&str, &str, StableRules)] = &[
    ("ListFilesRequest", "root", text(".")),
    ("ListFilesRequest", "max_results", number(1000, 1, 10_000)),
    ("ListFilesRequest", "respect_ignore", flag(false)),
    ("ListFilesRequest", "hidden", flag(true)),
    ("ReadFileRequest", "encoding", text("ENCODING_UTF8")),
    ("ReadFileRequest", "max_bytes", number(3 << 20, 1, 10 << 20)),
    ("FetchUrlRequest", "timeout_sec", range(1, 60)),
    ("FetchUrlRequest", "max_bytes", number(1 << 20, 1, 4 << 20)),
    ("FetchUrlRequest", "format", text("FETCH_FORMAT_RAW")),
    ("RunRequest", "cwd", text(".")),
    ("RunRequest", "timeout_sec", range(1, 86_400)),
    ("RunRequest", "max_output_bytes", number(102_400, 0, 10 << 20)),
];

/// Values of enums, without prefix and `UNSPECIFIED`.
const STABLE_ENUM_VALUES: &[(&str, &[&str])] = &[
    ("Decision", &["ALLOW", "DENY", "ALWAYS"]),
    ("Encoding", &["UTF8", "BASE64"]),
    (
        "Outcome",
        &[
            "EXITED",
            "SIGNALED",
            "TIMED_OUT",
            "CANCELLED",
            "OOM_KILLED",
            "OUTPUT_LIMIT",
            "DAEMON_LOST",
        ],
    ),
    ("FetchFormat", &["RAW", "TEXT", "MARKDOWN"]),
    ("Risk", &["READ_ONLY", "SAFE_WRITE", "DANGEROUS"]),
];

#[test]
fn tools_match_the_stable_list() {
    let mut found = Vec::new();
    for method in methods() {
        let Some(tool) = tool_options(&method) else { continue };
        let actual = (method.name(), tool.name.as_str(), tool.risk(), tool.default_timeout_sec);
        if !STABLE_TOOLS.contains(&actual) {
            found.push(format!("{actual:?}"));
        }
    }

    assert_none("tools that differ from the stable list", found);
}

#[test]
fn stable_names_exist() {
    let mut missing = Vec::new();
    let methods = methods();
    for (service, rpc, streams) in STABLE_RPCS {
        let is_stable = |method: &&MethodDescriptor| {
            method.full_name() == format!("jig.v1.{service}.{rpc}")
                && method.is_server_streaming() == *streams
                && !method.is_client_streaming()
        };
        if !methods.iter().any(|method| is_stable(&method)) {
            missing.push(format!("rpc {service}.{rpc}"));
        }
    }

    for (message, fields) in STABLE_FIELDS {
        let existing = fields_of(message);
        let absent = fields.iter().filter(|field| !existing.contains_key(**field));
        missing.extend(absent.map(|field| format!("field {message}.{field}")));
    }

    for (kind, values) in STABLE_ENUM_VALUES {
        let prefix = format!("{}_", upper_snake(kind));
        let descriptor = pool().get_enum_by_name(&format!("jig.v1.{kind}"));
        let existing: Vec<String> = descriptor
            .iter()
            .flat_map(EnumDescriptor::values)
            .filter_map(|value| Some(value.name().strip_prefix(&prefix)?.to_owned()))
            .collect();
        let absent = values.iter().filter(|value| !existing.iter().any(|name| name == *value));
        missing.extend(absent.map(|value| format!("value {prefix}{value}")));
    }

    assert_none("stable names that are missing", missing);
}

#[test]
fn stable_defaults_and_limits_hold() {
    let mut found = Vec::new();
    for (message, name, expected_rules) in STABLE_LIMITS {
        let rules = fields_of(message).get(*name).and_then(field_rules);
        let rules = rules.unwrap_or_default();

        let default = match (&rules.default_value, expected_rules.default) {
            (Some(DefaultValue::DefaultNumber(actual)), Some(StableDefault::Number(expected))) => {
                *actual == expected
            }
            (Some(DefaultValue::DefaultText(actual)), Some(StableDefault::Text(expected))) => {
                actual == expected
            }
            (Some(DefaultValue::DefaultBool(actual)), Some(StableDefault::Flag(expected))) => {
                *actual == expected
            }
            (actual, expected) => actual.is_none() && expected.is_none(),
        };

        let limits = rules.minimum.zip(rules.maximum) == expected_rules.range;
        if !default || !limits {
            found.push(format!("{message}.{name}: {rules:?}, expected {expected_rules:?}"));
        }
    }

    let exit_code = fields_of("RunResponse").remove("exit_code");
    if !exit_code.is_some_and(|field| field.supports_presence() && field.kind() == Kind::Int32) {
        found.push("RunResponse.exit_code is not an `optional int32`".to_owned());
    }

    assert_none("defaults and limits", found);
}
