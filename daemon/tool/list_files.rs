//! `list_files`: the files below a directory, page by page.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{
    COST_OF_GLOBS, Done, Scene, Tool, Work, in_time,
    page_token::{Filters, read_token, write_token},
};
use crate::{
    api::v1,
    daemon::{
        descriptors::Attempts,
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
    const COST: usize = COST_OF_GLOBS;
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
        let base = scene.workspace.resolve(request.root.as_deref().unwrap_or("."));
        let token = request.page_token.as_deref().filter(|token| !token.is_empty());
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
        let request = Arc::new(request);
        let until = work.until();
        let mut attempts = Attempts::until(Some(until));
        loop {
            let page = Arc::new(Mutex::new(Page::default()));
            let (told, request) = (Arc::clone(&page), Arc::clone(&request));
            let list = in_time(&work, until, move |workspace, stop| {
                list(workspace, &request, &told, stop)
            });
            let complete = match list.await?.transpose() {
                Err(error) if work.again(&mut attempts, &error).await => continue,
                complete => complete?.unwrap_or(false),
            };
            let page = std::mem::take(&mut *locked(&page));
            return page.finish(complete);
        }
    }
}

/// A page, as far as it has got.
#[derive(Debug, Default)]
struct Page {
    response: v1::ListFilesResponse,
    filters: Option<Filters>,
}

impl Page {
    /// The answer. Unless it is `complete` its time was up: then the next page goes on from here.
    fn finish(self, complete: bool) -> Result<Done<v1::ListFilesResponse>, Error> {
        let Self { mut response, filters } = self;
        response.truncated |= !complete;
        match (response.files.last(), filters) {
            (Some(last), Some(filters)) if response.truncated => {
                response.next_page_token = write_token(&filters, last);
            }
            (None, _) if !complete => return Err(Stop::late()),
            _ => {}
        }
        Ok(match complete {
            true => Done::plain(response),
            false => Done::cut_short(response),
        })
    }
}

fn locked(page: &Mutex<Page>) -> MutexGuard<'_, Page> {
    page.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Lists files, as far as a page goes. Answers whether it got so far in time.
fn list(
    workspace: &Workspace,
    request: &v1::ListFilesRequest,
    page: &Mutex<Page>,
    stop: &Stop,
) -> Result<bool, Error> {
    let base = workspace.resolve(request.root.as_deref().unwrap_or("."))?;
    let filters = filters(workspace, &base, request);
    let after = match request.page_token.as_deref() {
        None | Some("") => None,
        Some(token) => Some(read_token(token, &filters)?),
    };
    locked(page).filters = Some(filters);
    let selection = Selection {
        globs: globs(request.glob.as_deref())?,
        respect_ignore: request.respect_ignore.unwrap_or(false),
        hidden: request.hidden.unwrap_or(true),
        git: false,
        max_depth: request.max_depth.map(|levels| usize::try_from(levels).unwrap_or(usize::MAX)),
    };
    let most = request.max_results.unwrap_or(DEFAULT_RESULTS).max(1);
    let most = usize::try_from(most).unwrap_or(usize::MAX);

    let mut walk = workspace.walk(&base, selection, after.as_deref(), stop)?;
    let mut bytes = 0;
    let complete = loop {
        let path = match walk.next() {
            Ok(Some(path)) => path,
            Ok(None) => {
                locked(page).response.skipped_names = walk.skipped();
                break true;
            }
            Err(_) if stop.is_stopped() => break false,
            Err(error) => return Err(error),
        };
        bytes += path.len() + PER_PATH;
        let response = &mut locked(page).response;
        // Whatever was skipped since the last file is counted for the next page: it starts right
        // behind that file.
        if response.files.len() == most || !response.files.is_empty() && bytes > PAGE_BYTES {
            response.truncated = true;
            break true;
        }
        response.files.push(path.to_owned());
        response.skipped_names = walk.skipped();
    };
    locked(page).response.ignore_files_cut = walk.ignore_files_cut();
    Ok(complete)
}

/// A hash of everything that decides which files there are to list.
fn filters(workspace: &Workspace, base: &RelativePath, request: &v1::ListFilesRequest) -> Filters {
    Filters::new(
        &[workspace.name(), base.as_str(), request.glob.as_deref().unwrap_or("")],
        &[
            u32::from(request.respect_ignore.unwrap_or(false)),
            u32::from(request.hidden.unwrap_or(true)),
            request.max_depth.unwrap_or(0),
        ],
    )
}

#[cfg(test)]
mod tests;
