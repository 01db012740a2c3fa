//! The daemon that is called where none is named: one of this user's or root's that listens where
//! daemons do by default.

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

/// Longest wait for a daemon to say what it serves.
const INFO_TIMEOUT: Duration = Duration::from_secs(2);

/// Names a daemon where the command needs one and none is named, or can do with one that serves the
/// current directory. Says on standard error which one is used.
pub(crate) fn resolve_daemon(
    global: GlobalArgs,
    need: DaemonRequirement,
) -> Result<GlobalArgs, CliError> {
    if global.address().is_some() || need == DaemonRequirement::NoDaemon {
        return Ok(global);
    }
    let here = match need {
        DaemonRequirement::Any => env::current_dir().and_then(fs::metadata).ok(),
        DaemonRequirement::Running | DaemonRequirement::NoDaemon => None,
    };
    let here = here.map(|here| workspace_id(here.dev(), here.ino()));
    for address in default_addresses() {
        match listener_owner(&address) {
            ListenerOwner::None => continue,
            ListenerOwner::Foreign(user) => {
                output::note(&format!(
                    "the daemon at {address} is not used: it belongs to user {user}; --address {address} insists"
                ));
                continue;
            }
            ListenerOwner::Trusted => {}
        }
        let asked = global.with_default_address(&address, None);
        let patient = asked.with_deadline(INFO_TIMEOUT);
        let info = connection::call_address(&address, &patient, async |client: Client| {
            Ok(client.without_request_id().get_info().await?)
        });
        match (need, info) {
            // It answers, whatever it says: the command will tell.
            (DaemonRequirement::Running, Ok(_) | Err(CliError::Call(_))) => {
                output::note(&format!("using the daemon at {address}"));
                return Ok(asked);
            }
            (DaemonRequirement::Any, Ok(info)) => {
                if let Some(workspace) = served_workspace(&info, here.as_deref(), &global) {
                    output::note(&format!(
                        "using the daemon at {address}: it serves this directory as workspace {workspace}"
                    ));
                    return Ok(global.with_default_address(&address, Some(workspace)));
                }
            }
            (_, Err(CliError::Connect(ConnectError::TimedOut { .. }))) => output::note(&format!(
                "what listens at {address} is not used: it does not answer as a daemon does within {} s; end it, or name a daemon with --address",
                INFO_TIMEOUT.as_secs()
            )),
            _ => {}
        }
    }
    match need {
        DaemonRequirement::Running => Err(no_daemon_error()),
        DaemonRequirement::Any | DaemonRequirement::NoDaemon => {
            output::note("no running daemon serves this directory: using one of this call's own");
            Ok(global)
        }
    }
}

/// How a daemon names the directory of a workspace.
fn workspace_id(device: u64, inode: u64) -> String {
    format!("{device:x}-{inode:x}")
}

/// The workspace that is the current directory, if it is isolated as is asked for.
fn served_workspace(
    info: &GetInfoResponse,
    here: Option<&str>,
    global: &GlobalArgs,
) -> Option<String> {
    let isolation = info.isolation.as_ref();
    let level = isolation.map_or("", |isolation| isolation.level.as_str());
    if global.minimum_level().is_some_and(|minimum| level < minimum) {
        return None;
    }
    let wanted = global.client_options().workspace;
    let mut workspaces = info.workspaces.iter();
    let found = workspaces.find(|workspace| {
        Some(workspace.directory_id.as_str()) == here
            && wanted.as_ref().is_none_or(|wanted| *wanted == workspace.name)
    });
    found.map(|workspace| workspace.name.clone())
}

/// Where daemons are looked for.
fn default_addresses() -> impl Iterator<Item = String> {
    let folder = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let folder = folder.filter(|folder| folder.is_absolute());
    let socket = folder.map(|folder| format!("unix:{}", folder.join("jig.sock").display()));
    socket.into_iter().chain([format!("127.0.0.1:{DEFAULT_PORT}")])
}
