//! What a sandboxed run is compared with: a process without any isolation, and bubblewrap's.

use std::{
    io,
    path::Path,
    process::{Child, Command, Stdio},
};

use crate::failure::Failure;

/// The program that is run: it does nothing, so that all the time is that of running it.
pub(super) const PROGRAM: &str = "/bin/true";

/// A command that sleeps for longer than any bench.
pub(super) const SLEEP: [&str; 2] = ["sleep", "100000"];

/// What bubblewrap is asked for: all its namespaces, a read-only system, and a fresh /proc, /dev
/// and /tmp. It has no seccomp filter and no limits of its own, which jig's runs have.
const BUBBLEWRAP: [&str; 22] = [
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
    PROGRAM,
];

/// Starts a bare process and waits for it. With null streams and nothing to do in the child, std
/// uses `posix_spawn`.
pub(super) fn spawn_bare() -> Result<(), Failure> {
    wait("a bare process", &mut command(PROGRAM))
}

/// The same in a sandbox of bubblewrap.
pub(super) fn spawn_bubblewrap() -> Result<(), Failure> {
    wait("bubblewrap", command("bwrap").args(BUBBLEWRAP))
}

/// Starts a process that sleeps.
pub(super) fn sleep() -> io::Result<Child> {
    let [program, argument] = SLEEP;
    command(program).arg(argument).spawn()
}

/// Starts a process that writes a file to a pipe, so many times.
pub(super) fn cat(file: &Path, times: usize) -> io::Result<Child> {
    let files = std::iter::repeat_n(file, times);
    command("cat").args(files).stdout(Stdio::piped()).spawn()
}

/// Whether bubblewrap is installed and works, or why it cannot be compared with.
pub(super) fn find_bubblewrap() -> Result<(), String> {
    match command("bwrap").args(BUBBLEWRAP).stderr(Stdio::piped()).output() {
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

fn wait(what: &str, command: &mut Command) -> Result<(), Failure> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        // A bench of failures would be fast and wrong.
        Ok(status) => Err(Failure::System(format!("{what} failed: {status}"))),
        Err(error) => Err(Failure::System(format!("{what} did not start: {error}"))),
    }
}

fn command(program: &str) -> Command {
    #[expect(clippy::disallowed_methods, reason = "measured against jig, not run for anybody")]
    let mut command = Command::new(program);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_not_measured() {
        assert!(spawn_bare().is_ok());
        assert!(wait("false", &mut command("/bin/false")).is_err());
        assert!(wait("nothing", &mut command("/no/such/program")).is_err());
    }
}
