//! Starting a daemon: rejected flags and configurations, warnings, sockets and signals.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    net::TcpListener,
    os::unix::{
        fs::{PermissionsExt as _, symlink},
        process::CommandExt as _,
    },
    path::Path,
    process::{Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tonic::{Code, Request};

use crate::support::{
    DAEMON_UID, Daemon, Mark, Refusal, Setup, daemon_binary, eventually, run_jigd, shell,
    with_metadata,
};

/// Runs `jigd`, which must exit with `code` and print each of `parts` to standard error.
fn check_startup_failure(arguments: &[&str], code: i32, parts: &[&str]) {
    let output = run_jigd(arguments);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {stderr}");
    for part in parts {
        assert!(stderr.contains(part), "{part} in {arguments:?}: {stderr}");
    }
}

#[test]
fn invalid_flags_exit_64_and_invalid_configurations_exit_78() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();

    fs::create_dir(path("ws")).unwrap();
    fs::write(path("bad.toml"), "[sandbox]\nminimum_levle = \"L3\"\n").unwrap();
    fs::write(path("file"), "").unwrap();
    check_startup_failure(&["--no-such-flag"], 64, &["--no-such-flag"]);

    let invalid_flags = ["--listen", "0.0.0.0:1", "--workspace", "/nowhere", "--network", "bridge"];
    check_startup_failure(&invalid_flags, 78, &["0.0.0.0:1", "/nowhere", "--network bridge"]);
    check_startup_failure(&["--config", &path("bad.toml")], 78, &["minimum_levle"]);

    for (flag, value, expected) in [
        ("--workspace", "/", "root directory"),
        ("--workspace", "/proc", "show the host"),
        ("--workspace", &path("file"), "not a directory"),
        ("--state-dir", &path("ws/state"), "--state-dir"),
        ("--state-dir", "/usr/jig-state", "--state-dir"),
        ("--listen", &format!("unix:{}", path("ws/sock")), "--listen"),
        ("--bind", "/proc/1:/x", "show the host"),
        ("--bind-ro", "/usr:/tmp/usr", "/tmp"),
        ("--bind-ro", "/nowhere", "/nowhere"),
        ("--minimum-level", "L0", "without isolation"),
        ("--minimum-level", "L9", "--minimum-level L9"),
        ("--drain-timeout", "soon", "30s or 12h"),
    ] {
        // All other flags are valid.
        let (workspace, state) = (path("ws"), path("state"));
        let mut arguments = vec![flag, value];
        if flag != "--workspace" {
            arguments.extend(["--workspace", &workspace]);
        }
        if flag != "--state-dir" {
            arguments.extend(["--state-dir", &state]);
        }
        check_startup_failure(&arguments, 78, &[expected]);
    }

    let output = run_jigd(&["--version"]);
    assert!(output.status.success());
    assert_eq!(
        String::from_utf8(output.stdout).unwrap().trim(),
        concat!("jigd ", env!("CARGO_PKG_VERSION"))
    );
}

#[tokio::test]
async fn socket_is_private_and_stale_one_is_replaced() {
    let daemon = Daemon::start().await;

    let mode = fs::metadata(daemon.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "{mode:o}");

    // A killed daemon leaves its socket behind.
    daemon.signal(Signal::KILL);
    let socket = daemon.socket();

    let daemon = daemon.restart().await;
    assert!(socket.exists());
    assert_eq!(daemon.output(shell("echo again")).await, "again\n");
}

#[tokio::test]
async fn check_works_beside_a_running_daemon() {
    let daemon = Daemon::start().await;

    let listen = format!("unix:{}", daemon.socket().display());
    let workspace = daemon.file(".").display().to_string();
    let state = daemon.state_dir().display().to_string();
    let arguments =
        ["--check", "--listen", &listen, "--workspace", &workspace, "--state-dir", &state];
    let output = run_jigd(&arguments);
    let report = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{report}");
    assert!(report.contains("isolation L3 ok"), "{report}");
    assert_eq!(daemon.output(shell("echo unharmed")).await, "unharmed\n");
}

#[tokio::test]
async fn signal_to_every_process_drains_the_daemon() {
    let daemon = Setup::new().arguments(&["--drain-timeout", "60s"]).start().await;
    let mark = Mark::new();

    let call =
        daemon.spawn_run(mark.on(shell("until [ -e end ]; do sleep 0.05; done; echo finished")));
    mark.wait_for_processes(1).await;

    let daemon_processes = crate::support::descendants(daemon.pid());

    // As a control group is signalled: one process after the other.
    for process in &daemon_processes {
        if !mark.processes().contains(&process.pid) {
            let pid = Pid::from_raw(process.pid).unwrap();
            let _may_have_exited = kill_process(pid, Signal::TERM);
        }
    }

    daemon.signal(Signal::TERM);
    fs::write(daemon.file("end"), "").unwrap();
    assert_eq!(call.await.unwrap().unwrap().stdout, "finished\n");
}

