//! The rules of the contract, checked on its descriptors: the lint rules of buf (STANDARD and
//! COMMENTS), what the options of tools and fields must say, and the names that clients were
//! promised.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use jig::api::{
    FILE_DESCRIPTOR_SET,
    v1::{FieldRules, Risk, ToolOptions, field_rules::DefaultValue},
};
use prost_reflect::{
    Cardinality, DescriptorPool, DynamicMessage, EnumDescriptor, FieldDescriptor, FileDescriptor,
    Kind, MessageDescriptor, MethodDescriptor, ServiceDescriptor, Value,
};

use crate::tidy::none;

/// Default and range of a number.
const fn number(default: i64, minimum: i64, maximum: i64) -> Promise {
    Promise {
        default: Some(Default::Number(default)),
        range: Some((minimum, maximum)),
    }
}

const fn range(minimum: i64, maximum: i64) -> Promise {
    Promise {
        default: None,
        range: Some((minimum, maximum)),
    }
}

const fn text(default: &'static str) -> Promise {
    Promise {
        default: Some(Default::Text(default)),
        range: None,
    }
}

const fn flag(default: bool) -> Promise {
    Promise {
        default: Some(Default::Flag(default)),
        range: None,
    }
}

/// What was promised of a request field.
#[derive(Debug, Clone, Copy)]
struct Promise {
    default: Option<Default>,
    range: Option<(i64, i64)>,
}

#[derive(Debug, Clone, Copy)]
enum Default {
    Number(i64),
    Text(&'static str),
    Flag(bool),
}

/// RPC, name, risk and seconds of every tool that was promised. Those that are not built yet bind
/// whoever builds them.
const TOOLS: &[(&str, &str, Risk, u32)] = &[
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
    ("FetchUrl", "fetch_url", Risk::Dangerous, 10),
];

/// RPCs that exist, and whether they stream their answer.
const RPCS: &[(&str, &str, bool)] = &[
    ("ToolService", "ListFiles", false),
    ("ToolService", "ReadFile", false),
    ("ToolService", "Run", false),
    ("ArtifactService", "ReadArtifact", true),
    ("TransferService", "GetUpload", false),
    ("TransferService", "Download", true),
    ("DaemonService", "GetInfo", false),
];

/// Fields that messages have.
const FIELDS: &[(&str, &[&str])] = &[
    (
        "ListFilesRequest",
        &[
            "root",
            "glob",
            "max_results",
            "respect_ignore",
            "hidden",
            "max_depth",
            "page_token",
        ],
    ),
    (
        "ListFilesResponse",
        &["files", "truncated", "next_page_token", "skipped_names"],
    ),
    (
        "ReadFileRequest",
        &["path", "start_line", "end_line", "encoding", "max_bytes"],
    ),
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
    (
        "RunRequest",
        &[
            "command",
            "argv",
            "cwd",
            "env",
            "stdin",
            "timeout_sec",
            "max_output_bytes",
        ],
    ),
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
    (
        "DownloadResponse",
        &["data", "offset", "size_bytes", "sha256"],
    ),
];

/// Defaults and limits of request fields.
const LIMITS: &[(&str, &str, Promise)] = &[
    ("ListFilesRequest", "root", text(".")),
    ("ListFilesRequest", "max_results", number(1000, 1, 10_000)),
    ("ListFilesRequest", "respect_ignore", flag(false)),
    ("ListFilesRequest", "hidden", flag(true)),
    ("ReadFileRequest", "encoding", text("ENCODING_UTF8")),
    ("ReadFileRequest", "max_bytes", number(3 << 20, 1, 10 << 20)),
    ("RunRequest", "cwd", text(".")),
    ("RunRequest", "timeout_sec", range(1, 86_400)),
    (
        "RunRequest",
        "max_output_bytes",
        number(102_400, 0, 10 << 20),
    ),
];

/// Values of enums, without prefix and `UNSPECIFIED`.
const VALUES: &[(&str, &[&str])] = &[
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
    ("Risk", &["READ_ONLY", "SAFE_WRITE", "DANGEROUS"]),
];

#[test]
fn every_proto_of_ours_is_in_the_descriptors() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    let known: Vec<String> = files().iter().map(|file| file.name().to_owned()).collect();
    let forgotten = walk(&root.join("jig"))
        .into_iter()
        .map(|path| path.strip_prefix(&root).unwrap().display().to_string())
        .filter(|file| file.ends_with(".proto") && !known.contains(file));
    none("protos that build.rs does not compile", forgotten);
}

