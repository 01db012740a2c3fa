//! A daemon whose workspace holds exactly the files of a scenario.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
};

use jig::api::v1::{
    InvokeRequest, InvokeResponse, ListToolsRequest, ListToolsResponse, ToolFormat,
    catalog_service_client::CatalogServiceClient, invoke_service_client::InvokeServiceClient,
};
use prost_types::{Struct, value::Kind};
use serde::Deserialize;
use serde_json::{Map, Value as Json};

use super::{matching::expand, web};
use crate::support::{DAEMON_UID, Daemon, Setup, describe_status, empty_directory, with_metadata};

/// How the daemon of a scenario is started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum DaemonVariant {
    /// As root, with `bin` of the workspace in `PATH`.
    #[default]
    Plain,
    /// As an ordinary user that owns the files.
    User,
    /// With a workspace on a disk of 2 MiB, whose files the test cannot read.
    SmallDisk,
    /// As an ordinary user on a host without sandboxes.
    NoSandbox,
    /// With a workspace in which the path `safe` is protected.
    Protected,
    /// With the tool `run` disabled.
    NoRun,
    /// With a web of its own (see [`web`]). Fetching is allowed, so that all tools exist.
    Web,
}

/// A daemon and how it was started.
#[derive(Debug)]
pub(super) struct Fixture {
    daemon: Daemon,
    start: DaemonVariant,
}

impl Fixture {
    pub(super) async fn new(start: DaemonVariant) -> Self {
        let setup = match start {
            DaemonVariant::Plain => Setup::new().arguments(&["--path", "/workspace/bin"]),
            DaemonVariant::User => Setup::new().user(DAEMON_UID),
            DaemonVariant::SmallDisk => Setup::new().workspace_on_small_disk(),
            DaemonVariant::NoSandbox => Setup::new().without_namespaces(),
            DaemonVariant::Protected => Setup::new().workspace_table("protected = [\"safe\"]"),
            DaemonVariant::NoRun => {
                Setup::new().workspace_table("[policy]\ndeny_tools = [\"run\"]")
            }
            DaemonVariant::Web => web::setup(),
        };
        let daemon = setup.start().await;
        if start == DaemonVariant::Web {
            web::serve(&daemon);
        }

        Self { daemon, start }
    }

    /// A fixture of a daemon that was started otherwise.
    pub(super) fn of_daemon(daemon: Daemon) -> Self {
        Self { daemon, start: DaemonVariant::Plain }
    }

    pub(super) fn daemon(&self) -> &Daemon {
        &self.daemon
    }

    /// Makes the workspace hold exactly these files. A string is the content of a file. An object
    /// is `{link = TARGET}`, `{dir = true}`, `{hex = BYTES}` or `{text = …}`, optionally with a
    /// `mode`. `{1..20}` in a name stands for 20 files, and `"."` is the workspace itself.
    pub(super) fn reset_workspace(&self, files: &BTreeMap<String, Json>) {
        let workspace = self.daemon.workspace();
        fs::set_permissions(&workspace, fs::Permissions::from_mode(0o755)).unwrap();
        empty_directory(&workspace);

        for (name, spec) in files {
            for name in expand_name(name) {
                create_entry(&workspace.join(name), spec);
            }
        }

        if matches!(self.start, DaemonVariant::User | DaemonVariant::NoSandbox) {
            chown_recursively(&workspace);
        }

        for (name, spec) in files {
            if let Some(mode) = spec.get("mode") {
                let mode = u32::from_str_radix(mode.as_str().unwrap(), 8).unwrap();
                let permissions = fs::Permissions::from_mode(mode);
                fs::set_permissions(workspace.join(name), permissions).unwrap();
            }
        }
    }

    /// The first file that differs from its expected state. `false` means that the file must not
    /// exist.
    pub(super) fn files_mismatch(&self, files: &BTreeMap<String, Json>) -> Option<String> {
        files.iter().find_map(|(name, spec)| {
            let path = self.daemon.file(name);
            let is_expected = match expand(spec.clone()) {
                Json::Bool(exists) => path.symlink_metadata().is_ok() == exists,
                Json::String(text) => {
                    fs::read(&path).is_ok_and(|content| content == text.as_bytes())
                }
                Json::Object(fields) if fields.contains_key("dir") => path.is_dir(),
                Json::Object(fields) => {
                    fs::read(&path).is_ok_and(|content| Some(content) == entry_bytes(&fields))
                }
                spec => panic!("{spec}"),
            };
            let content =
                || fs::read(&path).map(|content| String::from_utf8_lossy(&content).into_owned());
            (!is_expected).then(|| format!("{name} is {:.500?}, expected {spec}", content()))
        })
    }

