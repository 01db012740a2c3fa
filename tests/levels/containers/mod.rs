//! Containers as Kubernetes makes them, with a real runtime (crun): which level each gives, found by
//! looking at what a command in it really is.

use std::{
    collections::BTreeSet,
    fs,
    io::{self, Write as _},
};

use tonic_health::pb::health_check_response::ServingStatus;

use crate::support::{
    Container, DOCKER_CAPABILITIES, Daemon, Mark,
    SeccompProfile::{Localhost, RuntimeDefault, Unconfined},
    Setup, argv, compile_in_workspace, shell, status_field,
};

/// Capabilities of Docker's and CAP_SYS_ADMIN.
const ADMIN_CAPABILITIES: &[&str] = &[
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
    "CAP_SYS_ADMIN",
    "CAP_SYS_CHROOT",
];
/// All, by their numbers.
const ALL_CAPABILITIES: &[&str] = &[
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETPCAP",
    "CAP_LINUX_IMMUTABLE",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_BROADCAST",
    "CAP_NET_ADMIN",
    "CAP_NET_RAW",
    "CAP_IPC_LOCK",
    "CAP_IPC_OWNER",
    "CAP_SYS_MODULE",
    "CAP_SYS_RAWIO",
    "CAP_SYS_CHROOT",
    "CAP_SYS_PTRACE",
    "CAP_SYS_PACCT",
    "CAP_SYS_ADMIN",
    "CAP_SYS_BOOT",
    "CAP_SYS_NICE",
    "CAP_SYS_RESOURCE",
    "CAP_SYS_TIME",
    "CAP_SYS_TTY_CONFIG",
    "CAP_MKNOD",
    "CAP_LEASE",
    "CAP_AUDIT_WRITE",
    "CAP_AUDIT_CONTROL",
    "CAP_SETFCAP",
    "CAP_MAC_OVERRIDE",
    "CAP_MAC_ADMIN",
    "CAP_SYSLOG",
    "CAP_WAKE_ALARM",
    "CAP_BLOCK_SUSPEND",
    "CAP_AUDIT_READ",
    "CAP_PERFMON",
    "CAP_BPF",
    "CAP_CHECKPOINT_RESTORE",
];

