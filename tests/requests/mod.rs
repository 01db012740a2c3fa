//! Calls with a request id: the work runs once, and every call with the id gets the same answer.

mod database;
mod detached;
mod duplicates;
mod evicted;
mod full_disk;
mod model;
mod restart;
mod retention;
mod revoked_keys;
mod tree_uploads;
mod unavailable_database;
mod uploads;

use jig::api::v1::{RunRequest, RunResponse};
use tonic::Request;

use crate::support::{Daemon, shell, with_metadata};

pub(crate) fn with_request_id<T>(id: &str, message: T) -> Request<T> {
    with_metadata("jig-request-id", id, message)
}

/// A command that runs until the file `go` exists.
const WAIT_FOR_GO_FILE: &str = "until [ -e go ]; do sleep 0.01; done";

/// A command that appends a line to `runs` on each run, and whose output is different each time.
fn counted_command(rest: &str) -> RunRequest {
    shell(&format!("echo ran >> runs; cat /proc/sys/kernel/random/uuid; {rest}"))
}

/// How often commands of [`counted_command`] have run.
fn run_count(daemon: &Daemon) -> usize {
    let runs = std::fs::read_to_string(daemon.file("runs")).unwrap_or_default();
    runs.lines().count()
}

async fn run_counted(daemon: &Daemon, id: &str) -> RunResponse {
    daemon.run(with_request_id(id, counted_command("exit 3"))).await
}
