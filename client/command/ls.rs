//! `jig ls`: the files below a directory of the workspace.

use std::process::ExitCode;

use clap::Args;
use jig::{
    api::v1::{
        DirectoryEntry, FileType, ListDirectoryRequest, ListDirectoryResponse, ListFilesRequest,
        ListFilesResponse,
    },
    client::Client,
};

use super::{report_and_exit, stat::mode_string};
use crate::{
    cli_error::CliError, connection, file_json, global::GlobalArgs, json, output, style::Style,
};

/// Files in each answer when all are asked for: the most that there can be.
const FILES_PER_PAGE: u32 = 10_000;

/// List the files below a directory, one per line, sorted by their bytes; with -l, all entries of
/// that directory alone.
#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// Directory to list, relative to the workspace.
    root: Option<String>,
    /// Files to list: `*.rs` at any depth, `src/**/*.rs` from the directory on, `!` before it
    /// leaves them out.
    #[arg(long, value_name = "G")]
    glob: Option<String>,
    /// Most files to list, 1 to 10,000; 1,000 by default.
    #[arg(long, value_name = "N")]
    max: Option<u32>,
    /// Leave out what `.gitignore` and `.ignore` files say.
    #[arg(long)]
    ignore: bool,
    /// Leave out files whose name, or whose directory's name, begins with a dot.
    #[arg(long)]
    no_hidden: bool,
    /// Levels of directories to go down.
    #[arg(long, value_name = "N")]
    depth: Option<u32>,
    /// List all files, however many there are.
    #[arg(long, conflicts_with = "max")]
    all: bool,
    /// List the entries of this one directory, directories and links too, with type, mode, size and
    /// time of change (UTC).
    #[arg(short, long, conflicts_with_all = ["glob", "ignore", "no_hidden", "depth"])]
    long: bool,
}

pub(crate) fn ls(global: &GlobalArgs, args: LsArgs) -> ExitCode {
    let lists_all = args.all;
    if args.long {
        return list_long(global, args);
    }
    let request = request(args);
    // Printed when it is complete and not while it comes: a terminal that is stopped must not hold
    // up the signal that cancels the call.
    let result = connection::call(global, async move |client: Client| {
        if lists_all {
            list_all(client, request).await
        } else {
            Ok(client.list_files(request).await?)
        }
    })
    .and_then(|response| print(&response, global.json));
    report_and_exit(result, global.json)
}

fn request(args: LsArgs) -> ListFilesRequest {
    ListFilesRequest {
        root: args.root,
        glob: args.glob,
        max_results: if args.all { Some(FILES_PER_PAGE) } else { args.max },
        respect_ignore: args.ignore.then_some(true),
        hidden: args.no_hidden.then_some(false),
        max_depth: args.depth,
        page_token: None,
    }
}

/// All pages as one.
async fn list_all(
    client: Client,
    request: ListFilesRequest,
) -> Result<ListFilesResponse, CliError> {
    let mut whole = ListFilesResponse::default();
    let mut pages = client.list_files_by_page(request);
    while let Some(page) = pages.next().await? {
        whole.files.extend(page.files);
        whole.skipped_names = whole.skipped_names.saturating_add(page.skipped_names);
        whole.ignore_files_cut = whole.ignore_files_cut.max(page.ignore_files_cut);
    }
    Ok(whole)
}

fn list_long(global: &GlobalArgs, args: LsArgs) -> ExitCode {
    let lists_all = args.all;
    let mut request = ListDirectoryRequest {
        path: args.root,
        page_size: if args.all { Some(FILES_PER_PAGE) } else { args.max },
        page_token: None,
    };
    let result = connection::call(global, async move |client: Client| {
        let mut whole = client.list_directory(request.clone()).await?;
        while lists_all && !whole.next_page_token.is_empty() {
            request.page_token = Some(whole.next_page_token);
            let page = client.list_directory(request.clone()).await?;
            whole.entries.extend(page.entries);
            whole.next_page_token = page.next_page_token;
        }
        Ok(whole)
    })
    .and_then(|response| print_long(&response, global.json));
    report_and_exit(result, global.json)
}

fn print_long(response: &ListDirectoryResponse, as_json: bool) -> Result<(), CliError> {
    if as_json {
        return output::write_json(&file_json::list_directory(response));
    }
    let sizes = response.entries.iter().map(|entry| entry.size_bytes);
    let width = sizes.max().unwrap_or(0).to_string().len();
    let style = Style::of_stdout();
    let entries = response.entries.iter();
    let lines = entries.map(|entry| entry_line(entry, width, style));
    output::write_stdout(lines.collect::<String>().as_bytes())?;
    if !response.next_page_token.is_empty() {
        output::note("there are more entries; list them with --all");
    }
    if response.skipped_names > 0 {
        output::note(&format!(
            "names that are not UTF-8 were left out: {}",
            response.skipped_names
        ));
    }
    Ok(())
}

/// `-rw-r--r-- 120 2026-11-21 09:04 name`, with a slash behind a directory.
fn entry_line(entry: &DirectoryEntry, width: usize, style: Style) -> String {
    let kind = entry.r#type();
    let time = entry.modify_time.map_or_else(String::new, |time| time.to_string());
    let time = time.get(..16).unwrap_or("-").replace('T', " ");
    let slash = if kind == FileType::Directory { "/" } else { "" };
    format!(
        "{} {:>width$} {time:>16} {}{slash}\n",
        mode_string(kind, entry.mode),
        entry.size_bytes,
        style.escape_name(&entry.name)
    )
}

fn print(response: &ListFilesResponse, as_json: bool) -> Result<(), CliError> {
    if as_json {
        return output::write_json(&json::list_files(response));
    }
    let style = Style::of_stdout();
    let mut text = String::new();
    for file in &response.files {
        text.push_str(&style.escape_name(file));
        text.push('\n');
    }
    output::write_stdout(text.as_bytes())?;
    if response.truncated {
        output::note("there are more files; list them with --all");
    }
    if response.skipped_names > 0 {
        output::note(&format!(
            "names that are not UTF-8 were left out: {}",
            response.skipped_names
        ));
    }
    output::note_truncated_ignore_files(response.ignore_files_cut);
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::cli::{Cli, CliCommand};

    fn parse(line: &str) -> ListFilesRequest {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let CliCommand::Ls(args) = Cli::parse_from(&words).unwrap().command else {
            panic!("not ls");
        };
        request(args)
    }

    #[test]
    fn entries_have_a_line_each() {
        let entry = DirectoryEntry {
            name: "src".into(),
            r#type: FileType::Directory.into(),
            size_bytes: 7,
            mode: 0o755,
            modify_time: None,
        };
        let line = entry_line(&entry, 3, Style::plain());
        assert_eq!(line, "drwxr-xr-x   7                - src/\n");
    }

    #[test]
    fn flags_reach_the_request() {
        assert_eq!(parse("jig ls"), ListFilesRequest::default());
        assert_eq!(
            parse("jig ls src --glob *.rs --max 5 --ignore --no-hidden --depth 2"),
            ListFilesRequest {
                root: Some("src".into()),
                glob: Some("*.rs".into()),
                max_results: Some(5),
                respect_ignore: Some(true),
                hidden: Some(false),
                max_depth: Some(2),
                page_token: None,
            }
        );
        assert_eq!(parse("jig ls --all").max_results, Some(FILES_PER_PAGE));
    }
}
