//! Which daemon `jig` uses where none is named, and what it says about that.

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

use crate::support::{DAEMON_UID, Daemon, HostProgram, copy_program};

/// `jig` where nothing listens but what is in `runtime`: in a network of its own.
fn run_jig(here: &Path, runtime: &Path, arguments: &[&str]) -> Output {
    Command::new("unshare")
        .args(["--net", env!("CARGO_BIN_EXE_jig")])
        .args(arguments)
        .current_dir(here)
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

/// A folder in which the daemon's socket has the name by which it is looked for.
fn runtime_directory(daemon: &Daemon) -> TempDir {
    let folder = tempfile::tempdir_in(daemon.socket().parent().unwrap()).unwrap();
    fs::hard_link(daemon.socket(), folder.path().join("jig.sock")).unwrap();
    folder
}

#[tokio::test]
async fn command_finds_daemon_of_its_user() {
    let daemon = Daemon::start().await;
    let runtime = runtime_directory(&daemon);
    let here = tempfile::tempdir().unwrap();
    for arguments in [
        &["ps"][..],
        &["health"],
        &["approvals"],
        &["rules", "list"],
        &["job", "ls"],
        &["sessions"],
        &["exec", "--keep", "true"],
    ] {
        let output = run_jig(here.path(), runtime.path(), arguments);
        let says = stderr_expecting_exit(&output, 0);
        assert!(says.contains("jig: using the daemon at unix:"), "{says}");
    }
}

#[tokio::test]
async fn commands_without_a_daemon_report_the_same_error() {
    let here = tempfile::tempdir().unwrap();
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
        let says = stderr_expecting_exit(&run_jig(here.path(), here.path(), arguments), 64);
        let expected = "no daemon given, and none found: use --address or JIG_ADDRESS";
        assert!(says.contains(expected), "{arguments:?}: {says}");
    }
}

#[tokio::test]
async fn running_daemon_is_used_only_in_its_workspace() {
    let daemon = Daemon::start().await;
    let runtime = runtime_directory(&daemon);
    let elsewhere = tempfile::tempdir().unwrap();
    let own = "jig: no running daemon serves this directory: starting one for this call\n";

    let output = run_jig(&daemon.workspace(), runtime.path(), &["run", "echo here > a; id -u"]);
    let says = stderr_expecting_exit(&output, 0);
    assert!(says.contains("it serves this directory as workspace workspace"), "{says}");
    assert!(daemon.file("a").exists());
    assert_eq!(daemon.info().await.counts.unwrap().calls_finished, 1);

    let inside = daemon.file("inside");
    fs::create_dir(&inside).unwrap();
    for (here, arguments) in [
        (elsewhere.path(), &["run", "echo there > b"][..]),
        // Another directory, although the daemon serves the one above it.
        (&inside, &["run", "echo there > b"]),
    ] {
        assert_eq!(stderr_expecting_exit(&run_jig(here, runtime.path(), arguments), 0), own);
        assert!(here.join("b").exists());
    }
    // A level that it does not give, and a workspace that it does not have.
    let arguments = ["--workspace", "other", "ls"];
    stderr_expecting_exit(&run_jig(&daemon.workspace(), runtime.path(), &arguments), 1);
    assert_eq!(daemon.info().await.counts.unwrap().calls_finished, 1);
}

#[tokio::test]
async fn socket_of_another_user_is_never_used() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jig.sock");
    let listener = UnixListener::bind(&path).unwrap();
    listener.set_nonblocking(true).unwrap();
    chown(&path, Some(DAEMON_UID), Some(DAEMON_UID)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
    let says = stderr_expecting_exit(&run_jig(folder.path(), folder.path(), &["ps"]), 64);
    assert!(says.contains(&format!("belongs to user {DAEMON_UID}")), "{says}");
    let says = stderr_expecting_exit(&run_jig(folder.path(), folder.path(), &["run", "true"]), 0);
    assert!(says.contains(&format!("belongs to user {DAEMON_UID}")), "{says}");
    let refused = listener.accept().unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::WouldBlock);
}

#[tokio::test]
async fn silent_listener_is_ignored() {
    let folder = tempfile::tempdir().unwrap();
    let _mute = UnixListener::bind(folder.path().join("jig.sock")).unwrap();
    for (arguments, code) in
        [(&["ps"][..], 64), (&["health"], 64), (&["approvals", "list"], 64), (&["run", "true"], 0)]
    {
        let output = run_jig(folder.path(), folder.path(), arguments);
        let says = stderr_expecting_exit(&output, code);
        for part in ["ignoring the listener at", "does not answer", "--address"] {
            assert!(says.contains(part), "{arguments:?}: {says}");
        }
    }
}

#[tokio::test]
async fn default_port_is_probed() {
    // Both in one network, in which nothing else is; commands have no part in it.
    let folder = tempfile::tempdir().unwrap();
    let script = r#"
        ip link set lo up
        mkdir served && cd served
        HOME=.. "$1" serve --state-dir ../state --listen 127.0.0.1:50051 > ../log &
        trap 'kill %1; wait' EXIT
        until grep -q listening ../log; do kill -0 %1 && sleep 0.05; done
        "$1" run 'echo made > file'
        "$1" ps
        # A daemon of another user is none.
        setpriv --reuid 12345 --regid 12345 --clear-groups "$1" ps
    "#;
    let output = Command::new("unshare")
        .args(["--net", "bash", "-c", script, "bash", env!("CARGO_BIN_EXE_jig")])
        .current_dir(folder.path())
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let says = String::from_utf8(output.stderr).unwrap();
    assert!(
        says.contains("using the daemon at 127.0.0.1:50051: it serves this directory"),
        "{says}"
    );
    assert!(says.contains("jig: using the daemon at 127.0.0.1:50051\n"), "{says}");
    assert!(folder.path().join("served/file").exists(), "{says}");
}

