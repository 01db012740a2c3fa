//! `jig patch`: applies a unified diff to the workspace.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;
use jig::{
    api::v1::{ApplyPatchRequest, ApplyPatchResponse, ChangedFile, FileChange},
    client::Client,
};

use super::report_and_exit;
use crate::{
    cli_error::CliError,
    connection, file_json,
    global::GlobalArgs,
    input::{read_file, utf8_string},
    output,
    style::Style,
};

/// Apply a unified diff to the workspace. Atomic: changes all of its files or none.
#[derive(Debug, Args)]
pub(crate) struct PatchArgs {
    /// Local file with the diff. Default, and `-`: standard input.
    file: Option<PathBuf>,
    /// Print the changes without making them.
    #[arg(long)]
    dry_run: bool,
    /// Number of leading path components to strip from file names in the diff. Default: 1.
    #[arg(short = 'p', long, value_name = "N")]
    strip: Option<u32>,
    /// Maximum number of context lines that may differ at each end of a hunk. Default: 2.
    #[arg(long, value_name = "N")]
    fuzz: Option<u32>,
}

pub(crate) fn patch(global: &GlobalArgs, args: PatchArgs) -> ExitCode {
    let result = request(args).and_then(|request| {
        let response = connection::call(global, async move |client: Client| {
            Ok(client.apply_patch(request).await?)
        })?;
        print(&response, global.json)
    });
    report_and_exit(result, global.json)
}

fn request(args: PatchArgs) -> Result<ApplyPatchRequest, CliError> {
    Ok(ApplyPatchRequest {
        unified_diff: utf8_string(read_file(args.file.unwrap_or_else(|| "-".into()))?)?,
        strip: args.strip,
        dry_run: args.dry_run.then_some(true),
        max_fuzz: args.fuzz,
    })
}

fn print(response: &ApplyPatchResponse, as_json: bool) -> Result<(), CliError> {
    if as_json {
        return output::write_json(&file_json::apply_patch(response));
    }
    let style = Style::of_stdout();
    let files = response.changed_files.iter();
    let text: String = files.map(|file| changed_file_line(file, style)).collect();
    output::write_stdout(text.as_bytes())
}

/// Formats a file like `git status`, with the offset and fuzz of its hunks.
fn changed_file_line(file: &ChangedFile, style: Style) -> String {
    let path = style.escape_name(&file.path);
    let mut line = match file.change() {
        FileChange::Added => format!("A {path}"),
        FileChange::Deleted => format!("D {path}"),
        FileChange::Renamed => format!("R {} -> {path}", style.escape_name(&file.previous_path)),
        FileChange::Modified | FileChange::Unspecified => format!("M {path}"),
    };

    if file.offset > 0 {
        line.push_str(&format!(" (offset {} lines)", file.offset));
    }
    if file.fuzz > 0 {
        line.push_str(&format!(" (fuzz {})", file.fuzz));
    }

    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_has_a_line() {
        let file = |change: FileChange| ChangedFile {
            path: "b".into(),
            change: change.into(),
            previous_path: "a".into(),
            offset: 3,
            ..ChangedFile::default()
        };
        let line = |change| changed_file_line(&file(change), Style::plain());
        assert_eq!(line(FileChange::Added), "A b (offset 3 lines)\n");
        assert_eq!(line(FileChange::Renamed), "R a -> b (offset 3 lines)\n");
    }
}
