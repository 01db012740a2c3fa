//! Daemons in containers: bundles for an OCI runtime (crun). The configuration is that of
//! Kubernetes or of an engine; the root file system consists of the host's `/usr` and the daemon.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
};

use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Setup, build_if_stale, copy_program, daemon_binary, run_setup_script};

/// Docker's default seccomp profile (JSON).
pub(crate) const DOCKER_SECCOMP: &str = include_str!("docker_seccomp.json");
/// Path of the installed Podman's seccomp profile.
const PODMAN_SECCOMP: &str = "/usr/share/containers/seccomp.json";
/// The shipped profile for the daemon, which Kubernetes applies as `Localhost`.
pub(crate) const JIGD_SECCOMP: &str = include_str!("../../../deploy/profiles/jigd-seccomp.json");
/// Docker's default capabilities of root.
pub(crate) const DOCKER_CAPABILITIES: &[&str] = &[
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
];
/// Podman's default capabilities of root.
const PODMAN_CAPABILITIES: &[&str] = &[
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_NET_BIND_SERVICE",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
];
/// First host user id of a container's own user namespace, and the number of ids.
pub(crate) const USER_NAMESPACE_RANGE: (u32, u32) = (200_000, 65_536);
/// Paths that container runtimes mask.
pub(crate) const MASKED_PATHS: &[&str] = &[
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
];
/// Paths that container runtimes make read-only.
pub(crate) const READ_ONLY_PATHS: &[&str] =
    &["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];
/// Placeholder in a configuration for the directory of the test's daemon, which is not known yet.
const DIRECTORY_PLACEHOLDER: &str = "@DIRECTORY@";
/// Runs a bundle. Arguments: the bundle's directory, [`CONFIGURE_SCRIPT`], the daemon's binary, the
/// daemon's arguments. All processes of the bundle die with this one.
const RUN_SCRIPT: &str = r#"
    set -e
    bundle=$1
    configure=$2
    shift 3
    # crun fails on a machine where cgroup v2 is one of several hierarchies.
    mount -t cgroup2 none /sys/fs/cgroup
    python3 -c "$configure" "$bundle" "$@"
    # State that a killed container has left.
    rm -rf "$bundle/state"
    exec crun --root "$bundle/state" --cgroup-manager=disabled run --bundle "$bundle" jig-test
"#;
/// Completes a bundle's configuration: the daemon's directory, arguments and environment, and
/// mounts of the test's other directories that the arguments or a configuration file name.
const CONFIGURE_SCRIPT: &str = r#"
import json, os, re, sys
bundle, *arguments = sys.argv[1:]
directory = os.path.dirname(arguments[arguments.index("--state-dir") + 1])
config = json.loads(open(bundle + "/config.in").read().replace("@DIRECTORY@", directory))
text = " ".join([*arguments, *os.environ.values()])
if os.path.exists(directory + "/jig.toml"):
    text += open(directory + "/jig.toml").read()
for path in sorted(set(re.findall(r"/tmp/jig-test-[\w-]+", text)) - {directory}):
    config["mounts"].append({"destination": path, "type": "bind", "source": path, "options": ["rbind", "rw"]})
config["process"]["args"] = ["/jig/jigd", *arguments]
config["process"]["env"] = [f"{name}={value}" for name, value in os.environ.items()]
json.dump(config, open(bundle + "/config.json", "w"))
"#;

/// A kind of container.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Container {
    /// Name in the table of cases.
    pub(crate) name: &'static str,
    /// User id inside the container.
    pub(crate) uid: u32,
    /// Capabilities of the container's root.
    pub(crate) capabilities: &'static [&'static str],
    /// Whether the container has `no_new_privs`.
    pub(crate) no_new_privs: bool,
    pub(crate) profile: SeccompProfile,
    /// Whether `/proc` is masked.
    pub(crate) masked: bool,
    /// Whether the container has its own user namespace.
    pub(crate) own_users: bool,
    /// Whether the container has its own network namespace.
    pub(crate) own_network: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SeccompProfile {
    /// No profile.
    Unconfined,
    /// Docker's, which Kubernetes applies as `RuntimeDefault`.
    RuntimeDefault,
    /// Podman's.
    Podman,
    /// The shipped profile for the daemon.
    Localhost,
}

/// An OCI bundle on disk.
#[derive(Debug)]
pub(crate) struct OciBundle(TempDir);