/// `jig` of an ordinary user on a host without namespaces, in a directory of that user.
fn run_jig_without_namespaces(
    home: &str,
    variables: &[(&str, &str)],
    arguments: &[&str],
) -> Output {
    let wrapper = HostProgram::compile("no_namespaces");
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let here = folder.path().join("here");
    fs::create_dir(&here).unwrap();
    chown(&here, Some(DAEMON_UID), Some(DAEMON_UID)).unwrap();
    // The directory of the build may be closed to others.
    let program = folder.path().join("jig");
    copy_program(Path::new(env!("CARGO_BIN_EXE_jig")), &program);
    let user = DAEMON_UID.to_string();
    Command::new(&wrapper.path)
        .args(["/usr/bin/setpriv", "--reuid", &user, "--regid", &user, "--clear-groups"])
        .arg(&program)
        .args(arguments)
        .current_dir(&here)
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
        let says = stderr_expecting_exit(&output, 125) + &String::from_utf8(output.stdout).unwrap();
        assert!(says.contains("SANDBOX_UNAVAILABLE") && says.contains(line), "{says}");
        if arguments[0] != "--json" {
            assert!(says.trim_end().ends_with(line), "{says}");
        }
    }
    let user = format!("{DAEMON_UID}\n");
    for (variables, arguments) in [
        (&[][..], &["run", "--minimum-level", "L1", "id -u"][..]),
        (&[("JIG_MINIMUM_LEVEL", "L1")], &["run", "id -u"]),
        (&[("JIG_MINIMUM_LEVEL", "L1")], &["exec", "id -u"]),
    ] {
        let output = run_jig_without_namespaces("/nowhere", variables, arguments);
        let says = stderr_expecting_exit(&output, 0);
        let line = "; commands get L1; for L3: ";
        assert_eq!(says.matches(line).count(), 1, "{says}");
        assert_eq!(says.lines().count(), 2, "{says}");
        assert_eq!(String::from_utf8(output.stdout).unwrap(), user);
    }
    // What runs no command is not about its isolation.
    let variables = [("JIG_MINIMUM_LEVEL", "L1")];
    let output = run_jig_without_namespaces("/nowhere", &variables, &["ls"]);
    assert_eq!(stderr_expecting_exit(&output, 0).lines().count(), 1);
    for (variables, arguments) in [
        (&[][..], &["run", "--minimum-level", "L0", "id"][..]),
        (&[("JIG_MINIMUM_LEVEL", "L9")], &["run", "id"]),
    ] {
        let says =
            stderr_expecting_exit(&run_jig_without_namespaces("/", variables, arguments), 125);
        assert!(says.contains("must be L3, L2 or L1"), "{says}");
    }
}

#[tokio::test]
async fn root_and_home_directories_need_confirmation_as_workspace() {
    let _turn = Daemon::start().await;
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("home");
    fs::create_dir_all(home.join("project")).unwrap();
    let run = |here: &Path, arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_jig"))
            .args(arguments)
            .current_dir(here)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .env("HOME", &home)
            .stdin(Stdio::null())
            .output()
            .unwrap()
    };
    let says = stderr_expecting_exit(&run(Path::new("/"), &["run", "touch ran"]), 125);
    assert!(says.contains("the root directory cannot be a workspace"), "{says}");
    for here in [home.as_path(), folder.path()] {
        for (arguments, code) in
            [(&["run", "touch ran"][..], 125), (&["write", "ran", "--text", "x"], 64)]
        {
            let says = stderr_expecting_exit(&run(here, arguments), code);
            assert!(says.contains("--allow-home"), "{says}");
            assert!(!here.join("ran").exists());
        }
        let says = stderr_expecting_exit(&run(here, &["serve", "--check"]), 78);
        assert!(says.contains("--workspace"), "{says}");
    }
    stderr_expecting_exit(&run(&home, &["run", "--allow-home", "touch ran"]), 0);
    assert!(home.join("ran").exists());
    // One advice with all that it takes, where the state directory would be inside.
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
    let says = stderr_expecting_exit(&check(&[]), 78);
    let home_path = home.display().to_string();
    let advice = format!("confirm with --workspace {home_path} --state-dir DIRECTORY");
    assert!(says.contains(&advice), "{says}");
    let elsewhere = folder.path().join("elsewhere").display().to_string();
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
    let own = users.lines().find(|line| line.split(':').nth(2) == Some("0"));
    let home = own.unwrap().split(':').nth(5).unwrap();
    for variables in [&[][..], &[("HOME", "")]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_jig"));
        command
            .current_dir(home)
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .envs(variables.iter().copied())
            .stdin(Stdio::null());
        let says = stderr_expecting_exit(&command.args(["run", "true"]).output().unwrap(), 125);
        assert!(says.contains("--allow-home"), "{variables:?}: {says}");
    }
}

#[tokio::test]
async fn non_utf8_directory_is_rejected_by_name() {
    use std::os::unix::ffi::OsStrExt as _;

    let folder = tempfile::tempdir().unwrap();
    let here = folder.path().join(std::ffi::OsStr::from_bytes(b"caf\xe9"));
    fs::create_dir(&here).unwrap();
    let says = stderr_expecting_exit(&run_jig(&here, folder.path(), &["ls"]), 1);
    assert!(says.contains(r"caf\xE9"), "{says}");
    assert!(says.contains("is not UTF-8: rename it"), "{says}");
}