/// What a container gives where everything is allowed: a level, or at L3 and L2 (and L1) the step
/// that fails.
#[derive(Debug, Clone, Copy)]
enum ExpectedLevel {
    L3,
    L2,
    L1,
    Unavailable(&'static str),
}

/// A container without privileges and with a masked `/proc` of an ordinary user.
const RESTRICTED: Container = Container {
    name: "A",
    uid: 1000,
    capabilities: &[],
    no_new_privs: true,
    profile: RuntimeDefault,
    masked: true,
    own_users: false,
    own_network: true,
};
/// A container as engines make it by default.
const ROOT: Container = Container {
    name: "B",
    uid: 0,
    capabilities: DOCKER_CAPABILITIES,
    no_new_privs: false,
    ..RESTRICTED
};
/// A container with users of its own (`hostUsers: false`) and an unmasked `/proc`.
const USER_NAMESPACE: Container =
    Container { name: "C1", masked: false, own_users: true, ..RESTRICTED };
/// Root in such a container.
const USER_NAMESPACE_ROOT: Container =
    Container { name: "C3b", uid: 0, profile: Localhost, ..USER_NAMESPACE };

/// The matrix: a container, who owns the workspace in it, and what it gives.
const MATRIX: &[(Container, u32, ExpectedLevel)] = &[
    (RESTRICTED, 1000, ExpectedLevel::L1),
    (ROOT, 1000, ExpectedLevel::L1),
    (Container { name: "B2", profile: Unconfined, ..ROOT }, 1000, ExpectedLevel::L2),
    (Container { name: "C", own_users: true, ..ROOT }, 1000, ExpectedLevel::L1),
    (USER_NAMESPACE, 1000, ExpectedLevel::L1),
    (
        Container { name: "C2", profile: Localhost, masked: true, ..USER_NAMESPACE },
        1000,
        ExpectedLevel::L2,
    ),
    (Container { name: "C3", profile: Localhost, ..USER_NAMESPACE }, 1000, ExpectedLevel::L3),
    (USER_NAMESPACE_ROOT, 0, ExpectedLevel::Unavailable("id_map")),
    (
        Container { name: "C3c", capabilities: &["CAP_SETFCAP"], ..USER_NAMESPACE_ROOT },
        0,
        ExpectedLevel::L3,
    ),
    (
        Container {
            name: "C3d",
            capabilities: &["CAP_SETUID", "CAP_SETGID"],
            ..USER_NAMESPACE_ROOT
        },
        0,
        ExpectedLevel::Unavailable("id_map"),
    ),
    (
        Container { name: "C4", capabilities: ADMIN_CAPABILITIES, own_users: true, ..ROOT },
        1000,
        ExpectedLevel::L3,
    ),
    (Container { name: "D", capabilities: ADMIN_CAPABILITIES, ..ROOT }, 0, ExpectedLevel::L3),
    (
        Container {
            name: "E",
            capabilities: ALL_CAPABILITIES,
            profile: Unconfined,
            masked: false,
            ..ROOT
        },
        0,
        ExpectedLevel::L3,
    ),
    (
        Container {
            name: "E2",
            capabilities: ALL_CAPABILITIES,
            profile: Unconfined,
            masked: false,
            own_users: true,
            ..ROOT
        },
        1000,
        ExpectedLevel::L3,
    ),
    (Container { name: "F", profile: Unconfined, ..RESTRICTED }, 1000, ExpectedLevel::L2),
    (
        Container { name: "F2", profile: Unconfined, masked: false, ..RESTRICTED },
        1000,
        ExpectedLevel::L3,
    ),
    (Container { name: "G", profile: Localhost, ..RESTRICTED }, 1000, ExpectedLevel::L2),
    (Container { name: "H", profile: Unconfined, ..USER_NAMESPACE }, 1000, ExpectedLevel::L3),
];

/// Whether this machine can start a container: its root cannot give what it does not have.
fn can_start(container: &Container) -> bool {
    let own = status_field(std::process::id().cast_signed(), "CapEff").unwrap();
    let own = u64::from_str_radix(&own, 16).unwrap();
    let all = (1_u64 << ALL_CAPABILITIES.len()) - 1;
    container.own_users || container.capabilities.len() < ALL_CAPABILITIES.len() || own & all == all
}

/// Says something that is read although the test succeeds.
fn print_to_stderr(text: &str) {
    // The test's own output is kept back.
    io::stderr().write_all(format!("{text}\n").as_bytes()).unwrap();
}

async fn start_in(container: &Container, owner: u32, minimum: &str) -> Daemon {
    Setup::new()
        .user(container.host_uid(container.uid))
        .workspace_owner(container.host_uid(owner))
        .in_container(container)
        .arguments(&["--minimum-level", minimum])
        .start()
        .await
}

/// Finds out what a command really is.
async fn probe_command_level(daemon: &Daemon) -> &'static str {
    let mark = Mark::new();
    let running = daemon.spawn_run(mark.on(argv(&["sleep", "1000"])));
    let command = *mark.wait_for_processes(1).await.first().unwrap();
    let namespaces = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"];
    let private_namespaces = namespaces.iter().filter(|kind| {
        let of = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap();
        of(command) != of(daemon.pid())
    });
    let own = private_namespaces.count();
    for (field, right) in [
        ("CapEff", "0000000000000000"),
        ("CapPrm", "0000000000000000"),
        ("CapInh", "0000000000000000"),
        ("CapAmb", "0000000000000000"),
        ("NoNewPrivs", "1"),
        ("Seccomp", "2"),
    ] {
        assert_eq!(status_field(command, field).unwrap(), right, "{field}");
    }
    assert!(!status_field(command, "Uid").unwrap().starts_with("0\t"));
    running.abort();
    mark.wait_until_gone().await;
    let visible = daemon.output(shell("cd /proc; echo [0-9]*")).await;
    assert_ne!(daemon.output(shell("id -u")).await, "0\n");
    let secret = daemon.sibling_path("secret");
    fs::write(&secret, "").unwrap();
    let peek = format!("cat {}", secret.display());
    assert_ne!(daemon.run(shell(&peek)).await.exit_code, Some(0));
    let net = "exec 3<> /dev/tcp/169.254.169.254/80";
    let reached = daemon.run(argv(&["bash", "-c", net])).await;
    assert_ne!(reached.exit_code, Some(0), "{reached:?}");
    match (own, visible.as_str()) {
        (7, "1 2\n") => "L3",
        (7, _) => "L2",
        (0, _) => "L1",
        other => panic!("neither all namespaces nor none: {other:?}"),
    }
}

