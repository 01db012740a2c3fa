//! What a command can see and change of its environment, and what a request can.

use std::fs;

use jig::api::v1::RunRequest;

use crate::support::{
    Daemon, SECRET_VARIABLE, Setup, argv, check_answers, compile_in_workspace, shell, with_metadata,
};

#[tokio::test]
async fn case_56_command_sees_no_secrets_or_sockets_of_the_host() {
    let daemon = Daemon::start().await;
    let socket = daemon.socket();
    let state = daemon.state_dir();
    for path in [
        "/var/run/secrets/kubernetes.io/serviceaccount/token",
        "/run/secrets",
        "/etc/ssl/private",
        "/etc/shadow",
        "/root",
        "/run/docker.sock",
        "/var/run/docker.sock",
        "/run/containerd/containerd.sock",
        "/run/dbus/system_bus_socket",
        socket.to_str().unwrap(),
        state.to_str().unwrap(),
    ] {
        let response = daemon.run(argv(&["cat", path])).await;
        assert_ne!(response.exit_code, Some(0), "{path}");
        assert!(response.stderr.contains("No such file"), "{path}: {response:?}");
    }
}

#[tokio::test]
async fn case_57_command_sees_only_harmless_devices() {
    let daemon = Daemon::start().await;
    let list =
        "find /dev ! -type l ! -path '/dev/pts/*' ! -type d -exec stat -c '%F %n' {} + | sort";
    let devices = daemon.output(shell(list)).await;
    let names = ["full", "null", "random", "tty", "urandom", "zero"];
    let expected = names.map(|name| format!("character special file /dev/{name}\n"));
    assert_eq!(devices, expected.concat());

    let numbers = daemon.output(shell("stat -L -c '%t:%T' /dev/null /dev/zero /dev/full")).await;
    assert_eq!(numbers, "1:3\n1:5\n1:7\n");

    let response = daemon.run(shell("mknod /tmp/mem c 1 1")).await;
    assert_ne!(response.exit_code, Some(0));
}

#[tokio::test]
async fn cases_61_66_70_71_73_and_74_process_settings_do_not_weaken_isolation() {
    let daemon = Daemon::start().await;
    let program = compile_in_workspace(&daemon, "self_service");
    let daemon_pid = daemon.pid().to_string();
    let mut expected: Vec<(String, &str)> = Vec::new();
    for attempt in ["limits", "CPUs", "priority", "class", "priority of input and output"] {
        expected.push((format!("{attempt} of {daemon_pid}"), "ESRCH"));
    }

    for (attempt, answer) in [
        ("chroot", "EPERM"),
        ("fchdir", "ok"),
        ("outside", "EACCES|ENOENT"),
        ("no randomization", "ok|EPERM|ENOSYS"), // container engines refuse it
        ("executable data", "EPERM"),
        ("plain Linux", "ok"),
        ("dumpable", "ok"),
        ("tracer", "ok|EINVAL"),
        ("subreaper", "ok"),
        ("death signal", "ok"),
        ("keep capabilities", "EPERM"),
        ("ambient capability", "EPERM"),
        ("new privileges", "EINVAL"),
        ("own filter", "ok"),
        ("mount behind it", "EPERM"),
        // EBUSY: the kernel permits one, and the init has it.
        ("own listener", "ok|EPERM|EBUSY"),
        ("mount behind the listener", "EPERM"),
        ("core files", "ok"),
        ("no core handler", "ok"),
    ] {
        expected.push((attempt.to_owned(), answer));
    }
    if cfg!(target_arch = "x86_64") {
        expected.push(("base of a segment".to_owned(), "ok"));
        expected.push(("segment in the kernel".to_owned(), "EPERM"));
    }

    let response = daemon.run(argv(&[&program, &daemon_pid])).await;
    check_answers(&response, &expected);
}

#[tokio::test]
async fn case_82_request_cannot_lower_isolation_or_read_the_daemons_environment() {
    let preload = ("LD_PRELOAD", "/nonexistent/from-the-daemon.so");
    let daemon = Setup::new().environment(preload.0, preload.1).start().await;
    let (secret, _) = SECRET_VARIABLE;
    let environment = daemon.output(argv(&["env"])).await;
    for name in [secret, preload.0] {
        assert!(!environment.contains(name), "{environment}");
    }

    let level = daemon.level().await;

    for (key, value) in [
        ("jig-minimum-level", "L0"),
        ("jig-isolation", "L0"),
        ("jig-uid", "0"),
        ("jig-network", "host"),
    ] {
        let response = daemon
            .run(with_metadata(key, value, shell("id -u; cat /proc/net/route | wc -l")))
            .await;
        assert_eq!(response.isolation, level, "{key}");
        assert_eq!(response.stdout, "61000\n1\n", "{key}");
    }

    // Only the command gets the request's environment, not the process that starts it.
    let variables =
        [("LD_PRELOAD", "./own.so"), ("BASH_ENV", "./own.sh"), ("GIT_DIR", "own"), ("PATH", ".")];

    fs::write(daemon.file("own.sh"), "echo sourced\n").unwrap();
    let request = RunRequest {
        env: variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into(),
        ..argv(&["/bin/bash", "-c", "echo ran"])
    };
    let response = daemon.run(request).await;
    assert_eq!(response.stdout, "sourced\nran\n", "{response:?}");
    assert_eq!(daemon.output(shell("echo $BASH_ENV")).await, "\n");
}

#[tokio::test]
async fn case_64_runs_share_only_locks_on_system_files() {
    // Runs share the files of /usr: a lock on one of them sends one bit to another run. Nothing
    // else is shared, and the lock neither outlives its run nor allows writing.
    let daemon = Daemon::start().await;
    let holder = daemon.spawn_run(shell(
        "exec 3< /usr/bin/env; flock 3; echo > held; while [ -e held ]; do sleep 0.05; done",
    ));
    crate::support::eventually("the run holds the lock", async || daemon.file("held").exists())
        .await;

    let response = daemon.run(shell("flock -n /usr/bin/env true; echo $?")).await;
    assert_eq!(response.stdout, "1\n", "{response:?}");

    fs::remove_file(daemon.file("held")).unwrap();
    holder.await.unwrap().unwrap();
    assert_eq!(daemon.output(shell("flock -n /usr/bin/env true; echo $?")).await, "0\n");
}
