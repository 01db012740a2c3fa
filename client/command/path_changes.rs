//! `jig mkdir`, `jig mv` and `jig rm`: create, move and delete paths of the workspace.

use std::process::ExitCode;

use clap::Args;
use jig::{
    api::v1::{CreateDirectoryRequest, DeletePathRequest, MovePathRequest},
    client::Client,
};

use super::{paths, report_and_exit};
use crate::{connection, file_json, global::GlobalArgs, output, style::Style};

/// Create directories in the workspace, and their missing parents.
#[derive(Debug, Args)]
pub(crate) struct MkdirArgs {
    /// Directories to create, relative to the workspace.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
}

/// Move or rename a file or directory within the workspace.
#[derive(Debug, Args)]
pub(crate) struct MvArgs {
    /// Path to move, relative to the workspace.
    source: String,
    /// New path, relative to the workspace. Not the directory to put it in.
    destination: String,
    /// Replace an existing file or empty directory.
    #[arg(short, long)]
    force: bool,
}

/// Delete files or directories of the workspace.
#[derive(Debug, Args)]
pub(crate) struct RmArgs {
    /// Paths to delete, relative to the workspace. For a symbolic link, the link itself.
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<String>,
    /// Delete directories and everything in them.
    #[arg(short, long)]
    recursive: bool,
}

pub(crate) fn mkdir(global: &GlobalArgs, args: MkdirArgs) -> ExitCode {
    let call = |client: Client, path| async move {
        let request = CreateDirectoryRequest { path };
        Ok(client.create_directory(request).await?)
    };
    paths::call_for_each_path(
        global,
        args.paths,
        call,
        file_json::create_directory,
        |_, response| {
            let style = Style::of_stdout();
            let created = response.created.iter().map(|path| style.escape_name(path));
            let text: String = created.map(|path| format!("created {path}\n")).collect();
            output::write_stdout(text.as_bytes())
        },
    )
}

pub(crate) fn mv(global: &GlobalArgs, args: MvArgs) -> ExitCode {
    let request = MovePathRequest {
        source: args.source,
        destination: args.destination,
        overwrite: args.force.then_some(true),
    };
    let result =
        connection::call(global, async move |client: Client| Ok(client.move_path(request).await?));

    let result = result.and_then(|response| {
        if global.json {
            return output::write_json(&file_json::move_path(&response));
        }
        Ok(())
    });
    report_and_exit(result, global.json)
}

pub(crate) fn rm(global: &GlobalArgs, args: RmArgs) -> ExitCode {
    let recursive = args.recursive.then_some(true);
    let call = move |client: Client, path| async move {
        let request = DeletePathRequest { path, recursive };
        Ok(client.delete_path(request).await?)
    };
    paths::call_for_each_path(global, args.paths, call, file_json::delete_path, |_, _| Ok(()))
}