#[test]
fn packages_are_versioned_and_lie_in_the_folder_of_their_name() {
    let mut found = Vec::new();
    for file in files() {
        let package = file.package_name();
        if !package.rsplit('.').next().is_some_and(is_version) {
            found.push(format!("{}: package {package} has no version", file.name()));
        }
        let (folder, name) = file.name().rsplit_once('/').unwrap();
        if folder != package.replace('.', "/") {
            found.push(format!(
                "{}: package {package} belongs elsewhere",
                file.name()
            ));
        }
        if !is_lower_snake(name.trim_end_matches(".proto")) {
            found.push(format!("{}: not lower_snake_case", file.name()));
        }
    }
    none("files", found);
}

#[test]
fn names_have_the_usual_shape() {
    let mut found = Vec::new();
    for element in elements() {
        let name = element.name.rsplit('.').next().unwrap_or_default();
        let good = match element.kind {
            "message" | "enum" | "rpc" | "service" => is_pascal(name),
            "enum value" => is_upper_snake(name),
            _ => is_lower_snake(name),
        };
        if !good {
            found.push(format!("{} {}", element.kind, element.name));
        }
    }
    for service in services() {
        if !service.name().ends_with("Service") {
            found.push(format!(
                "service {} does not end in Service",
                service.name()
            ));
        }
    }
    none("names", found);
}

#[test]
fn enums_begin_with_a_value_for_not_given_and_their_values_have_a_prefix() {
    let mut found = Vec::new();
    for kind in enums() {
        let prefix = format!("{}_", upper_snake(kind.name()));
        let values: Vec<_> = kind.values().collect();
        let zero = format!("{prefix}UNSPECIFIED");
        if values[0].number() != 0 || values[0].name() != zero {
            found.push(format!("{} does not begin with {zero} = 0", kind.name()));
        }
        let strange = values
            .iter()
            .filter(|value| !value.name().starts_with(&prefix));
        found.extend(strange.map(|value| format!("{} lacks {prefix}", value.name())));
        let numbers: BTreeSet<i32> = values.iter().map(|value| value.number()).collect();
        if numbers.len() != values.len() {
            found.push(format!("{} has two names for one number", kind.name()));
        }
    }
    none("enums", found);
}

#[test]
fn every_rpc_has_a_request_and_a_response_of_its_own() {
    let mut found = Vec::new();
    let mut users: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for method in methods() {
        let own = [(method.input(), "Request"), (method.output(), "Response")];
        for (message, suffix) in own {
            let short = format!("{}{suffix}", method.name());
            let service = method.parent_service().name().to_owned();
            if message.name() != short && message.name() != format!("{service}{short}") {
                found.push(format!("{}: {}", method.full_name(), message.full_name()));
            }
            let users = users.entry(message.full_name().to_owned()).or_default();
            users.push(method.full_name().to_owned());
        }
    }
    let shared = users.iter().filter(|(_, users)| users.len() > 1);
    found.extend(shared.map(|(message, users)| format!("{message}: {}", users.join(", "))));
    none("requests and responses", found);
}

#[test]
fn no_message_is_empty_or_of_any_type() {
    const REFUSED: [&str; 2] = ["google.protobuf.Any", "google.protobuf.Empty"];
    let fields = messages().into_iter().flat_map(|message| {
        let refused = message.fields().filter(
            |field| matches!(field.kind(), Kind::Message(kind) if REFUSED.contains(&kind.full_name())),
        );
        refused
            .map(|field| field.full_name().to_owned())
            .collect::<Vec<_>>()
    });
    let rpcs = methods().into_iter().filter(|method| {
        REFUSED.contains(&method.input().full_name())
            || REFUSED.contains(&method.output().full_name())
    });
    let rpcs = rpcs.map(|method| method.full_name().to_owned());
    none("uses of Any or Empty", fields.chain(rpcs));
}

#[test]
fn every_element_has_a_comment_above_it() {
    let found = elements()
        .into_iter()
        .filter(|element| element.comment.trim().is_empty())
        .map(|element| format!("{} {}", element.kind, element.name));
    none("elements without a comment", found);
}

#[test]
fn every_rpc_lists_its_errors() {
    let found = elements()
        .into_iter()
        .filter(|element| element.kind == "rpc" && !lists_errors(&element.comment))
        .map(|element| element.name);
    none("RPCs without a list `Errors:`", found);
}

