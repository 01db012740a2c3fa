//! Attempts of a command at L1 to reach the daemon. The command shares the daemon's namespaces and,
//! in most cases, its user.

use std::{
    fs,
    net::TcpListener,
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            fs::chown,
            net::{SocketAddr, UnixListener},
        },
    },
};

use crate::support::{
    DAEMON_UID, Daemon, HostProgram, Refusal, Setup, argv, check_answers, compile_in_workspace,
    descendants, shell, status_field, with_metadata,
};

/// Expected answers of `neighbour.c` for a process that is not part of the run.
const EXPECTED_RESULTS: &[(&str, &str)] = &[
    ("signal", "EPERM"),
    ("end", "EPERM"),
    // Signals the run's own processes only.
    ("end everybody", "ok"),
    ("signal its group", "EPERM|ESRCH"),
    ("signal its thread", "EPERM"),
    ("queue a signal", "EPERM"),
    // The calls succeed, but Landlock blocks the signals: the tests check that the process lives.
    ("name it for a pipe", "ok"),
    ("have it signalled by a pipe", "ok"),
    ("name it for a directory", "ok"),
    ("have it signalled by a directory", "ok"),
    ("signal by pidfd", "EPERM"),
    ("take a descriptor", "EPERM"),
    ("open environ", "EACCES|EPERM"),
    ("open mem", "EACCES|EPERM"),
    ("open maps", "EACCES|EPERM"),
    ("open fd", "EACCES|EPERM"),
    ("open root", "EACCES|EPERM"),
    ("open cwd", "EACCES|EPERM"),
    ("open exe", "EACCES|EPERM"),
    ("open auxv", "EACCES|EPERM"),
    ("open io", "EACCES|EPERM"),
    ("open stack", "EACCES|EPERM"),
    ("open syscall", "EACCES|EPERM"),
    ("write oom_score_adj", "EACCES|EPERM"),
    ("trace", "EPERM"),
    ("read memory", "EPERM"),
    ("read its limits", "EPERM"),
    ("pin", "EPERM"),
    ("schedule", "EPERM"),
    ("set its priority", "EPERM"),
    ("set its user's priority", "EPERM"),
    ("set its i/o priority", "EPERM"),
    ("set its user's i/o priority", "EPERM"),
    ("own limits", "ok"),
    ("own priority", "ok"),
    ("own affinity", "ok"),
    ("TCP socket", "EAFNOSUPPORT"),
    ("connect by TCP", "EPERM"),
    ("UDP socket", "EAFNOSUPPORT"),
    ("IPv6 socket", "EAFNOSUPPORT"),
    ("netlink socket", "EAFNOSUPPORT"),
    ("Unix socket", "EAFNOSUPPORT"),
    ("datagram pair", "EAFNOSUPPORT"),
    ("stream pair", "ok"),
    ("connect one of a pair", "EPERM"),
    ("connect one to an abstract socket", "EPERM"),
    ("send from one of a pair", "EISCONN|EOPNOTSUPP"),
    ("bind one of a pair", "EPERM"),
    ("shared memory", "EPERM"),
    ("message queue", "EPERM"),
    ("core of another namespace", "EPERM"),
];

/// Runs a command that tries each attempt on each process of the daemon.
async fn assert_daemon_is_unreachable(daemon: &Daemon) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let name = SocketAddr::from_abstract_name(format!("jig-test-{port}")).unwrap();
    let abstract_listener = UnixListener::bind_addr(&name).unwrap();
    let program = compile_in_workspace(daemon, "neighbour");
    let socket = daemon.socket();
    let mut processes: Vec<i32> =
        descendants(daemon.pid()).into_iter().map(|process| process.pid).collect();
    processes.push(daemon.pid());
    assert!(processes.len() > 3, "{processes:?}");

    let before = descendants(daemon.pid()).len();
    let mut tested = 0;
    for process in processes {
        // Idle sandboxes come and go.
        if !fs::exists(format!("/proc/{process}")).unwrap() {
            continue;
        }

        let (pid, socket) = (process.to_string(), socket.to_str().unwrap());
        let response = daemon.run(argv(&[&program, &pid, &port, socket])).await;
        let name = fs::read_to_string(format!("/proc/{process}/comm"));
        if name.is_ok() && !response.stdout.contains("ESRCH\nend: ESRCH") {
            check_answers(&response, EXPECTED_RESULTS);
            tested += 1;
        }
    }

    assert!(tested > 3, "{tested} of {before}");
    drop((listener, abstract_listener));
    assert_eq!(daemon.output(shell("echo alive")).await, "alive\n");
}

#[tokio::test]
async fn command_of_the_daemons_user_cannot_reach_the_daemon() {
    assert_daemon_is_unreachable(&Setup::new().at_l1().start().await).await;
}

#[tokio::test]
async fn command_of_a_root_daemon_cannot_reach_the_daemon() {
    let wrapper = HostProgram::compile("no_namespaces");
    let daemon = Setup::new()
        .workspace_owner(DAEMON_UID)
        .wrapped_by([&wrapper.path])
        .arguments(&["--minimum-level", "L1"])
        .start()
        .await;
    assert_eq!(daemon.output(shell("id -u")).await, format!("{DAEMON_UID}\n"));

    assert_daemon_is_unreachable(&daemon).await;
}

