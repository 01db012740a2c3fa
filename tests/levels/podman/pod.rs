//! A pod with the daemon as a sidecar of an agent's container.

use std::{fs, path::Path, process::Output};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{
    COLUMN_FLAGS, IMAGE, PODS, create_container_files, ensure_image, podman_command,
    run_successfully,
};
use crate::support::eventually;

/// A pod that is removed when the test ends.
struct Pod {
    name: String,
    _files: TempDir,
}

impl Drop for Pod {
    fn drop(&mut self) {
        let _removed =
            podman_command().args(["pod", "rm", "--force", "--time", "0", &self.name]).output();
    }
}

impl Pod {
    fn run_jig(&self, arguments: &[&str]) -> Output {
        let agent = format!("{}-agent", self.name);
        podman_command()
            .args(["exec", &agent, "/jig/jig", "--address", "http://127.0.0.1:50051"])
            .args(arguments)
            .output()
            .unwrap()
    }
}

/// The manifest of a pod with the daemon and an agent. Both mount `programs` at /jig.
fn pod_manifest(name: &str, flags: &str, has_docker_profile: bool, programs: &Path) -> Value {
    let mount = |name: &str, path: &str, read_only: bool| json!({"name": name, "mountPath": path, "readOnly": read_only});
    let mounts = json!([
        mount("work", "/open", false),
        mount("usr", "/usr", true),
        mount("jig", "/jig", true),
    ]);

    let mut daemon = vec![
        "/jig/jig",
        "serve",
        "--trust-loopback",
        "--workspace",
        "/open",
        "--state-dir",
        "/tmp/state",
    ];
    daemon.extend(flags.split_whitespace());
    let annotations = if has_docker_profile {
        json!({"container.seccomp.security.alpha.kubernetes.io/jigd": "localhost/profile.json"})
    } else {
        json!({})
    };

    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "jigd",
                    "image": IMAGE,
                    "command": daemon,
                    "securityContext": {
                        "runAsUser": 1000,
                        "runAsGroup": 1000,
                        "allowPrivilegeEscalation": false,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    "volumeMounts": mounts,
                },
                {
                    "name": "agent",
                    "image": IMAGE,
                    "command": ["sleep", "1000"],
                    "volumeMounts": mounts,
                },
            ],
            "volumes": [
                {"name": "work", "emptyDir": {}},
                {"name": "usr", "hostPath": {"path": "/usr"}},
                {"name": "jig", "hostPath": {"path": programs}},
            ],
        },
    })
}

/// Starts a pod with `flags` for its daemon, and with Docker's seccomp profile on request.
fn start_pod(name: &str, flags: &str, has_docker_profile: bool) -> Pod {
    let files = create_container_files(0);
    let name = format!("jig-test-{}-{name}", std::process::id());
    let manifest = pod_manifest(&name, flags, has_docker_profile, &files.path().join("jig"));

    let file = files.path().join("pod.yaml");
    fs::write(&file, manifest.to_string()).unwrap();

    // The pod exists before its containers do. From here on, dropping `pod` removes it.
    let profiles = files.path().to_owned();
    let pod = Pod { name, _files: files };
    run_successfully(
        podman_command()
            .args(["kube", "play", "--network", "none"])
            .arg("--seccomp-profile-root")
            .args([profiles, file]),
    );

    pod
}

/// Checks that the pod gives the documented level to commands that share files with the agent.
async fn check_pod(pod: &Pod, expected_level: Option<&str>, context: &str) {
    let run = ["--json", "run", "--", "sh", "-c", "id -u && echo written > shared"];
    let Some(level) = expected_level else {
        let is_rejected = async || {
            let output = pod.run_jig(&run);
            String::from_utf8_lossy(&output.stdout).contains("SANDBOX_UNAVAILABLE")
        };
        eventually(&format!("{context}: commands are rejected"), is_rejected).await;
        return;
    };

    let is_healthy = async || pod.run_jig(&["health"]).status.success();
    eventually(&format!("{context}: the sidecar serves"), is_healthy).await;
    let output = pod.run_jig(&run);
    let response: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(response["isolation"], level, "{context}: {output:?}");
    assert_eq!(response["stdout"], "1000\n", "{context}: {output:?}");

    let agent = format!("{}-agent", pod.name);
    let output = run_successfully(podman_command().args(["exec", &agent, "cat", "/open/shared"]));
    assert_eq!(output.stdout, b"written\n");
}

#[tokio::test]
async fn sidecar_serves_the_agent_container_of_its_pod() {
    ensure_image();
    for (row, (name, has_docker_profile, expected_levels)) in PODS.iter().enumerate() {
        for (column, (flags, level)) in COLUMN_FLAGS.iter().zip(expected_levels).enumerate() {
            let pod = start_pod(&format!("{row}-{column}"), flags, *has_docker_profile);
            check_pod(&pod, *level, &format!("{name} with {flags:?}")).await;
        }
    }
}