    /// The records of a session; none if the session does not exist.
    pub(super) fn records(&self, session: &str) -> Vec<Json> {
        let path = format!("sessions/{session}/events.jsonl");
        let text = fs::read_to_string(self.daemon.state_dir().join(path)).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Calls a tool by name in a session.
pub(super) async fn invoke(
    daemon: &Daemon,
    session: &str,
    request: InvokeRequest,
) -> InvokeResponse {
    let mut client = InvokeServiceClient::new(daemon.channel());
    match client.invoke(with_metadata("jig-session", session, request)).await {
        Ok(response) => response.into_inner(),
        Err(status) => panic!("{session}: {}", describe_status(&status)),
    }
}

pub(super) async fn list_tools(
    daemon: &Daemon,
    dialect: &str,
    format: ToolFormat,
) -> ListToolsResponse {
    let mut client = CatalogServiceClient::new(daemon.channel());
    let request = ListToolsRequest {
        dialect: dialect.to_owned(),
        format: Some(format.into()),
        ..ListToolsRequest::default()
    };
    client.list_tools(request).await.unwrap().into_inner()
}

/// A protobuf structure as JSON, with all numbers as floats.
pub(super) fn json_of(structure: Struct) -> Json {
    let fields = structure.fields.into_iter();
    let fields = fields.map(|(name, value)| (name, json_of_value(value)));
    Json::Object(fields.collect::<Map<_, _>>())
}

fn json_of_value(value: prost_types::Value) -> Json {
    match value.kind.unwrap() {
        Kind::NullValue(_) => Json::Null,
        Kind::NumberValue(number) => number.into(),
        Kind::StringValue(text) => text.into(),
        Kind::BoolValue(flag) => flag.into(),
        Kind::StructValue(structure) => json_of(structure),
        Kind::ListValue(list) => list.values.into_iter().map(json_of_value).collect(),
    }
}

/// JSON as a protobuf structure.
pub(super) fn structure_of(json: Json) -> Struct {
    let Json::Object(fields) = json else {
        panic!("{json}");
    };
    let fields = fields.into_iter();
    Struct { fields: fields.map(|(name, json)| (name, value_of(json))).collect() }
}

fn value_of(json: Json) -> prost_types::Value {
    let kind = match json {
        Json::Null => Kind::NullValue(0),
        Json::Bool(flag) => Kind::BoolValue(flag),
        Json::Number(number) => Kind::NumberValue(number.as_f64().unwrap()),
        Json::String(text) => Kind::StringValue(text),
        Json::Array(items) => Kind::ListValue(prost_types::ListValue {
            values: items.into_iter().map(value_of).collect(),
        }),
        json @ Json::Object(_) => Kind::StructValue(structure_of(json)),
    };
    prost_types::Value { kind: Some(kind) }
}

/// Expands a name: `f{1..3}` stands for `f0001`, `f0002` and `f0003`.
fn expand_name(name: &str) -> Vec<String> {
    let range = name.split_once('{').and_then(|(before, rest)| {
        let (range, after) = rest.split_once('}')?;
        let (first, last) = range.split_once("..")?;
        Some((before, first.parse().ok()?, last.parse::<u32>().ok()?, after))
    });
    match range {
        Some((before, first, last, after)) => {
            (first..=last).map(|number| format!("{before}{number:04}{after}")).collect()
        }
        None => vec![name.to_owned()],
    }
}

fn create_entry(path: &Path, spec: &Json) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    match expand(spec.clone()) {
        Json::String(text) => fs::write(path, text).unwrap(),
        Json::Object(fields) if fields.contains_key("link") => {
            symlink(fields["link"].as_str().unwrap(), path).unwrap();
        }
        Json::Object(fields) if fields.contains_key("dir") => fs::create_dir_all(path).unwrap(),
        Json::Object(fields) => fs::write(path, entry_bytes(&fields).unwrap()).unwrap(),
        spec => panic!("{spec}"),
    }
}

fn entry_bytes(fields: &Map<String, Json>) -> Option<Vec<u8>> {
    if let Some(text) = fields.get("text") {
        return Some(text.as_str()?.as_bytes().to_vec());
    }
    let hex = fields.get("hex")?.as_str()?.as_bytes();
    let pairs = hex.chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    Some(pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect())
}

fn chown_recursively(path: &Path) {
    std::os::unix::fs::lchown(path, Some(DAEMON_UID), Some(DAEMON_UID)).unwrap();
    if path.symlink_metadata().unwrap().is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            chown_recursively(&entry.unwrap().path());
        }
    }
}
