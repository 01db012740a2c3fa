//! References for a sandboxed run: a process without isolation, and bubblewrap.

use std::{
    io,
    path::Path,
    process::{Child, Command, Stdio},
};

use crate::cli_error::CliError;

/// Program that is run. It does nothing, so that only the overhead is measured.
pub(super) const BARE_PROGRAM: &str = "/bin/true";

/// Command of a shell that does nothing.
pub(super) const SHELL_COMMAND: &str = "true";

/// Command that sleeps for longer than any benchmark.
pub(super) const SLEEP_COMMAND: [&str; 2] = ["sleep", "100000"];

/// Options of bubblewrap: all namespaces, a read-only system, and fresh /proc, /dev and /tmp. In
/// contrast to runs of jig, it has no seccomp filter and no limits.
const BUBBLEWRAP_ARGS: [&str; 22] = [
    "--unshare-all",
    "--new-session",
    "--die-with-parent",
    "--ro-bind",
    "/usr",
    "/usr",
    "--symlink",
    "usr/bin",
    "/bin",
    "--symlink",
    "usr/lib",
    "/lib",
    "--symlink",
    "usr/lib64",
    "/lib64",
    "--proc",
    "/proc",
    "--dev",
    "/dev",
    "--tmpfs",
    "/tmp",
    BARE_PROGRAM,
];

/// Runs a bare process. With null streams and no work in the child, std uses `posix_spawn`.
pub(super) fn spawn_bare() -> Result<(), CliError> {
    run_to_end("a bare process", &mut command(BARE_PROGRAM))
}

/// Runs a shell.
pub(super) fn spawn_shell() -> Result<(), CliError> {
    run_to_end("a shell", command("/bin/sh").args(["-c", SHELL_COMMAND]))
}

/// Runs a process in a bubblewrap sandbox.
pub(super) fn spawn_bubblewrap() -> Result<(), CliError> {
    run_to_end("bubblewrap", command("bwrap").args(BUBBLEWRAP_ARGS))
}

/// Starts a process that sleeps.
pub(super) fn spawn_sleep() -> io::Result<Child> {
    let [program, argument] = SLEEP_COMMAND;
    command(program).arg(argument).spawn()
}

/// Starts a process that writes a file to a pipe, `times` times.
pub(super) fn spawn_cat(file: &Path, times: usize) -> io::Result<Child> {
    let files = std::iter::repeat_n(file, times);
    command("cat").args(files).stdout(Stdio::piped()).spawn()
}

/// Checks that bubblewrap is installed and works. Otherwise, returns the reason.
pub(super) fn find_bubblewrap() -> Result<(), String> {
    match command("bwrap").args(BUBBLEWRAP_ARGS).stderr(Stdio::piped()).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!(
            "it does not work here: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err("it is not installed".to_owned())
        }
        Err(error) => Err(error.to_string()),
    }
}

fn run_to_end(what: &str, command: &mut Command) -> Result<(), CliError> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        // Failed runs would be fast, and wrong.
        Ok(status) => Err(CliError::System(format!("{what} failed: {status}"))),
        Err(error) => Err(CliError::System(format!("{what} did not start: {error}"))),
    }
}

fn command(program: &str) -> Command {
    #[expect(
        clippy::disallowed_methods,
        reason = "a reference for comparison, not a caller's command"
    )]
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_runs_are_errors() {
        assert!(spawn_bare().is_ok() && spawn_shell().is_ok());
        assert!(run_to_end("false", &mut command("/bin/false")).is_err());
        assert!(run_to_end("nothing", &mut command("/no/such/program")).is_err());
    }
}
