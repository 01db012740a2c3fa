//! The part of Kubernetes' controllers and of the kubelet: makes a pod of a rendered overlay, with
//! its volumes as directories of the host and its variables resolved.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    os::unix::fs::{PermissionsExt as _, chown, lchown, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Map, Value, json};
use tempfile::TempDir;

use super::super::podman::{create_directory, run_successfully};
use crate::support::{DOCKER_SECCOMP, JIGD_SECCOMP, tools_directory};

/// Images of the manifests, and those of the tests.
const IMAGES: &[(&str, &str)] = &[
    ("jigd", "localhost/jigd:test"),
    ("jig-installer", "localhost/jig-installer:test"),
    ("toolchain", "localhost/jig-test-toolchain:test"),
    // Any image with a client and a shell.
    ("agent", "localhost/jigd:test"),
];
/// Values of the downward API.
const FIELDS: &[(&str, &str)] = &[
    ("metadata.name", "test-pod"),
    ("metadata.namespace", "test-namespace"),
    ("metadata.uid", "11111111-2222-3333-4444-555555555555"),
    ("spec.nodeName", "test-node"),
];
/// Prints the rendered overlay as JSON. Argument: a file of YAML documents.
const YAML_TO_JSON: &str =
    "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))";

/// Contents of a secret or a config map, by file name.
pub(super) type Files = BTreeMap<String, String>;

/// A directory or file of the host in a container.
#[derive(Debug)]
pub(super) struct Mount {
    pub(super) source: PathBuf,
    pub(super) destination: String,
    pub(super) is_read_only: bool,
}

#[derive(Debug)]
pub(super) struct PodContainer {
    /// The container of the manifest.
    pub(super) manifest: Value,
    pub(super) name: String,
    pub(super) image: &'static str,
    pub(super) environment: Vec<(String, String)>,
    pub(super) mounts: Vec<Mount>,
}

/// A pod on a node. Its volumes are removed with it.
#[derive(Debug)]
pub(super) struct NodePod {
    /// Containers that end before the others start.
    pub(super) init_containers: Vec<PodContainer>,
    /// Sidecars and other containers.
    pub(super) containers: Vec<PodContainer>,
    pub(super) security_context: Value,
    /// Whether the pod has its own user namespace.
    pub(super) has_user_namespace: bool,
    /// A seccomp profile for the daemon in place of the manifest's.
    pub(super) seccomp_override: Option<Value>,
    pub(super) directory: TempDir,
}

/// Renders an overlay with kustomize.
pub(super) fn render(overlay: &str) -> Vec<Value> {
    let directory = create_directory();
    let file = directory.path().join("rendered.yaml");
    let path = format!("{}/deploy/kubernetes/overlays/{overlay}", env!("CARGO_MANIFEST_DIR"));
    let mut kustomize = Command::new(tools_directory().join("bin/kustomize"));
    run_successfully(kustomize.args(["build", &path, "--output"]).arg(&file));

    let mut python = Command::new(tools_directory().join("kubernetes-validate/bin/python"));
    let output = run_successfully(python.args(["-c", YAML_TO_JSON]).arg(&file));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("not a text: {value}")).to_owned()
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

