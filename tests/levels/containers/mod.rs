//! Containers with the configuration of Kubernetes, in a real runtime (crun). The tests determine
//! the level of each from the actual properties of a command.

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

/// Docker's default capabilities and CAP_SYS_ADMIN.
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
/// All capabilities, in the order of their numbers.
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

/// The highest level that a container supports, or the stage at which every level fails.
#[derive(Debug, Clone, Copy)]
enum ExpectedLevel {
    L3,
    L2,
    L1,
    Unavailable(&'static str),
}

/// A container of an ordinary user without privileges, with a masked `/proc`.
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
/// A container with an engine's default configuration.
const ROOT: Container = Container {
    name: "B",
    uid: 0,
    capabilities: DOCKER_CAPABILITIES,
    no_new_privs: false,
    ..RESTRICTED
};
/// A container with its own user namespace (`hostUsers: false`) and an unmasked `/proc`.
const USER_NAMESPACE: Container =
    Container { name: "C1", masked: false, own_users: true, ..RESTRICTED };
/// Root in such a container.
const USER_NAMESPACE_ROOT: Container =
    Container { name: "C3b", uid: 0, profile: Localhost, ..USER_NAMESPACE };

/// The matrix: a container, the workspace's owner in it, and the expected level.
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

/// Whether this machine can start a container: its root cannot grant capabilities that it lacks.
fn can_start(container: &Container) -> bool {
    let effective = status_field(std::process::id().cast_signed(), "CapEff").unwrap();
    let effective = u64::from_str_radix(&effective, 16).unwrap();
    let all = (1_u64 << ALL_CAPABILITIES.len()) - 1;
    container.own_users
        || container.capabilities.len() < ALL_CAPABILITIES.len()
        || effective & all == all
}

/// Prints a text that is visible although the test succeeds.
fn print_to_stderr(text: &str) {
    // The test harness captures the output of `eprintln!`.
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

/// Determines the level of a command from its actual properties.
async fn probe_command_level(daemon: &Daemon) -> &'static str {
    let mark = Mark::new();
    let call = daemon.spawn_run(mark.on(argv(&["sleep", "1000"])));
    let command = *mark.wait_for_processes(1).await.first().unwrap();
    let namespaces = ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"];
    let private_namespaces = namespaces.iter().filter(|kind| {
        let namespace_of = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/{kind}")).unwrap();
        namespace_of(command) != namespace_of(daemon.pid())
    });
    let private_count = private_namespaces.count();

    for (field, expected) in [
        ("CapEff", "0000000000000000"),
        ("CapPrm", "0000000000000000"),
        ("CapInh", "0000000000000000"),
        ("CapAmb", "0000000000000000"),
        ("NoNewPrivs", "1"),
        ("Seccomp", "2"),
    ] {
        assert_eq!(status_field(command, field).unwrap(), expected, "{field}");
    }

    assert!(!status_field(command, "Uid").unwrap().starts_with("0\t"));

    call.abort();
    mark.wait_until_gone().await;
    let visible = daemon.output(shell("cd /proc; echo [0-9]*")).await;
    assert_ne!(daemon.output(shell("id -u")).await, "0\n");

    let secret = daemon.sibling_path("secret");
    fs::write(&secret, "").unwrap();
    let peek = format!("cat {}", secret.display());
    assert_ne!(daemon.run(shell(&peek)).await.exit_code, Some(0));

    let connect = "exec 3<> /dev/tcp/169.254.169.254/80";
    let response = daemon.run(argv(&["bash", "-c", connect])).await;
    assert_ne!(response.exit_code, Some(0), "{response:?}");

    match (private_count, visible.as_str()) {
        (7, "1 2\n") => "L3",
        (7, _) => "L2",
        (0, _) => "L1",
        counts => panic!("neither all namespaces nor none: {counts:?}"),
    }
}

/// Checks that a container gives the expected level, and that the daemon reports it.
async fn check_container(
    container: &Container,
    owner: u32,
    expected_level: ExpectedLevel,
) -> String {
    let daemon = start_in(container, owner, "L1").await;
    let isolation = daemon.info().await.isolation.unwrap();
    let failed_stages: BTreeSet<_> =
        isolation.failed_levels.iter().map(|failure| &failure.stage).collect();
    let level = isolation.level.as_str();
    let expected = match expected_level {
        ExpectedLevel::L3 => "L3",
        ExpectedLevel::L2 => "L2",
        ExpectedLevel::L1 => "L1",
        ExpectedLevel::Unavailable(_) => "L0",
    };
    assert_eq!(level, expected, "{}: {:?}", container.name, isolation.failed_levels);

    if let ExpectedLevel::Unavailable(stage) = expected_level {
        assert_eq!(isolation.failed_levels.first().unwrap().stage, stage);
        assert_eq!(daemon.health().await, ServingStatus::NotServing);
        daemon.run_failing(shell("touch ran"), "SANDBOX_UNAVAILABLE").await;
        assert!(!daemon.file("ran").exists());
        return format!("{}: nothing ({failed_stages:?})", container.name);
    }

    assert_eq!(probe_command_level(&daemon).await, level, "{}", container.name);

    let script = "echo text > file && cat file && rm file";
    let response = daemon.run(shell(script)).await;
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
    for (container, owner, expected_level) in MATRIX {
        if can_start(container) {
            report.push(check_container(container, *owner, *expected_level).await);
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
    // Engines' profiles reject pivot_root for a caller with CAP_SYS_ADMIN.
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
    for (container, owner, expected_level) in MATRIX {
        let remedy = match expected_level {
            ExpectedLevel::L2 => "procMount",
            ExpectedLevel::L1 => "user namespaces",
            ExpectedLevel::L3 | ExpectedLevel::Unavailable(_) => continue,
        };
        let daemon = start_in(container, *owner, "L3").await;
        assert_eq!(daemon.health().await, ServingStatus::NotServing);

        let refusal = daemon.run_failing(shell("touch ran"), "SANDBOX_UNAVAILABLE").await;
        for (name, text) in [("stage", ""), ("errno", "EPERM"), ("remedy", remedy)] {
            let value = &refusal.metadata[name];
            assert!(!value.is_empty() && value.contains(text), "{refusal:?}");
        }
        assert!(!daemon.file("ran").exists(), "{}", container.name);
        assert_eq!(daemon.list_files().await, [""; 0], "the daemon lists files");
    }
}
