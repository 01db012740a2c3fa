//! `jig watch`: prints the changes of files as they happen.

use std::process::ExitCode;

use clap::Args;
use jig::{
    api::v1::{ChangeKind, EntryChange, FileType, WatchFilesRequest, watch_files_response::Item},
    client::Client,
};
use serde_json::{Value, json};

use super::report_and_exit;
use crate::{cli_error::CliError, connection, file_json, global::GlobalArgs, output, style::Style};

/// Print the changes of files below a directory, one per line, until Ctrl-C.
///
/// A line has `created`, `changed`, `deleted` or `rescan`, and the path, relative to the workspace.
/// Directories end with a slash. After `rescan`, list that directory again: its changes are not
/// reported one by one. With --json, the first line is `{"ready": …}`: later changes are all reported.
#[derive(Debug, Args)]
pub(crate) struct FileWatchArgs {
    /// Directory to watch, relative to the workspace. Default: the workspace.
    path: Option<String>,
    /// Glob of files to report: `*.rs` matches at any depth, `src/**/*.rs` from the directory on. Can
    /// be repeated.
    #[arg(long = "glob", value_name = "G")]
    globs: Vec<String>,
    /// Glob of files and directories to leave out. Can be repeated.
    #[arg(long, value_name = "G")]
    exclude: Vec<String>,
    /// Leave out hidden files and directories.
    #[arg(long)]
    no_hidden: bool,
    /// Maximum depth of directories. Default: unlimited.
    #[arg(long, value_name = "N")]
    depth: Option<u32>,
}

pub(crate) fn watch(global: &GlobalArgs, args: FileWatchArgs) -> ExitCode {
    let request = request(args);
    let as_json = global.json;
    let result = connection::call(global, async move |client: Client| {
        let mut changes = client.watch_files(request).await?;
        while let Some(item) = changes.next().await? {
            print_item(&item, as_json)?;
        }
        Ok(())
    });
    report_and_exit(result, as_json)
}

fn request(args: FileWatchArgs) -> WatchFilesRequest {
    WatchFilesRequest {
        path: args.path,
        globs: args.globs,
        exclude_globs: args.exclude,
        hidden: args.no_hidden.then_some(false),
        max_depth: args.depth,
        keep_alive_sec: None,
    }
}

fn print_item(item: &Item, as_json: bool) -> Result<(), CliError> {
    match item {
        Item::Ready(ready) if as_json => {
            output::write_json(&json!({ "ready": { "directories": ready.directories } }))
        }
        Item::Ready(ready) => {
            output::note(&format!("watching directories: {}", ready.directories));
            Ok(())
        }
        Item::Changes(changes) => {
            if as_json {
                changes
                    .changes
                    .iter()
                    .try_for_each(|change| output::write_json(&change_json(change)))?;
            } else {
                let style = Style::of_stdout();
                let lines = changes.changes.iter().map(|change| change_line(change, style));
                output::write_stdout(lines.collect::<String>().as_bytes())?;
            }
            if changes.skipped_names > 0 {
                output::note(&format!(
                    "skipped changes of names that are not UTF-8: {}",
                    changes.skipped_names
                ));
            }
            Ok(())
        }
        Item::KeepAlive(_) => Ok(()),
    }
}

fn change_json(change: &EntryChange) -> Value {
    json!({
        "kind": kind_name(change.kind()),
        "path": change.path,
        "type": file_json::file_type(change.r#type),
    })
}

/// Formats `created src/main.rs`, with a slash after a directory.
fn change_line(change: &EntryChange, style: Style) -> String {
    let slash = if change.r#type() == FileType::Directory { "/" } else { "" };
    let path = style.escape_name(&change.path);
    format!("{} {path}{slash}\n", kind_name(change.kind()))
}

fn kind_name(kind: ChangeKind) -> &'static str {
    match kind {
        ChangeKind::Created => "created",
        ChangeKind::Changed => "changed",
        ChangeKind::Deleted => "deleted",
        ChangeKind::Rescan => "rescan",
        ChangeKind::Unspecified => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::cli::{Cli, CliCommand};

    #[test]
    fn flags_reach_the_request() {
        let line = "jig watch src --glob *.rs --glob *.md --exclude target --no-hidden --depth 2";
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let CliCommand::Watch(args) = Cli::parse_from(&words).unwrap().command else {
            panic!("not watch");
        };
        let expected = WatchFilesRequest {
            path: Some("src".into()),
            globs: vec!["*.rs".into(), "*.md".into()],
            exclude_globs: vec!["target".into()],
            hidden: Some(false),
            max_depth: Some(2),
            keep_alive_sec: None,
        };
        assert_eq!(request(args), expected);
    }

    #[test]
    fn change_has_its_kind_and_path() {
        let change = EntryChange {
            kind: ChangeKind::Created.into(),
            path: "a b".into(),
            r#type: FileType::Directory.into(),
        };
        assert_eq!(change_line(&change, Style::plain()), "created a b/\n");
        let line = change_json(&change).to_string();
        assert_eq!(line, r#"{"kind":"created","path":"a b","type":"FILE_TYPE_DIRECTORY"}"#);
    }
}