#[test]
fn every_rpc_of_the_tool_service_is_a_tool() {
    let mut found = Vec::new();
    let mut names = BTreeSet::new();
    for method in methods() {
        let name = method.full_name().to_owned();
        let Some(tool) = tool(&method) else {
            if method.parent_service().name() == "ToolService" {
                found.push(format!("{name} has no option (jig.v1.tool)"));
            }
            continue;
        };
        let mut characters = tool.name.chars();
        let begins = characters.next().is_some_and(|c| c.is_ascii_lowercase());
        let goes_on = characters.all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        if !begins || !goes_on || tool.name.len() > 64 {
            found.push(format!("{name}: no name for a tool: {:?}", tool.name));
        }
        if !names.insert(tool.name.clone()) {
            found.push(format!("{name}: another tool is called {}", tool.name));
        }
        if tool.title.is_empty() {
            found.push(format!("{name} has no title"));
        }
        if tool.risk() == Risk::Unspecified {
            found.push(format!("{name} has no risk"));
        }
        if tool.default_timeout_sec == 0 {
            found.push(format!("{name} has no time limit"));
        }
        if tool.read_only != (tool.risk() == Risk::ReadOnly) || tool.read_only && tool.destructive {
            found.push(format!("{name}: its risk and hints contradict one another"));
        }
        if method.is_client_streaming() || method.is_server_streaming() {
            found.push(format!("{name} is not unary"));
        }
    }
    none("tools", found);
}

#[test]
fn defaults_lie_within_the_limits_of_their_field() {
    let mut found = Vec::new();
    for message in messages() {
        for field in message.fields() {
            if let Some(rules) = rules(&field) {
                let wrong = contradictions(&field, &rules).into_iter();
                found.extend(wrong.map(|what| format!("{}: {what}", field.full_name())));
            }
        }
    }
    none("rules of fields", found);
}

#[test]
fn the_promised_tools_are_as_promised() {
    let mut found = Vec::new();
    for method in methods() {
        let Some(tool) = tool(&method) else { continue };
        let is = (
            method.name(),
            tool.name.as_str(),
            tool.risk(),
            tool.default_timeout_sec,
        );
        if !TOOLS.contains(&is) {
            found.push(format!("{is:?}"));
        }
    }
    none("tools that differ from what was promised", found);
}

#[test]
fn the_promised_names_are_there() {
    let mut missing = Vec::new();
    let methods = methods();
    for (service, rpc, streams) in RPCS {
        let is_it = |method: &&MethodDescriptor| {
            method.full_name() == format!("jig.v1.{service}.{rpc}")
                && method.is_server_streaming() == *streams
                && !method.is_client_streaming()
        };
        if !methods.iter().any(|method| is_it(&method)) {
            missing.push(format!("rpc {service}.{rpc}"));
        }
    }
    for (message, fields) in FIELDS {
        let has = fields_of(message);
        let lost = fields.iter().filter(|field| !has.contains_key(**field));
        missing.extend(lost.map(|field| format!("field {message}.{field}")));
    }
    for (kind, values) in VALUES {
        let prefix = format!("{}_", upper_snake(kind));
        let descriptor = pool().get_enum_by_name(&format!("jig.v1.{kind}"));
        let has: Vec<String> = descriptor
            .iter()
            .flat_map(EnumDescriptor::values)
            .filter_map(|value| Some(value.name().strip_prefix(&prefix)?.to_owned()))
            .collect();
        let lost = values
            .iter()
            .filter(|value| !has.iter().any(|name| name == *value));
        missing.extend(lost.map(|value| format!("value {prefix}{value}")));
    }
    none("names that were promised and are missing", missing);
}

