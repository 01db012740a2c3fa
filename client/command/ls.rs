//! `jig ls`: lists the files below a directory of the workspace.

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

/// Files per page with --all. The daemon returns at most this many.
const FILES_PER_PAGE: u32 = 10_000;

/// List the files below a directory, one per line, in byte order.
///
/// With -l, list all entries of that directory only.
#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// Directory to list, relative to the workspace. Default: the workspace.
    root: Option<String>,
    /// Glob of files to list: `*.rs` matches at any depth, `src/**/*.rs` from the directory on, and
    /// a leading `!` excludes files.
    #[arg(long, value_name = "G")]
    glob: Option<String>,
    /// Maximum number of files to list, 1 to 10,000. Default: 1,000.
    #[arg(long, value_name = "N")]
    max: Option<u32>,
    /// Skip files that `.gitignore` and `.ignore` files exclude.
    #[arg(long)]
    ignore: bool,
    /// Skip hidden files and the files in hidden directories.
    #[arg(long)]
    no_hidden: bool,
    /// Maximum depth of directories. Default: unlimited.
    #[arg(long, value_name = "N")]
    depth: Option<u32>,
    /// List all files, without a maximum.
    #[arg(long, conflicts_with = "max")]
    all: bool,
    /// List the entries of this one directory, including directories and links, with type, mode,
    /// size and modification time (UTC).
    #[arg(short, long, conflicts_with_all = ["glob", "ignore", "no_hidden", "depth"])]
    long: bool,
}

pub(crate) fn ls(global: &GlobalArgs, args: LsArgs) -> ExitCode {
    let lists_all = args.all;
    if args.long {
        return list_long(global, args);
    }

    let request = request(args);
    // Printed after the last page. Otherwise a stopped terminal would block the handling of
    // signals.
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

/// Fetches all pages and merges them.
async fn list_all(
    client: Client,
    request: ListFilesRequest,
) -> Result<ListFilesResponse, CliError> {
    let mut merged = ListFilesResponse::default();
    let mut pages = client.list_files_by_page(request);
    while let Some(page) = pages.next().await? {
        merged.files.extend(page.files);
        merged.skipped_names = merged.skipped_names.saturating_add(page.skipped_names);
        merged.truncated_ignore_files =
            merged.truncated_ignore_files.max(page.truncated_ignore_files);
    }
    Ok(merged)
}

fn list_long(global: &GlobalArgs, args: LsArgs) -> ExitCode {
    let lists_all = args.all;
    let mut request = ListDirectoryRequest {
        path: args.root,
        page_size: if args.all { Some(FILES_PER_PAGE) } else { args.max },
        page_token: None,
    };

    let result = connection::call(global, async move |client: Client| {
        let mut merged = client.list_directory(request.clone()).await?;
        while lists_all && !merged.next_page_token.is_empty() {
            request.page_token = Some(merged.next_page_token);
            let page = client.list_directory(request.clone()).await?;
            merged.entries.extend(page.entries);
            merged.next_page_token = page.next_page_token;
        }
        Ok(merged)
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
        output::note(&format!("skipped names that are not UTF-8: {}", response.skipped_names));
    }
    Ok(())
}

/// Formats `-rw-r--r-- 120 2026-11-21 09:04 name`, with a slash after a directory.
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
        output::note(&format!("skipped names that are not UTF-8: {}", response.skipped_names));
    }
    output::note_truncated_ignore_files(response.truncated_ignore_files);
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
    fn long_listing_has_a_line_per_entry() {
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
