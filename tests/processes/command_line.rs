//! Runs `jig` without a terminal.

use std::{
    io::Write as _,
    path::Path,
    process::{Child, Command, Output, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::support::{Daemon, command_with_default_signals};

/// A command line of `jig` for the daemon at `socket`.
pub(crate) fn jig_command(socket: &Path, arguments: &[&str]) -> Command {
    let mut command = command_with_default_signals(env!("CARGO_BIN_EXE_jig"));
    command
        .args(arguments)
        .env_clear()
        .env("JIG_ADDRESS", format!("unix:{}", socket.display()))
        .env("PATH", "/usr/bin:/bin")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());

    command
}

/// Runs `jig` with `input`. Returns its exit code, standard output and standard error.
pub(crate) async fn run_jig(
    daemon: &Daemon,
    arguments: &[&str],
    input: &str,
) -> (i32, String, String) {
    let mut command = jig_command(&daemon.socket(), arguments);
    let input = input.to_owned();
    let run = move || -> Output {
        let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
        // A command that exits without reading closes the pipe.
        let _unread = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap()
    };

    let output = tokio::task::spawn_blocking(run).await.unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

pub(super) fn signal_jig(child: &Child, signal: Signal) {
    let pid = i32::try_from(child.id()).unwrap();
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}
