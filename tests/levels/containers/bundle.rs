//! Bundles for an OCI runtime: a configuration as Kubernetes would have it made, and a root file
//! system of nothing but the host's `/usr` and the daemon.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::support::{binary, copy_program, derived};

/// What container engines allow, as data.
pub(in crate::levels) const RUNTIME_DEFAULT: &str = include_str!("runtime_default.json");
/// What a profile made for the daemon allows more.
const NAMESPACES_AND_MOUNTS: &[&str] = &[
    "clone",
    "clone3",
    "unshare",
    "setns",
    "mount",
    "umount",
    "umount2",
    "pivot_root",
    "open_tree",
    "move_mount",
    "mount_setattr",
    "fsopen",
    "fsconfig",
    "fsmount",
    "sethostname",
];
/// First user id of the machine that a container's own user namespace has, and how many.
pub(super) const USERS: (u32, u32) = (200_000, 65_536);
/// What runtimes cover, and make read-only.
const MASKED: &[&str] = &[
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
const READ_ONLY: &[&str] = &[
    "/proc/bus",
    "/proc/fs",
    "/proc/irq",
    "/proc/sys",
    "/proc/sysrq-trigger",
];
/// Stands in a configuration for the directory of the test's daemon, which is not known yet.
const PLACE: &str = "@PLACE@";
/// Runs a bundle, whose directory is the first argument, with the daemon's arguments, which follow
/// the daemon's binary. All of it dies with this process.
const RUN: &str = r#"
    set -e
    bundle=$1
    shift 2
    for word; do [ "$last" = --state-dir ] && place=${word%/*}; last=$word; done
    # crun refuses a machine where version 2 of control groups is one of several hierarchies.
    mount -t cgroup2 none /sys/fs/cgroup
    printf '%s\n' "$@" > "$bundle/jig/arguments"
    sed "s#@PLACE@#$place#g" "$bundle/config.in" > "$bundle/config.json"
    exec crun --root "$bundle/state" --cgroup-manager=disabled run --bundle "$bundle" jig-test
"#;

/// A kind of container.
#[derive(Debug, Clone, Copy)]
pub(super) struct Container {
    /// Name in the matrix.
    pub(super) name: &'static str,
    /// User in it.
    pub(super) uid: u32,
    /// Capabilities of root in it.
    pub(super) capabilities: &'static [&'static str],
    /// Whether it may not gain privileges.
    pub(super) no_new_privs: bool,
    /// Its seccomp profile.
    pub(super) profile: Profile,
    /// Whether its /proc is masked.
    pub(super) masked: bool,
    /// Whether it has a user namespace of its own.
    pub(super) own_users: bool,
}

/// A seccomp profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Profile {
    /// None.
    Unconfined,
    /// That of the engine.
    RuntimeDefault,
    /// The same with what the daemon needs.
    Localhost,
}

/// A bundle on disk.
#[derive(Debug)]
pub(super) struct Bundle(TempDir);

impl Container {
    /// The machine's number of a user in it.
    pub(super) fn on_the_machine(&self, uid: u32) -> u32 {
        if self.own_users { USERS.0 + uid } else { uid }
    }

    fn config(&self, folder: &Path) -> Value {
        let granted = if self.uid == 0 {
            self.capabilities
        } else {
            &[]
        };
        let bind = |source: &str, target: &str, mode: &str| json!({"destination": target, "type": "bind", "source": source, "options": ["rbind", mode]});
        let mount = |kind: &str, target: &str, options: &[&str]| json!({"destination": target, "type": kind, "source": kind, "options": options});
        let namespaces = ["pid", "ipc", "uts", "mount", "network", "cgroup"];
        let namespaces = namespaces.map(|kind| json!({"type": kind}));
        let mut config = json!({
            "ociVersion": "1.0.0",
            "hostname": "container",
            "root": {"path": "rootfs"},
            "process": {
                "terminal": false,
                "user": {"uid": self.uid, "gid": self.uid},
                "args": ["/bin/sh", "-c", "exec /jig/jigd $(cat /jig/arguments)"],
                "env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"],
                "cwd": "/",
                "noNewPrivileges": self.no_new_privs,
                "capabilities": {"bounding": self.capabilities, "effective": granted, "permitted": granted, "inheritable": []},
            },
            "mounts": [
                mount("proc", "/proc", &["nosuid", "noexec", "nodev"]),
                mount("tmpfs", "/dev", &["nosuid", "strictatime", "mode=755", "size=65536k"]),
                mount("sysfs", "/sys", &["nosuid", "noexec", "nodev", "ro"]),
                mount("tmpfs", "/tmp", &["nosuid", "nodev", "mode=1777"]),
                bind("/usr", "/usr", "ro"),
                bind(folder.join("jig").to_str().unwrap(), "/jig", "ro"),
                bind(PLACE, PLACE, "rw"),
            ],
            "linux": {
                "namespaces": namespaces,
                "maskedPaths": if self.masked { MASKED } else { &[] },
                "readonlyPaths": if self.masked { READ_ONLY } else { &[] },
            },
        });
        let linux = &mut config["linux"];
        if self.profile != Profile::Unconfined {
            linux["seccomp"] = self.seccomp();
        }
        if self.own_users {
            let namespaces = linux["namespaces"].as_array_mut().unwrap();
            namespaces.push(json!({"type": "user"}));
            let map = json!([{"containerID": 0, "hostID": USERS.0, "size": USERS.1}]);
            linux["uidMappings"] = map.clone();
            linux["gidMappings"] = map;
        }
        config
    }

    fn seccomp(&self) -> Value {
        let more = match self.profile {
            Profile::Localhost => NAMESPACES_AND_MOUNTS,
            Profile::RuntimeDefault | Profile::Unconfined => &[],
        };
        let data: Value = serde_json::from_str(RUNTIME_DEFAULT).unwrap();
        let held = |names: &Value| {
            let names = names.as_array().into_iter().flatten();
            let names: Vec<_> = names.map(|name| name.as_str().unwrap()).collect();
            (
                names.iter().all(|name| self.capabilities.contains(name)),
                names.iter().any(|name| self.capabilities.contains(name)),
            )
        };
        let mut rules = vec![json!({"names": more, "action": "SCMP_ACT_ALLOW"})];
        for rule in data["rules"].as_array().unwrap() {
            if !held(&rule["with"]).0 || held(&rule["without"]).1 {
                continue;
            }
            let mut rule = rule.clone();
            let names = rule["names"].as_array_mut().unwrap();
            names.retain(|name| !more.contains(&name.as_str().unwrap()));
            if names.is_empty() {
                continue;
            }
            let fields = rule.as_object_mut().unwrap();
            fields.retain(|field, _| field != "with" && field != "without");
            rules.push(rule);
        }
        rules.retain(|rule| rule["names"] != json!([]));
        json!({
            "defaultAction": "SCMP_ACT_ERRNO",
            "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
            "syscalls": rules,
        })
    }
}

impl Bundle {
    /// Writes it.
    pub(super) fn of(container: &Container) -> Self {
        let folder = tempfile::Builder::new()
            .prefix("jig-test-bundle-")
            .permissions(fs::Permissions::from_mode(0o755))
            .tempdir()
            .unwrap();
        let root = folder.path().join("rootfs");
        for name in ["usr", "etc", "tmp", "proc", "dev", "sys", "jig"] {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        fs::create_dir(folder.path().join("jig")).unwrap();
        copy_program(&stripped("jigd", binary()), &folder.path().join("jig/jigd"));
        // What links into /usr on the host does so here.
        for name in ["bin", "sbin", "lib", "lib32", "lib64"] {
            if let Ok(target) = fs::read_link(Path::new("/").join(name)) {
                symlink(target, root.join(name)).unwrap();
            }
        }
        let config = container.config(folder.path()).to_string();
        fs::write(folder.path().join("config.in"), config).unwrap();
        Self(folder)
    }

    /// What is to be put before the daemon and its arguments so that it runs in the container.
    pub(super) fn wrapper(&self) -> Vec<String> {
        let folder = self.0.path().to_str().unwrap();
        // Its own process namespace, so that everything ends with it.
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
            RUN,
            "sh",
            folder,
        ];
        wrapper.map(str::to_owned).to_vec()
    }
}

/// A program without what only a debugger reads, which is most of it.
pub(in crate::levels) fn stripped(name: &str, program: &Path) -> PathBuf {
    derived(&format!("{name}-stripped"), &[program], |to| {
        let stripped = Command::new("strip")
            .arg("-o")
            .args([to, program])
            .status()
            .expect("strip is needed, of binutils");
        assert!(stripped.success());
        fs::set_permissions(to, fs::Permissions::from_mode(0o755)).unwrap();
    })
}
