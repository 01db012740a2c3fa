//! System calls that would open the sandbox: mounts, namespaces, other processes, capabilities, and
//! calls that commands do not need.

use std::fs;

use jig::api::v1::{Outcome, RunResponse};

use crate::support::{
    Daemon, FOREIGN_CALL_ANSWERS, Mark, Setup, argv, check_answers, compile_in_workspace,
    eventually, shell,
};

/// Compiles a program and runs it.
async fn run_program(daemon: &Daemon, name: &str, arguments: &[&str]) -> RunResponse {
    let program = compile_in_workspace(daemon, name);
    let words: Vec<&str> =
        [program.as_str()].into_iter().chain(arguments.iter().copied()).collect();
    daemon.run(argv(&words)).await
}

#[tokio::test]
async fn cases_58_and_n22_command_cannot_change_mounts() {
    for setup in [Setup::new(), Setup::new().user(12345), Setup::new().at_l2()] {
        check_mounts_are_blocked(setup).await;
    }
}

#[tokio::test]
async fn cases_58_and_n22_command_cannot_change_mounts_at_l1() {
    check_mounts_are_blocked(Setup::new().at_l1()).await;
}

async fn check_mounts_are_blocked(setup: Setup) {
    let mut expected: Vec<(String, &str)> = [
        ("fsopen", "ENOSYS"),
        ("fsconfig", "ENOSYS"),
        ("fsmount", "ENOSYS"),
        ("fspick", "ENOSYS"),
        ("open_tree", "ENOSYS"),
        ("open_tree clone", "ENOSYS"),
        ("open_tree clone of all below", "ENOSYS"),
        ("open_tree_attr", "ENOSYS"),
        ("open_tree_attr clone of all below", "ENOSYS"),
        ("move_mount", "ENOSYS"),
        ("mount_setattr", "ENOSYS"),
        ("mount_setattr of all below", "ENOSYS"),
        ("mount_setattr of a descriptor", "ENOSYS"),
        ("write to /usr", "EROFS|EACCES"),
        ("write to /", "EROFS|EACCES"),
    ]
    .map(|(attempt, answer)| (attempt.to_owned(), answer))
    .into();

    for attempt in [
        "bind",
        "remount writable",
        "tmpfs",
        "proc",
        "propagation",
        "detach /proc",
        "detach a mask",
        "umount /workspace",
        "pivot_root",
        "chroot",
        "swapon",
        "quotactl",
    ] {
        expected.push((attempt.to_owned(), "EPERM"));
    }

    for path in ["/usr", "/bin", "/etc", "/proc", "/proc/sys", "/dev", "/workspace"] {
        for flag in ["", " with bind"] {
            let attempt = format!("remount the file system of {path}{flag}");
            expected.push((attempt, "EPERM"));
        }
    }

    let daemon = setup.start().await;
    check_answers(&run_program(&daemon, "mounts", &[]).await, &expected);
}

#[tokio::test]
async fn case_59_command_cannot_create_namespaces() {
    let daemon = Daemon::start().await;
    let mut expected = vec![
        ("unshare user and mount".to_owned(), "EPERM"),
        ("unshare time".to_owned(), "EPERM"),
        // Refused as well: few programs use it, and the filter would have to check its argument.
        ("unshare files".to_owned(), "EPERM|ok"),
        ("clone alone".to_owned(), "ok"),
        ("clone3 user".to_owned(), "ENOSYS"),
        ("clone3 alone".to_owned(), "ENOSYS"),
    ];

    for kind in ["user", "mount", "process", "network", "ipc", "cgroup", "host name"] {
        for call in ["unshare", "clone"] {
            expected.push((format!("{call} {kind}"), "EPERM"));

            // unshare(2) refuses unknown bits. They must not hide known bits from the filter.
            expected.push((format!("{call} {kind}, more bits"), "EPERM"));
        }
    }

    check_answers(&run_program(&daemon, "namespaces", &[]).await, &expected);

    for command in
        ["unshare -Ur true", "unshare -Urm umount /workspace", "unshare -Urmpf --mount-proc true"]
    {
        let response = daemon.run(shell(command)).await;
        assert_ne!(response.exit_code, Some(0), "{command}: {response:?}");
        assert!(response.stderr.contains("not permitted"), "{command}: {response:?}");
    }
}

#[tokio::test]
async fn case_60_command_cannot_enter_namespaces() {
    let daemon = Daemon::start().await;
    let mut expected = vec![
        ("pidfd of process 1".to_owned(), "ok|EPERM"),
        ("enter the mount namespace of process 1".to_owned(), "EPERM"),
        ("enter all of process 1".to_owned(), "EPERM"),
        ("owner of the network namespace".to_owned(), "EPERM"),
        ("parent of the user namespace".to_owned(), "EPERM"),
        ("parent of the process namespace".to_owned(), "EPERM"),
    ];

    for kind in ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup", "time"] {
        expected.push((format!("open {kind} of process 1"), "EACCES|EPERM"));
        expected.push((format!("enter own {kind}"), "EPERM"));
    }

    check_answers(&run_program(&daemon, "join", &[]).await, &expected);

    let response = daemon.run(shell("nsenter -t 1 -a true")).await;
    assert_ne!(response.exit_code, Some(0), "{response:?}");
}