#[tokio::test]
async fn ctrl_c_reaches_daemon_but_not_its_keeper() {
    check_ctrl_c(daemon_binary()).await;
}

#[tokio::test]
async fn jig_called_jigd_is_the_daemon() {
    let directory = tempfile::tempdir().unwrap();
    let program = directory.path().join("jigd");
    symlink(env!("CARGO_BIN_EXE_jig"), &program).unwrap();

    let output = Command::new(&program).arg("--version").output().unwrap();
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        concat!("jigd ", env!("CARGO_PKG_VERSION"), "\n")
    );
    check_ctrl_c(&program).await;
}

/// Checks that the daemon `program` exits without an error when its process group gets SIGINT.
async fn check_ctrl_c(program: &Path) {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);

    fs::create_dir(path("ws")).unwrap();
    let mut command = Command::new(program);
    command
        .args(["--listen", &format!("unix:{}", path("sock").display())])
        .args([Path::new("--workspace"), &path("ws")])
        .args([Path::new("--state-dir"), &path("state")])
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);

    let mut child = command.spawn().unwrap();

    // From then on, the daemon handles signals.
    let mut first_line = String::new();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut first_line).unwrap();
    assert!(first_line.starts_with("listening on"), "{first_line}");

    let group = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process_group(group, Signal::INT).unwrap();
    eventually("the daemon exits", async || child.try_wait().unwrap().is_some()).await;

    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{stderr}");
    assert!(!stderr.contains("keeper"), "{stderr}");
}

#[tokio::test]
async fn workspaces_are_separate() {
    let other_directory = tempfile::tempdir().unwrap();

    fs::write(other_directory.path().join("who"), "other").unwrap();
    let named = format!("other={}", other_directory.path().display());
    let daemon = Setup::new().arguments(&["--workspace", &named]).start().await;
    fs::write(daemon.file("who"), "first").unwrap();

    for (name, content) in [(None, "first"), (Some("other"), "other"), (Some("workspace"), "first")]
    {
        let request = match name {
            Some(name) => with_metadata("jig-workspace", name, shell("cat who")),
            None => Request::new(shell("cat who")),
        };
        assert_eq!(daemon.output(request).await, content, "{name:?}");
    }
}

#[tokio::test]
async fn invalid_metadata_is_rejected() {
    let daemon = Daemon::start().await;
    for (key, value) in [("jig-session", "../etc"), ("jig-session", ""), ("jig-request-id", "")] {
        let mut request = Request::new(shell("true"));
        request.metadata_mut().insert(key, value.parse().unwrap());
        let status = daemon.tools().run(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
        assert_eq!(Refusal::from_status(&status).invalid_fields(), [key]);
    }
}

#[tokio::test]
async fn rejected_request_leaves_no_record() {
    let daemon = Daemon::start().await;

    let mut invalid = shell("true");
    invalid.timeout_sec = Some(0);
    daemon.run_failing(invalid, "INVALID_PARAMS").await;
    let arguments =
        vec!["true".to_owned(); 1].into_iter().chain((0..200).map(|_| "x".repeat(11_000)));
    let mut large = shell("");
    large.command = None;

    large.argv = arguments.collect();
    daemon.run_failing(large, "INVALID_PARAMS").await;
    assert!(!daemon.state_dir().join("sessions/default/events.jsonl").exists());

    daemon.output(shell("true")).await;
    let events =
        fs::read_to_string(daemon.state_dir().join("sessions/default/events.jsonl")).unwrap();
    let events: Vec<serde_json::Value> =
        events.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(events.len(), 2, "{events:?}");
    assert_eq!(events[0]["event"], "tool_call_started");
    assert_eq!(events[0]["params"]["command"], "true");
    assert_eq!(
        (&events[1]["event"], &events[1]["status"]),
        (&"tool_call_finished".into(), &"success".into())
    );
    assert_eq!(events[0]["request_id"], events[1]["request_id"]);
}

#[test]
fn old_names_of_the_configuration_are_accepted_with_warnings() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();

    fs::create_dir(path("w")).unwrap();
    let base = format!("state_dir = {:?}\n", path("s"));
    let workspace = format!("[[workspaces]]\npath = {:?}\nsymlinks = \"beneath\"\n", path("w"));
    let old = base + &workspace + "[requests]\nlinger = \"5s\"\n[sandbox]\ngrace = \"3s\"\n";
    fs::write(path("jig.toml"), &old).unwrap();

    let output = run_jigd(&["--check", "--config", &path("jig.toml")]);
    let report = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{report}");

    for line in [
        "requests.linger is now requests.detached_timeout",
        "sandbox.grace is now sandbox.stop_grace",
        "workspaces.symlinks = \"beneath\" is now workspaces.symlinks = \"within\"",
    ] {
        assert_eq!(report.matches(line).count(), 1, "{line}: {report}");
    }

    fs::write(path("jig.toml"), old + "stop_grace = \"3s\"\n").unwrap();
    check_startup_failure(
        &["--config", &path("jig.toml")],
        78,
        &["[sandbox] has grace and stop_grace"],
    );
}

