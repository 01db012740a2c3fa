//! How long a shell remembers, and what it does not remember.

use std::{collections::BTreeMap, fs};

use jig::api::v1::{Outcome, RunRequest};

use super::{forgotten, in_shell, remembered};
use crate::{
    requests::with_request_id,
    support::{Daemon, Setup, eventually, with_metadata},
};

const SHOW: &str = "echo $x; f; pwd; alias; echo $-";
const DEFINE: &str = "x=1; f() { echo f; }; cd /usr; alias ll='ls -l'; set -f";

#[tokio::test]
async fn state_survives_a_restart_of_the_daemon() {
    let daemon = Daemon::start().await;
    remembered(&daemon, DEFINE).await;
    let before = remembered(&daemon, SHOW).await;
    assert_eq!(before, "1\nf\n/usr\nalias ll='ls -l'\nfhBc\n");

    let daemon = daemon.restart().await;
    assert_eq!(remembered(&daemon, SHOW).await, before);
}

#[tokio::test]
async fn state_of_before_stays_if_a_command_is_ended() {
    let daemon = Daemon::start().await;
    remembered(&daemon, "x=1; cd /usr").await;
    let timeout = RunRequest { timeout_sec: Some(1), ..in_shell("x=2; cd /; sleep 1000") };
    let response = daemon.run(timeout).await;
    assert_eq!(response.outcome(), Outcome::TimedOut);
    assert_eq!(response.shell_state, "ended_early");

    for (command, why) in [
        ("x=2; cd /; kill -9 $$", "ended_early"),
        ("x=2; kill -TERM $$; x=3", "ended_early"),
        ("x=2; exec true", "replaced"),
        ("x=2; trap 'echo bye' EXIT; exit 3", "replaced"),
        ("f() { local x=2; cd /; exit 4; }; f", "replaced"),
        ("x=$(head -c 2000000 /dev/zero | tr '\\0' y)", "too_large"),
    ] {
        assert_eq!(forgotten(&daemon, command).await, why, "{command}");
        assert_eq!(remembered(&daemon, "echo $x; pwd").await, "1\n/usr\n", "{command}");
    }
}

#[tokio::test]
async fn exit_ends_the_command_and_not_the_shell() {
    let daemon = Daemon::start().await;
    for (command, exit_code) in
        [("x=1; exit 5", 5), ("set -e; x=2; false; x=3", 1), ("x=4; . ./lib.sh", 6)]
    {
        fs::write(daemon.file("lib.sh"), "exit 6\n").unwrap();
        let response = daemon.run(in_shell(command)).await;
        assert_eq!(response.exit_code, Some(exit_code), "{response:?}");
        assert_eq!(response.shell_state, "updated", "{response:?}");
        let status = format!("{exit_code}\n");
        assert_eq!(remembered(&daemon, "echo $?; set +e").await, status, "{command}");
    }
    assert_eq!(remembered(&daemon, "echo $x").await, "4\n");

    // As in a living shell, a trap on EXIT does not run at the end of a command.
    assert_eq!(remembered(&daemon, "trap 'echo bye' EXIT; x=5").await, "");
    assert_eq!(remembered(&daemon, "echo $x").await, "5\n");
    let response = daemon.run(in_shell("trap 'echo bye' EXIT; exit 3")).await;
    assert_eq!((response.stdout.as_str(), response.exit_code), ("bye\n", Some(3)));
}

#[tokio::test]
async fn restart_forgets_the_state() {
    let daemon = Daemon::start().await;
    remembered(&daemon, DEFINE).await;
    let restart = RunRequest { restart_shell: true, ..in_shell("echo ${x-unset}; pwd; y=1") };
    assert_eq!(daemon.output(restart).await, "unset\n/workspace\n");
    assert_eq!(
        remembered(&daemon, "echo $y; type -t f; set +o | grep noglob").await,
        "1\nset +o noglob\n"
    );
}

