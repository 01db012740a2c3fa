//! What a command is and sees: the guarantees of the sandbox, checked from inside and from outside.

use std::{collections::BTreeMap, fs};

use crate::support::{
    Daemon, Mark, SECRET_VARIABLE, Setup, argv, compile_in_workspace, shell, status_field,
};

/// Allowed entries of the root directory of a command.
const ALLOWED_ROOT_ENTRIES: &[&str] = &[
    "bin",
    "dev",
    "etc",
    "home",
    "lib",
    "lib32",
    "lib64",
    "libx32",
    "opt",
    "proc",
    "run",
    "sbin",
    "tmp",
    "usr",
    "var",
    "workspace",
];

fn status_fields(status: &str) -> BTreeMap<&str, &str> {
    let lines = status.lines().filter_map(|line| line.split_once(':'));
    lines.map(|(name, value)| (name, value.trim())).collect()
}

#[tokio::test]
async fn command_has_no_privileges() {
    let daemon = Daemon::start().await;

    let status = daemon.output(argv(&["cat", "/proc/self/status"])).await;
    let status = status_fields(&status);
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(status.get(set), Some(&"0000000000000000"), "{set}");
    }
    assert_eq!(status.get("NoNewPrivs"), Some(&"1"));
    assert_eq!(status.get("Seccomp"), Some(&"2"));
    assert_eq!(status.get("TracerPid"), Some(&"0"));
    assert_eq!(status.get("Groups").map_or("", |groups| groups), "");
    assert_eq!(status.get("NSpid"), status.get("Pid"), "no outer PID namespace is visible");

    for signals in ["SigBlk", "SigIgn"] {
        assert_eq!(status.get(signals), Some(&"0000000000000000"), "{signals}");
    }
}

#[tokio::test]
async fn command_is_not_root_inside_or_outside() {
    for setup in [Setup::new(), Setup::new().user(12345)] {
        let daemon = setup.start().await;

        let uid = daemon.info().await.workspaces.first().unwrap().uid.to_string();
        assert_ne!(uid, "0");
        assert_eq!(
            daemon.output(shell("id -u; id -g; id -un; id -gn")).await,
            format!("{uid}\n{uid}\nagent\nagent\n")
        );
        assert_eq!(daemon.output(shell("umask")).await.trim_start_matches('0'), "22\n");

        let mark = Mark::new();
        let running = daemon.spawn_run(mark.on(argv(&["sleep", "1000"])));
        let pid = *mark.wait_for_processes(1).await.first().unwrap();

        let ids = [uid.as_str(); 4].join("\t");
        assert_eq!(status_field(pid, "Uid").unwrap(), ids);
        assert_eq!(status_field(pid, "Gid").unwrap(), ids);

        for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
            assert_eq!(status_field(pid, set).unwrap(), "0000000000000000", "{set}");
        }

        for namespace in ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"] {
            let namespace_of =
                |process: &str| fs::read_link(format!("/proc/{process}/ns/{namespace}")).unwrap();
            assert_ne!(namespace_of(&pid.to_string()), namespace_of("self"), "{namespace}");
            assert_ne!(
                namespace_of(&pid.to_string()),
                namespace_of(&daemon.pid().to_string()),
                "{namespace}"
            );
        }

        running.abort();
        mark.wait_until_gone().await;
    }
}

#[tokio::test]
async fn command_sees_only_its_own_processes() {
    let daemon = Daemon::start().await;
    let mark = Mark::new();
    let other_run = daemon.spawn_run(mark.on(argv(&["sleep", "1000"])));
    mark.wait_for_processes(1).await;
    let output = daemon.output(shell("echo $$; sleep 1000 & cd /proc; echo [0-9]*")).await;
    let (command, processes) = output.trim().split_once('\n').unwrap();
    let child = command.parse::<i32>().unwrap() + 1;
    assert_eq!(processes, format!("1 {command} {child}"), "the init, the command and its child");
    other_run.abort();
    mark.wait_until_gone().await;
}

#[tokio::test]
async fn command_has_only_a_loopback_interface() {
    let daemon = Daemon::start().await;

    let interfaces = daemon.output(shell("sed 1,2d /proc/net/dev | cut -d: -f1 | tr -d ' '")).await;
    assert_eq!(interfaces, "lo\n");
    assert_eq!(daemon.output(shell("sed 1d /proc/net/route")).await, "");

    let addresses = daemon.output(shell("grep -c . /proc/net/if_inet6")).await;
    assert_eq!(addresses, "1\n", "::1 only");

    // The interface works: two processes of a run talk over it.
    let (listen, reach) =
        (compile_in_workspace(&daemon, "listen"), compile_in_workspace(&daemon, "reach"));
    let line = format!(
        "{listen} & until [ -e listening ]; do sleep 0.01; done; {reach} tcp 127.0.0.1 8080"
    );
    assert_eq!(daemon.output(shell(&line)).await, "tcp 127.0.0.1 8080: ok\n");
}

#[tokio::test]
async fn command_does_not_inherit_the_daemons_environment() {
    let daemon = Daemon::start().await;
    let output =
        daemon.output(shell("env; cat /proc/*/environ 2> /dev/null | tr '\\0' '\\n'; set")).await;
    assert!(!output.contains(SECRET_VARIABLE.0) && !output.contains(SECRET_VARIABLE.1), "{output}");
    assert!(!output.contains("RUST_BACKTRACE"), "{output}");
}

