//! Who may call, and what: keys and their roles, users of this machine, and what each sees of others.

mod connections;
mod key_command;
mod keys;
mod local_users;
mod non_loopback;
mod queued_calls;
mod rejected_configurations;
mod reload;
mod roles;
mod secrets;
mod streams;
mod tool_scopes;
mod workspaces;

use std::sync::Arc;

use jig::api::v1::daemon_service_client::DaemonServiceClient;
use tonic::transport::Channel;

use crate::support::{Daemon, KeyFile, Setup};

/// A client of what tells about a daemon.
fn info_client(daemon: &Daemon) -> DaemonServiceClient<Channel> {
    DaemonServiceClient::new(daemon.channel())
}

/// A daemon with keys, and the file that they are in.
pub(crate) async fn start_daemon_with_keys(setup: Setup, keys: &Arc<KeyFile>) -> Daemon {
    let path = keys.path().display().to_string();
    let kept = Arc::clone(keys);
    setup.arguments(&["--keys", &path]).with_resource(kept).start().await
}
