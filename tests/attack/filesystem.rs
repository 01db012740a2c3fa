//! Files that a command must not use: the host's, the daemon's, another run's, and its own files
//! with more rights than the command has.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    process::Command,
};

use jig::api::v1::RunRequest;
use sha2::{Digest as _, Sha256};

use crate::support::{
    Daemon, HostProgram, Refusal, Setup, argv, check_answers, check_no_leftovers,
    compile_in_workspace, copy_program, daemon_binary, shell,
};

#[tokio::test]
async fn case_37_command_reads_no_file_of_the_host() {
    let daemon = Daemon::start().await;
    let secret = daemon.sibling_path("secret");
    fs::write(&secret, "of the host").unwrap();
    let outside = format!("../..{}", secret.display());
    let absolute = secret.to_str().unwrap();
    let links = ["self/root", "self/cwd/..", "1/root", "1/cwd", "2/root/.."];
    let through_links = links.map(|link| {
        let target = format!("/proc/{link}");
        [target.clone() + "/etc/shadow", target + absolute]
    });
    let names = [
        "../../../etc/shadow",
        "/etc/shadow",
        "/workspace/../etc/shadow",
        "/workspace/../root",
        "/root",
        &outside,
        absolute,
    ];

    let through_links = through_links.iter().flatten().map(String::as_str);
    for path in names.into_iter().chain(through_links) {
        let response = daemon.run(argv(&["cat", path])).await;
        assert_eq!(response.exit_code, Some(1), "{path}: {response:?}");
        assert_eq!(response.stdout, "", "{path}");
    }

    symlink("/etc/shadow", daemon.file("link")).unwrap();
    symlink(&secret, daemon.file("other")).unwrap();
    for path in ["link", "other"] {
        let response = daemon.run(argv(&["cat", path])).await;
        assert_eq!(response.stdout, "", "{path}: {response:?}");
    }
}

#[tokio::test]
async fn case_50_set_id_bits_and_file_capabilities_grant_nothing() {
    let at_l1 = Setup::new().at_l1();
    let with_container_root = Setup::new().with_container_root();
    for setup in [Setup::new(), at_l1, with_container_root] {
        check_privileged_files_grant_nothing(setup).await;
    }
}

async fn check_privileged_files_grant_nothing(setup: Setup) {
    let daemon = setup.start().await;
    let uid = daemon.info().await.workspaces.first().unwrap().uid;
    let plain = compile_in_workspace(&daemon, "identity");
    let copy = |name: &str, mode: u32| {
        copy_program(&daemon.file("identity"), &daemon.file(name));
        fs::set_permissions(daemon.file(name), fs::Permissions::from_mode(mode)).unwrap();
        format!("./{name}")
    };

    let set_uid = copy("set_uid", 0o6755);
    let capable = copy("capable", 0o755);
    let host_program = HostProgram::compile("give_capabilities");
    let status = Command::new(&host_program.path).arg(daemon.file("capable")).status().unwrap();
    assert!(status.success());

    let expected =
        format!("uid {uid} {uid} gid {uid} {uid} permitted 000000000 effective 000000000\n");
    for program in [plain, set_uid] {
        let output = daemon.output(argv(&[&program])).await;
        assert_eq!(output, expected, "{program}");
    }

    // The kernel grants nothing, or does not execute a file with capabilities that it must not
    // grant.
    match daemon.try_run(argv(&[&capable])).await {
        Ok(response) => assert_eq!(response.stdout, expected, "{response:?}"),
        Err(status) => assert_eq!(Refusal::from_status(&status).reason, "COMMAND_NOT_EXECUTABLE"),
    }
}

#[tokio::test]
async fn case_50_command_cannot_create_set_id_files() {
    for setup in [Setup::new(), Setup::new().user(12345)] {
        let daemon = setup.start().await;
        let program = compile_in_workspace(&daemon, "set_id");
        let response = daemon.run(argv(&[&program])).await;
        check_answers(
            &response,
            &[
                ("chmod u+s", "EPERM"),
                ("chmod g+s", "EPERM"),
                ("chmod u+s, more bits", "EPERM"),
                ("fchmod", "EPERM"),
                ("fchmodat", "EPERM"),
                ("fchmodat2", "EPERM"),
                ("fchmodat2 of a descriptor", "EPERM"),
                ("open", "EPERM"),
                ("openat", "EPERM"),
                ("creat", "EPERM"),
                ("nameless file", "EPERM"),
                ("openat2", "ENOSYS"),
                ("mknod", "EPERM"),
                ("mknodat", "EPERM"),
                ("mknod of a block device", "EPERM"),
                ("mknod of a character device", "EPERM"),
                ("capabilities of a file", "EPERM"),
            ],
        );

        let response = daemon.run(shell("chmod u+s plain")).await;
        assert_ne!(response.exit_code, Some(0), "{response:?}");

        let response = daemon.run(shell("install -m 4755 plain installed")).await;
        assert_ne!(response.exit_code, Some(0), "{response:?}");

        for entry in fs::read_dir(daemon.workspace()).unwrap() {
            let entry = entry.unwrap();
            let mode = entry.metadata().unwrap().mode();
            assert_eq!(mode & 0o6000, 0, "{:?} has mode {mode:o}", entry.path());
        }
    }
}