impl NodePod {
    /// Makes the pod of an overlay. Ids of its user namespace start at `first_id` on the host.
    pub(super) fn new(overlay: &str, secrets: &[(&str, Files)], first_id: u32) -> Self {
        let objects = render(overlay);
        let workload = objects
            .iter()
            .find(|object| ["Deployment", "StatefulSet"].map(Value::from).contains(&object["kind"]))
            .unwrap();
        let spec = &workload["spec"]["template"]["spec"];
        let mut files: HashMap<String, Files> = objects
            .iter()
            .filter(|object| object["kind"] == "ConfigMap")
            .map(|map| {
                let data = serde_json::from_value(map["data"].clone()).unwrap();
                (text(&map["metadata"]["name"]), data)
            })
            .collect();
        files.extend(secrets.iter().map(|(name, files)| ((*name).to_owned(), files.clone())));

        let directory = create_directory();
        let volumes = directory.path().join("volumes");
        fs::create_dir(&volumes).unwrap();
        let group = spec["securityContext"]["fsGroup"].as_u64();
        let owner = VolumeOwner { first_id, group: group.map(|id| u32::try_from(id).unwrap()) };
        for volume in items(&spec["volumes"]) {
            owner.create_volume(&volumes.join(text(&volume["name"])), volume, &files);
        }
        for claim in items(&workload["spec"]["volumeClaimTemplates"]) {
            owner.create_disk(&volumes.join(text(&claim["metadata"]["name"])));
        }

        let container = |manifest: &Value| PodContainer::new(manifest, &files, &volumes);
        let is_sidecar = |manifest: &&Value| manifest["restartPolicy"] == "Always";
        let init = items(&spec["initContainers"]);
        let (sidecars, init): (Vec<_>, Vec<_>) = init.partition(is_sidecar);
        Self {
            init_containers: init.into_iter().map(container).collect(),
            containers: sidecars
                .into_iter()
                .chain(items(&spec["containers"]))
                .map(container)
                .collect(),
            security_context: spec["securityContext"].clone(),
            has_user_namespace: spec["hostUsers"] == false,
            seccomp_override: None,
            directory,
        }
    }

    pub(super) fn container(&self, name: &str) -> &PodContainer {
        self.containers.iter().find(|container| container.name == name).unwrap()
    }
}

impl PodContainer {
    fn new(manifest: &Value, files: &HashMap<String, Files>, volumes: &Path) -> Self {
        let mut environment = Vec::new();
        for source in items(&manifest["envFrom"]) {
            let map = &files[&text(&source["configMapRef"]["name"])];
            environment.extend(map.iter().map(|(name, value)| (name.clone(), value.clone())));
        }
        for variable in items(&manifest["env"]) {
            let value = match variable["valueFrom"]["fieldRef"]["fieldPath"].as_str() {
                Some(path) => FIELDS.iter().find(|(field, _)| *field == path).unwrap().1.to_owned(),
                None => expand(&text(&variable["value"]), &environment),
            };
            environment.push((text(&variable["name"]), value));
        }

        let mounts = items(&manifest["volumeMounts"]).map(|mount| {
            let volume = volumes.join(text(&mount["name"]));
            Mount {
                source: match mount["subPath"].as_str() {
                    Some(path) => volume.join(path),
                    None => volume,
                },
                destination: text(&mount["mountPath"]),
                is_read_only: mount["readOnly"] == true,
            }
        });

        let image = text(&manifest["image"]);
        Self {
            name: text(&manifest["name"]),
            image: IMAGES.iter().find(|(name, _)| *name == image).unwrap().1,
            environment,
            mounts: mounts.collect(),
            manifest: manifest.clone(),
        }
    }

    pub(super) fn security_context(&self) -> &Map<String, Value> {
        self.manifest["securityContext"].as_object().unwrap()
    }

    /// Arguments of a part of the manifest: `command` or `args`.
    pub(super) fn arguments(&self, field: &str) -> Vec<String> {
        items(&self.manifest[field]).map(text).collect()
    }
}

/// Replaces `$(NAME)`.
fn expand(value: &str, environment: &[(String, String)]) -> String {
    environment
        .iter()
        .fold(value.to_owned(), |value, (name, text)| value.replace(&format!("$({name})"), text))
}

/// Owner of volumes: root of the pod, and the group of its files.
struct VolumeOwner {
    first_id: u32,
    group: Option<u32>,
}

