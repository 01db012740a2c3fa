//! `ProcessService`: commands that a client watches, and writes to, while they run.

mod attach;
mod backpressure;
mod client;
mod client_hanging_daemon;
mod client_reconnect;
mod client_terminal;
mod client_write_retry;
pub(crate) mod command_line;
mod disconnect;
mod list;
mod retention;
mod signal;
mod start;
mod stdin;
mod terminal;
mod terminal_user;

use jig::api::v1::{OnDisconnect, StartRequest};
use tempfile::TempDir;

use crate::support::{Setup, shell, start_request};

/// Starts a command that continues without a watcher.
fn keep_request(command: &str) -> StartRequest {
    StartRequest { on_disconnect: Some(OnDisconnect::Keep.into()), ..start_request(shell(command)) }
}

/// A setup with a configuration file, whose directory must outlive the daemon's start.
fn setup_with_config(config: &str) -> (TempDir, Setup) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("jig.toml");
    std::fs::write(&path, config).unwrap();
    let setup = Setup::new().arguments(&["--config", &path.display().to_string()]);
    (directory, setup)
}
