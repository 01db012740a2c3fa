//! Calls with a request id: their work is done once, and each of them gets its answer.

mod database;
mod detached;
mod duplicates;
mod evicted;
mod full_disk;
mod model;
mod restart;
mod retention;
mod revoked_keys;
mod unavailable_database;
mod uploads;

use jig::api::v1::{RunRequest, RunResponse};
use tonic::Request;

use crate::support::{Daemon, shell, with_metadata};

/// A message that is sent with a request id.
fn with_request_id<T>(id: &str, message: T) -> Request<T> {
    with_metadata("jig-request-id", id, message)
}

/// A command that leaves a line for each time that it runs, and whose output is never the same.
fn counted_command(rest: &str) -> RunRequest {
    shell(&format!("echo ran >> runs; cat /proc/sys/kernel/random/uuid; {rest}"))
}

/// How often commands of [`counted`] have run.
fn run_count(daemon: &Daemon) -> usize {
    let runs = std::fs::read_to_string(daemon.file("runs")).unwrap_or_default();
    runs.lines().count()
}

/// Runs a command of [`counted`] with a request id.
async fn run_counted(daemon: &Daemon, id: &str) -> RunResponse {
    daemon.run(with_request_id(id, counted_command("exit 3"))).await
}