#[tokio::test]
async fn case_50_modified_set_id_program_loses_its_bits() {
    let daemon = Daemon::start().await;
    let path = daemon.file("tool");
    fs::write(&path, "trusted").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o6755)).unwrap();
    daemon.output(shell("echo something else > tool")).await;

    let metadata = path.metadata().unwrap();
    assert_eq!(metadata.uid(), 0);
    assert_eq!(metadata.mode() & 0o7777, 0o755, "a command has changed what root would execute");
}

/// Files outside a command's own directories.
const SYSTEM_FILES: &[&str] = &[
    "/file",
    "/usr/file",
    "/usr/bin/sh",
    "/etc/passwd",
    "/etc/file",
    "/dev/file",
    "/home/file",
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/ns_last_pid",
    "/proc/sys/net/ipv4/ip_forward",
    "/proc/sys/user/max_user_namespaces",
    "/proc/sys/vm/drop_caches",
    "/proc/sysrq-trigger",
    "/proc/1/oom_score_adj",
    "/proc/1/comm",
    "/proc/1/mem",
    "/proc/self/uid_map",
    "/proc/self/setgroups",
    "/sys/kernel/uevent_helper",
    "/sys/fs/cgroup/cgroup.procs",
];

/// Error messages of a shell that cannot write to a file.
const WRITE_ERRORS: [&str; 6] = [
    "Read-only file system",
    "Permission denied",
    "No such file",
    "not permitted",
    "nonexistent",
    // The shell's message for any error of write(2).
    "I/O error",
];

#[tokio::test]
async fn case_51_command_cannot_write_system_files() {
    let daemon = Daemon::start().await;

    // find's `-w` uses access(2), which respects read-only mounts.
    let writable = daemon
        .output(shell(
            "find / -path /proc -prune -o -path /workspace -prune -o -path /tmp -prune -o \
             -path /home/agent -prune -o -path /dev/shm -prune -o -path '/usr/*/*/*' -prune -o \
             ! -type l -writable -print; find /proc/sys -writable; find /proc -maxdepth 1 ! -type l -writable",
        ))
        .await;

    let devices = [
        "/dev/full",
        "/dev/null",
        "/dev/random",
        "/dev/urandom",
        "/dev/zero",
        // The run's own terminals.
        "/dev/tty",
        "/dev/pts/ptmx",
    ];

    let unexpected: Vec<&str> = writable
        .lines()
        // A masked file is /dev/null.
        .filter(|path| !devices.contains(path) && !path.starts_with("/proc/"))
        .collect();
    assert!(unexpected.is_empty(), "{unexpected:?}");

    // Every user may open some settings; writing to them requires a capability.
    for path in writable.lines().filter(|path| path.starts_with("/proc/sys/")) {
        let response = daemon.run(shell(&format!("echo 1 > {path}"))).await;
        assert_ne!(response.exit_code, Some(0), "{path} was written");
    }

    for path in SYSTEM_FILES {
        let response = daemon.run(shell(&format!("echo 0 > {path}"))).await;
        assert_ne!(response.exit_code, Some(0), "{path} was written");
        let is_known = WRITE_ERRORS.iter().any(|message| response.stderr.contains(message));
        assert!(is_known, "{path}: {}", response.stderr);
    }

    // The kernel lets a process raise its own OOM score, not lower it.
    let response = daemon.run(shell("echo -1000 > /proc/self/oom_score_adj")).await;
    assert_ne!(response.exit_code, Some(0));
}

#[tokio::test]
async fn case_52_command_cannot_read_details_of_machine_or_init() {
    let daemon = Daemon::start().await;
    for path in [
        "/proc/kcore",
        "/proc/keys",
        "/proc/key-users",
        "/proc/kmsg",
        "/proc/kallsyms",
        "/proc/interrupts",
        "/proc/timer_list",
        "/proc/sched_debug",
        "/proc/slabinfo",
        "/proc/iomem",
        "/proc/1/environ",
        "/proc/1/mem",
        "/proc/1/maps",
        "/proc/1/auxv",
        "/proc/1/stack",
        "/proc/1/syscall",
        "/proc/1/io",
    ] {
        let output = daemon.run(shell(&format!("head -c 100 {path}"))).await.stdout;
        assert_eq!(output, "", "{path}");
    }

    for path in ["/proc/1/fd", "/proc/1/fdinfo", "/proc/1/map_files", "/proc/1/root", "/proc/1/cwd"]
    {
        let response = daemon.run(argv(&["ls", "-A", &format!("{path}/")])).await;
        assert_ne!(response.exit_code, Some(0), "{path}: {response:?}");
        assert_eq!(response.stdout, "", "{path}");
    }

    for name in ["exe", "root", "cwd", "ns/user", "ns/mnt"] {
        let response = daemon.run(argv(&["readlink", &format!("/proc/1/{name}")])).await;
        assert_ne!(response.exit_code, Some(0), "{name}: {response:?}");
    }

    let lines = daemon.output(shell("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")).await;
    assert!(!lines.contains("--state-dir") && !lines.contains("--workspace"), "{lines}");
}

