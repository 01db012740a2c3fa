//! What the programs mind that tests start.

use std::process::Command;

/// A command that minds every signal. What whoever started the tests ignores is handed down otherwise, as
/// SIGHUP is by nohup(1), and `jig` then goes on as it is told to.
pub(crate) fn command_with_default_signals(program: &str) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal", program]);
    command
}
