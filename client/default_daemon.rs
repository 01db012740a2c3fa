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
    mut need: DaemonRequirement,
) -> Result<GlobalArgs, CliError> {
    if need == DaemonRequirement::RunningHere && global.client_options().workspace.is_some() {
        need = DaemonRequirement::Running;
    }
    if global.address().is_some() || need == DaemonRequirement::NoDaemon {
        return Ok(global);
    }

    let current_dir = match need {
        DaemonRequirement::Any | DaemonRequirement::RunningHere => current_directory_id(),
        DaemonRequirement::Running | DaemonRequirement::NoDaemon => None,
    };
    let mut elsewhere = None;
    for address in default_addresses().filter(|address| may_call(address)) {
        let candidate = global.with_default_address(&address, None);
        let with_timeout = candidate.with_deadline(INFO_TIMEOUT);
        let info = connection::call_address(&address, &with_timeout, async |client: Client| {
            Ok(client.without_request_id().get_info().await?)
        });

        match (need, info) {
            // It answers, with info or an error. The command itself reports that error.
            (DaemonRequirement::Running, Ok(_))
            | (
                DaemonRequirement::Running | DaemonRequirement::RunningHere,
                Err(CliError::Call(_)),
            ) => {
                output::note(&format!("using the daemon at {address}"));
                return Ok(candidate);
            }
            (DaemonRequirement::Any | DaemonRequirement::RunningHere, Ok(info)) => {
                if let Some(workspace) = served_workspace(&info, current_dir.as_deref(), &global) {
                    output::note(&format!(
                        "using the daemon at {address}: it serves this directory as workspace {workspace}"
                    ));
                    return Ok(global.with_default_address(&address, Some(workspace)));
                }
                elsewhere = Some(address);
            }
            (_, Err(CliError::Connect(ConnectError::TimedOut { .. }))) => output::note(&format!(
                "ignoring the listener at {address}: it does not answer like a daemon within {} s; end it, or name a daemon with --address",
                INFO_TIMEOUT.as_secs()
            )),
            _ => {}
        }
    }

    without_running_daemon(global, need, elsewhere)
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

/// Returns the workspace at the current directory, if the daemon's isolation is sufficient.
fn served_workspace(
    info: &GetInfoResponse,
    current_dir: Option<&str>,
    global: &GlobalArgs,
) -> Option<String> {
    let isolation = info.isolation.as_ref();
    let level = isolation.map_or("", |isolation| isolation.level.as_str());
    if global.minimum_level().is_some_and(|minimum| level < minimum) {
        return None;
    }

    let wanted = global.client_options().workspace;
    let mut workspaces = info.workspaces.iter();
    let served = workspaces.find(|workspace| {
        Some(workspace.directory_id.as_str()) == current_dir
            && wanted.as_ref().is_none_or(|wanted| *wanted == workspace.name)
    });
    served.map(|workspace| workspace.name.clone())
}

/// Returns the addresses at which daemons are searched.
fn default_addresses() -> impl Iterator<Item = String> {
    let runtime_dir =
        env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let socket = runtime_dir.map(|path| format!("unix:{}", path.join("jig.sock").display()));
    socket.into_iter().chain([format!("127.0.0.1:{DEFAULT_PORT}")])
}
