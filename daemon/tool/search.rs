//! `search`: returns matching lines of the files below a directory.

use std::{sync::Arc, time::Duration};

use super::{
    GLOB_VALIDATION_COST_PER_BYTE, Tool, ToolContext, ToolOutput, WorkspaceContext,
    file_work::run_on_files_until, session_artifacts::SessionArtifacts,
};
use crate::{
    api::v1,
    daemon::{
        error::{Error, Violation},
        fd_exhaustion::FdRetry,
        workspace::{
            CancelToken, Match, SearchOptions, SearchPattern, SearchProgress, SearchQuery,
            SearchResults, WalkFilter, Workspace, compile_globs, search_file,
        },
    },
};

/// Context lines around a match, by default.
const DEFAULT_CONTEXT_LINES: u32 = 2;
/// Matches in a response, by default.
const DEFAULT_MAX_MATCHES: u32 = 50;
/// Most bytes of lines in a response; the first match is exempt. With their encoding they fit into
/// a message of 4 MiB, which clients accept by default.
const MAX_RESPONSE_LINE_BYTES: usize = 3 << 20;
/// How long a search holds the start permit of its call. Few searches run at a time, so the kernel
/// can share the CPUs fairly. Other callers need not wait for the end of a long search.
const SEARCH_START_PERMIT_HOLD: Duration = Duration::from_millis(3);

#[derive(Debug)]
pub(crate) struct SearchFiles;

impl Tool for SearchFiles {
    const NAME: &'static str = "search";
    const VALIDATION_COST_PER_BYTE: usize = GLOB_VALIDATION_COST_PER_BYTE;
    // At its time limit it responds with the matches found so far.
    const ENFORCES_OWN_TIMEOUT: bool = true;
    const START_PERMIT_HOLD: Duration = SEARCH_START_PERMIT_HOLD;
    type Request = v1::SearchRequest;
    type Response = v1::SearchResponse;
    type Params = v1::SearchRequest;

    fn validate(
        request: Self::Request,
        workspace_context: &WorkspaceContext,
        violations: &mut Vec<Violation>,
    ) -> Result<Option<Self::Params>, Error> {
        if !violations.is_empty() {
            return Ok(None);
        }
        workspace_context.workspace.resolve(request.path.as_deref().unwrap_or("."))?;
        walk_filter(&request)?;
        Ok(Some(request))
    }

    async fn execute(
        request: Self::Request,
        context: ToolContext,
    ) -> Result<ToolOutput<Self::Response>, Error> {
        let request = Arc::new(request);
        let soft_deadline = context.soft_deadline();
        let artifacts = SessionArtifacts::for_call(&context);
        let mut attempts = FdRetry::with_deadline(Some(soft_deadline));

        loop {
            let searches = &context.workspace_context.file_limiters.searches;
            let permit = context.acquire_permit("searches", searches, Some(soft_deadline)).await?;

            let progress =
                Arc::new(SearchProgress::new(max_matches(&request), MAX_RESPONSE_LINE_BYTES));
            let (shared, request) = (Arc::clone(&progress), Arc::clone(&request));
            let artifacts = artifacts.clone();
            let run = run_on_files_until(&context, soft_deadline, move |workspace, cancel| {
                let _permit = permit;
                search(workspace, &artifacts, &request, &shared, cancel)
            });
            let complete = match run.await?.transpose() {
                Err(error) if context.should_retry(&mut attempts, &error).await => continue,
                complete => complete?.unwrap_or(false),
            };

            let response = response(progress.take(), complete);
            return Ok(if complete {
                ToolOutput::new(response)
            } else {
                ToolOutput::timed_out(response)
            });
        }
    }
}

/// Searches, and returns whether the search was complete.
fn search(
    workspace: &Workspace,
    artifacts: &SessionArtifacts,
    request: &v1::SearchRequest,
    progress: &SearchProgress,
    cancel: &CancelToken,
) -> Result<bool, Error> {
    let path = workspace.resolve(request.path.as_deref().unwrap_or("."))?;
    let pattern = SearchPattern::new(SearchQuery {
        text: &request.query,
        is_regex: request.is_regex.unwrap_or(false),
        case_sensitive: request.case_sensitive.unwrap_or(false),
        multiline: request.multiline.unwrap_or(false),
    })?;

    let options = SearchOptions {
        pattern,
        context_lines: to_usize(request.context_lines.unwrap_or(DEFAULT_CONTEXT_LINES)),
        max_matches: max_matches(request),
        max_bytes: MAX_RESPONSE_LINE_BYTES,
    };

    // Some dialects can name a file only by a glob.
    if let (".", [glob]) = (path.as_str(), request.globs.as_slice())
        && SessionArtifacts::is_artifact_path(glob)
        && let Err(error) = workspace.open_file(&workspace.resolve(glob)?)
        && let Ok(file) = artifacts.open_fallback(glob, error)
    {
        return Ok(search_file(file, &options, progress, cancel));
    }

    let filter = walk_filter(request)?;
    match workspace.search(&path, filter, &options, progress, cancel) {
        Err(error) => {
            let file = artifacts.open_fallback(path.as_str(), error)?;
            Ok(search_file(file, &options, progress, cancel))
        }
        complete => complete,
    }
}

fn response(results: SearchResults, complete: bool) -> v1::SearchResponse {
    v1::SearchResponse {
        truncated: results.total > results.matches.len() as u64,
        matches: results
            .matches
            .into_iter()
            .map(|(file, found)| wire_match(&file, found))
            .collect(),
        total_matches: saturating_u32(results.total),
        files_searched: saturating_u32(results.files_searched),
        timed_out: !complete,
        files_incomplete: saturating_u32(results.files_incomplete),
        truncated_ignore_files: results.truncated_ignore_files,
    }
}

/// Most matches in the response.
fn max_matches(request: &v1::SearchRequest) -> usize {
    to_usize(request.max_results.unwrap_or(DEFAULT_MAX_MATCHES).max(1))
}

/// The filter that selects the files to search.
fn walk_filter(request: &v1::SearchRequest) -> Result<WalkFilter, Error> {
    let excluded: Vec<String> = request
        .exclude_globs
        .iter()
        .filter(|glob| !glob.is_empty())
        .map(|glob| format!("!{glob}"))
        .collect();
    let globs = request.globs.iter().chain(&excluded).map(String::as_str);
    let hidden = request.hidden.unwrap_or(false);

    Ok(WalkFilter {
        globs: compile_globs(globs)?,
        respect_ignore: !request.no_ignore.unwrap_or(false),
        include_hidden: hidden,
        // As in ripgrep: a hidden directory like any other.
        include_git: hidden,
        max_depth: request.max_depth.map(to_usize),
    })
}

fn wire_match(file: &str, found: Match) -> v1::SearchMatch {
    v1::SearchMatch {
        file: file.to_owned(),
        line: saturating_u32(found.line),
        column: saturating_u32(found.column),
        content: found.content,
        context_before: found.before,
        context_after: found.after,
    }
}

fn to_usize(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn saturating_u32(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
