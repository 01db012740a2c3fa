//! `search`: matching lines of the files below a directory.

use std::time::{Duration, Instant};

use super::{Done, Scene, Tool, Work, on_files_until};
use crate::{
    api::v1,
    daemon::{
        error::{Error, Reason, Violation},
        workspace::{Hit, Pattern, Query, SearchWish, Selection, Stop, Workspace, globs},
    },
};

/// Lines around a match when a request says nothing about it.
const DEFAULT_CONTEXT: u32 = 2;
/// Matches to answer with when a request says nothing about it.
const DEFAULT_RESULTS: u32 = 50;
/// Most bytes of lines in an answer, one match in any case: with what encodes them, they fit into a
/// message of 4 MiB, which clients accept by default.
const ANSWER_BYTES: usize = 3 << 20;
/// Most time that is left before the caller's deadline for the answer to reach it.
const WAY_BACK: Duration = Duration::from_millis(100);

/// The tool.
#[derive(Debug)]
pub(crate) struct Search;

impl Tool for Search {
    const NAME: &'static str = "search";
    // It answers with what it has found when its time is up.
    const LIMITS_ITSELF: bool = true;
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
        scene
            .workspace
            .resolve(request.path.as_deref().unwrap_or("."))?;
        selection(&request)?;
        Ok(Some(request))
    }

    async fn execute(request: Self::Request, work: Work) -> Result<Done<Self::Response>, Error> {
        let limit = limit(Instant::now(), work.default_timeout, work.deadline);
        let mut done = on_files_until(work, Some(limit), move |workspace, stop| {
            search(workspace, &request, stop)
        })
        .await?;
        if done.response.timed_out {
            done.error_type = Some(Reason::Timeout.name());
        }
        Ok(done)
    }
}

/// When to answer with what there is: early enough for whoever waits.
fn limit(now: Instant, timeout: Duration, deadline: Option<Instant>) -> Instant {
    let limit = now + timeout;
    match deadline {
        None => limit,
        Some(deadline) => {
            let left = deadline.saturating_duration_since(now);
            limit.min(now + (left - WAY_BACK.min(left / 4)))
        }
    }
}

fn search(
    workspace: &Workspace,
    request: &v1::SearchRequest,
    stop: &Stop,
) -> Result<v1::SearchResponse, Error> {
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
        most: size(request.max_results.unwrap_or(DEFAULT_RESULTS).max(1)),
        most_bytes: ANSWER_BYTES,
    };
    let finds = workspace.search(&path, selection(request)?, &wish, stop)?;
    Ok(v1::SearchResponse {
        truncated: finds.total > finds.hits.len() as u64,
        matches: finds
            .hits
            .into_iter()
            .map(|(file, hit)| found(&file, hit))
            .collect(),
        total_matches: clamped(finds.total),
        files_searched: clamped(finds.searched),
        timed_out: finds.interrupted,
        files_left_out: clamped(finds.left_out),
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_has_time_to_reach_who_waits() {
        let now = Instant::now();
        let at = |ms| now + Duration::from_millis(ms);
        for (timeout, deadline, expected) in [
            (60_000, None, 60_000),
            (60_000, Some(100_000), 60_000),
            (60_000, Some(60_000), 59_900),
            (60_000, Some(1_000), 900),
            (60_000, Some(100), 75),
            (60_000, Some(0), 0),
        ] {
            let limit = limit(now, Duration::from_millis(timeout), deadline.map(at));
            assert_eq!(limit, at(expected), "{timeout} {deadline:?}");
        }
    }
}