impl Container {
    /// The host's id of a user of the container.
    pub(crate) fn host_uid(&self, uid: u32) -> u32 {
        if self.own_users { USER_NAMESPACE_RANGE.0 + uid } else { uid }
    }

    fn config(&self, directory: &Path) -> Value {
        let granted = if self.uid == 0 { self.capabilities } else { &[] };
        let bind = |source: &str, target: &str, mode: &str| json!({"destination": target, "type": "bind", "source": source, "options": ["rbind", mode]});
        let mount = |kind: &str, target: &str, options: &[&str]| json!({"destination": target, "type": kind, "source": kind, "options": options});
        let namespaces = ["pid", "ipc", "uts", "mount", "cgroup"];
        let mut namespaces = namespaces.map(|kind| json!({"type": kind})).to_vec();
        if self.own_network {
            namespaces.push(json!({"type": "network"}));
        }

        let mut config = json!({
            "ociVersion": "1.0.0",
            "hostname": "container",
            "root": {"path": "rootfs"},
            "process": {
                "terminal": false,
                "user": {"uid": self.uid, "gid": self.uid},
                "cwd": "/",
                "noNewPrivileges": self.no_new_privs,
                "capabilities": {"bounding": self.capabilities, "effective": granted, "permitted": granted, "inheritable": []},
            },
            "mounts": [
                mount("proc", "/proc", &["nosuid", "noexec", "nodev"]),
                mount("tmpfs", "/dev", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
                mount("devpts", "/dev/pts", &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"]),
                mount("tmpfs", "/dev/shm", &["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]),
                mount("mqueue", "/dev/mqueue", &["nosuid", "noexec", "nodev"]),
                mount("sysfs", "/sys", &["nosuid", "noexec", "nodev", "ro"]),
                mount("tmpfs", "/tmp", &["nosuid", "nodev", "mode=1777"]),
                bind("/usr", "/usr", "ro"),
                bind(directory.join("jig").to_str().unwrap(), "/jig", "ro"),
                bind("/etc/resolv.conf", "/etc/resolv.conf", "ro"),
                bind("/etc/hosts", "/etc/hosts", "ro"),
                bind(DIRECTORY_PLACEHOLDER, DIRECTORY_PLACEHOLDER, "rw"),
            ],
            "linux": {
                "namespaces": namespaces,
                "maskedPaths": if self.masked { MASKED_PATHS } else { &[] },
                "readonlyPaths": if self.masked { READ_ONLY_PATHS } else { &[] },
            },
        });

        let linux = &mut config["linux"];
        if self.profile != SeccompProfile::Unconfined {
            linux["seccomp"] = self.seccomp();
        }

        if self.own_users {
            let namespaces = linux["namespaces"].as_array_mut().unwrap();
            namespaces.push(json!({"type": "user"}));
            let map = json!([{"containerID": 0, "hostID": USER_NAMESPACE_RANGE.0, "size": USER_NAMESPACE_RANGE.1}]);
            linux["uidMappings"] = map.clone();
            linux["gidMappings"] = map;
        }

        config
    }

    fn seccomp(&self) -> Value {
        let (rules, errno) = match self.profile {
            SeccompProfile::Localhost => return serde_json::from_str(JIGD_SECCOMP).unwrap(),
            SeccompProfile::Podman => (podman_rules(), 38),
            SeccompProfile::RuntimeDefault | SeccompProfile::Unconfined => {
                let data: Value = serde_json::from_str(DOCKER_SECCOMP).unwrap();
                (data["rules"].clone(), 1)
            }
        };

        let all_and_any_granted = |names: &Value| {
            let names = names.as_array().into_iter().flatten();
            let names: Vec<_> = names.map(|name| name.as_str().unwrap()).collect();
            (
                names.iter().all(|name| self.capabilities.contains(name)),
                names.iter().any(|name| self.capabilities.contains(name)),
            )
        };

        let mut syscalls = Vec::new();
        for rule in rules.as_array().unwrap() {
            if !all_and_any_granted(&rule["with"]).0 || all_and_any_granted(&rule["without"]).1 {
                continue;
            }
            let mut rule = rule.clone();
            let fields = rule.as_object_mut().unwrap();
            fields.retain(|field, _| field != "with" && field != "without");
            syscalls.push(rule);
        }

        json!({
            "defaultAction": "SCMP_ACT_ERRNO",
            "defaultErrnoRet": errno,
            "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
            "syscalls": syscalls,
        })
    }
}

/// Podman's rules, in the form of [`DOCKER_SECCOMP`].
fn podman_rules() -> Value {
    let text = fs::read_to_string(PODMAN_SECCOMP).unwrap();
    let data: Value = serde_json::from_str(&text).unwrap();
    let rules = data["syscalls"].as_array().unwrap().iter();
    let for_amd64 = rules.filter(|rule| {
        let architectures = rule["includes"]["arches"].as_array();
        architectures.is_none_or(|architectures| architectures.contains(&json!("amd64")))
    });

    for_amd64
        .map(|rule| {
            let mut converted = json!({
                "names": rule["names"],
                "action": rule["action"],
                "with": rule["includes"]["caps"],
                "without": rule["excludes"]["caps"],
            });
            for field in ["args", "errnoRet"] {
                if !rule[field].is_null() {
                    converted[field] = rule[field].clone();
                }
            }
            converted
        })
        .collect()
}

impl Setup {
    pub(crate) fn in_container(self, container: &Container) -> Self {
        run_setup_script("tests/levels/install.sh");
        let bundle = Arc::new(OciBundle::create(container));
        self.and_wrapped_by(bundle.wrapper())
            .wrapper_sets_user()
            .with_resource(bundle)
            .mark_contained()
    }

    /// A daemon as root in a container with an engine's default configuration. The workspace
    /// belongs to the user of its commands. The container shares the network namespace that the
    /// test has set up.
    pub(crate) fn in_engine_container(self, engine: &str) -> Self {
        let (capabilities, profile) = match engine {
            "docker" => (DOCKER_CAPABILITIES, SeccompProfile::RuntimeDefault),
            "podman" => (PODMAN_CAPABILITIES, SeccompProfile::Podman),
            engine => panic!("neither docker nor podman: {engine}"),
        };

        self.arguments(&["--chown-workspace"])
            .with_default_argument("--minimum-level", "L1")
            .in_container(&Container {
                name: "engine",
                uid: 0,
                capabilities,
                no_new_privs: false,
                profile,
                masked: true,
                own_users: false,
                own_network: false,
            })
    }
}

impl OciBundle {
    /// Writes a bundle to disk.
    fn create(container: &Container) -> Self {
        let directory = tempfile::Builder::new()
            .prefix("jig-test-bundle-")
            .permissions(fs::Permissions::from_mode(0o755))
            .tempdir()
            .unwrap();
        let root = directory.path().join("rootfs");
        for name in ["usr", "etc", "tmp", "proc", "dev", "sys", "jig"] {
            fs::create_dir_all(root.join(name)).unwrap();
        }

        // Mount points for the host's files.
        for name in ["etc/resolv.conf", "etc/hosts"] {
            fs::write(root.join(name), "").unwrap();
        }

        fs::create_dir(directory.path().join("jig")).unwrap();
        copy_program(&stripped_binary("jigd", daemon_binary()), &directory.path().join("jig/jigd"));

        // Recreate the host's links into /usr.
        for name in ["bin", "sbin", "lib", "lib32", "lib64"] {
            if let Ok(target) = fs::read_link(Path::new("/").join(name)) {
                symlink(target, root.join(name)).unwrap();
            }
        }

        let config = container.config(directory.path()).to_string();
        fs::write(directory.path().join("config.in"), config).unwrap();
        Self(directory)
    }

    /// The wrapper that runs the daemon in the container. The daemon and its arguments follow it.
    fn wrapper(&self) -> Vec<String> {
        let directory = self.0.path().to_str().unwrap();

        // A PID namespace of its own: all of its processes end with it.
        let wrapper = [
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
            "sh",
            "-c",
            RUN_SCRIPT,
            "sh",
            directory,
            CONFIGURE_SCRIPT,
        ];

        wrapper.map(str::to_owned).to_vec()
    }
}

/// A copy of a program without debug information, which is most of its size.
pub(crate) fn stripped_binary(name: &str, program: &Path) -> PathBuf {
    build_if_stale(&format!("{name}-stripped"), &[program], |to| {
        let stripped = Command::new("strip")
            .arg("-o")
            .args([to, program])
            .status()
            .expect("strip (binutils) is needed");
        assert!(stripped.success());
        fs::set_permissions(to, fs::Permissions::from_mode(0o755)).unwrap();
    })
}