/// Sees that a container gives what the matrix says, and that the daemon tells what it gives.
async fn check_container(container: &Container, owner: u32, gives: ExpectedLevel) -> String {
    let daemon = start_in(container, owner, "L1").await;
    let isolation = daemon.info().await.isolation.unwrap();
    let failed_stages: BTreeSet<_> = isolation.failed_levels.iter().map(|one| &one.stage).collect();
    let level = isolation.level.as_str();
    let expected = match gives {
        ExpectedLevel::L3 => "L3",
        ExpectedLevel::L2 => "L2",
        ExpectedLevel::L1 => "L1",
        ExpectedLevel::Unavailable(_) => "L0",
    };
    assert_eq!(level, expected, "{}: {:?}", container.name, isolation.failed_levels);
    if let ExpectedLevel::Unavailable(stage) = gives {
        assert_eq!(isolation.failed_levels.first().unwrap().stage, stage);
        assert_eq!(daemon.health().await, ServingStatus::NotServing);
        daemon.run_failing(shell("touch ran"), "SANDBOX_UNAVAILABLE").await;
        assert!(!daemon.file("ran").exists());
        return format!("{}: nothing ({failed_stages:?})", container.name);
    }
    assert_eq!(probe_command_level(&daemon).await, level, "{}", container.name);
    let line = "echo text > file && cat file && rm file";
    let response = daemon.run(shell(line)).await;
    assert_eq!(response.stdout, "text\n", "{response:?}");
    assert_eq!(response.isolation, level);
    for layer in &isolation.layers {
        assert_eq!(layer.applied, layer.remedy.is_empty(), "{layer:?}");
    }
    format!("{}: {level} ({failed_stages:?})", container.name)
}

#[tokio::test]
async fn case_83_each_container_gives_its_expected_level() {
    let mut report = Vec::new();
    for (container, owner, gives) in MATRIX {
        if can_start(container) {
            report.push(check_container(container, *owner, *gives).await);
        } else {
            report.push(format!(
                "{}: NOT TRIED: this machine's root has not all capabilities, so it cannot start a privileged container",
                container.name
            ));
        }
    }
    print_to_stderr(&format!("containers:\n  {}", report.join("\n  ")));
}

#[tokio::test]
async fn command_cannot_escape_a_moved_root() {
    // Engines' profiles refuse pivot_root to who has CAP_SYS_ADMIN.
    for (container, owner, _) in MATRIX.iter().filter(|(row, ..)| ["C4", "D"].contains(&row.name)) {
        let daemon = start_in(container, *owner, "L3").await;
        let program = compile_in_workspace(&daemon, "mounts");
        let response = daemon.run(argv(&[&program])).await;
        for call in ["chroot", "pivot_root", "bind", "detach /proc", "umount /workspace"] {
            let line = format!("{call}: EPERM\n");
            assert!(response.stdout.contains(&line), "{call}: {response:?}");
        }
        for path in
            ["/jig/jigd", "/../jig/jigd", "/proc/1/root/jig/jigd", "/proc/self/root/../jig/jigd"]
        {
            let response = daemon.run(argv(&["ls", path])).await;
            assert_eq!(response.exit_code, Some(2), "{path}: {response:?}");
        }
        let mounts = daemon.output(shell("cut -d' ' -f5 /proc/self/mountinfo")).await;
        assert!(!mounts.lines().any(|mount| mount == "/jig"), "{mounts}");
    }
}

#[tokio::test]
async fn case_83_container_below_minimum_level_runs_nothing_and_reports_remedy() {
    for (container, owner, gives) in MATRIX {
        let remedy = match gives {
            ExpectedLevel::L2 => "procMount",
            ExpectedLevel::L1 => "user namespaces",
            ExpectedLevel::L3 | ExpectedLevel::Unavailable(_) => continue,
        };
        let daemon = start_in(container, *owner, "L3").await;
        assert_eq!(daemon.health().await, ServingStatus::NotServing);
        let refusal = daemon.run_failing(shell("touch ran"), "SANDBOX_UNAVAILABLE").await;
        for (name, part) in [("stage", ""), ("errno", "EPERM"), ("remedy", remedy)] {
            let value = &refusal.metadata[name];
            assert!(!value.is_empty() && value.contains(part), "{refusal:?}");
        }
        assert!(!daemon.file("ran").exists(), "{}", container.name);
        assert_eq!(daemon.list_files().await, [""; 0], "files can be listed");
    }
}
