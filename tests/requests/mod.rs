//! Calls with a request id: their work is done once, and each of them gets its answer.

mod database;
mod forgotten;
mod full;
mod kept;
mod model;
mod repeated;
mod restarted;
mod revoked;
mod unusable;
mod uploads;
mod waiting;

use jig::api::v1::{RunRequest, RunResponse};
use tonic::Request;

use crate::support::{Daemon, shell, with};

/// A message that is sent with a request id.
fn under<T>(id: &str, message: T) -> Request<T> {
    with("jig-request-id", id, message)
}

/// A command that leaves a line for each time that it runs, and whose output is never the same.
fn counted(rest: &str) -> RunRequest {
    shell(&format!("echo ran >> runs; cat /proc/sys/kernel/random/uuid; {rest}"))
}

/// How often commands of [`counted`] have run.
fn runs(daemon: &Daemon) -> usize {
    let runs = std::fs::read_to_string(daemon.file("runs")).unwrap_or_default();
    runs.lines().count()
}

/// Runs a command of [`counted`] with a request id.
async fn run(daemon: &Daemon, id: &str) -> RunResponse {
    daemon.run(under(id, counted("exit 3"))).await
}
