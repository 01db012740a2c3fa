//! `jig ls`: the files below a directory of the workspace.

use std::process::ExitCode;

use clap::Args;
use jig::{
    api::v1::{ListFilesRequest, ListFilesResponse},
    client::Client,
};

use super::finish;
use crate::{connection, failure::Failure, global::Global, json, output};

/// Files in each answer when all are asked for: the most that there can be.
const PAGE: u32 = 10_000;

/// List the files below a directory, one per line, sorted by their bytes.
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
}

pub(crate) fn ls(global: &Global, args: LsArgs) -> ExitCode {
    let lists_all = args.all;
    let request = request(args);
    // Printed when it is complete and not while it comes: a terminal that is stopped must not hold
    // up the signal that cancels the call.
    let result = connection::call(global, async move |client: Client| {
        if lists_all {
            all(client, request).await
        } else {
            Ok(client.list_files(request).await?)
        }
    })
    .and_then(|response| print(&response, global.json));
    finish(result, global.json)
}

fn request(args: LsArgs) -> ListFilesRequest {
    ListFilesRequest {
        root: args.root,
        glob: args.glob,
        max_results: if args.all { Some(PAGE) } else { args.max },
        respect_ignore: args.ignore.then_some(true),
        hidden: args.no_hidden.then_some(false),
        max_depth: args.depth,
        page_token: None,
    }
}

/// All pages as one.
async fn all(client: Client, request: ListFilesRequest) -> Result<ListFilesResponse, Failure> {
    let mut whole = ListFilesResponse::default();
    let mut pages = client.list_files_by_page(request);
    while let Some(page) = pages.next().await? {
        whole.files.extend(page.files);
        whole.skipped_names = whole.skipped_names.saturating_add(page.skipped_names);
    }
    Ok(whole)
}

fn print(response: &ListFilesResponse, as_json: bool) -> Result<(), Failure> {
    if as_json {
        return output::json(&json::list_files(response));
    }
    let mut text = String::new();
    for file in &response.files {
        text.push_str(file);
        text.push('\n');
    }
    output::stdout(text.as_bytes())?;
    if response.truncated {
        output::note("there are more files; list them with --all");
    }
    if response.skipped_names > 0 {
        output::note(&format!(
            "names that are not UTF-8 were left out: {}",
            response.skipped_names
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::arguments::{Arguments, Command};

    fn parse(line: &str) -> ListFilesRequest {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let Command::Ls(args) = Arguments::from_words(&words).unwrap().command else {
            panic!("not ls");
        };
        request(args)
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
        assert_eq!(parse("jig ls --all").max_results, Some(PAGE));
    }
}
