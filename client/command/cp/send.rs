//! Copies a file or directory into the workspace.

use std::path::Path;

use jig::client::Client;

use super::{
    copy_log::CopyLog,
    git::check_name,
    options::{CopyOptions, base_name, join, no_file_name_error},
    send_file::send_file,
    send_tree::send_tree,
};
use crate::cli_error::CliError;

/// Copies a local file or directory to a path of the workspace.
pub(super) async fn send(
    client: Client,
    from: String,
    mut to: String,
    options: CopyOptions,
    log: CopyLog,
) -> Result<(), CliError> {
    let is_directory = Path::new(&from).is_dir();
    if to.is_empty() || to.ends_with('/') {
        match base_name(&from) {
            Some(name) => to = join(&to, name),
            None if is_directory && options.recursive => {}
            None => return Err(no_file_name_error()),
        }
    }

    if !options.with_git {
        check_name(&from, &from)?;
        check_name(&to, &format!(":{to}"))?;
    }

    if is_directory && !options.recursive {
        return Err(CliError::Usage(format!("{from:?} is a directory: copy it with -r")));
    }

    if is_directory {
        return send_tree(&client, &from, to, &options, &log).await;
    }
    log.record_copied(send_file(&client, Path::new(&from), to, &options).await?);
    Ok(())
}