#[tokio::test]
async fn case_65_command_cannot_inspect_other_processes() {
    let daemon = Daemon::start().await;
    let other = Mark::new();
    let run = daemon.spawn_run(other.on(argv(&["sleep", "1000"])));
    let sleeping_pid = *other.wait_for_processes(1).await.first().unwrap();
    let (daemon_pid, sleeping_pid) = (daemon.pid().to_string(), sleeping_pid.to_string());
    let mut expected = vec![("be traced".to_owned(), "EPERM")];

    for target in ["process 1", "a child"] {
        for attempt in [
            "attach to",
            "seize",
            "read memory of",
            "write memory of",
            "compare with",
            "take a descriptor of",
            "advise memory of",
        ] {
            expected.push((format!("{attempt} {target}"), "EPERM"));
        }
    }

    // The host's process ids do not exist in the run's own namespace, which has four processes.
    for pid in [&daemon_pid, &sleeping_pid] {
        expected.push((format!("signal {pid}"), "ESRCH"));
        expected.push((format!("pidfd of {pid}"), "ESRCH"));
    }

    let response = run_program(&daemon, "inspect", &[&daemon_pid, &sleeping_pid]).await;
    check_answers(&response, &expected);

    run.abort();
    other.wait_until_gone().await;
}

#[tokio::test]
async fn case_67_seccomp_blocks_dangerous_system_calls() {
    let daemon = Daemon::start().await;
    let mut not_permitted = vec![
        "keyctl",
        "add_key",
        "request_key",
        "bpf",
        "userfaultfd",
        "perf_event_open",
        "open_by_handle_at",
        "kexec_load",
        "kexec_file_load",
        "init_module",
        "finit_module",
        "delete_module",
        "reboot",
        "acct",
        "syslog",
        "vhangup",
        "fanotify_init",
        "settimeofday",
        "clock_settime",
        "sethostname",
        "setdomainname",
        "mbind",
        "set_mempolicy",
        "move_pages",
        "migrate_pages",
        "personality",
    ];
    if cfg!(target_arch = "x86_64") {
        not_permitted.extend(["iopl", "ioperm", "modify_ldt"]);
    }

    let unknown = ["io_uring_setup", "io_uring_enter", "io_uring_register", "a call of the future"];
    let expected: Vec<_> = not_permitted
        .iter()
        .map(|call| (*call, "EPERM"))
        .chain(unknown.iter().map(|call| (*call, "ENOSYS")))
        .collect();
    check_answers(&run_program(&daemon, "refused", &[]).await, &expected);
}

#[tokio::test]
async fn case_68_command_cannot_inject_terminal_input() {
    let daemon = Daemon::start().await;
    let mut expected = vec![
        ("open /dev/tty".to_owned(), "ENXIO"),
        ("open /dev/console".to_owned(), "ENOENT"),
        ("open /dev/ptmx".to_owned(), "ok"),
        ("session of the run".to_owned(), "ok"),
    ];

    for request in ["TIOCSTI", "TIOCLINUX"] {
        for file in 0..3 {
            expected.push((format!("{request} on {file}"), "EPERM"));

            // CVE-2019-10063: the kernel reads 32 bits, so the filter must too.
            expected.push((format!("{request} on {file}, more bits"), "EPERM"));
        }
    }

    check_answers(&run_program(&daemon, "terminal", &[]).await, &expected);
}

#[tokio::test]
async fn case_69_seccomp_blocks_calls_of_other_architectures() {
    let daemon = Daemon::start().await;

    let expected: Vec<_> = ["getpid", "mount", "ptrace", "chmod u+s", "unshare", "socket"]
        .iter()
        .map(|call| (format!("32-bit {call}"), FOREIGN_CALL_ANSWERS))
        .chain(
            ["getpid", "mount", "unshare", "socket", "ptrace"]
                .iter()
                .map(|call| (format!("x32 {call}"), "ENOSYS|SIGSYS")),
        )
        .collect();

    let response = run_program(&daemon, "foreign_calls", &[]).await;
    check_answers(&response, &expected);
    assert_eq!(response.outcome(), Outcome::Exited);
}

#[tokio::test]
async fn case_72_command_cannot_gain_capabilities_or_change_user() {
    let daemon = Daemon::start().await;
    check_answers(
        &run_program(&daemon, "capabilities", &[]).await,
        &[
            ("capget", "ok"),
            ("capabilities", "none"),
            ("capset", "EPERM"),
            ("raise ambient", "EPERM"),
            ("set securebits", "EPERM"),
            ("keep capabilities", "EPERM"),
            ("take back no_new_privs", "EINVAL"),
            // Root does not exist in the run's user namespace: the kernel returns EINVAL.
            ("setuid", "EPERM|EINVAL"),
            ("setreuid", "EPERM|EINVAL"),
            ("setresuid", "EPERM|EINVAL"),
            ("setgid", "EPERM|EINVAL"),
            ("setresgid", "EPERM|EINVAL"),
            ("setgroups", "EPERM|EINVAL"),
            ("setgroups to none", "EPERM"),
            ("chown", "EPERM|EINVAL"),
        ],
    );
}

#[tokio::test]
async fn inotify_instances_are_limited_per_run() {
    // Some kernels count them by user, and all runs have the same user.
    let daemon = Daemon::start().await;
    let program = compile_in_workspace(&daemon, "watchers");
    let count = |stdout: &str| -> u32 {
        let first_line = stdout.lines().next().unwrap();
        first_line.strip_prefix("instances ").unwrap().parse().unwrap()
    };

    let first = daemon.spawn_run(argv(&[&program]));
    let taken = daemon.file("taken");
    eventually("the first run has its instances", async || taken.exists()).await;
    fs::remove_file(&taken).unwrap();

    let second = daemon.spawn_run(argv(&[&program]));
    eventually("the second run has its instances", async || taken.exists()).await;

    fs::write(daemon.file("go"), "").unwrap();
    let (first, second) = (first.await.unwrap().unwrap(), second.await.unwrap().unwrap());
    assert!(count(&first.stdout) >= 8, "{first:?}");
    assert_eq!(count(&first.stdout), count(&second.stdout));
    assert!(!second.stdout.contains("no watch"), "{second:?}");
}
