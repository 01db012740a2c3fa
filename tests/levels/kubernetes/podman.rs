//! Plays pods with `podman kube play`. Podman 4.3 does not know some parts of Kubernetes:
//!
//! * Init containers are pods that end, because Podman waits 20 s after each init container.
//!   Sidecars are containers.
//! * `seccompProfile` becomes the annotation that it replaced.
//! * `procMount` and `hostUsers` are left out: the OCI bundles of [`super::bundle`] have them.
//! * Ports, which only name what a container listens on, are left out.
//! * Volumes are directories of the host, and variables have values: [`super::node`].

use std::{
    fs,
    process::Output,
    sync::atomic::{AtomicU32, Ordering},
};

use serde_json::{Map, Value, json};

use super::{
    super::podman::{podman_command, run_successfully},
    node::{NodePod, PodContainer, seccomp_profile},
};

/// A pod that is removed when the test ends.
pub(super) struct PlayedPod {
    name: String,
    pub(super) pod: NodePod,
}

impl Drop for PlayedPod {
    fn drop(&mut self) {
        remove_pod(&self.name);
    }
}

impl PlayedPod {
    /// Runs the init containers one after the other, and starts the other containers.
    pub(super) fn play(pod: NodePod) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("jig-test-kube-{}-{number}", std::process::id());

        for container in &pod.init_containers {
            let name = format!("{name}-init");
            play(&name, &pod, std::slice::from_ref(container));
            let container = format!("{name}-{}", container.name);
            let output = run_successfully(podman_command().args(["wait", &container]));
            let logs = podman_command().args(["logs", &container]).output().unwrap();
            remove_pod(&name);
            assert_eq!(output.stdout, b"0\n", "{container}: {logs:?}");
        }

        // From here on, dropping removes the pod.
        let played = Self { name, pod };
        play(&played.name, &played.pod, &played.pod.containers);
        played
    }

    /// Runs a program in a container, with further variables.
    pub(super) fn exec(&self, container: &str, variables: &[&str], arguments: &[&str]) -> Output {
        let mut podman = podman_command();
        podman.arg("exec");
        for variable in variables {
            podman.args(["--env", variable]);
        }
        podman.arg(format!("{}-{container}", self.name)).args(arguments).output().unwrap()
    }

    pub(super) fn logs(&self, container: &str) -> String {
        let name = format!("{}-{container}", self.name);
        format!("{:?}", podman_command().args(["logs", &name]).output().unwrap())
    }
}

fn remove_pod(name: &str) {
    let _removed = podman_command().args(["pod", "rm", "--force", "--time", "0", name]).output();
}

fn play(name: &str, pod: &NodePod, containers: &[PodContainer]) {
    let directory = pod.directory.path();
    let mut annotations = Map::new();
    for container in containers {
        let key = format!("container.seccomp.security.alpha.kubernetes.io/{}", container.name);
        let value = match seccomp_profile(container) {
            None => "unconfined".to_owned(),
            Some(profile) => {
                let file = format!("{}-seccomp.json", container.name);
                fs::write(directory.join(&file), profile.to_string()).unwrap();
                format!("localhost/{file}")
            }
        };
        annotations.insert(key, value.into());
    }

    let volumes = containers.iter().flat_map(|container| {
        let mounts = container.mounts.iter().enumerate();
        mounts.map(move |(index, mount)| {
            let name = format!("{}-{index}", container.name);
            json!({"name": name, "hostPath": {"path": mount.source}})
        })
    });
    let manifest = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {
            "restartPolicy": "Never",
            "securityContext": pod.security_context,
            "containers": containers.iter().map(container_manifest).collect::<Vec<_>>(),
            "volumes": volumes.collect::<Vec<_>>(),
        },
    });

    let file = directory.join("pod.yaml");
    fs::write(&file, manifest.to_string()).unwrap();
    run_successfully(
        podman_command()
            .args(["kube", "play", "--network", "none", "--seccomp-profile-root"])
            .args([directory, file.as_path()]),
    );
}

fn container_manifest(container: &PodContainer) -> Value {
    let mut manifest = container.manifest.clone();
    let fields = manifest.as_object_mut().unwrap();
    fields.retain(|field, _| !["envFrom", "ports", "restartPolicy"].contains(&field.as_str()));
    let security_context = fields["securityContext"].as_object_mut().unwrap();
    security_context.retain(|field, _| !["procMount", "seccompProfile"].contains(&field.as_str()));

    let environment = container.environment.iter();
    let environment = environment.map(|(name, value)| json!({"name": name, "value": value}));
    fields.insert("env".to_owned(), environment.collect());
    fields.insert("image".to_owned(), container.image.into());
    let mounts = container.mounts.iter().enumerate().map(|(index, mount)| {
        json!({
            "name": format!("{}-{index}", container.name),
            "mountPath": mount.destination,
            "readOnly": mount.is_read_only,
        })
    });
    fields.insert("volumeMounts".to_owned(), mounts.collect());

    // The manifest leaves the program of the agent to the user.
    if container.name == "agent" {
        fields.insert("command".to_owned(), json!(["sleep", "1000"]));
    }
    manifest
}