#[tokio::test]
async fn variables_of_a_request_are_for_its_command_alone() {
    let daemon = Daemon::start().await;
    let env: BTreeMap<_, _> =
        [("SECRET", "one"), ("PATH", "/opt:/usr/bin:/bin"), ("KEPT", "of request")]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into();
    remembered(&daemon, "KEPT=of-shell; export OTHER=1").await;
    let with_env =
        RunRequest { env, ..in_shell("echo $SECRET $KEPT; SECRET=two; KEPT=3; copy=$PATH") };
    assert_eq!(daemon.output(with_env).await, "one of request\n");

    let show = "echo ${SECRET-unset} $KEPT $OTHER $copy; env | grep -c -e ^SECRET; echo $PATH";
    let shown = remembered(&daemon, show).await;
    let (first, path) = shown.split_once("\n0\n").unwrap();
    assert_eq!(first, "unset of-shell 1 /opt:/usr/bin:/bin");
    assert!(path.starts_with("/usr/local/sbin:"), "{path}");

    // Each command has its own trace context.
    let trace = "echo $TRACEPARENT; env | grep -c ^TRACEPARENT=";
    let [one, other] = [remembered(&daemon, trace).await, remembered(&daemon, trace).await];
    assert!(one.ends_with("\n1\n") && one != other, "{one}");

    // No file of the daemon has the value.
    for entry in walk(&daemon.state_dir()) {
        let content = fs::read(&entry).unwrap_or_default();
        let found = memchr::memmem::find(&content, b"SECRET=").is_some()
            && entry.components().any(|part| part.as_os_str() == "shells");
        assert!(!found, "{entry:?}");
    }
}

fn walk(directory: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            files.extend(walk(&entry.path()));
        } else {
            files.push(entry.path());
        }
    }
    files
}

#[tokio::test]
async fn working_directory_of_a_request_is_entered() {
    let daemon = Daemon::start().await;
    fs::create_dir_all(daemon.file("a/b")).unwrap();
    remembered(&daemon, "cd a").await;
    let elsewhere = RunRequest { cwd: Some("a/b".to_owned()), ..in_shell("pwd; echo $OLDPWD") };
    assert_eq!(daemon.output(elsewhere).await, "/workspace/a/b\n/workspace/a\n");
    assert_eq!(remembered(&daemon, "pwd").await, "/workspace/a/b\n");
    // The default of the field.
    let here = RunRequest { cwd: Some(".".to_owned()), ..in_shell("pwd") };
    assert_eq!(daemon.output(here).await, "/workspace/a/b\n");

    // A directory that is gone.
    fs::remove_dir_all(daemon.file("a")).unwrap();
    let response = daemon.run(in_shell("pwd")).await;
    assert_eq!(response.stdout, "/workspace\n");
    assert!(response.stderr.contains("\"/workspace/a/b\", does not exist"), "{response:?}");
    assert_eq!(remembered(&daemon, "pwd").await, "/workspace\n");
}

#[tokio::test]
async fn repeated_request_applies_its_state_once() {
    let daemon = Daemon::start().await;
    remembered(&daemon, "n=0").await;
    let count = || with_request_id("id", in_shell("((++n)); echo $n"));
    let first = daemon.run(count()).await;
    assert_eq!(first.stdout, "1\n");
    remembered(&daemon, "n=10").await;
    assert_eq!(daemon.run(count()).await, first);
    assert_eq!(remembered(&daemon, "echo $n").await, "10\n");
    let daemon = daemon.restart().await;
    assert_eq!(daemon.run(count()).await, first);
    assert_eq!(remembered(&daemon, "echo $n").await, "10\n");
}

#[tokio::test]
async fn state_is_removed_with_its_session() {
    let setup = Setup::new().workspace_table("[sessions]\nretention = \"1s\"");
    let daemon = setup.start().await;
    daemon.output(with_metadata("jig-session", "old", in_shell("x=1"))).await;
    let shells = daemon.state_dir().join("sessions/old/shells");
    assert!(shells.exists());
    eventually("the session is removed", async || !shells.exists()).await;
    let show = with_metadata("jig-session", "old", in_shell("echo ${x-unset}"));
    assert_eq!(daemon.output(show).await, "unset\n");
}
