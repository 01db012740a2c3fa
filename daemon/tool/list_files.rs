//! `list_files`: lists the files below a directory, page by page.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{
    GLOB_VALIDATION_COST_PER_BYTE, Tool, ToolContext, ToolOutput, WorkspaceContext,
    file_work::run_on_files_until,
    page_token::{PageFilterHash, decode_page_token, encode_page_token},
};
use crate::{
    api::v1,
    daemon::{
        error::{Error, Violation},
        fd_exhaustion::FdRetry,
        workspace::{CancelToken, RelativePath, WalkFilter, Workspace, compile_globs},
    },
};

/// Files on a page, by default.
const DEFAULT_PAGE_FILES: u32 = 1000;
/// Most bytes of paths on a page; the first path is exempt. With their encoding they fit into a
/// message of 4 MiB, which clients accept by default.
const MAX_PAGE_PATH_BYTES: usize = 3 << 20;
/// Most bytes that the encoding of a message adds to a path.
const PATH_OVERHEAD_BYTES: usize = 4;

#[derive(Debug)]
pub(crate) struct ListFiles;

impl Tool for ListFiles {
    const NAME: &'static str = "list_files";
    const VALIDATION_COST_PER_BYTE: usize = GLOB_VALIDATION_COST_PER_BYTE;
    // At its time limit it responds with the files listed so far.
    const ENFORCES_OWN_TIMEOUT: bool = true;
    type Request = v1::ListFilesRequest;
    type Response = v1::ListFilesResponse;
    type Params = v1::ListFilesRequest;

    fn validate(
        request: Self::Request,
        workspace_context: &WorkspaceContext,
        violations: &mut Vec<Violation>,
    ) -> Result<Option<Self::Params>, Error> {
        let workspace = &workspace_context.workspace;
        let base = workspace.resolve(request.root.as_deref().unwrap_or("."));
        let token = request.page_token.as_deref().filter(|token| !token.is_empty());
        if let (Ok(base), Some(token)) = (&base, token)
            && let Err(error) = decode_page_token(token, &filter_hash(workspace, base, &request))
        {
            violations.extend(error.violations);
        }
        if !violations.is_empty() {
            return Ok(None);
        }

        base?;
        compile_globs(request.glob.as_deref())?;
        Ok(Some(request))
    }

    async fn execute(
        request: Self::Request,
        context: ToolContext,
    ) -> Result<ToolOutput<Self::Response>, Error> {
        let request = Arc::new(request);
        let soft_deadline = context.soft_deadline();
        let mut attempts = FdRetry::with_deadline(Some(soft_deadline));
        loop {
            let page = Arc::new(Mutex::new(FilePage::default()));
            let (shared, request) = (Arc::clone(&page), Arc::clone(&request));
            let run = run_on_files_until(&context, soft_deadline, move |workspace, cancel| {
                fill_page(workspace, &request, &shared, cancel)
            });
            let complete = match run.await?.transpose() {
                Err(error) if context.should_retry(&mut attempts, &error).await => continue,
                complete => complete?.unwrap_or(false),
            };

            let page = std::mem::take(&mut *lock_page(&page));
            return page.into_output(complete);
        }
    }
}

/// The page as filled so far.
#[derive(Debug, Default)]
struct FilePage {
    response: v1::ListFilesResponse,
    filter_hash: Option<PageFilterHash>,
}

impl FilePage {
    /// The response. If the page is not `complete`, the time limit cut it, and the next page starts
    /// after its last file.
    fn into_output(self, complete: bool) -> Result<ToolOutput<v1::ListFilesResponse>, Error> {
        let Self { mut response, filter_hash: filters } = self;
        response.truncated |= !complete;

        match (response.files.last(), filters) {
            (Some(last), Some(filters)) if response.truncated => {
                response.next_page_token = encode_page_token(&filters, last);
            }
            (None, _) if !complete => return Err(CancelToken::timeout_error()),
            _ => {}
        }

        Ok(if complete { ToolOutput::new(response) } else { ToolOutput::timed_out(response) })
    }
}

fn lock_page(page: &Mutex<FilePage>) -> MutexGuard<'_, FilePage> {
    page.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Fills a page with files. Returns false if the cancellation cut it.
fn fill_page(
    workspace: &Workspace,
    request: &v1::ListFilesRequest,
    page: &Mutex<FilePage>,
    cancel: &CancelToken,
) -> Result<bool, Error> {
    let base = workspace.resolve(request.root.as_deref().unwrap_or("."))?;
    let filters = filter_hash(workspace, &base, request);
    let after = match request.page_token.as_deref() {
        None | Some("") => None,
        Some(token) => Some(decode_page_token(token, &filters)?),
    };
    lock_page(page).filter_hash = Some(filters);

    let walk_filter = WalkFilter {
        globs: compile_globs(request.glob.as_deref())?,
        respect_ignore: request.respect_ignore.unwrap_or(false),
        include_hidden: request.hidden.unwrap_or(true),
        include_git: false,
        max_depth: request.max_depth.map(|levels| usize::try_from(levels).unwrap_or(usize::MAX)),
    };
    let max_files = request.max_results.unwrap_or(DEFAULT_PAGE_FILES).max(1);
    let max_files = usize::try_from(max_files).unwrap_or(usize::MAX);

    let mut walk = workspace.walk(&base, walk_filter, after.as_deref(), cancel)?;
    let mut bytes = 0;
    let complete = loop {
        let path = match walk.next() {
            Ok(Some(path)) => path,
            Ok(None) => {
                lock_page(page).response.skipped_names = walk.skipped_entries();
                break true;
            }
            Err(_) if cancel.is_cancelled() => break false,
            Err(error) => return Err(error),
        };
        bytes += path.len() + PATH_OVERHEAD_BYTES;

        let response = &mut lock_page(page).response;
        // Entries skipped since the last file count for the next page, which starts right after
        // that file.
        let is_full = response.files.len() == max_files
            || !response.files.is_empty() && bytes > MAX_PAGE_PATH_BYTES;
        if is_full {
            response.truncated = true;
            break true;
        }
        response.files.push(path.to_owned());
        response.skipped_names = walk.skipped_entries();
    };
    lock_page(page).response.truncated_ignore_files = walk.truncated_ignore_files();
    Ok(complete)
}

/// A hash of the fields that select the files to list.
fn filter_hash(
    workspace: &Workspace,
    base: &RelativePath,
    request: &v1::ListFilesRequest,
) -> PageFilterHash {
    PageFilterHash::new(
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
