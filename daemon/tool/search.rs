//! `search`: matching lines of the files below a directory.

use std::{sync::Arc, time::Duration};

use super::{COST_OF_GLOBS, Done, Scene, Tool, Work, artifacts::Artifacts, in_time};
use crate::{
    api::v1,
    daemon::{
        descriptors::Attempts,
        error::{Error, Violation},
        workspace::{
            Finds, Hit, Pattern, Progress, Query, SearchWish, Selection, Stop, Workspace, globs,
            search_one,
        },
    },
};

/// Lines around a match when a request says nothing about it.
const DEFAULT_CONTEXT: u32 = 2;
/// Matches to answer with when a request says nothing about it.
const DEFAULT_RESULTS: u32 = 50;
/// Most bytes of lines in an answer, one match in any case: with what encodes them, they fit into a
/// message of 4 MiB, which clients accept by default.
const ANSWER_BYTES: usize = 3 << 20;
/// How long a search keeps the turn of its call. Few go on at one time, so that the kernel can share out the
/// CPUs among these and what other callers call, who need not wait for the end of a long one.
const TURN: Duration = Duration::from_millis(3);

/// The tool.
#[derive(Debug)]
pub(crate) struct Search;

impl Tool for Search {
    const NAME: &'static str = "search";
    const COST: usize = COST_OF_GLOBS;
    // It answers with what it has found when its time is up.
    const LIMITS_ITSELF: bool = true;
    const TURN: Duration = TURN;
    type Request = v1::SearchRequest;
    type Response = v1::SearchResponse;
    type Params = v1::SearchRequest;

    fn check(
        request: Self::Request,
        scene: &Scene,
        violations: &mut Vec<Violation>,
    ) -> Result<Option<Self::Params>, Error> {
        if !violations.is_empty() {
            return Ok(None);
        }
        scene.workspace.resolve(request.path.as_deref().unwrap_or("."))?;
        selection(&request)?;
        Ok(Some(request))
    }

    async fn execute(request: Self::Request, work: Work) -> Result<Done<Self::Response>, Error> {
        let request = Arc::new(request);
        let until = work.until();
        let artifacts = Artifacts::of(&work);
        let mut attempts = Attempts::until(Some(until));
        loop {
            let place = work.wait_for(&work.scene.files.searches, Some(until));
            let place = place.await?;
            let progress = Arc::new(Progress::new(most(&request), ANSWER_BYTES));
            let (told, request) = (Arc::clone(&progress), Arc::clone(&request));
            let artifacts = artifacts.clone();
            let complete = in_time(&work, until, move |workspace, stop| {
                let _place = place;
                search(workspace, &artifacts, &request, &told, stop)
            });
            let complete = match complete.await?.transpose() {
                Err(error) if work.again(&mut attempts, &error).await => continue,
                complete => complete?.unwrap_or(false),
            };
            let answer = response(progress.take(), complete);
            return Ok(match complete {
                true => Done::plain(answer),
                false => Done::cut_short(answer),
            });
        }
    }
}

/// Searches, and answers whether it came to the end.
fn search(
    workspace: &Workspace,
    artifacts: &Artifacts,
    request: &v1::SearchRequest,
    progress: &Progress,
    stop: &Stop,
) -> Result<bool, Error> {
    let path = workspace.resolve(request.path.as_deref().unwrap_or("."))?;
    let pattern = Pattern::new(Query {
        text: &request.query,
        is_regex: request.is_regex.unwrap_or(false),
        case_sensitive: request.case_sensitive.unwrap_or(false),
        multiline: request.multiline.unwrap_or(false),
    })?;
    let wish = SearchWish {
        pattern,
        context: size(request.context_lines.unwrap_or(DEFAULT_CONTEXT)),
        most: most(request),
        most_bytes: ANSWER_BYTES,
    };
    // In some vocabularies only a glob can name a file.
    if let (".", [glob]) = (path.as_str(), request.globs.as_slice())
        && Artifacts::is_name(glob)
        && let Err(error) = workspace.open_file(&workspace.resolve(glob)?)
        && let Ok(file) = artifacts.instead_of(glob, error)
    {
        return Ok(search_one(file, &wish, progress, stop));
    }
    let selection = selection(request)?;
    match workspace.search(&path, selection, &wish, progress, stop) {
        Err(error) => {
            let file = artifacts.instead_of(path.as_str(), error)?;
            Ok(search_one(file, &wish, progress, stop))
        }
        complete => complete,
    }
}

fn response(finds: Finds, complete: bool) -> v1::SearchResponse {
    v1::SearchResponse {
        truncated: finds.total > finds.hits.len() as u64,
        matches: finds.hits.into_iter().map(|(file, hit)| found(&file, hit)).collect(),
        total_matches: clamped(finds.total),
        files_searched: clamped(finds.searched),
        timed_out: !complete,
        files_left_out: clamped(finds.left_out),
        ignore_files_cut: finds.ignore_files_cut,
    }
}

/// Matches to answer with.
fn most(request: &v1::SearchRequest) -> usize {
    size(request.max_results.unwrap_or(DEFAULT_RESULTS).max(1))
}

/// Which files to search.
fn selection(request: &v1::SearchRequest) -> Result<Selection, Error> {
    let without: Vec<String> = request
        .exclude_globs
        .iter()
        .filter(|glob| !glob.is_empty())
        .map(|glob| format!("!{glob}"))
        .collect();
    let wanted = request.globs.iter().chain(&without).map(String::as_str);
    let hidden = request.hidden.unwrap_or(false);
    Ok(Selection {
        globs: globs(wanted)?,
        respect_ignore: !request.no_ignore.unwrap_or(false),
        hidden,
        // As ripgrep has it: a hidden directory like any other.
        git: hidden,
        max_depth: request.max_depth.map(size),
    })
}

fn found(file: &str, hit: Hit) -> v1::SearchMatch {
    v1::SearchMatch {
        file: file.to_owned(),
        line: clamped(hit.line),
        column: clamped(hit.column),
        content: hit.content,
        context_before: hit.before,
        context_after: hit.after,
    }
}

fn size(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn clamped(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
