//! The descriptors of the contract, and queries on them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use jig::api::{
    FILE_DESCRIPTOR_SET,
    v1::{FieldRules, ToolOptions},
};
use prost_reflect::{
    DescriptorPool, DynamicMessage, EnumDescriptor, FieldDescriptor, FileDescriptor,
    MessageDescriptor, MethodDescriptor, ServiceDescriptor, Value,
};

pub(crate) fn tool_options(method: &MethodDescriptor) -> Option<ToolOptions> {
    extension_option(&method.options(), "jig.v1.tool")
}

pub(super) fn field_rules(field: &FieldDescriptor) -> Option<FieldRules> {
    extension_option(&field.options(), "jig.v1.field")
}

pub(super) fn extension_option<T: prost::Message + std::default::Default>(
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

/// A named element of the contract, which must have a comment.
pub(super) struct Element {
    pub(super) kind: &'static str,
    pub(super) name: String,
    pub(super) comment: String,
}

pub(super) fn elements() -> Vec<Element> {
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
            found.push(element("enum value", value.full_name(), &file, value.path()));
        }
    }

    found
}

pub(super) fn element(
    kind: &'static str,
    name: &str,
    file: &FileDescriptor,
    path: &[i32],
) -> Element {
    let source = file.file_descriptor_proto().source_code_info.as_ref();
    let comment = source
        .iter()
        .flat_map(|source| &source.location)
        .find(|location| location.path == path)
        .map(|location| location.leading_comments().to_owned());
    Element { kind, name: name.to_owned(), comment: comment.unwrap_or_default() }
}

pub(super) fn pool() -> DescriptorPool {
    static POOL: LazyLock<DescriptorPool> =
        LazyLock::new(|| DescriptorPool::decode(FILE_DESCRIPTOR_SET).unwrap());
    POOL.clone()
}

/// The files of the project, without those of Google.
pub(super) fn files() -> Vec<FileDescriptor> {
    let files: Vec<_> =
        pool().files().filter(|file| file.package_name().starts_with("jig.")).collect();
    assert!(!files.is_empty(), "the contract has no files");
    files
}

pub(super) fn services() -> Vec<ServiceDescriptor> {
    files().iter().flat_map(|file| file.services().collect::<Vec<_>>()).collect()
}

pub(super) fn methods() -> Vec<MethodDescriptor> {
    services().iter().flat_map(|service| service.methods().collect::<Vec<_>>()).collect()
}

pub(super) fn messages() -> Vec<MessageDescriptor> {
    pool()
        .all_messages()
        .filter(|message| message.package_name().starts_with("jig.") && !message.is_map_entry())
        .collect()
}

pub(super) fn enums() -> Vec<EnumDescriptor> {
    pool().all_enums().filter(|kind| kind.package_name().starts_with("jig.")).collect()
}

pub(super) fn fields_of(message: &str) -> BTreeMap<String, FieldDescriptor> {
    pool()
        .get_message_by_name(&format!("jig.v1.{message}"))
        .iter()
        .flat_map(MessageDescriptor::fields)
        .map(|field| (field.name().to_owned(), field))
        .collect()
}

pub(super) fn upper_snake(pascal: &str) -> String {
    let mut name = String::new();
    for character in pascal.chars() {
        if character.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(character.to_ascii_uppercase());
    }

    name
}

/// The reasons of errors that the comments of a tool's RPC and of its service name.
pub(super) fn errors_of(rpc: &str) -> BTreeSet<String> {
    let names = ["jig.v1.ToolService".to_owned(), format!("jig.v1.ToolService.{rpc}")];
    let comments = elements().into_iter().filter(|element| names.contains(&element.name));
    let comments: Vec<String> = comments.map(|element| element.comment).collect();
    assert_eq!(comments.len(), 2, "there is no RPC {rpc}");

    let lines = comments.iter().flat_map(|comment| comment.lines());
    lines
        .filter_map(|line| line.trim().strip_prefix("* `")?.split_once('`'))
        .map(|(reason, _)| reason.to_owned())
        .collect()
}
