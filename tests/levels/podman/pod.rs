//! A pod: the daemon as a sidecar of an agent's container.

use std::{fs, process::Output};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{
    COLUMN_FLAGS, IMAGE, PODS, create_container_files, ensure_image, podman_command,
    run_successfully,
};
use crate::support::eventually;

/// A pod that ends with the test.
struct Pod {
    name: String,
    _files: TempDir,
}

impl Drop for Pod {
    fn drop(&mut self) {
        let _gone =
            podman_command().args(["pod", "rm", "--force", "--time", "0", &self.name]).output();
    }
}

impl Pod {
    /// Runs jig in the agent's container.
    fn run_jig(&self, arguments: &[&str]) -> Output {
        let agent = format!("{}-agent", self.name);
        podman_command()
            .args(["exec", &agent, "/jig/jig", "--address", "http://127.0.0.1:50051"])
            .args(arguments)
            .output()
            .unwrap()
    }
}

/// Starts a pod, with `flags` for its daemon, and with Docker's profile if that is asked for.
fn start_pod(name: &str, flags: &str, dockers_profile: bool) -> Pod {
    let files = create_container_files(0);
    let name = format!("jig-test-{}-{name}", std::process::id());
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
    let annotations = if dockers_profile {
        json!({"container.seccomp.security.alpha.kubernetes.io/jigd": "localhost/profile.json"})
    } else {
        json!({})
    };
    let pod = json!({
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
                {"name": "jig", "hostPath": {"path": files.path().join("jig")}},
            ],
        },
    });
    let file = files.path().join("pod.yaml");
    fs::write(&file, pod.to_string()).unwrap();
    // The pod is there before its containers are: from here on it is removed.
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

/// Sees that the pod gives what the page says, to commands that share files with the agent.
async fn check_pod(pod: &Pod, gives: Option<&str>, context: &str) {
    let run = ["--json", "run", "--", "sh", "-c", "id -u && echo written > shared"];
    let Some(level) = gives else {
        let is_refused = async || {
            let output = pod.run_jig(&run);
            String::from_utf8_lossy(&output.stdout).contains("SANDBOX_UNAVAILABLE")
        };
        eventually(&format!("{context}: commands are refused"), is_refused).await;
        return;
    };
    let is_healthy = async || pod.run_jig(&["health"]).status.success();
    eventually(&format!("{context}: the sidecar serves"), is_healthy).await;
    let output = pod.run_jig(&run);
    let response: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(response["isolation"], level, "{context}: {output:?}");
    assert_eq!(response["stdout"], "1000\n", "{context}: {output:?}");
    let agent = format!("{}-agent", pod.name);
    let read = run_successfully(podman_command().args(["exec", &agent, "cat", "/open/shared"]));
    assert_eq!(read.stdout, b"written\n");
}

#[tokio::test]
async fn sidecar_serves_the_agent_container_of_its_pod() {
    ensure_image();
    for (row, (name, dockers_profile, gives)) in PODS.iter().enumerate() {
        for (column, (flags, level)) in COLUMN_FLAGS.iter().zip(gives).enumerate() {
            let pod = start_pod(&format!("{row}-{column}"), flags, *dockers_profile);
            check_pod(&pod, *level, &format!("{name} with {flags:?}")).await;
        }
    }
}
