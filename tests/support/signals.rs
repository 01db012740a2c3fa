//! Signals of programs that tests start.

use std::process::{Child, Command};

/// A command with the default disposition for every signal. A program inherits ignored signals from
/// the shell of the test run: under nohup(1) it would ignore SIGHUP, and `jig` respects that.
pub(crate) fn command_with_default_signals(program: &str) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal", program]);
    command
}

/// Kills a program, unless it is dead already, and reaps its process.
pub(crate) fn kill_and_reap(child: &mut Child) {
    let _dead_already = child.kill();
    let _reaped = child.wait();
}
