//! Searching.

use std::{
    ops::ControlFlow,
    time::{Duration, Instant},
};

use serde_json::json;

use super::{
    super::{
        answer::Data,
        pages,
        parameter::Params,
        place::{below, inside},
        said::Said,
        vocabulary::{Answering, Call, Tools},
    },
    output::Output,
};
use crate::daemon::error::{Error, Reason};

/// Files that are shown, and how deep they may lie.
const SHOWN: usize = 1000;
const DEPTH: u32 = 20;
/// Files of a page, and most pages that are counted.
const PAGE: u32 = 10_000;
const MOST_PAGES: usize = 100;
/// What a search of contents may take.
const LIMIT: Duration = Duration::from_secs(30);

pub(super) fn files(params: Params, tools: &mut dyn Tools) -> Answering<'_> {
    Box::pin(async move {
        let since = Instant::now();
        let (pattern, base) = (params.str("pattern"), params.str("base_path"));
        inside(base)?;
        let mut found = 0;
        let mut shown = Vec::new();
        let call = Call::new(
            "list_files",
            json!({
                "root": base,
                "glob": pattern,
                "max_depth": DEPTH,
                "max_results": PAGE,
            }),
        )
        .naming(&[("root", "base_path"), ("glob", "pattern")]);
        // All of them are counted, as far as that goes.
        let counted = pages::each(tools, call, MOST_PAGES, |listed| {
            found += listed.list("files").len();
            let files = listed.texts("files").map(|file| below(base, file));
            shown.extend(files.take(SHOWN - shown.len()));
            ControlFlow::Continue(())
        });
        counted.await?;
        let mut output = format!("Found {found} files matching '{pattern}':");
        for file in &shown {
            output.push_str("\n  ");
            output.push_str(file);
        }
        let warning = (found > shown.len())
            .then(|| format!("Warning: Found {found} matches, showing first {SHOWN}"));
        let output = Output {
            output,
            metadata: json!({ "matches": found, "pattern": pattern }),
            warnings: warning.into_iter().collect(),
            ..Output::default()
        };
        Ok(output.answer(since))
    })
}

pub(super) fn contents(params: Params, tools: &mut dyn Tools) -> Answering<'_> {
    Box::pin(async move {
        let since = Instant::now();
        let pattern = params.str("pattern");
        let globs: Vec<_> = params.text("file_pattern").into_iter().collect();
        let call = Call::new(
            "search",
            json!({
                "query": pattern,
                "is_regex": params.flag("is_regex"),
                "globs": globs,
                "max_results": params.integer("max_results"),
                "context_lines": 0,
            }),
        )
        .naming(&[("query", "pattern"), ("globs[0]", "file_pattern")]);
        let found = tools.call(call.within(LIMIT)).await?;
        let total = found.count("total_matches");
        let mut output = format!("Found {total} matches for '{pattern}':");
        for found in found.objects("matches") {
            output.push_str("\n  ");
            output.push_str(&line(&found));
        }
        let shown = found.list("matches").len() as u64;
        let of_shown = (total > shown)
            .then(|| format!("Warning: Found {total} matches, showing first {shown}"));
        let of_time = found.flag("timed_out").then(|| {
            format!(
                "Warning: Search timed out after {}s, returning partial results",
                LIMIT.as_secs()
            )
        });
        let output = Output {
            output,
            metadata: json!({
                "total_matches": total,
                "files_searched": found.count("files_searched"),
                "pattern": pattern,
            }),
            warnings: of_shown.into_iter().chain(of_time).collect(),
            ..Output::default()
        };
        Ok(output.answer(since))
    })
}

fn line(found: &Data) -> String {
    let (file, line) = (found.text("file"), found.count("line"));
    format!("{file}:{line}: {}", found.text("content").trim_start())
}

/// What its tools say of an error, and what to do about it.
pub(super) fn refusal(said: &Said, error: &Error) -> Option<(String, &'static str)> {
    let pattern = said.text("pattern");
    match (said.tool.as_str(), error.reason) {
        ("file_search", Reason::InvalidGlob) => {
            Some((format!("Invalid glob pattern '{pattern}'"), "Mend the pattern, and try again"))
        }
        ("grep_search", Reason::InvalidGlob) => Some((
            format!("Invalid glob pattern '{}'", said.text("file_pattern")),
            "Mend the pattern, and try again",
        )),
        ("grep_search", Reason::InvalidRegex) => {
            // What is wrong stands behind the place where it is.
            let wrong = error.message.rsplit("error: ").next().unwrap_or_default();
            Some((
                format!("Invalid regex pattern: {}", wrong.trim()),
                "Mend the pattern, or search for it as it is with is_regex: false",
            ))
        }
        _ => None,
    }
}