#[test]
fn the_promised_defaults_and_limits_hold() {
    let mut found = Vec::new();
    for (message, name, promise) in LIMITS {
        let rules = fields_of(message).get(*name).and_then(rules);
        let rules = rules.unwrap_or_default();
        let default = match (&rules.default_value, promise.default) {
            (Some(DefaultValue::DefaultNumber(is)), Some(Default::Number(should))) => *is == should,
            (Some(DefaultValue::DefaultText(is)), Some(Default::Text(should))) => is == should,
            (Some(DefaultValue::DefaultBool(is)), Some(Default::Flag(should))) => *is == should,
            (is, should) => is.is_none() && should.is_none(),
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
    none("defaults and limits", found);
}

#[test]
fn a_list_of_errors_is_told_from_prose() {
    assert!(lists_errors(" Does.\n\n Errors:\n * `A_B`: c.\n"));
    assert!(lists_errors(
        " Errors (nothing was done):\n * `A` (`B`): c\n   d.\n * `E`: f."
    ));
    assert!(lists_errors(" Errors: none of its own.\n"));
    assert!(!lists_errors(" Errors happen.\n * `A`: b."));
    assert!(!lists_errors(" Errors:\n Many.\n"));
    assert!(!lists_errors(" Does.\n"));
}

/// Whether a comment has a line `Errors:` (with a remark in parentheses, perhaps) followed by a
/// list of reasons, or by `none`.
fn lists_errors(comment: &str) -> bool {
    let mut lines = comment.lines().map(str::trim);
    let Some(head) = lines.find_map(|line| line.strip_prefix("Errors")) else {
        return false;
    };
    match head.trim_start().split_once(':') {
        Some((remark, "")) if remark.is_empty() || remark.starts_with('(') => {
            lines.next().is_some_and(|line| line.starts_with("* `"))
        }
        Some(("", rest)) => rest.trim_start().starts_with("none"),
        _ => false,
    }
}

/// What is wrong with the rules of a field.
fn contradictions(field: &FieldDescriptor, rules: &FieldRules) -> Vec<&'static str> {
    let mut found = Vec::new();
    let (least, most) = match field.kind() {
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => (i32::MIN.into(), i32::MAX.into()),
        Kind::Uint32 | Kind::Fixed32 => (0, u32::MAX.into()),
        Kind::Uint64 | Kind::Fixed64 => (0, i64::MAX),
        _ => (i64::MIN, i64::MAX),
    };
    let numeric = matches!(
        field.kind(),
        Kind::Int32
            | Kind::Sint32
            | Kind::Sfixed32
            | Kind::Uint32
            | Kind::Fixed32
            | Kind::Int64
            | Kind::Sint64
            | Kind::Sfixed64
            | Kind::Uint64
            | Kind::Fixed64
    );
    let minimum = rules.minimum.unwrap_or(least);
    let maximum = rules.maximum.unwrap_or(most);
    if (rules.minimum.is_some() || rules.maximum.is_some()) && !numeric {
        found.push("a range, but it is not a number");
    }
    if minimum > maximum || minimum < least || maximum > most {
        found.push("a range that its type does not have");
    }
    let sized = matches!(field.kind(), Kind::String | Kind::Bytes) || field.is_map();
    if rules.max_bytes.is_some() && !sized {
        found.push("a limit of bytes, but it has none");
    }
    if rules.max_items.is_some() && field.cardinality() != Cardinality::Repeated {
        found.push("a limit of items, but it is a single value");
    }
    let Some(default) = &rules.default_value else {
        return found;
    };
    if rules.required {
        found.push("required, but with a default");
    }
    if !field.supports_presence() {
        found.push("a default, but whether it was given cannot be seen (`optional`)");
    }
    let fits = match (default, field.kind()) {
        (DefaultValue::DefaultNumber(value), _) => numeric && (minimum..=maximum).contains(value),
        (DefaultValue::DefaultBool(_), kind) => kind == Kind::Bool,
        (DefaultValue::DefaultText(value), Kind::Enum(kind)) => kind
            .get_value_by_name(value)
            .is_some_and(|value| value.number() != 0),
        (DefaultValue::DefaultText(value), kind) => {
            let most = rules.max_bytes.unwrap_or(u32::MAX);
            kind == Kind::String && u32::try_from(value.len()).is_ok_and(|size| size <= most)
        }
    };
    if !fits {
        found.push("a default outside its limits, or not of its type");
    }
    found
}

fn tool(method: &MethodDescriptor) -> Option<ToolOptions> {
    option(&method.options(), "jig.v1.tool")
}

fn rules(field: &FieldDescriptor) -> Option<FieldRules> {
    option(&field.options(), "jig.v1.field")
}

fn option<T: prost::Message + std::default::Default>(
    options: &DynamicMessage,
    name: &str,
) -> Option<T> {
    let extension = pool().get_extension_by_name(name).unwrap();
    if !options.has_extension(&extension) {
        return None;
    }
    match options.get_extension(&extension).into_owned() {
        Value::Message(message) => Some(message.transcode_to().unwrap()),
        other => panic!("{name} is {other:?}"),
    }
}

/// Something that has a name and must have a comment.
struct Element {
    kind: &'static str,
    name: String,
    comment: String,
}

fn elements() -> Vec<Element> {
    let mut found = Vec::new();
    for file in files() {
        let mut add = |kind, name: &str, path: &[i32]| found.push(element(kind, name, &file, path));
        for service in file.services() {
            add("service", service.full_name(), service.path());
            for method in service.methods() {
                add("rpc", method.full_name(), method.path());
            }
        }
        for extension in file.extensions() {
            add("extension", extension.full_name(), extension.path());
        }
    }
    for message in messages() {
        let file = message.parent_file();
        let mut add = |kind, name: &str, path: &[i32]| found.push(element(kind, name, &file, path));
        add("message", message.full_name(), message.path());
        for field in message.fields() {
            add("field", field.full_name(), field.path());
        }
        for oneof in message.oneofs().filter(|oneof| !oneof.is_synthetic()) {
            add("oneof", oneof.full_name(), oneof.path());
        }
    }
    for kind in enums() {
        let file = kind.parent_file();
        found.push(element("enum", kind.full_name(), &file, kind.path()));
        for value in kind.values() {
            found.push(element(
                "enum value",
                value.full_name(),
                &file,
                value.path(),
            ));
        }
    }
    found
}

fn element(kind: &'static str, name: &str, file: &FileDescriptor, path: &[i32]) -> Element {
    let source = file.file_descriptor_proto().source_code_info.as_ref();
    let comment = source
        .iter()
        .flat_map(|source| &source.location)
        .find(|location| location.path == path)
        .map(|location| location.leading_comments().to_owned());
    Element {
        kind,
        name: name.to_owned(),
        comment: comment.unwrap_or_default(),
    }
}

fn pool() -> DescriptorPool {
    DescriptorPool::decode(FILE_DESCRIPTOR_SET).unwrap()
}

/// The files whose shape is ours to choose.
fn files() -> Vec<FileDescriptor> {
    let files: Vec<_> = pool()
        .files()
        .filter(|file| file.package_name().starts_with("jig."))
        .collect();
    assert!(!files.is_empty(), "no file of the contract was found");
    files
}

fn services() -> Vec<ServiceDescriptor> {
    files()
        .iter()
        .flat_map(|file| file.services().collect::<Vec<_>>())
        .collect()
}

fn methods() -> Vec<MethodDescriptor> {
    services()
        .iter()
        .flat_map(|service| service.methods().collect::<Vec<_>>())
        .collect()
}

fn messages() -> Vec<MessageDescriptor> {
    pool()
        .all_messages()
        .filter(|message| message.package_name().starts_with("jig.") && !message.is_map_entry())
        .collect()
}

fn enums() -> Vec<EnumDescriptor> {
    pool()
        .all_enums()
        .filter(|kind| kind.package_name().starts_with("jig."))
        .collect()
}

fn fields_of(message: &str) -> BTreeMap<String, FieldDescriptor> {
    pool()
        .get_message_by_name(&format!("jig.v1.{message}"))
        .iter()
        .flat_map(MessageDescriptor::fields)
        .map(|field| (field.name().to_owned(), field))
        .collect()
}

fn walk(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| {
            if path.is_dir() {
                walk(&path)
            } else {
                vec![path]
            }
        })
        .collect()
}

/// `v1`, `v1alpha1`, `v1beta2`.
fn is_version(name: &str) -> bool {
    let Some(version) = name.strip_prefix('v') else {
        return false;
    };
    let parts = version
        .split_once("alpha")
        .or_else(|| version.split_once("beta"));
    let is_number = |text: &str| text.parse::<u16>().is_ok();
    match parts {
        Some((major, minor)) => is_number(major) && is_number(minor),
        None => is_number(version),
    }
}

fn is_lower_snake(name: &str) -> bool {
    name.split('_').all(|part| !part.is_empty())
        && name
            .chars()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

fn is_upper_snake(name: &str) -> bool {
    is_lower_snake(&name.to_ascii_lowercase()) && !name.contains(|c: char| c.is_ascii_lowercase())
}

fn is_pascal(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.chars().all(|c| c.is_ascii_alphanumeric())
}

fn upper_snake(pascal: &str) -> String {
    let mut name = String::new();
    for character in pascal.chars() {
        if character.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(character.to_ascii_uppercase());
    }
    name
}
