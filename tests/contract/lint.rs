//! Buf's lint rules (STANDARD and COMMENTS).

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use prost_reflect::Kind;

use super::descriptors::{elements, enums, files, messages, methods, services, upper_snake};
use crate::tidy::assert_none;

#[test]
fn build_compiles_every_proto() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    let compiled: Vec<String> = files().iter().map(|file| file.name().to_owned()).collect();
    let missing = files_below(&root.join("jig"))
        .into_iter()
        .map(|path| path.strip_prefix(&root).unwrap().display().to_string())
        .filter(|file| file.ends_with(".proto") && !compiled.contains(file));
    assert_none("protos that build.rs does not compile", missing);
}

#[test]
fn packages_are_versioned_and_match_their_directories() {
    let mut found = Vec::new();
    for file in files() {
        let package = file.package_name();
        if !package.rsplit('.').next().is_some_and(is_version) {
            found.push(format!("{}: package {package} has no version", file.name()));
        }

        let (directory, name) = file.name().rsplit_once('/').unwrap();
        if directory != package.replace('.', "/") {
            found.push(format!("{}: package {package} belongs elsewhere", file.name()));
        }

        if !is_lower_snake(name.trim_end_matches(".proto")) {
            found.push(format!("{}: not lower_snake_case", file.name()));
        }
    }

    assert_none("files", found);
}

#[test]
fn names_follow_the_buf_style() {
    let mut found = Vec::new();
    for element in elements() {
        let name = element.name.rsplit('.').next().unwrap_or_default();
        let is_valid = match element.kind {
            "message" | "enum" | "rpc" | "service" => is_pascal(name),
            "enum value" => is_upper_snake(name),
            _ => is_lower_snake(name),
        };
        if !is_valid {
            found.push(format!("{} {}", element.kind, element.name));
        }
    }

    for service in services() {
        if !service.name().ends_with("Service") {
            found.push(format!("service {} does not end in Service", service.name()));
        }
    }

    assert_none("names", found);
}

#[test]
fn enums_start_with_unspecified_and_prefix_their_values() {
    let mut found = Vec::new();
    for kind in enums() {
        let prefix = format!("{}_", upper_snake(kind.name()));
        let values: Vec<_> = kind.values().collect();
        let zero = format!("{prefix}UNSPECIFIED");
        if values[0].number() != 0 || values[0].name() != zero {
            found.push(format!("{} does not begin with {zero} = 0", kind.name()));
        }

        let unprefixed = values.iter().filter(|value| !value.name().starts_with(&prefix));
        found.extend(unprefixed.map(|value| format!("{} lacks {prefix}", value.name())));
        let numbers: BTreeSet<i32> = values.iter().map(|value| value.number()).collect();
        if numbers.len() != values.len() {
            found.push(format!("{} has two names for one number", kind.name()));
        }
    }

    assert_none("enums", found);
}

#[test]
fn every_rpc_has_its_own_request_and_response() {
    let mut found = Vec::new();
    let mut users: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for method in methods() {
        let messages = [(method.input(), "Request"), (method.output(), "Response")];
        for (message, suffix) in messages {
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
    assert_none("requests and responses", found);
}

#[test]
fn no_message_uses_any_or_empty() {
    const FORBIDDEN_TYPES: [&str; 2] = ["google.protobuf.Any", "google.protobuf.Empty"];
    let fields = messages().into_iter().flat_map(|message| {
        let forbidden = message.fields().filter(
            |field| matches!(field.kind(), Kind::Message(kind) if FORBIDDEN_TYPES.contains(&kind.full_name())),
        );
        forbidden
            .map(|field| field.full_name().to_owned())
            .collect::<Vec<_>>()
    });

    let rpcs = methods().into_iter().filter(|method| {
        FORBIDDEN_TYPES.contains(&method.input().full_name())
            || FORBIDDEN_TYPES.contains(&method.output().full_name())
    });
    let rpcs = rpcs.map(|method| method.full_name().to_owned());
    assert_none("uses of Any or Empty", fields.chain(rpcs));
}

#[test]
fn every_element_has_a_leading_comment() {
    let found = elements()
        .into_iter()
        .filter(|element| element.comment.trim().is_empty())
        .map(|element| format!("{} {}", element.kind, element.name));
    assert_none("elements without a comment", found);
}

#[test]
fn every_rpc_lists_its_errors() {
    let found = elements()
        .into_iter()
        .filter(|element| element.kind == "rpc" && !lists_errors(&element.comment))
        .map(|element| element.name);
    assert_none("RPCs without a list `Errors:`", found);
}

#[test]
fn lists_errors_distinguishes_lists_from_prose() {
    assert!(lists_errors(" Does.\n\n Errors:\n * `A_B`: c.\n"));
    assert!(lists_errors(" Errors (nothing was done):\n * `A` (`B`): c\n   d.\n * `E`: f."));
    assert!(lists_errors(" Errors: none beside those of every RPC.\n"));
    assert!(!lists_errors(" Errors happen.\n * `A`: b."));
    assert!(!lists_errors(" Errors:\n Many.\n"));
    assert!(!lists_errors(" Does.\n"));
}

/// Whether a comment has a line `Errors:` (optionally with a remark in parentheses), followed by a
/// list of reasons or by `none`.
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

fn files_below(directory: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

/// `v1`, `v1alpha1`, `v1beta2`.
fn is_version(name: &str) -> bool {
    let Some(version) = name.strip_prefix('v') else {
        return false;
    };
    let parts = version.split_once("alpha").or_else(|| version.split_once("beta"));
    let is_number = |text: &str| text.parse::<u16>().is_ok();

    match parts {
        Some((major, minor)) => is_number(major) && is_number(minor),
        None => is_number(version),
    }
}

fn is_lower_snake(name: &str) -> bool {
    name.split('_').all(|part| !part.is_empty())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

fn is_upper_snake(name: &str) -> bool {
    is_lower_snake(&name.to_ascii_lowercase()) && !name.contains(|c: char| c.is_ascii_lowercase())
}

fn is_pascal(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.chars().all(|c| c.is_ascii_alphanumeric())
}