#[test]
fn an_address_that_may_become_free_exits_1() {
    let directory = tempfile::tempdir().unwrap();
    let [workspace, state] =
        ["w", "s"].map(|name| directory.path().join(name).display().to_string());
    fs::create_dir(&workspace).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();

    let arguments = ["--workspace", &workspace, "--state-dir", &state, "--listen", &address];
    check_startup_failure(&arguments, 1, &[&address]);
}

#[test]
fn network_configuration_is_validated() {
    let directory = tempfile::tempdir().unwrap();

    let (workspace, state) = (directory.path().join("w"), directory.path().join("s"));
    fs::create_dir(&workspace).unwrap();
    let file = directory.path().join("jig.toml");
    let (workspace, state) = (workspace.to_str().unwrap(), state.to_str().unwrap());
    let base = ["--workspace", workspace, "--state-dir", state];

    for (content, mode, parts) in [
        (
            "[proxy]\nallow_hosts = [\"a.example\"]",
            "none",
            &["[proxy]", "their network is none", "--network proxy"][..],
        ),
        ("[proxy]", "host", &["[proxy]", "their network is host", "--network proxy"]),
        (
            "[proxy]\nallow_hosts = [\"http://a.example\", \"*\"]\nallow_addresses = [\"10.0.0.1/8\"]",
            "proxy",
            &[
                "proxy.allow_hosts \"http://a.example\": ",
                "proxy.allow_hosts \"*\": ",
                "proxy.allow_addresses \"10.0.0.1/8\": ",
                "give ",
            ],
        ),
        ("[proxy]\nallowed = []", "proxy", &["allowed", "allow_hosts"]),
        ("", "bridge", &["--network bridge", "none, host or proxy"]),
    ] {
        fs::write(&file, content).unwrap();
        let config = ["--config", file.to_str().unwrap(), "--network", mode];
        check_startup_failure(&[&base[..], &config].concat(), 78, parts);
    }

    fs::write(&file, "[proxy]\nallow_hosts = [\"*.Example\"]").unwrap();
    let check = ["--config", file.to_str().unwrap(), "--check"];
    for (mode, parts) in [
        ("proxy", &["network: proxy", "*.example", "127.0.0.1:3128"]),
        ("host", &["network: host", "if they obtain a key", "network_namespace  no"]),
    ] {
        if mode == "host" {
            fs::write(&file, "").unwrap();
        }
        let output = run_jigd(&[&base[..], &check, &["--network", mode]].concat());
        let report = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{report}");
        for part in parts {
            assert!(report.contains(part), "{part}: {report}");
        }
    }
}

#[tokio::test]
async fn daemon_warns_if_its_user_cannot_write_workspace() {
    let warning = "cannot write it: tools and commands can only read";
    for (owner, is_warned) in [(0, true), (DAEMON_UID, false)] {
        let daemon = Setup::new().user(DAEMON_UID).workspace_owner(owner).start().await;

        let log = daemon.log();
        let warnings: Vec<&str> = log.lines().filter(|line| line.contains(warning)).collect();
        assert_eq!(warnings.len(), usize::from(is_warned), "{log}");

        let check = daemon.run_check();
        assert!(check.status.success(), "{check:?}");

        let report = String::from_utf8(check.stdout).unwrap();
        for text in warnings.iter().copied().chain([report.as_str()]) {
            assert_eq!(text.contains("chown -R"), is_warned, "{text}");
        }

        daemon.output(shell("true")).await;
    }
}
