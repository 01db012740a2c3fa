//! Finds a daemon if none is named: one of this user or root at a default address.

use std::{env, fs, os::unix::fs::MetadataExt as _, path::PathBuf, time::Duration};

use jig::{
    api::v1::GetInfoResponse,
    client::{Client, ConnectError},
};

use crate::{
    cli::DaemonRequirement,
    cli_error::CliError,
    connection,
    global::{GlobalArgs, no_daemon_error},
    listener_owner::{DEFAULT_PORT, ListenerOwner, listener_owner},
    output,
};

/// Maximum wait for a daemon to describe itself.
const INFO_TIMEOUT: Duration = Duration::from_secs(2);

/// Sets the address of a running daemon if the command needs or can use one.
///
/// A command that works in the current directory uses a running daemon only if it serves that
/// directory, or if the caller names a workspace. Standard error names the daemon in use.
pub(crate) fn resolve_daemon(
    global: GlobalArgs,
    need: DaemonRequirement,
) -> Result<GlobalArgs, CliError> {
    if global.address().is_some() || need == DaemonRequirement::NoDaemon {
        return Ok(global);
    }

    // Info does not list workspaces that were created. The command reports an unknown one.
    let names_workspace = global.client_options().workspace.is_some();
    let current_dir = if need == DaemonRequirement::Running || names_workspace {
        None
    } else {
        current_directory_id()
    };
    let mut rejected = None;
    for address in default_addresses().filter(|address| may_call(address)) {
        let candidate = global.with_default_address(&address, None);
        let with_timeout = candidate.with_deadline(INFO_TIMEOUT);
        let info = connection::call_address(&address, &with_timeout, async |client: Client| {
            Ok(client.without_request_id().get_info().await?)
        });

        let is_used = match &info {
            Ok(_) if need == DaemonRequirement::Running => true,
            Ok(info) => names_workspace && reaches_level(info, &global),
            // The command itself reports the error.
            Err(CliError::Call(_)) => need != DaemonRequirement::Any || names_workspace,
            Err(_) => false,
        };
        if is_used {
            output::note(&format!("using the daemon at {address}"));
            return Ok(candidate);
        }

        match info {
            Ok(info) => {
                if let Some(workspace) = served_workspace(&info, current_dir.as_deref(), &global) {
                    output::note(&format!(
                        "using the daemon at {address}: it serves this directory as workspace {workspace}"
                    ));
                    return Ok(global.with_default_address(&address, Some(workspace)));
                }
                rejected = Some(address);
            }
            Err(CliError::Connect(ConnectError::TimedOut { .. })) => output::note(&format!(
                "ignoring the listener at {address}: it does not answer like a daemon within {} s; end it, or name a daemon with --address",
                INFO_TIMEOUT.as_secs()
            )),
            Err(_) => {}
        }
    }

    match rejected {
        Some(address) if names_workspace => Err(CliError::Usage(format!(
            "the isolation level of the daemon at {address} is lower than --minimum-level: name another daemon with --address"
        ))),
        rejected => without_running_daemon(global, need, rejected),
    }
}

/// What a command does that found no daemon, or only one `elsewhere`.
fn without_running_daemon(
    global: GlobalArgs,
    need: DaemonRequirement,
    elsewhere: Option<String>,
) -> Result<GlobalArgs, CliError> {
    match (need, elsewhere) {
        (DaemonRequirement::RunningHere, Some(address)) => Err(CliError::Usage(format!(
            "the daemon at {address} does not serve this directory: name the daemon with --address, or one of its workspaces with --workspace"
        ))),
        (DaemonRequirement::Running | DaemonRequirement::RunningHere, _) => Err(no_daemon_error()),
        (DaemonRequirement::Any | DaemonRequirement::NoDaemon, _) => {
            output::note("no running daemon serves this directory: starting one for this call");
            Ok(global)
        }
    }
}

/// Returns whether a daemon listens at the address and may be called. Reports one of another user.
fn may_call(address: &str) -> bool {
    match listener_owner(address) {
        ListenerOwner::None => false,
        ListenerOwner::Trusted => true,
        ListenerOwner::Foreign(user) => {
            output::note(&format!(
                "ignoring the daemon at {address}: it belongs to user {user}; use it anyway with --address {address}"
            ));
            false
        }
    }
}

/// Returns the id that daemons give to a workspace in the current directory.
fn current_directory_id() -> Option<String> {
    let metadata = env::current_dir().and_then(fs::metadata).ok()?;
    Some(format!("{:x}-{:x}", metadata.dev(), metadata.ino()))
}

/// Returns whether the daemon's isolation is sufficient.
fn reaches_level(info: &GetInfoResponse, global: &GlobalArgs) -> bool {
    let level = info.isolation.as_ref().map_or("", |isolation| isolation.level.as_str());
    global.minimum_level().is_none_or(|minimum| level >= minimum)
}

/// Returns the workspace at the current directory, if the daemon's isolation is sufficient.
fn served_workspace(
    info: &GetInfoResponse,
    current_dir: Option<&str>,
    global: &GlobalArgs,
) -> Option<String> {
    if !reaches_level(info, global) {
        return None;
    }
    let mut workspaces = info.workspaces.iter();
    let served = workspaces.find(|workspace| Some(workspace.directory_id.as_str()) == current_dir);
    served.map(|workspace| workspace.name.clone())
}

/// Returns the addresses at which daemons are searched.
fn default_addresses() -> impl Iterator<Item = String> {
    let runtime_dir =
        env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let socket = runtime_dir.map(|path| format!("unix:{}", path.join("jig.sock").display()));
    socket.into_iter().chain([format!("127.0.0.1:{DEFAULT_PORT}")])
}
