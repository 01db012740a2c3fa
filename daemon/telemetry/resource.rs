//! The resource of all telemetry: what the daemon is, and where it runs.

use std::{env, fs};

use opentelemetry::KeyValue;
use opentelemetry_sdk::{
    Resource,
    resource::{EnvResourceDetector, TelemetryResourceDetector},
};

/// Namespace of the pod, which Kubernetes mounts with the token of its service account.
const POD_NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";
/// Digits of the id of a container.
const CONTAINER_ID_DIGITS: usize = 64;

/// Describes this process, its host, and its container if it runs in one.
///
/// `OTEL_RESOURCE_ATTRIBUTES` overrides detected attributes.
pub(super) fn detect_resource() -> Resource {
    let mut attributes = vec![
        KeyValue::new("service.name", "jigd"),
        KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        KeyValue::new("service.instance.id", ulid::Ulid::generate().to_string()),
        KeyValue::new("process.pid", i64::from(std::process::id())),
        KeyValue::new("process.executable.name", "jigd"),
        KeyValue::new("process.runtime.name", "rust"),
        KeyValue::new("os.type", "linux"),
        KeyValue::new("host.arch", host_arch()),
    ];
    if let Ok(host) = rustix::system::uname().nodename().to_str() {
        attributes.push(KeyValue::new("host.name", host.to_owned()));
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    if let Some(id) = find_container_id(&mounts) {
        attributes.push(KeyValue::new("container.id", id.to_owned()));
    }
    if let Ok(namespace) = fs::read_to_string(POD_NAMESPACE_FILE) {
        attributes.push(KeyValue::new("k8s.namespace.name", namespace.trim().to_owned()));
    }

    // Detectors that come later override earlier attributes.
    let builder = Resource::builder_empty().with_attributes(attributes).with_detectors(&[
        Box::new(TelemetryResourceDetector),
        Box::new(EnvResourceDetector::new()),
    ]);
    match env::var("OTEL_SERVICE_NAME") {
        Ok(name) if !name.is_empty() => builder.with_service_name(name).build(),
        _ => builder.build(),
    }
}

/// The CPU architecture, as the semantic conventions name it.
fn host_arch() -> &'static str {
    match env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Finds the id of this process's container in its mounts.
///
/// Engines mount files such as `/etc/hostname` from a directory with the id as name.
fn find_container_id(mounts: &str) -> Option<&str> {
    let files = ["/etc/hostname", "/etc/hosts", "/etc/resolv.conf"];
    mounts.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(3);
        let (root, mount_point) = (fields.next()?, fields.next()?);
        let is_id = |part: &&str| {
            part.len() == CONTAINER_ID_DIGITS && part.bytes().all(|byte| byte.is_ascii_hexdigit())
        };
        files.contains(&mount_point).then(|| root.split('/').find(is_id)).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_id_is_found_in_mounts() {
        let id = "0123456789abcdef".repeat(4);
        let docker = format!(
            "36 35 8:1 / / rw - ext4 /dev/sda1 rw\n40 36 8:1 /var/lib/docker/containers/{id}/hostname /etc/hostname rw - ext4 /dev/sda1 rw"
        );
        let podman = format!(
            "40 36 0:30 /containers/overlay-containers/{id}/userdata/hosts /etc/hosts rw - tmpfs tmpfs rw"
        );
        assert_eq!(find_container_id(&docker), Some(&*id));
        assert_eq!(find_container_id(&podman), Some(&*id));

        // A directory of the host that has such a name is no container.
        let host = format!("40 36 8:1 /backups/{id} /mnt rw - ext4 /dev/sda1 rw");
        assert_eq!(find_container_id(&host), None);
        let other_file = "40 36 8:1 /etc/hosts /etc/hosts rw - ext4 /dev/sda1 rw";
        assert_eq!(find_container_id(other_file), None);
    }
}
