//! Limits of runs: that they are enforced and reported, and that a run at its limit does not
//! disturb others.

mod bombs;
mod cgroups;
mod cpu;
mod cpu_share;
mod memory;
mod output;
mod request_limits;

use jig::api::v1::{IsolationLayer, LowerLimits, RunRequest};

use crate::support::{Daemon, shell};

/// The largest value of each limit, except processes, which the daemon's own limit bounds.
const LARGEST_LIMITS_TABLE: &str = r#"
[limits]
cpu_sec = 4294967295
cpus = 1024.0
memory_bytes = 9223372036854775807
output_bytes = 9223372036854775807
file_size_bytes = 9223372036854775807
tmp_bytes = 9223372036854775807
tmp_inodes = 4294967295
open_files_total = 4294967295
epoll_watches = 9223372036854775807
wall_clock = "24h"
"#;

/// What GetInfo reports about a layer of the sandbox.
async fn isolation_layer(daemon: &Daemon, name: &str) -> IsolationLayer {
    let layers = daemon.info().await.isolation.unwrap().layers;
    let layer = layers.into_iter().find(|layer| layer.name == name);
    layer.unwrap_or_else(|| panic!("GetInfo does not report {name}"))
}

/// A shell command with limits.
fn limited_command(command: &str, limits: LowerLimits) -> RunRequest {
    RunRequest { limits: Some(limits), ..shell(command) }
}
