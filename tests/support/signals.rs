//! Signal dispositions of programs that tests start.

use std::process::Command;

/// A command with the default disposition for every signal. A program inherits ignored signals from
/// the shell of the test run: under nohup(1) it would ignore SIGHUP, and `jig` respects that.
pub(crate) fn command_with_default_signals(program: &str) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal", program]);
    command
}