impl VolumeOwner {
    fn create_volume(&self, path: &Path, volume: &Value, files: &HashMap<String, Files>) {
        if !volume["emptyDir"].is_null() {
            fs::create_dir(path).unwrap();
            return self.set_owner(path, 0o777, 0o2777);
        }

        let [source, name] = match (&volume["configMap"], &volume["secret"]) {
            (Value::Null, secret) => [secret, &secret["secretName"]],
            (map, _) => [map, &map["name"]],
        };
        let mode =
            source["defaultMode"].as_u64().map_or(0o644, |mode| u32::try_from(mode).unwrap());
        self.write_files(path, &files[&text(name)], mode);
    }

    /// The file system of a persistent volume.
    fn create_disk(&self, path: &Path) {
        fs::create_dir(path).unwrap();
        self.set_owner(path, 0o755, 0o2775);
    }

    /// Writes files as the kubelet does: links to a directory that it can replace as a whole.
    fn write_files(&self, path: &Path, files: &Files, mode: u32) {
        let version = path.join("..2026_11_25");
        fs::create_dir_all(&version).unwrap();
        for (name, content) in files {
            fs::write(version.join(name), content).unwrap();
            self.set_owner(&version.join(name), mode, mode);
            self.link(&Path::new("..data").join(name), &path.join(name));
        }
        self.link(Path::new("..2026_11_25"), &path.join("..data"));
        self.set_owner(&version, 0o755, 0o2755);
        self.set_owner(path, 0o1777, 0o3777);
    }

    fn link(&self, target: &Path, path: &Path) {
        symlink(target, path).unwrap();
        lchown(path, Some(self.first_id), Some(self.first_id)).unwrap();
    }

    fn set_owner(&self, path: &Path, mode: u32, mode_with_group: u32) {
        let group = self.first_id + self.group.unwrap_or(0);
        chown(path, Some(self.first_id), Some(group)).unwrap();
        let mode = if self.group.is_some() { mode_with_group } else { mode };
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
}

/// The seccomp profile of a container, in the form of the OCI. `None`: no profile.
pub(super) fn seccomp_profile(container: &PodContainer) -> Option<Value> {
    let profile = container.security_context().get("seccompProfile")?;
    match profile["type"].as_str().unwrap() {
        "RuntimeDefault" => Some(default_profile()),
        "Localhost" => {
            assert_eq!(profile["localhostProfile"], "profiles/jigd-seccomp.json");
            Some(serde_json::from_str(JIGD_SECCOMP).unwrap())
        }
        kind => panic!("unexpected profile {kind}"),
    }
}

/// The calls that the shipped profile adds to the default one.
pub(super) fn profile_calls() -> Vec<String> {
    let profile: Value = serde_json::from_str(JIGD_SECCOMP).unwrap();
    items(&profile["syscalls"][0]["names"]).map(text).collect()
}

/// The shipped profile without a call that it adds: for this call, the rules of the default one.
pub(super) fn profile_without(call: &str) -> Value {
    let mut profile: Value = serde_json::from_str(JIGD_SECCOMP).unwrap();
    let rules = profile["syscalls"].as_array_mut().unwrap();
    rules[0]["names"].as_array_mut().unwrap().retain(|name| name != call);
    let default = default_profile();
    let rules_for_call =
        items(&default["syscalls"]).filter(|rule| items(&rule["names"]).any(|name| name == call));
    rules.extend(rules_for_call.map(|rule| {
        let mut rule = rule.clone();
        rule["names"] = json!([call]);
        rule
    }));
    profile
}

/// The default profile of container runtimes, for a container without capabilities.
pub(super) fn default_profile() -> Value {
    let data: Value = serde_json::from_str(DOCKER_SECCOMP).unwrap();
    let rules = items(&data["rules"]).filter(|rule| rule["with"].is_null()).cloned();
    let rules = rules.map(|mut rule| {
        rule.as_object_mut().unwrap().remove("without");
        rule
    });

    json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": 1,
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
        "syscalls": rules.collect::<Vec<_>>(),
    })
}