#[tokio::test]
async fn root_directory_is_minimal_and_read_only() {
    let daemon = Daemon::start().await;

    let output = daemon.output(argv(&["ls", "/"])).await;
    let found: Vec<&str> = output.lines().collect();
    let unexpected: Vec<_> =
        found.iter().filter(|name| !ALLOWED_ROOT_ENTRIES.contains(name)).collect();
    assert!(unexpected.is_empty(), "{unexpected:?}");

    for required in ["bin", "dev", "etc", "home", "proc", "tmp", "usr", "workspace"] {
        assert!(found.contains(&required), "{required}: {found:?}");
    }

    for path in
        ["/file", "/usr/file", "/etc/file", "/bin/file", "/dev/file", "/home/file", "/proc/file"]
    {
        let response = daemon.run(argv(&["touch", path])).await;
        assert_eq!(response.exit_code, Some(1), "{path}: {response:?}");
    }

    for path in ["/workspace", "/tmp", "/home/agent", "/dev/shm", "/run/lock", "/var/tmp/cache"] {
        let line = format!(
            "mkdir -p {path} && echo text > {path}/file && mkdir {path}/directory && cat {path}/file"
        );
        assert_eq!(daemon.output(shell(&line)).await, "text\n", "{path}");
    }
    assert_eq!(fs::read_to_string(daemon.file("file")).unwrap(), "text\n");
}

#[tokio::test]
async fn host_and_daemon_files_are_hidden() {
    let daemon = Setup::new().listen_tcp().start().await;
    assert_eq!(daemon.output(shell("ls /home")).await, "agent\n");
    assert_eq!(daemon.output(shell("ls -A /var")).await, "run\ntmp\n");
    assert_eq!(daemon.output(shell("ls -A /run/ /var/run/ /var/tmp/")).await.lines().count(), 5);

    let (state, socket, workspace) = (daemon.state_dir(), daemon.socket(), daemon.workspace());
    let daemon_paths = [&state, &socket, &workspace].map(|path| path.to_str().unwrap());
    for path in daemon_paths.into_iter().chain([
        "/root",
        "/var/log",
        "/var/cache",
        "/var/run/secrets/kubernetes.io/serviceaccount",
        "/run/secrets/kubernetes.io/serviceaccount",
        "/var/run/docker.sock",
        "/var/lib/jig",
        "/etc/shadow",
        "/etc/sudoers",
        "/etc/ssl/private",
        "/etc/kubernetes",
        "/etc/ssh",
        "/etc/machine-id",
        "/etc/resolv.conf",
        "/sys",
        "/srv",
        "/mnt",
        "/media",
        "/boot",
        "/dev/mem",
        "/dev/kmsg",
        "/dev/fuse",
        "/dev/kvm",
        "/dev/vda",
        "/dev/sda",
    ]) {
        let response = daemon.run(argv(&["ls", "-d", path])).await;
        assert_eq!(response.exit_code, Some(2), "{path}: {response:?}");
        assert!(response.stderr.contains("No such file"), "{path}: {response:?}");
    }

    let null = daemon.output(argv(&["stat", "-c", "%t:%T", "/dev/null"])).await;
    assert_eq!(null, "1:3\n");
}

#[tokio::test]
async fn commands_resolve_the_agent_user_by_name() {
    let daemon = Daemon::start().await;
    let uid = daemon.info().await.workspaces.first().unwrap().uid;
    let entry = daemon.output(argv(&["getent", "passwd", "agent"])).await;
    assert_eq!(entry, format!("agent:x:{uid}:{uid}:agent:/home/agent:/bin/sh\n"));
    let output = daemon
        .output(shell("grep -v -e ^agent: -e ^nobody: -e ^root:x:0:0:root:/root:/usr/sbin/nologin$ /etc/passwd; true"))
        .await;
    assert_eq!(output, "", "no user of the host is listed");
}

#[tokio::test]
async fn info_reports_the_isolation_of_commands() {
    let daemon = Daemon::start().await;

    let isolation = daemon.info().await.isolation.unwrap();
    assert!(isolation.ready);
    assert_eq!((isolation.level.as_str(), isolation.minimum_level.as_str()), ("L3", "L3"));
    assert_eq!(isolation.network, "none");
    assert_eq!(isolation.failure, None);

    let names: Vec<&str> = isolation.layers.iter().map(|layer| layer.name.as_str()).collect();
    for layer in [
        "user_namespace",
        "pid_namespace",
        "network_namespace",
        "capabilities",
        "seccomp",
        "landlock",
    ] {
        assert!(names.contains(&layer), "{layer}: {names:?}");
    }

    let missing: Vec<_> = isolation.layers.iter().filter(|layer| !layer.applied).collect();
    assert!(missing.is_empty(), "{missing:?}");
    assert_eq!(daemon.run(shell("true")).await.isolation, "L3");
}

#[tokio::test]
async fn commands_of_an_unprivileged_daemon_are_isolated() {
    let daemon = Setup::new().user(12345).start().await;

    let secret = daemon.sibling_path("secret");
    fs::write(&secret, "readable by everybody").unwrap();
    let secret = secret.to_str().unwrap();
    let response = daemon.run(argv(&["cat", secret])).await;
    assert_eq!(response.exit_code, Some(1), "{response:?}");

    // Commands run as the user of the daemon: only namespaces protect it.
    let pid = daemon.pid();
    let response = daemon.run(shell(&format!("kill -9 {pid}; cat /proc/{pid}/environ"))).await;
    assert_ne!(response.exit_code, Some(0), "{response:?}");
    assert_eq!(response.isolation, "L3");
    assert_eq!(daemon.output(shell("echo still there")).await, "still there\n");
}

#[tokio::test]
async fn commands_have_the_highest_oom_score() {
    for setup in [Setup::new(), Setup::new().user(12345)] {
        let daemon = setup.start().await;
        let score = daemon.output(argv(&["cat", "/proc/self/oom_score_adj"])).await;
        assert_eq!(score, "1000\n");
    }
}
