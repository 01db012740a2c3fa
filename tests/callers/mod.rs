//! Authentication and authorization: keys, roles, local users, and isolation between callers.

mod connections;
mod key_command;
mod keys;
mod local_users;
mod non_loopback;
mod queued_calls;
mod rejected_configurations;
mod reload;
pub(crate) mod roles;
mod secrets;
mod streams;
mod tool_scopes;
mod workspaces;

use std::sync::Arc;

use jig::api::v1::daemon_service_client::DaemonServiceClient;
use tonic::transport::Channel;

use crate::support::{Daemon, KeyFile, Setup, run_jigd};

/// Runs a `jigd` that must reject its flags, and returns its standard error.
fn failed_start_stderr(flags: &[&str]) -> String {
    let output = run_jigd(flags);
    assert_eq!(output.status.code(), Some(78), "{flags:?}: {output:?}");
    String::from_utf8(output.stderr).unwrap()
}

/// A client of `DaemonService`.
fn info_client(daemon: &Daemon) -> DaemonServiceClient<Channel> {
    DaemonServiceClient::new(daemon.channel())
}

/// Starts a daemon with a key file.
pub(crate) async fn start_daemon_with_keys(setup: Setup, keys: &Arc<KeyFile>) -> Daemon {
    let path = keys.path().display().to_string();
    let resource = Arc::clone(keys);
    setup.arguments(&["--keys", &path]).with_resource(resource).start().await
}
