//! Copies a file or directory out of the workspace.
//!
//! Names and permissions there are untrusted: all names stay below the destination, and no file
//! becomes accessible to more users.

use std::path::PathBuf;

use jig::client::Client;

use super::{
    copy_log::CopyLog,
    destination::DestinationSymlinks,
    git::{check_destination, check_name},
    options::{CopyOptions, base_name, no_file_name_error},
    receive_file::receive_file,
    receive_tree::{list_entries, receive_tree},
};
use crate::cli_error::CliError;

/// Copies a file or directory of the workspace to a local path.
pub(super) async fn receive(
    client: Client,
    from: String,
    mut to: PathBuf,
    options: CopyOptions,
    log: CopyLog,
) -> Result<(), CliError> {
    let keeps_name = to.is_dir() || to.as_os_str().as_encoded_bytes().ends_with(b"/");
    if keeps_name {
        match base_name(&from) {
            Some(name) => to.push(name),
            None if options.recursive => {}
            None => return Err(no_file_name_error()),
        }
    }
    if !options.with_git {
        check_name(&from, &format!(":{from}"))?;
        check_destination(&to)?;
    }

    if options.recursive {
        match list_entries(&client, &from).await {
            Err(error) if error.name() == "NOT_A_DIRECTORY" => {}
            Err(error) => return Err(error.into()),
            Ok(listed) => return receive_tree(&client, (from, listed), to, &options, &log).await,
        }
    }
    log.record_copied(
        receive_file(&client, from, (&to, DestinationSymlinks::Follow), &options).await?,
    );
    Ok(())
}
