//! The shipped Kubernetes manifests with the shipped images: each variant gives commands the level
//! that its documentation promises.
//!
//! Podman plays the pods, with the containers beside each other. Podman does not know `procMount`,
//! so crun runs the daemon of each variant too, with all that the manifest configures. Not shown
//! are a cluster, AppArmor, gVisor and Kata.

mod bundle;
mod node;
mod podman;

use std::{fs, process::Output, sync::OnceLock};

use serde_json::Value;

use self::{
    bundle::{first_host_id, run_in_bundle},
    node::{Files, NodePod, default_profile, profile_calls, profile_without, render},
    podman::PlayedPod,
};
use crate::support::{CertificateAuthority, KeyFile, Validity, eventually, run_setup_script};

/// The documentation page with the table of variants.
const KUBERNETES_PAGE: &str = include_str!("../../../docs/operate/kubernetes.md");
/// Variants: the name, the level of commands, and the level in a pod of Podman.
const VARIANTS: &[(&str, &str, Option<&str>)] = &[
    ("restricted", "L1", Some("L1")),
    ("restricted-seccomp", "L2", Some("L2")),
    ("baseline", "L2", Some("L2")),
    // Podman masks `/proc`. The variant then runs nothing.
    ("hardened", "L3", None),
];
/// Work of a command: it reads a file of the agent, writes one, and uses Git.
const COMMAND: &str = "id -u && cat by-agent && echo command > by-command && git init -q repository && git -C repository status --short --branch";
/// Output of [`COMMAND`].
const COMMAND_OUTPUT: &str = "10001\nagent\n## No commits yet on master\n";

fn ensure_images() {
    static ONCE: OnceLock<()> = OnceLock::new();
    ONCE.get_or_init(|| run_setup_script("tests/levels/kubernetes/install.sh"));
}

