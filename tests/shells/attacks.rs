//! Commands that attack the prologue, the epilogue and the file of the state.

use std::fs;

use jig::api::v1::{LowerLimits, RunRequest};

use super::{forgotten, in_shell, remembered};
use crate::support::Daemon;

/// Opens the file of the state through `/proc`, as the descriptor 20.
const OPEN_STATE_FILE: &str = r#"for fd in /proc/$$/fd/*; do
    if [[ $(readlink "$fd") == *jig-shell-state* ]]; then exec 20<>"$fd"; fi
done; [[ -e /proc/$$/fd/20 ]] || echo "no file of the state"; "#;

#[tokio::test]
async fn programs_inherit_no_descriptor_of_the_shell() {
    let daemon = Daemon::start().await;
    // The last one is the directory itself.
    assert_eq!(remembered(&daemon, "command ls -m /proc/self/fd").await, "0, 1, 2, 3\n");
    assert_eq!(remembered(&daemon, "command ls -m /proc/self/fd").await, "0, 1, 2, 3\n");
}

#[tokio::test]
async fn forged_state_file_changes_nothing() {
    let daemon = Daemon::start().await;
    remembered(&daemon, "x=1").await;
    for forgery in [
        // Over all of the file, over its begin, and with a state that is cut off or has a bad form.
        "head -c 2000000 /dev/zero | tr '\\0' A >&20",
        "printf 'jigshellA' >&20",
        "printf 'jigshell1\\0000;;\\0' >&20",
        "printf 'jigshell1\\000999;;\\000/\\n\\00022\\0000\\0000\\000\\000\\000\\000\\000end\\0' >&20",
        "printf 'jigshell1\\0000;;\\000/\\n\\00022\\00099999999999\\000' >&20",
    ] {
        // Ends at once, so that the epilogue does not replace it.
        let command = format!("{OPEN_STATE_FILE} x=2; ({forgery}) 2>/dev/null; exec true");
        let why = forgotten(&daemon, &command).await;
        assert!(["malformed", "too_large", "replaced"].contains(&why.as_str()), "{forgery}: {why}");
        assert_eq!(remembered(&daemon, "echo $x").await, "1\n", "{forgery}");
    }

    // No process can resize it.
    let resize = "import os\nfor size in (0, 1 << 30):\n try: os.ftruncate(20, size); print('resized')\n except OSError: pass";
    let command = format!("{OPEN_STATE_FILE} /usr/bin/python3 -c \"{resize}\"");
    assert_eq!(remembered(&daemon, &command).await, "");
}

#[tokio::test]
async fn process_that_writes_later_is_gone_before_the_state_is_read() {
    let daemon = Daemon::start().await;
    let later = "x=1; (while :; do printf A >&20; done) >/dev/null 2>&1 & disown; x=2";
    daemon.run(in_shell(&format!("{OPEN_STATE_FILE}{later}"))).await;
    let response = daemon.run(in_shell("echo ${x-unset}")).await;
    assert!(["2\n", "unset\n"].contains(&response.stdout.as_str()), "{response:?}");
    assert_eq!(response.shell_state, "updated");
}

#[tokio::test]
async fn replaced_descriptors_do_not_leak_the_state() {
    let daemon = Daemon::start().await;
    let replace =
        "secret=in-the-state; for n in {3..30}; do eval \"exec $n<>file\"; done; echo done";
    let response = daemon.run(in_shell(replace)).await;
    let file = fs::read_to_string(daemon.file("file")).unwrap_or_default();
    assert!(!file.contains("in-the-state"), "{file}");
    assert_eq!(response.exit_code, Some(0), "{response:?}");
    assert_eq!(daemon.output(in_shell("echo again")).await, "again\n");

    let response = daemon.run(in_shell("for n in {3..30}; do eval \"exec $n>&-\"; done")).await;
    assert_ne!(response.shell_state, "", "{response:?}");
    assert_eq!(daemon.output(in_shell("echo again")).await, "again\n");
}

