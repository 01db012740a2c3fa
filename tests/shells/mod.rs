//! Named shells: the directory, variables, functions and options that a command leaves for the next.

mod attacks;
mod callers;
mod corpus;
mod dialect;
mod leases;
mod lifetimes;

use jig::api::v1::RunRequest;

use crate::support::{Daemon, shell};

/// A command in the shell `s`.
fn in_shell(command: &str) -> RunRequest {
    RunRequest { shell: Some("s".to_owned()), ..shell(command) }
}

/// Runs a command in the shell `s`, which must remember what it changed. Returns its output.
async fn remembered(daemon: &Daemon, command: &str) -> String {
    let response = daemon.run(in_shell(command)).await;
    assert_eq!(response.shell_state, "updated", "{command}: {response:?}");
    assert_eq!(response.stderr, "", "{command}");
    response.stdout
}

/// Runs a command in the shell `s`, which must not remember what it changed. Returns why.
async fn forgotten(daemon: &Daemon, command: &str) -> String {
    let response = daemon.run(in_shell(command)).await;
    assert_ne!(response.shell_state, "updated", "{command}: {response:?}");
    response.shell_state
}