/// The secrets of a standalone daemon, and the key of a caller.
struct Secrets {
    key: String,
    secrets: Vec<(&'static str, Files)>,
}

impl Secrets {
    fn new() -> Self {
        let keys = KeyFile::new();
        let key = keys.add_key("agent", "invoke", &[]);
        let authority = CertificateAuthority::new();
        let [certificate, private_key] =
            authority.issue("server", &["localhost"], Validity::Now).pem();
        let secret = |files: &[(&str, String)]| -> Files {
            files.iter().map(|(name, text)| ((*name).to_owned(), text.clone())).collect()
        };

        let key_file = fs::read_to_string(keys.path()).unwrap();
        Self {
            key,
            secrets: vec![
                ("jigd-keys", secret(&[("keys.toml", key_file)])),
                (
                    "jigd-tls",
                    secret(&[
                        ("tls.crt", certificate),
                        ("tls.key", private_key),
                        ("ca.crt", fs::read_to_string(authority.ca()).unwrap()),
                    ]),
                ),
            ],
        }
    }
}

fn response(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"))
}

/// Checks that the daemon answers the probes of its manifest as the kubelet makes them.
async fn check_probes(pod: &PlayedPod, is_ready: bool) {
    // The kubelet calls from outside. This container has a client, and shares the network.
    let caller = &pod.pod.containers.last().unwrap().name;
    let probes = ["livenessProbe", "startupProbe", "readinessProbe"];
    for probe in probes.map(|probe| &pod.pod.container("jigd").manifest[probe]["grpc"]) {
        let address = format!("http://127.0.0.1:{}", probe["port"]);
        let service = probe["service"].as_str().unwrap();
        let expected = if service == "liveness" || is_ready { 0 } else { 4 };
        let arguments = ["jig", "--address", &address, "health", service];
        let answers = async || pod.exec(caller, &[], &arguments).status.code() == Some(expected);
        eventually(&format!("{service} is {expected}: {}", pod.logs("jigd")), answers).await;
    }
}

/// Checks a pod with an agent's container: files are shared, and commands have the level.
async fn check_sidecar(overlay: &str, level: Option<&str>) {
    let pod = PlayedPod::play(NodePod::new(overlay, &[], 0));
    check_probes(&pod, level.is_some()).await;

    let write = ["sh", "-c", "echo agent > by-agent"];
    assert!(pod.exec("agent", &[], &write).status.success());
    let run = ["jig", "--json", "run", "--", "sh", "-c", COMMAND];
    let output = pod.exec("agent", &[], &run);
    let response = response(&output);
    let Some(level) = level else {
        assert_eq!(response["error"]["reason"], "SANDBOX_UNAVAILABLE", "{output:?}");
        assert!(response.to_string().contains("mount_template_proc"), "{response}");
        return;
    };

    assert_eq!(response["isolation"], level, "{overlay}: {output:?}");
    assert_eq!(response["stdout"], COMMAND_OUTPUT, "{overlay}: {output:?}");
    let output = pod.exec("agent", &[], &["sh", "-c", "cat by-command; echo more >> by-command"]);
    assert_eq!(output.stdout, b"command\n", "{overlay}: {output:?}");

    // The agent cannot replace the socket.
    let output = pod.exec("agent", &[], &["rm", "/run/jig/jig.sock"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("Read-only"), "{output:?}");
}

#[tokio::test]
async fn sidecar_of_each_variant_serves_the_agent() {
    ensure_images();
    for (variant, _, level) in VARIANTS {
        check_sidecar(&format!("sidecar-{variant}"), *level).await;
    }
}

#[tokio::test]
async fn standalone_of_each_variant_serves_callers_with_a_key() {
    ensure_images();
    let secrets = Secrets::new();
    let key = format!("JIG_KEY={}", secrets.key);
    for (variant, _, level) in VARIANTS {
        let pod =
            PlayedPod::play(NodePod::new(&format!("standalone-{variant}"), &secrets.secrets, 0));
        check_probes(&pod, level.is_some()).await;

        let tls = ["--address", "https://localhost:50051", "--ca", "/etc/jigd/tls/ca.crt"];
        let command = "git init -q repository && git -C repository status --short --branch";
        let run = [&["jig"], &tls[..], &["--json", "run", "--", "sh", "-c", command]].concat();
        let output = pod.exec("jigd", &[], &run);
        assert!(String::from_utf8_lossy(&output.stdout).contains("UNAUTHENTICATED"), "{output:?}");

        let output = pod.exec("jigd", &[&key], &run);
        let response = response(&output);
        match level {
            Some(level) => assert_eq!(response["isolation"], *level, "{variant}: {output:?}"),
            None => assert_eq!(response["error"]["reason"], "SANDBOX_UNAVAILABLE", "{output:?}"),
        }
    }
}

#[tokio::test]
async fn installer_brings_the_daemon_into_an_image_without_a_c_library() {
    ensure_images();
    let pod = PlayedPod::play(NodePod::new("sidecar-own-image", &[], 0));
    // The variant is hardened, so Podman's daemon runs nothing, but serves files.
    check_probes(&pod, false).await;
    let output = pod.exec("agent", &[], &["jig", "ls"]);
    assert!(output.status.success(), "{output:?}");

    let pod = NodePod::new("sidecar-own-image", &[], first_host_id(true));
    let script = "/jig-bin/jig --json run -- sh -c 'cat /usr/release; ls /usr /usr/bin/git'";
    let output = run_in_bundle(&pod, script);
    let response = response(&output);
    assert_eq!(response["isolation"], "L3", "{output:?}");
    assert_eq!(response["stdout"], "toolchain of a user\n/usr:\nbin\nrelease\n", "{output:?}");
}

#[test]
fn each_variant_gives_its_level_under_the_configuration_of_its_manifest() {
    ensure_images();
    let secrets = Secrets::new();
    let prelude = format!("export JIG_KEY={}; ", secrets.key);
    for (variant, level, _) in VARIANTS {
        for shape in ["sidecar", "standalone"] {
            let overlay = format!("{shape}-{variant}");
            let is_own = *variant == "hardened";
            let pod = NodePod::new(&overlay, &secrets.secrets, first_host_id(is_own));
            assert_eq!(pod.has_user_namespace, is_own);

            let script = format!(
                "{prelude} echo agent | jig write by-agent > /dev/null; jig --json run -- sh -c '{COMMAND}'"
            );
            let output = run_in_bundle(&pod, &script);
            let response = response(&output);
            assert_eq!(response["isolation"], *level, "{overlay}: {output:?}");
            assert_eq!(response["stdout"], COMMAND_OUTPUT, "{overlay}: {output:?}");
        }
    }
}

#[test]
fn variant_below_its_level_runs_nothing() {
    ensure_images();
    for (variant, _, _) in VARIANTS.iter().filter(|(_, level, _)| *level != "L1") {
        // A node that ignores user namespaces and has the default profile everywhere.
        let mut pod = NodePod::new(&format!("sidecar-{variant}"), &[], 0);
        pod.has_user_namespace = false;
        pod.seccomp_override = Some(default_profile());
        let output = run_in_bundle(&pod, "jig --json run -- true; jig health; echo $?");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("SANDBOX_UNAVAILABLE"), "{variant}: {output:?}");
        assert!(text.ends_with("\n4\n"), "{variant}: {output:?}");
    }
}

/// The profile is the smallest one: without any of its own calls, there is no L3 with all layers.
#[test]
fn seccomp_profile_allows_only_needed_calls() {
    ensure_images();
    let isolation = |without: Option<&str>| {
        let mut pod = NodePod::new("sidecar-hardened", &[], first_host_id(true));
        pod.seccomp_override = without.map(profile_without);
        let output = run_in_bundle(&pod, "jig --json info");
        let info = response(&output);
        [info["isolation"]["level"].clone(), info["isolation"]["layers"].clone()]
    };

    let complete = isolation(None);
    assert_eq!(complete[0], "L3");
    for call in profile_calls() {
        assert_ne!(isolation(Some(&call)), complete, "the profile does not need {call}");
    }
}

#[test]
fn documentation_promises_these_levels() {
    for (variant, level, _) in VARIANTS {
        let row =
            KUBERNETES_PAGE.lines().find(|line| line.starts_with(&format!("| `{variant}` |")));
        let row = row.unwrap_or_else(|| panic!("no row for {variant}"));
        assert!(row.contains(&format!("| {level} |")), "{row}");
    }
}

/// Each overlay that runs commands at a level says so to the daemon.
#[test]
fn each_overlay_requires_its_level() {
    ensure_images();
    for (variant, level, _) in VARIANTS {
        for shape in ["sidecar", "standalone"] {
            let objects = render(&format!("{shape}-{variant}"));
            let maps = objects.iter().filter(|object| object["kind"] == "ConfigMap");
            let levels: Vec<_> =
                maps.filter_map(|map| map["data"]["JIG_MINIMUM_LEVEL"].as_str()).collect();
            assert_eq!(levels, [*level], "{shape}-{variant}");
        }
    }
}