#[tokio::test]
async fn hostile_names_harm_only_their_own_shell() {
    let daemon = Daemon::start().await;
    for command in [
        "readonly POSIXLY_CORRECT",
        "readonly __jig_mark __jig_command __jig_status REPLY",
        "builtin() { echo mine; }; readonly -f builtin",
        "unset() { :; }; readonly -f unset; POSIXLY_CORRECT=1",
        "enable -n builtin printf declare read exit",
        "alias builtin=false; alias -p >/dev/null; shopt -s expand_aliases; alias '{=echo' 2>/dev/null",
        "set -n",
        "set -r 2>/dev/null",
        "set -t",
        "ulimit -n 10",
        "ulimit -f 0",
        "trap 'x=trapped' DEBUG",
        "trap 'echo end' RETURN; f() { :; }",
        "TMOUT=1; BASH_ENV=/nosuch; ENV=/nosuch; export BASH_ENV ENV",
        "PATH=; IFS=0123456789abcdefghij; GLOBIGNORE='*'",
        "LC_ALL=nosuch.UTF-8 2>/dev/null; export LC_ALL",
        "function __jig_start { echo mine; }; __jig_x=1",
        "DIRSTACK[1]=/x; FUNCNAME=x; BASH_ARGV0=other",
        "shopt -s extdebug failglob",
    ] {
        let response = daemon.run(in_shell(command)).await;
        let next = daemon.run(in_shell("/bin/echo next")).await;
        let is_usable = next.stdout.contains("next") || next.exit_code != Some(0);
        assert!(is_usable, "{command}: {response:?} {next:?}");

        let restart = RunRequest { restart_shell: true, ..in_shell("echo ok") };
        let restarted = daemon.run(restart).await;
        assert_eq!(restarted.stdout, "ok\n", "{command}: {restarted:?}");
        assert_eq!(restarted.shell_state, "updated", "{command}");
        assert_eq!(remembered(&daemon, "echo $-").await, "hBc\n", "{command}");
    }
}

#[tokio::test]
async fn limits_of_a_run_do_not_change_its_result() {
    let daemon = Daemon::start().await;
    remembered(&daemon, "x=1").await;
    let lower = |limits: LowerLimits, command: &str| RunRequest {
        limits: Some(limits),
        ..in_shell(command)
    };
    let small_files = LowerLimits { file_size_bytes: Some(64), ..LowerLimits::default() };
    let response = daemon.run(lower(small_files, "echo out; x=2; exit 7")).await;
    assert_eq!((response.stdout.as_str(), response.exit_code), ("out\n", Some(7)), "{response:?}");
    assert_ne!(response.shell_state, "updated");
    assert_eq!(remembered(&daemon, "echo $x").await, "1\n");

    let few_files = LowerLimits { open_files: Some(32), ..LowerLimits::default() };
    let response = daemon.run(lower(few_files, "x=3; echo $(ulimit -n)")).await;
    assert_eq!((response.stdout.as_str(), response.shell_state.as_str()), ("32\n", "updated"));
    assert_eq!(remembered(&daemon, "echo $x").await, "3\n");
}

#[tokio::test]
async fn damaged_state_file_of_the_daemon_is_reported() {
    let daemon = Daemon::start().await;
    remembered(&daemon, "x=1").await;
    let shells = daemon.state_dir().join("sessions/default/shells");
    let owner = fs::read_dir(shells).unwrap().next().unwrap().unwrap().path();
    fs::write(owner.join("s"), "").unwrap();
    let refusal = daemon.run_failing(in_shell("echo $x"), "INTERNAL").await;
    assert!(refusal.message.contains("restart_shell"), "{refusal:?}");
    let restart = RunRequest { restart_shell: true, ..in_shell("echo ${x-unset}") };
    assert_eq!(daemon.output(restart).await, "unset\n");
}
