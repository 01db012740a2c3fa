//! A pod: the daemon as a sidecar of an agent's container.

use std::{fs, process::Output};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{IMAGE, files, podman, prepare, succeeds};
use crate::support::eventually;

/// A pod that ends with the test.
struct Pod {
    name: String,
    _files: TempDir,
}

impl Drop for Pod {
    fn drop(&mut self) {
        let _gone = podman().args(["pod", "rm", "--force", &self.name]).output();
    }
}

impl Pod {
    /// Runs jig in the agent's container.
    fn jig(&self, arguments: &[&str]) -> Output {
        let agent = format!("{}-agent", self.name);
        podman()
            .args([
                "exec",
                &agent,
                "/jig/jig",
                "--address",
                "http://127.0.0.1:50051",
            ])
            .args(arguments)
            .output()
            .unwrap()
    }
}

fn pod() -> Pod {
    let files = files(0);
    let name = format!("jig-test-{}", std::process::id());
    let mount = |name: &str, path: &str, read_only: bool| json!({"name": name, "mountPath": path, "readOnly": read_only});
    let mounts = json!([
        mount("work", "/open", false),
        mount("usr", "/usr", true),
        mount("jig", "/jig", true),
    ]);
    let daemon = [
        "/jig/jig",
        "serve",
        "--trust-loopback",
        "--minimum-level",
        "L1",
        "--workspace",
        "/open",
        "--state-dir",
        "/tmp/state",
    ];
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
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
    let pod = Pod {
        name,
        _files: files,
    };
    succeeds(
        podman()
            .args(["kube", "play", "--network", "none"])
            .arg(file),
    );
    pod
}

#[tokio::test]
async fn a_sidecar_serves_the_agents_container_of_its_pod() {
    prepare();
    let pod = pod();
    let is_healthy = async || pod.jig(&["health"]).status.success();
    eventually("the sidecar serves", is_healthy).await;
    let output = pod.jig(&[
        "--json",
        "run",
        "--",
        "sh",
        "-c",
        "id -u && echo written > shared",
    ]);
    let response: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(response["isolation"], "L2", "{output:?}");
    assert_eq!(response["stdout"], "1000\n", "{output:?}");
    let agent = format!("{}-agent", pod.name);
    let read = succeeds(podman().args(["exec", &agent, "cat", "/open/shared"]));
    assert_eq!(read.stdout, b"written\n");
}
