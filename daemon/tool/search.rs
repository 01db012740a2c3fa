//! `search`: matching lines of the files below a directory.

use std::{sync::Arc, time::Duration};

use super::{
    GLOB_VALIDATION_COST_PER_BYTE, Tool, ToolContext, ToolOutput, WorkspaceContext,
    run_on_files_until, session_artifacts::SessionArtifacts,
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

/// Lines around a match when a request says nothing about it.
const DEFAULT_CONTEXT_LINES: u32 = 2;
/// Matches to answer with when a request says nothing about it.
const DEFAULT_MAX_MATCHES: u32 = 50;
/// Most bytes of lines in an answer, one match in any case: with what encodes them, they fit into a
/// message of 4 MiB, which clients accept by default.
const MAX_RESPONSE_LINE_BYTES: usize = 3 << 20;
/// How long a search keeps the turn of its call. Few go on at one time, so that the kernel can share out the
/// CPUs among these and what other callers call, who need not wait for the end of a long one.
const START_PERMIT_HOLD: Duration = Duration::from_millis(3);

/// The tool.
#[derive(Debug)]
pub(crate) struct SearchFiles;

impl Tool for SearchFiles {
    const NAME: &'static str = "search";
    const VALIDATION_COST_PER_BYTE: usize = GLOB_VALIDATION_COST_PER_BYTE;
    // It answers with what it has found when its time is up.
    const ENFORCES_OWN_TIMEOUT: bool = true;
    const START_PERMIT_HOLD: Duration = START_PERMIT_HOLD;
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
        selection(&request)?;
        Ok(Some(request))
    }

    async fn execute(
        request: Self::Request,
        context: ToolContext,
    ) -> Result<ToolOutput<Self::Response>, Error> {
        let request = Arc::new(request);
        let until = context.soft_deadline();
        let artifacts = SessionArtifacts::for_call(&context);
        let mut attempts = FdRetry::with_deadline(Some(until));
        loop {
            let place = context
                .acquire_permit(&context.workspace_context.file_limiters.searches, Some(until));
            let place = place.await?;
            let progress =
                Arc::new(SearchProgress::new(max_matches(&request), MAX_RESPONSE_LINE_BYTES));
            let (told, request) = (Arc::clone(&progress), Arc::clone(&request));
            let artifacts = artifacts.clone();
            let complete = run_on_files_until(&context, until, move |workspace, stop| {
                let _place = place;
                search(workspace, &artifacts, &request, &told, stop)
            });
            let complete = match complete.await?.transpose() {
                Err(error) if context.should_retry(&mut attempts, &error).await => continue,
                complete => complete?.unwrap_or(false),
            };
            let answer = response(progress.take(), complete);
            return Ok(match complete {
                true => ToolOutput::new(answer),
                false => ToolOutput::timed_out(answer),
            });
        }
    }
}

/// Searches, and answers whether it came to the end.
fn search(
    workspace: &Workspace,
    artifacts: &SessionArtifacts,
    request: &v1::SearchRequest,
    progress: &SearchProgress,
    stop: &CancelToken,
) -> Result<bool, Error> {
    let path = workspace.resolve(request.path.as_deref().unwrap_or("."))?;
    let pattern = SearchPattern::new(SearchQuery {
        text: &request.query,
        is_regex: request.is_regex.unwrap_or(false),
        case_sensitive: request.case_sensitive.unwrap_or(false),
        multiline: request.multiline.unwrap_or(false),
    })?;
    let wish = SearchOptions {
        pattern,
        context_lines: to_usize(request.context_lines.unwrap_or(DEFAULT_CONTEXT_LINES)),
        max_matches: max_matches(request),
        max_bytes: MAX_RESPONSE_LINE_BYTES,
    };
    // In some vocabularies only a glob can name a file.
    if let (".", [glob]) = (path.as_str(), request.globs.as_slice())
        && SessionArtifacts::is_artifact_path(glob)
        && let Err(error) = workspace.open_file(&workspace.resolve(glob)?)
        && let Ok(file) = artifacts.open_fallback(glob, error)
    {
        return Ok(search_file(file, &wish, progress, stop));
    }
    let selection = selection(request)?;
    match workspace.search(&path, selection, &wish, progress, stop) {
        Err(error) => {
            let file = artifacts.open_fallback(path.as_str(), error)?;
            Ok(search_file(file, &wish, progress, stop))
        }
        complete => complete,
    }
}

fn response(finds: SearchResults, complete: bool) -> v1::SearchResponse {
    v1::SearchResponse {
        truncated: finds.total > finds.matches.len() as u64,
        matches: finds.matches.into_iter().map(|(file, hit)| wire_match(&file, hit)).collect(),
        total_matches: saturating_u32(finds.total),
        files_searched: saturating_u32(finds.files_searched),
        timed_out: !complete,
        files_left_out: saturating_u32(finds.files_incomplete),
        ignore_files_cut: finds.truncated_ignore_files,
    }
}

/// Matches to answer with.
fn max_matches(request: &v1::SearchRequest) -> usize {
    to_usize(request.max_results.unwrap_or(DEFAULT_MAX_MATCHES).max(1))
}

/// Which files to search.
fn selection(request: &v1::SearchRequest) -> Result<WalkFilter, Error> {
    let without: Vec<String> = request
        .exclude_globs
        .iter()
        .filter(|glob| !glob.is_empty())
        .map(|glob| format!("!{glob}"))
        .collect();
    let wanted = request.globs.iter().chain(&without).map(String::as_str);
    let hidden = request.hidden.unwrap_or(false);
    Ok(WalkFilter {
        globs: compile_globs(wanted)?,
        respect_ignore: !request.no_ignore.unwrap_or(false),
        include_hidden: hidden,
        // As ripgrep has it: a hidden directory like any other.
        include_git: hidden,
        max_depth: request.max_depth.map(to_usize),
    })
}

fn wire_match(file: &str, hit: Match) -> v1::SearchMatch {
    v1::SearchMatch {
        file: file.to_owned(),
        line: saturating_u32(hit.line),
        column: saturating_u32(hit.column),
        content: hit.content,
        context_before: hit.before,
        context_after: hit.after,
    }
}

fn to_usize(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn saturating_u32(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
