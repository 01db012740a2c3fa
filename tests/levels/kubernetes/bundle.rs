//! Runs the daemon of a pod as an OCI bundle with crun, with the configuration that container
//! runtimes make of the manifest: user namespace, masks of `/proc`, seccomp profile, read-only root.

use std::{
    fs,
    os::unix::fs::chown,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use serde_json::{Value, json};

use super::{
    super::podman::{podman_command, run_successfully},
    node::{Mount, NodePod, PodContainer, seccomp_profile},
};
use crate::support::{MASKED_PATHS, READ_ONLY_PATHS, USER_NAMESPACE_RANGE};

/// Runs bundles in order, the last one in the background.
const RUN_SCRIPT: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/tests/levels/kubernetes/run_bundles.sh");

/// First id of the pod on the host.
pub(super) fn first_host_id(has_user_namespace: bool) -> u32 {
    if has_user_namespace { USER_NAMESPACE_RANGE.0 } else { 0 }
}

/// Runs the init containers and the daemon of `pod`, and `script` in the daemon's container.
pub(super) fn run_in_bundle(pod: &NodePod, script: &str) -> Output {
    let daemon = pod.container("jigd");
    let containers = pod.init_containers.iter().chain([daemon]);
    let bundles: Vec<_> = containers.map(|container| create_bundle(pod, container)).collect();
    let jigd = &daemon.arguments("command")[0];
    let jig = jigd.trim_end_matches('d');

    // Programs that run in the container of the daemon, as its user.
    let bundle = bundles.last().unwrap();
    let config = fs::read_to_string(bundle.join("config.json")).unwrap();
    let config: Value = serde_json::from_str(&config).unwrap();
    for (name, arguments) in
        [("health", json!([jig, "health", "liveness"])), ("script", json!(["sh", "-c", script]))]
    {
        let mut process = config["process"].clone();
        process["args"] = arguments;
        fs::write(bundle.join(format!("{name}.json")), process.to_string()).unwrap();
    }

    Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"])
        .args(["--mount-proc", RUN_SCRIPT])
        .args(bundles)
        .output()
        .unwrap()
}

fn create_bundle(pod: &NodePod, container: &PodContainer) -> PathBuf {
    let bundle = pod.directory.path().join(&container.name);
    for name in ["rootfs", "upper", "work"] {
        fs::create_dir_all(bundle.join(name)).unwrap();
    }

    // Mount points that the image lacks. The root of the container owns them and `/`, as on a node,
    // which maps the owners of an image.
    let upper = bundle.join("upper");
    let root_id = Some(first_host_id(pod.has_user_namespace));
    chown(&upper, root_id, root_id).unwrap();
    for mount in &container.mounts {
        let mut directory = upper.clone();
        for name in mount.destination.split('/').filter(|name| !name.is_empty()) {
            directory.push(name);
            fs::create_dir_all(&directory).unwrap();
            chown(&directory, root_id, root_id).unwrap();
        }
    }

    let output = run_successfully(podman_command().args(["image", "mount", container.image]));
    fs::write(bundle.join("lower"), output.stdout).unwrap();
    fs::write(bundle.join("config.json"), config(pod, container).to_string()).unwrap();
    bundle
}

/// The image's configuration: entry point and variables.
fn image_config(image: &str) -> Value {
    let format = ["image", "inspect", "--format", "{{json .Config}}", image];
    let output = run_successfully(podman_command().args(format));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn config(pod: &NodePod, container: &PodContainer) -> Value {
    let security_context = container.security_context();
    assert_eq!(security_context["allowPrivilegeEscalation"], false);
    assert_eq!(security_context["capabilities"]["drop"], json!(["ALL"]));
    assert!(security_context["capabilities"]["add"].is_null());

    let image = image_config(container.image);
    let texts = |value: &Value| -> Vec<String> {
        serde_json::from_value(value.clone()).unwrap_or_default()
    };
    let mut arguments = container.arguments("command");
    if arguments.is_empty() {
        arguments = texts(&image["Entrypoint"]);
    }
    arguments.extend(container.arguments("args"));

    let mut environment = texts(&image["Env"]);
    environment.extend(container.environment.iter().map(|(name, value)| format!("{name}={value}")));

    let mount = |kind: &str, target: &str, options: &[&str]| json!({"destination": target, "type": kind, "source": kind, "options": options});
    let mut mounts = vec![
        mount("proc", "/proc", &["nosuid", "noexec", "nodev"]),
        mount("tmpfs", "/dev", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
        mount(
            "devpts",
            "/dev/pts",
            &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"],
        ),
        mount("tmpfs", "/dev/shm", &["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]),
        mount("mqueue", "/dev/mqueue", &["nosuid", "noexec", "nodev"]),
        mount("sysfs", "/sys", &["nosuid", "noexec", "nodev", "ro"]),
    ];
    for Mount { source, destination, is_read_only } in &container.mounts {
        let mode = if *is_read_only { "ro" } else { "rw" };
        mounts.push(json!({"destination": destination, "type": "bind", "source": source, "options": ["rbind", mode]}));
    }

    let is_masked = security_context.get("procMount").is_none_or(|value| value == "Default");
    let kinds = ["pid", "ipc", "uts", "mount", "cgroup", "network"];
    let mut namespaces = kinds.map(|kind| json!({"type": kind})).to_vec();
    let mut linux = json!({
        "maskedPaths": if is_masked { MASKED_PATHS } else { &[] },
        "readonlyPaths": if is_masked { READ_ONLY_PATHS } else { &[] },
    });
    if pod.has_user_namespace {
        namespaces.push(json!({"type": "user"}));
        let map = json!([{"containerID": 0, "hostID": USER_NAMESPACE_RANGE.0, "size": USER_NAMESPACE_RANGE.1}]);
        linux["uidMappings"] = map.clone();
        linux["gidMappings"] = map;
    }
    linux["namespaces"] = namespaces.into();
    let replaced = pod.seccomp_override.clone().filter(|_| container.name == "jigd");
    if let Some(profile) = replaced.or_else(|| seccomp_profile(container)) {
        linux["seccomp"] = profile;
    }

    let none: [&str; 0] = [];
    let groups: Vec<_> = pod.security_context["fsGroup"].as_u64().into_iter().collect();
    json!({
        "ociVersion": "1.0.0",
        "hostname": "test-pod",
        "root": {"path": "rootfs", "readonly": security_context["readOnlyRootFilesystem"]},
        "process": {
            "terminal": false,
            "user": {
                "uid": pod.security_context["runAsUser"],
                "gid": pod.security_context["runAsGroup"],
                "additionalGids": groups,
            },
            "cwd": Path::new(image["WorkingDir"].as_str().unwrap_or("/")),
            "args": arguments,
            "env": environment,
            "noNewPrivileges": true,
            "capabilities": {"bounding": none, "effective": none, "permitted": none, "inheritable": none},
        },
        "mounts": mounts,
        "linux": linux,
    })
}
