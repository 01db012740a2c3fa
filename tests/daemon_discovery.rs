//! Which daemon `jig` uses if none is named, and its messages about that.

use std::{
    fs,
    os::unix::{
        fs::{MetadataExt as _, PermissionsExt as _, chown},
        net::UnixListener,
    },
    path::Path,
    process::{Command, Output, Stdio},
};

use tempfile::TempDir;

use crate::support::{DAEMON_UID, Daemon, HostProgram, Setup, copy_program};

/// Runs `jig` in a network namespace of its own: it can find only the sockets in `runtime`.
fn run_jig(directory: &Path, runtime: &Path, arguments: &[&str]) -> Output {
    Command::new("unshare")
        .args(["--net", env!("CARGO_BIN_EXE_jig")])
        .args(arguments)
        .current_dir(directory)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("XDG_RUNTIME_DIR", runtime)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn stderr_expecting_exit(output: &Output, code: i32) -> String {
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A runtime directory with the socket of the daemon under its default name.
fn runtime_directory(daemon: &Daemon) -> TempDir {
    let directory = tempfile::tempdir_in(daemon.socket().parent().unwrap()).unwrap();
    fs::hard_link(daemon.socket(), directory.path().join("jig.sock")).unwrap();
    directory
}

#[tokio::test]
async fn command_finds_daemon_of_its_user() {
    let daemon = Daemon::start().await;
    let runtime = runtime_directory(&daemon);
    let directory = tempfile::tempdir().unwrap();

    for arguments in [
        &["ps"][..],
        &["health"],
        &["approvals"],
        &["rules", "list"],
        &["job", "ls"],
        &["sessions"],
        &["--workspace", "workspace", "exec", "--keep", "true"],
        &["--workspace", "workspace", "run", "echo there > named"],
        &["--workspace", "workspace", "--minimum-level", "L1", "read", "named"],
    ] {
        let output = run_jig(directory.path(), runtime.path(), arguments);
        let stderr = stderr_expecting_exit(&output, 0);
        assert!(stderr.contains("jig: using the daemon at unix:"), "{stderr}");
    }
    assert!(daemon.file("named").exists());

    // Every command of the page on workspaces uses the same daemon.
    let unknown = ["--workspace", "other", "read", "named"];
    let stderr = stderr_expecting_exit(&run_jig(directory.path(), runtime.path(), &unknown), 1);
    assert!(stderr.contains("jig: using the daemon at unix:"), "{stderr}");
    assert!(stderr.contains("UNKNOWN_WORKSPACE"), "{stderr}");
}

#[tokio::test]
async fn named_workspace_needs_the_minimum_level() {
    let daemon = Setup::new().with_container_root().start().await;
    let runtime = runtime_directory(&daemon);
    let directory = tempfile::tempdir().unwrap();
    for (level, code, expected) in
        [("L1", 0, "jig: using the daemon at unix:"), ("L3", 64, "is lower than --minimum-level")]
    {
        let arguments = ["--workspace", "workspace", "--minimum-level", level, "ls"];
        let output = run_jig(directory.path(), runtime.path(), &arguments);
        let stderr = stderr_expecting_exit(&output, code);
        assert!(stderr.contains(expected), "{level}: {stderr}");
    }
}

#[tokio::test]
async fn commands_without_a_daemon_report_the_same_error() {
    let directory = tempfile::tempdir().unwrap();
    for arguments in [
        &["ps"][..],
        &["kill", "x"],
        &["attach", "x"],
        &["health"],
        &["approvals"],
        &["rules", "list"],
        &["job", "ls"],
        &["events"],
        &["sessions"],
        &["last-command"],
        &["artifacts"],
        &["artifact", "x"],
        &["batch", "x"],
        &["exec", "--detach", "true"],
    ] {
        let stderr =
            stderr_expecting_exit(&run_jig(directory.path(), directory.path(), arguments), 64);
        let expected = "no daemon given, and none found: use --address or JIG_ADDRESS";
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
}

#[tokio::test]
async fn running_daemon_is_used_only_in_its_workspace() {
    let daemon = Daemon::start().await;

    let runtime = runtime_directory(&daemon);
    let elsewhere = tempfile::tempdir().unwrap();
    let own_daemon_message =
        "jig: no running daemon serves this directory: starting one for this call\n";

    let output = run_jig(&daemon.workspace(), runtime.path(), &["run", "echo here > a; id -u"]);
    let stderr = stderr_expecting_exit(&output, 0);
    assert!(stderr.contains("it serves this directory as workspace workspace"), "{stderr}");
    assert!(daemon.file("a").exists());
    assert_eq!(daemon.info().await.counts.unwrap().calls_finished, 1);

    let inside = daemon.file("inside");
    fs::create_dir(&inside).unwrap();
    for (directory, arguments) in [
        (elsewhere.path(), &["run", "echo there > b"][..]),
        // A subdirectory of a workspace is not the workspace.
        (&inside, &["run", "echo there > b"]),
    ] {
        assert_eq!(
            stderr_expecting_exit(&run_jig(directory, runtime.path(), arguments), 0),
            own_daemon_message
        );
        assert!(directory.join("b").exists());
    }

    // Work that goes on when `jig` has ended is not started in another directory either.
    for arguments in [
        &["job", "submit", "run", "command=echo there > c"][..],
        &["exec", "--detach", "sh", "-c", "echo there > c"],
        &["batch", "-"],
    ] {
        let output = run_jig(elsewhere.path(), runtime.path(), arguments);
        let stderr = stderr_expecting_exit(&output, 64);
        assert!(stderr.contains("does not serve this directory"), "{arguments:?}: {stderr}");
    }
    assert_eq!(daemon.info().await.counts.unwrap().calls_finished, 1);
    let submit = ["--workspace", "workspace", "job", "submit", "--wait", "stat", "path=a"];
    stderr_expecting_exit(&run_jig(elsewhere.path(), runtime.path(), &submit), 0);
    assert_eq!(daemon.info().await.counts.unwrap().calls_finished, 2);

    // An unknown workspace is an error of the running daemon.
    let arguments = ["--workspace", "other", "ls"];
    stderr_expecting_exit(&run_jig(&daemon.workspace(), runtime.path(), &arguments), 1);
    assert_eq!(daemon.info().await.counts.unwrap().calls_finished, 2);
}

#[tokio::test]
async fn socket_of_another_user_is_never_used() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("jig.sock");

    let listener = UnixListener::bind(&path).unwrap();
    listener.set_nonblocking(true).unwrap();
    chown(&path, Some(DAEMON_UID), Some(DAEMON_UID)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
    let stderr = stderr_expecting_exit(&run_jig(directory.path(), directory.path(), &["ps"]), 64);
    assert!(stderr.contains(&format!("belongs to user {DAEMON_UID}")), "{stderr}");

    let stderr =
        stderr_expecting_exit(&run_jig(directory.path(), directory.path(), &["run", "true"]), 0);
    assert!(stderr.contains(&format!("belongs to user {DAEMON_UID}")), "{stderr}");

    let refused = listener.accept().unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::WouldBlock);
}

#[tokio::test]
async fn silent_listener_is_ignored() {
    let directory = tempfile::tempdir().unwrap();
    let _silent_listener = UnixListener::bind(directory.path().join("jig.sock")).unwrap();
    for (arguments, code) in
        [(&["ps"][..], 64), (&["health"], 64), (&["approvals", "list"], 64), (&["run", "true"], 0)]
    {
        let output = run_jig(directory.path(), directory.path(), arguments);
        let stderr = stderr_expecting_exit(&output, code);
        for part in ["ignoring the listener at", "does not answer", "--address"] {
            assert!(stderr.contains(part), "{arguments:?}: {stderr}");
        }
    }
}

#[tokio::test]
async fn default_port_is_probed() {
    // Daemon and client share a network namespace of their own. Commands are not in it.
    let directory = tempfile::tempdir().unwrap();

    let script = r#"
        ip link set lo up
        mkdir served && cd served
        HOME=.. "$1" serve --state-dir ../state --listen 127.0.0.1:50051 > ../log &
        trap 'kill %1; wait' EXIT
        until grep -q listening ../log; do kill -0 %1 && sleep 0.05; done
        "$1" run 'echo made > file'
        "$1" ps
        # A daemon of another user is ignored.
        setpriv --reuid 12345 --regid 12345 --clear-groups "$1" ps
    "#;
    let output = Command::new("unshare")
        .args(["--net", "bash", "-c", script, "bash", env!("CARGO_BIN_EXE_jig")])
        .current_dir(directory.path())
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        stderr.contains("using the daemon at 127.0.0.1:50051: it serves this directory"),
        "{stderr}"
    );
    assert!(stderr.contains("jig: using the daemon at 127.0.0.1:50051\n"), "{stderr}");
    assert!(directory.path().join("served/file").exists(), "{stderr}");
}

/// Runs `jig` as an ordinary user on a host without namespaces, in a directory of that user.
fn run_jig_without_namespaces(
    home: &str,
    variables: &[(&str, &str)],
    arguments: &[&str],
) -> Output {
    let wrapper = HostProgram::compile("no_namespaces");
    let temp_dir = tempfile::tempdir().unwrap();
    fs::set_permissions(temp_dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let directory = temp_dir.path().join("here");
    fs::create_dir(&directory).unwrap();
    chown(&directory, Some(DAEMON_UID), Some(DAEMON_UID)).unwrap();

    // The user may have no access to the build directory.
    let program = temp_dir.path().join("jig");
    copy_program(Path::new(env!("CARGO_BIN_EXE_jig")), &program);
    let user = DAEMON_UID.to_string();
    Command::new(&wrapper.path)
        .args(["/usr/bin/setpriv", "--reuid", &user, "--regid", &user, "--clear-groups"])
        .arg(&program)
        .args(arguments)
        .current_dir(&directory)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOME", home)
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[tokio::test]
async fn error_without_namespaces_names_a_working_command() {
    let _turn = Daemon::start().await;

    for (arguments, line) in [
        (&["run", "id -u"][..], "jig run --minimum-level L1 …"),
        (&["exec", "id -u"], "jig exec --minimum-level L1 …"),
        (&["--json", "run", "id -u"], "jig run --minimum-level L1 …"),
    ] {
        let output = run_jig_without_namespaces("/nowhere", &[], arguments);
        let stderr =
            stderr_expecting_exit(&output, 125) + &String::from_utf8(output.stdout).unwrap();
        assert!(stderr.contains("SANDBOX_UNAVAILABLE") && stderr.contains(line), "{stderr}");
        if arguments[0] != "--json" {
            assert!(stderr.trim_end().ends_with(line), "{stderr}");
        }
    }

    let user = format!("{DAEMON_UID}\n");
    for (variables, arguments) in [
        (&[][..], &["run", "--minimum-level", "L1", "id -u"][..]),
        (&[("JIG_MINIMUM_LEVEL", "L1")], &["run", "id -u"]),
        (&[("JIG_MINIMUM_LEVEL", "L1")], &["exec", "id -u"]),
    ] {
        let output = run_jig_without_namespaces("/nowhere", variables, arguments);
        let stderr = stderr_expecting_exit(&output, 0);
        let line = "; commands get L1; for L3: ";
        assert_eq!(stderr.matches(line).count(), 1, "{stderr}");
        assert_eq!(stderr.lines().count(), 2, "{stderr}");
        assert_eq!(String::from_utf8(output.stdout).unwrap(), user);
    }

    // Calls that run no command print nothing about isolation.
    let variables = [("JIG_MINIMUM_LEVEL", "L1")];
    let output = run_jig_without_namespaces("/nowhere", &variables, &["ls"]);
    assert_eq!(stderr_expecting_exit(&output, 0).lines().count(), 1);

    for (variables, arguments) in [
        (&[][..], &["run", "--minimum-level", "L0", "id"][..]),
        (&[("JIG_MINIMUM_LEVEL", "L9")], &["run", "id"]),
    ] {
        let stderr =
            stderr_expecting_exit(&run_jig_without_namespaces("/", variables, arguments), 125);
        assert!(stderr.contains("must be L3, L2 or L1"), "{stderr}");
    }
}

#[tokio::test]
async fn root_and_home_directories_need_confirmation_as_workspace() {
    let _turn = Daemon::start().await;
    let temp_dir = tempfile::tempdir().unwrap();

    let home = temp_dir.path().join("home");
    fs::create_dir_all(home.join("project")).unwrap();

    let run = |directory: &Path, arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_jig"))
            .args(arguments)
            .current_dir(directory)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", &home)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    };
    let stderr = stderr_expecting_exit(&run(Path::new("/"), &["run", "touch ran"]), 125);
    assert!(stderr.contains("the root directory cannot be a workspace"), "{stderr}");

    for directory in [home.as_path(), temp_dir.path()] {
        for (arguments, code) in
            [(&["run", "touch ran"][..], 125), (&["write", "ran", "--text", "x"], 64)]
        {
            let stderr = stderr_expecting_exit(&run(directory, arguments), code);
            assert!(stderr.contains("--allow-home"), "{stderr}");
            assert!(!directory.join("ran").exists());
        }
        let stderr = stderr_expecting_exit(&run(directory, &["serve", "--check"]), 78);
        assert!(stderr.contains("--workspace"), "{stderr}");
    }

    stderr_expecting_exit(&run(&home, &["run", "--allow-home", "touch ran"]), 0);
    assert!(home.join("ran").exists());

    // The advice is complete, also if the state directory would be inside the workspace.
    let state = home.join("state");
    let check = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_jig"))
            .args(["serve", "--check"])
            .args(arguments)
            .current_dir(&home)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", &home)
            .env("XDG_STATE_HOME", &state)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    };
    let stderr = stderr_expecting_exit(&check(&[]), 78);
    let home_path = home.display().to_string();
    let advice = format!("confirm with --workspace {home_path} --state-dir DIRECTORY");
    assert!(stderr.contains(&advice), "{stderr}");

    let elsewhere = temp_dir.path().join("elsewhere").display().to_string();
    let arguments = ["--workspace", &home_path, "--state-dir", &elsewhere];
    stderr_expecting_exit(&check(&arguments), 0);
    stderr_expecting_exit(&run(&home.join("project"), &["run", "touch ran"]), 0);
    let owner = home.join("project/ran").metadata().unwrap().uid();
    assert_eq!(owner, fs::metadata(&home).unwrap().uid());
}

#[tokio::test]
async fn home_directory_falls_back_to_the_user_database() {
    let _turn = Daemon::start().await;
    let users = fs::read_to_string("/etc/passwd").unwrap();
    let root_line = users.lines().find(|line| line.split(':').nth(2) == Some("0"));
    let home = root_line.unwrap().split(':').nth(5).unwrap();

    for variables in [&[][..], &[("HOME", "")]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_jig"));
        command
            .current_dir(home)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .envs(variables.iter().copied())
            .stdin(Stdio::null());
        let stderr = stderr_expecting_exit(&command.args(["run", "true"]).output().unwrap(), 125);
        assert!(stderr.contains("--allow-home"), "{variables:?}: {stderr}");
    }
}

#[tokio::test]
async fn non_utf8_directory_is_rejected_by_name() {
    use std::os::unix::ffi::OsStrExt as _;

    let temp_dir = tempfile::tempdir().unwrap();
    let directory = temp_dir.path().join(std::ffi::OsStr::from_bytes(b"caf\xe9"));
    fs::create_dir(&directory).unwrap();
    let stderr = stderr_expecting_exit(&run_jig(&directory, temp_dir.path(), &["ls"]), 1);
    assert!(stderr.contains(r"caf\xE9"), "{stderr}");
    assert!(stderr.contains("is not UTF-8: rename it"), "{stderr}");
}
