//! Compatibility with released contracts, by the rules of `buf breaking` for `WIRE_JSON`: elements of
//! a release keep their numbers, names, types, labels and streams. New elements are allowed.
//!
//! Directory `released` holds a listing of the contract for each release. To release a version, run
//! `JIG_RELEASE=1 cargo test contract::released`, which writes the listing of that version.

use std::{collections::BTreeSet, env, fs, path::PathBuf};

use prost_reflect::{Cardinality, FieldDescriptor, Kind, MethodDescriptor};

use super::descriptors::{enums, messages, methods};
use crate::tidy::assert_none;

/// Fields renamed since a release: message, number, released name, current name. The binary format is
/// the same, the JSON format is not. `CHANGELOG.md` lists them.
const RENAMED_FIELDS: [(&str, u32, &str, &str); 9] = [
    ("jig.v1.Approval", 14, "asked_by", "required_by"),
    ("jig.v1.Approval", 21, "said_as", "called_name"),
    ("jig.v1.Counts", 2, "calls_active", "calls_running"),
    ("jig.v1.Counts", 4, "sandboxes_warm", "sandboxes_idle"),
    ("jig.v1.Counts", 6, "calls_waiting", "calls_queued"),
    ("jig.v1.Isolation", 7, "refused", "failed_levels"),
    ("jig.v1.ListFilesResponse", 5, "ignore_files_cut", "truncated_ignore_files"),
    ("jig.v1.SearchResponse", 6, "files_left_out", "files_incomplete"),
    ("jig.v1.SearchResponse", 7, "ignore_files_cut", "truncated_ignore_files"),
];

/// This file declares only the options of tools and fields. Only the protos use them by name, so
/// their names may change, but not their numbers.
const OPTIONS_FILE: &str = "jig/v1/options.proto";

#[test]
fn contract_stays_compatible_with_releases() {
    let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/contract/released");
    let current = contract_lines();
    if env::var_os("JIG_RELEASE").is_some() {
        let lines: Vec<&str> = current.iter().map(String::as_str).collect();
        let file = directory.join(concat!(env!("CARGO_PKG_VERSION"), ".txt"));
        fs::write(file, lines.join("\n") + "\n").unwrap();
    }

    let mut releases = 0;
    let mut broken = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let release = path.file_stem().unwrap().to_string_lossy().into_owned();
        let released = fs::read_to_string(&path).unwrap();
        let released = with_renamed_fields(released);
        let missing = missing_lines(&released, &current);
        broken.extend(missing.map(|line| format!("{release}: {line}")));
        releases += 1;
    }

    assert_ne!(releases, 0, "no released contract was found");
    assert_none("elements of released contracts that are missing or differ", broken);
}

#[test]
fn missing_lines_finds_differences() {
    let current = contract_lines();
    let lines: Vec<&str> = current.iter().map(String::as_str).collect();
    assert_eq!(missing_lines(&lines.join("\n"), &current).count(), 0);

    for line in [
        "field jig.v1.RunRequest 1 command int32 optional",
        "field jig.v1.RunRequest 1 script string optional",
        "field jig.v1.RunRequest 99 command string optional",
        "value jig.v1.Outcome 1 OUTCOME_STOPPED",
        "rpc jig.v1.ToolService.Run jig.v1.RunRequest -> stream jig.v1.RunResponse",
    ] {
        assert_eq!(missing_lines(line, &current).collect::<Vec<_>>(), [line]);
    }
}

fn missing_lines<'a>(
    released: &'a str,
    current: &'a BTreeSet<String>,
) -> impl Iterator<Item = &'a str> {
    released.lines().filter(|line| !current.contains(*line))
}

/// Gives the fields of a listing their current names.
fn with_renamed_fields(mut released: String) -> String {
    for (message, number, old, new) in RENAMED_FIELDS {
        let [old, new] = [old, new].map(|name| format!("field {message} {number} {name} "));
        assert!(released.contains(&old) || released.contains(&new), "{old}");
        released = released.replace(&old, &new);
    }

    released
}

/// A line for each RPC, field and enum value.
fn contract_lines() -> BTreeSet<String> {
    let rpcs = methods().into_iter().map(|method| rpc_line(&method));
    let fields = messages().into_iter().flat_map(|message| {
        let fields: Vec<_> = message.fields().map(|field| field_line(&field)).collect();
        fields
    });

    let values = enums().into_iter().flat_map(|kind| {
        let name = kind.full_name().to_owned();
        let line = |number, value: &str| format!("value {name} {number} {value}");
        let values: Vec<_> =
            kind.values().map(|value| line(value.number(), value.name())).collect();
        values
    });

    rpcs.chain(fields).chain(values).collect()
}

fn rpc_line(method: &MethodDescriptor) -> String {
    let stream = |streams| if streams { "stream " } else { "" };
    format!(
        "rpc {} {}{} -> {}{}",
        method.full_name(),
        stream(method.is_client_streaming()),
        method.input().full_name(),
        stream(method.is_server_streaming()),
        method.output().full_name(),
    )
}

fn field_line(field: &FieldDescriptor) -> String {
    let message = field.parent_message();
    let is_option = message.parent_file().name() == OPTIONS_FILE;
    let name = if is_option { "-" } else { field.name() };

    let kind = match field.kind() {
        Kind::Message(message) if field.is_map() => {
            let value = message.map_entry_value_field();
            format!("map<{:?},{:?}>", message.map_entry_key_field().kind(), value.kind())
        }
        kind => format!("{kind:?}"),
    };

    let label = match field.cardinality() {
        Cardinality::Repeated => "repeated",
        Cardinality::Required => "required",
        Cardinality::Optional if field.supports_presence() => "present",
        Cardinality::Optional => "optional",
    };
    let oneof = field.containing_oneof().filter(|oneof| !oneof.is_synthetic());
    let oneof = oneof.map(|oneof| format!(" in {}", oneof.name())).unwrap_or_default();
    format!("field {} {} {name} {kind} {label}{oneof}", message.full_name(), field.number())
}