#[tokio::test]
async fn command_of_a_container_root_daemon_cannot_reach_the_daemon() {
    let daemon = Setup::new().with_container_root().start().await;
    let effective = status_field(daemon.pid(), "CapEff").unwrap();
    let effective = u64::from_str_radix(&effective, 16).unwrap();
    assert_eq!(effective & !0x3b, 0, "the daemon has further capabilities: {effective:x}");
    assert_eq!(daemon.output(shell("id -u")).await, "61000\n");
    assert_daemon_is_unreachable(&daemon).await;
}

#[tokio::test]
async fn concurrent_runs_cannot_reach_each_other() {
    assert_runs_are_isolated(&Setup::new().at_l1().start().await).await;
    assert_runs_are_isolated(&Setup::new().with_container_root().start().await).await;
}

async fn assert_runs_are_isolated(daemon: &Daemon) {
    let program = compile_in_workspace(daemon, "neighbour");
    let mark = crate::support::Mark::new();
    let other_run = daemon.spawn_run(mark.on(argv(&["sleep", "1000"])));
    let pid = mark.wait_for_processes(1).await.first().unwrap().to_string();
    let response = daemon.run(argv(&[&program, &pid, "1", "/none"])).await;

    // The descriptors of a dumpable process of the same user can be listed.
    let mut expected = EXPECTED_RESULTS.to_vec();
    let descriptors = expected.iter_mut().find(|(attempt, _)| *attempt == "open fd");
    *descriptors.unwrap() = ("open fd", "ok");
    check_answers(&response, &expected);
    assert_eq!(mark.processes().len(), 1, "the other run was killed");

    other_run.abort();
    mark.wait_until_gone().await;
}

#[tokio::test]
async fn command_cannot_reach_the_daemons_files() {
    assert_daemon_files_are_unreachable(&Setup::new().at_l1().start().await, DAEMON_UID).await;
    let daemon = Setup::new().with_container_root().start().await;
    assert_daemon_files_are_unreachable(&daemon, 61_000).await;
}

async fn assert_daemon_files_are_unreachable(daemon: &Daemon, user: u32) {
    let secret = daemon.sibling_path("secret");
    fs::write(&secret, "readable by all").unwrap();

    // Landlock denies access even to the file's owner.
    chown(&secret, Some(user), Some(user)).unwrap();

    let (secret, state) = (secret.to_str().unwrap().to_owned(), daemon.state_dir());
    for command in [
        format!("cat {secret}"),
        format!("echo more >> {secret}"),
        format!("rm {secret}"),
        format!("mv {secret} ."),
        format!("ln {secret} here"),
        format!("ls {}", state.display()),
        format!("touch {}/file", state.display()),
        format!("cd /usr && mv {0} {0}-moved", daemon.workspace().display()),
        "ls /".to_owned(),
        "ls /tmp".to_owned(),
        "touch /tmp/jig-test-file".to_owned(),
        "touch /dev/shm/jig-test-file".to_owned(),
        "cat /etc/shadow".to_owned(),
        "cat /etc/machine-id".to_owned(),
        "ls /root".to_owned(),
        "ls /sys".to_owned(),
        "ls /var".to_owned(),
        "echo 1 > /proc/self/oom_score_adj".to_owned(),
    ] {
        let response = daemon.run(shell(&command)).await;
        assert_ne!(response.exit_code, Some(0), "{command}: {response:?}");
        assert!(
            response.stderr.contains("denied") || response.stderr.contains("cross-device"),
            "{command}: {response:?}"
        );
    }

    assert_eq!(fs::read_to_string(secret).unwrap(), "readable by all");
}

#[tokio::test]
async fn replaced_workspace_directory_gives_no_access() {
    let outside = tempfile::tempdir().unwrap();
    let make_writable = |path: &std::path::Path| {
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    };
    make_writable(outside.path());
    fs::write(outside.path().join("secret"), "secret").unwrap();
    let parent = tempfile::tempdir().unwrap();
    make_writable(parent.path());
    let inner = parent.path().join("inner");
    fs::create_dir(&inner).unwrap();
    chown(&inner, Some(DAEMON_UID), Some(DAEMON_UID)).unwrap();

    let table = format!("[[workspaces]]\nname = \"inner\"\npath = \"{}\"", inner.display());
    let daemon = Setup::new().workspace_table(&table).at_l1().start().await;
    let run = async |workspace: &str, script: &str| {
        daemon.try_run(with_metadata("jig-workspace", workspace, shell(script))).await
    };
    assert_eq!(run("inner", "pwd").await.unwrap().isolation, "L1");

    // A user with write access to the parent replaces the directory.
    fs::rename(&inner, parent.path().join("moved")).unwrap();
    std::os::unix::fs::symlink(outside.path(), &inner).unwrap();

    let script = format!("cat secret {0}/secret; echo x > {0}/secret", outside.path().display());
    let mut refusal = None;
    for _ in 0..8 {
        match run("inner", &script).await {
            // This sandbox was built before the replacement.
            Ok(response) => assert_eq!(response.stdout, "", "{response:?}"),
            Err(status) => refusal = Some(Refusal::from_status(&status)),
        }
    }

    let refusal = refusal.expect("every call succeeded");
    assert!(refusal.message.contains("restart the daemon"), "{refusal:?}");
    assert_eq!(fs::read_to_string(outside.path().join("secret")).unwrap(), "secret");
}
