//! Promises to clients: names, defaults and limits that must not change.

use jig::api::v1::{Risk, field_rules::DefaultValue};
use prost_reflect::{EnumDescriptor, Kind, MethodDescriptor};

use super::descriptors::{field_rules, fields_of, methods, pool, tool_options, upper_snake};
use crate::tidy::assert_none;

/// Default and range of a number.
const fn number(default: i64, minimum: i64, maximum: i64) -> Promise {
    Promise { default: Some(PromisedDefault::Number(default)), range: Some((minimum, maximum)) }
}

const fn range(minimum: i64, maximum: i64) -> Promise {
    Promise { default: None, range: Some((minimum, maximum)) }
}

const fn text(default: &'static str) -> Promise {
    Promise { default: Some(PromisedDefault::Text(default)), range: None }
}

const fn flag(default: bool) -> Promise {
    Promise { default: Some(PromisedDefault::Flag(default)), range: None }
}

/// The promised default and range of a request field.
#[derive(Debug, Clone, Copy)]
struct Promise {
    default: Option<PromisedDefault>,
    range: Option<(i64, i64)>,
}

#[derive(Debug, Clone, Copy)]
enum PromisedDefault {
    Number(i64),
    Text(&'static str),
    Flag(bool),
}

/// RPC, name, risk and default timeout in seconds of every promised tool. They bind tools that are
/// not built yet, too.
const PROMISED_TOOLS: &[(&str, &str, Risk, u32)] = &[
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
const PROMISED_RPCS: &[(&str, &str, bool)] = &[
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
    ("DaemonService", "GetInfo", false),
];

/// Fields that messages must have.
const PROMISED_FIELDS: &[(&str, &[&str])] = &[
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
    ("ReadArtifactRequest", &["path", "offset", "limit"]),
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
const PROMISED_LIMITS: &[(&str, &str, Promise)] = &[
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
const PROMISED_ENUM_VALUES: &[(&str, &[&str])] = &[
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
fn tools_match_the_promised_ones() {
    let mut found = Vec::new();
    for method in methods() {
        let Some(tool) = tool_options(&method) else { continue };
        let actual = (method.name(), tool.name.as_str(), tool.risk(), tool.default_timeout_sec);
        if !PROMISED_TOOLS.contains(&actual) {
            found.push(format!("{actual:?}"));
        }
    }

    assert_none("tools that differ from the promised ones", found);
}

#[test]
fn promised_names_exist() {
    let mut missing = Vec::new();
    let methods = methods();
    for (service, rpc, streams) in PROMISED_RPCS {
        let is_promised = |method: &&MethodDescriptor| {
            method.full_name() == format!("jig.v1.{service}.{rpc}")
                && method.is_server_streaming() == *streams
                && !method.is_client_streaming()
        };
        if !methods.iter().any(|method| is_promised(&method)) {
            missing.push(format!("rpc {service}.{rpc}"));
        }
    }

    for (message, fields) in PROMISED_FIELDS {
        let existing = fields_of(message);
        let absent = fields.iter().filter(|field| !existing.contains_key(**field));
        missing.extend(absent.map(|field| format!("field {message}.{field}")));
    }

    for (kind, values) in PROMISED_ENUM_VALUES {
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

    assert_none("promised names that are missing", missing);
}

#[test]
fn promised_defaults_and_limits_hold() {
    let mut found = Vec::new();
    for (message, name, promise) in PROMISED_LIMITS {
        let rules = fields_of(message).get(*name).and_then(field_rules);
        let rules = rules.unwrap_or_default();

        let default = match (&rules.default_value, promise.default) {
            (
                Some(DefaultValue::DefaultNumber(actual)),
                Some(PromisedDefault::Number(promised)),
            ) => *actual == promised,
            (Some(DefaultValue::DefaultText(actual)), Some(PromisedDefault::Text(promised))) => {
                actual == promised
            }
            (Some(DefaultValue::DefaultBool(actual)), Some(PromisedDefault::Flag(promised))) => {
                *actual == promised
            }
            (actual, promised) => actual.is_none() && promised.is_none(),
        };

        let limits = rules.minimum.zip(rules.maximum) == promise.range;
        if !default || !limits {
            found.push(format!("{message}.{name}: {rules:?}, promised {promise:?}"));
        }
    }

    let exit_code = fields_of("RunResponse").remove("exit_code");
    if !exit_code.is_some_and(|field| field.supports_presence() && field.kind() == Kind::Int32) {
        found.push("RunResponse.exit_code is not an `optional int32`".to_owned());
    }

    assert_none("defaults and limits", found);
}
