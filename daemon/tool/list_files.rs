//! `list_files`: the files below a directory, page by page.

use super::{
    Done, Scene, Tool, Work, in_time,
    page_token::{Filters, read_token, write_token},
};
use crate::{
    api::v1,
    daemon::{
        error::{Error, Violation},
        workspace::{RelativePath, Selection, Stop, Workspace, globs},
    },
};

/// Files on a page that says nothing about it.
const DEFAULT_RESULTS: u32 = 1000;
/// Most bytes of paths on a page, one path in any case: with what encodes them, they fit into a
/// message of 4 MiB, which clients accept by default.
const PAGE_BYTES: usize = 3 << 20;
/// Bytes that a path takes in a message beyond its own, at most.
const PER_PATH: usize = 4;

/// The tool.
#[derive(Debug)]
pub(crate) struct ListFiles;

impl Tool for ListFiles {
    const NAME: &'static str = "list_files";
    // It answers with what it has listed when its time is up.
    const LIMITS_ITSELF: bool = true;
    type Request = v1::ListFilesRequest;
    type Response = v1::ListFilesResponse;
    type Params = v1::ListFilesRequest;

    fn check(
        request: Self::Request,
        scene: &Scene,
        violations: &mut Vec<Violation>,
    ) -> Result<Option<Self::Params>, Error> {
        let base = scene
            .workspace
            .resolve(request.root.as_deref().unwrap_or("."));
        let token = request
            .page_token
            .as_deref()
            .filter(|token| !token.is_empty());
        if let (Ok(base), Some(token)) = (&base, token)
            && let Err(error) = read_token(token, &filters(&scene.workspace, base, &request))
        {
            violations.extend(error.violations);
        }
        if !violations.is_empty() {
            return Ok(None);
        }
        base?;
        globs(request.glob.as_deref())?;
        Ok(Some(request))
    }

    async fn execute(request: Self::Request, work: Work) -> Result<Done<Self::Response>, Error> {
        let list = in_time(work, move |workspace, stop| {
            list_files(workspace, &request, stop)
        });
        list.await?.unwrap_or_else(|| Err(Stop::late()))
    }
}

/// Lists files.
fn list_files(
    workspace: &Workspace,
    request: &v1::ListFilesRequest,
    stop: &Stop,
) -> Result<Done<v1::ListFilesResponse>, Error> {
    let base = workspace.resolve(request.root.as_deref().unwrap_or("."))?;
    let filters = filters(workspace, &base, request);
    let after = match request.page_token.as_deref() {
        None | Some("") => None,
        Some(token) => Some(read_token(token, &filters)?),
    };
    let selection = Selection {
        globs: globs(request.glob.as_deref())?,
        respect_ignore: request.respect_ignore.unwrap_or(false),
        hidden: request.hidden.unwrap_or(true),
        git: false,
        max_depth: request
            .max_depth
            .map(|levels| usize::try_from(levels).unwrap_or(usize::MAX)),
    };
    let most = request.max_results.unwrap_or(DEFAULT_RESULTS).max(1);
    let most = usize::try_from(most).unwrap_or(usize::MAX);

    let mut walk = workspace.walk(&base, selection, after.as_deref(), stop)?;
    let mut response = v1::ListFilesResponse::default();
    let (mut bytes, mut time_is_up) = (0, false);
    loop {
        let path = match walk.next() {
            Ok(Some(path)) => path,
            Ok(None) => break,
            // The next page goes on from here.
            Err(_) if stop.is_stopped() && !response.files.is_empty() => {
                response.truncated = true;
                time_is_up = true;
                break;
            }
            Err(error) => return Err(error),
        };
        bytes += path.len() + PER_PATH;
        // Whatever was skipped since the last file is counted for the next page: it starts right
        // behind that file.
        if response.files.len() == most || !response.files.is_empty() && bytes > PAGE_BYTES {
            response.truncated = true;
            break;
        }
        response.files.push(path.to_owned());
        response.skipped_names = walk.skipped();
    }
    response.ignore_files_cut = walk.ignore_files_cut();
    match response.files.last() {
        Some(last) if response.truncated => response.next_page_token = write_token(&filters, last),
        _ => response.skipped_names = walk.skipped(),
    }
    Ok(match time_is_up {
        true => Done::cut_short(response),
        false => Done::plain(response),
    })
}

/// A hash of everything that decides which files there are to list.
fn filters(workspace: &Workspace, base: &RelativePath, request: &v1::ListFilesRequest) -> Filters {
    Filters::new(
        &[
            workspace.name(),
            base.as_str(),
            request.glob.as_deref().unwrap_or(""),
        ],
        &[
            u32::from(request.respect_ignore.unwrap_or(false)),
            u32::from(request.hidden.unwrap_or(true)),
            request.max_depth.unwrap_or(0),
        ],
    )
}

#[cfg(test)]
mod tests;