#[tokio::test]
async fn case_53_command_cannot_reach_the_daemons_binary() {
    let daemon = Daemon::start().await;
    let before = Sha256::digest(fs::read(daemon_binary()).unwrap());
    for command in [
        "echo x > /proc/1/exe",
        "cat /proc/1/exe",
        "cp /bin/sh /proc/1/exe",
        "echo x > /proc/self/exe",
        "exec 9<> /proc/self/exe",
        // CVE-2019-5736: a script whose interpreter is the process that executes it.
        "printf '#!/proc/self/exe\\n' > s; chmod 755 s; ./s; cat /proc/1/exe > /dev/null",
    ] {
        let response = daemon.run(shell(command)).await;
        assert_ne!(response.exit_code, Some(0), "{command}: {response:?}");
    }

    assert_eq!(Sha256::digest(fs::read(daemon_binary()).unwrap()), before);
    assert_eq!(daemon.output(shell("echo after")).await, "after\n");
}

#[tokio::test]
async fn case_54_working_directory_cannot_use_leaked_descriptors() {
    let daemon = Daemon::start().await;
    let request = |cwd: &str| RunRequest {
        cwd: Some(cwd.to_owned()),
        ..argv(&["sh", "-c", "touch /workspace/ran; /bin/pwd; ls -A ."])
    };

    for number in 3..=64 {
        daemon.run_failing(request(&format!("/proc/self/fd/{number}")), "PATH_ESCAPE").await;
        let link = daemon.file("link");
        symlink(format!("/proc/self/fd/{number}"), &link).unwrap();

        let result = daemon.try_run(request("link")).await;
        let reason = Refusal::from_status(&result.expect_err("no such descriptor is open")).reason;
        let allowed_reasons = [
            "DIRECTORY_NOT_FOUND",
            "NOT_A_DIRECTORY",
            "PERMISSION_DENIED",
            "SYMLINK_BLOCKED",
            "PATH_ESCAPE",
        ];
        assert!(allowed_reasons.contains(&reason.as_str()), "{number}: {reason}");

        fs::remove_file(&link).unwrap();
    }

    assert!(!daemon.file("ran").exists());

    // In the sandbox, links lead to the sandbox's files, if they are followed.
    for target in
        ["/proc/self/cwd/../..", "/proc/self/root", "/proc/1/cwd", "/proc/1/root", "/", "../.."]
    {
        let link = daemon.file("link");
        symlink(target, &link).unwrap();
        if let Ok(response) = daemon.try_run(request("link/etc")).await {
            assert_eq!(response.exit_code, Some(0), "{target}: {response:?}");
            assert!(response.stdout.starts_with("/etc\n"), "{target}: {}", response.stdout);
            assert!(!response.stdout.contains("shadow"), "{target}: {}", response.stdout);
        }
        fs::remove_file(&link).unwrap();
    }
}

#[tokio::test]
async fn case_55_command_inherits_only_standard_descriptors() {
    for setup in [Setup::new().listen_tcp(), Setup::new().user(12345)] {
        let daemon = setup.start().await;
        let program = compile_in_workspace(&daemon, "descriptors");
        let plain = daemon.output(argv(&[&program])).await;
        let with_input = RunRequest { stdin: "input".into(), ..argv(&[&program]) };

        // The daemon passes a request that is too large for a message by another way.
        let large = RunRequest {
            env: [("LARGE".to_owned(), "x".repeat(120_000))].into(),
            ..argv(&[&program])
        };
        for output in [plain, daemon.output(with_input).await, daemon.output(large).await] {
            let numbers: Vec<&str> =
                output.lines().filter_map(|line| line.split(' ').next()).collect();
            assert_eq!(numbers, ["0", "1", "2"], "{output}");
            let (Some(out), Some(err)) = (output.lines().nth(1), output.lines().nth(2)) else {
                panic!("{output}");
            };
            assert!(out.starts_with("1 pipe:") && err.starts_with("2 pipe:"), "{output}");
        }
    }
}

#[tokio::test]
async fn case_63_run_leaves_nothing_for_the_next_run() {
    let daemon = Daemon::start().await;
    let program = compile_in_workspace(&daemon, "carry_over");
    for _ in 0..4 {
        let response = daemon.run(argv(&[&program, "leave"])).await;
        check_answers(
            &response,
            &[
                ("/tmp/left", "ok"),
                ("/dev/shm/left", "ok"),
                ("/home/agent/left", "ok"),
                ("shared memory", "ok"),
                ("semaphore", "ok"),
                ("message queue", "ok"),
                // Landlock counts the queues' file system as a denied path.
                ("POSIX message queue", "ok|EACCES"),
                ("keyring", "EPERM"),
                ("abstract socket", "ok"),
            ],
        );

        // More runs than idle sandboxes: one of them reuses the slot of the run before.
        for _ in 0..4 {
            let response = daemon.run(argv(&[&program, "find"])).await;
            check_no_leftovers(&response);
        }
    }
}
