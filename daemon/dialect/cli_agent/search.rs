//! The tools that search for files and in files.

use std::{
    ops::ControlFlow,
    time::{Duration, Instant},
};

use serde_json::json;

use super::{
    super::{
        definition::{CanonicalCall, CanonicalTools, DialectResponseFuture},
        invocation::DialectInvocation,
        paging,
        parameter::DialectParams,
        paths::{join_relative, reject_drive_path},
        response::ResponseData,
    },
    output::CliOutput,
};
use crate::daemon::error::{Error, Reason};

/// Most files in a result, and how deep they may be.
const MAX_FILES_SHOWN: usize = 1000;
const MAX_SEARCH_DEPTH: u32 = 20;
/// Files per page, and most pages to count.
const FILES_PER_PAGE: u32 = 10_000;
const MAX_PAGES: usize = 100;
/// Time limit of a search in files.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) fn file_search(
    params: DialectParams,
    tools: &mut dyn CanonicalTools,
) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let started = Instant::now();
        let (pattern, base) = (params.str("pattern"), params.str("base_path"));
        reject_drive_path(base)?;

        let call = CanonicalCall::new(
            "list_files",
            json!({
                "root": base,
                "glob": pattern,
                "max_depth": MAX_SEARCH_DEPTH,
                "max_results": FILES_PER_PAGE,
            }),
        )
        .with_aliases(&[("root", "base_path"), ("glob", "pattern")]);

        // Counts all matching files up to the page limit.
        let mut found = 0;
        let mut shown = Vec::new();
        paging::for_each_page(tools, call, MAX_PAGES, |page| {
            found += page.list("files").len();
            let files = page.texts("files").map(|file| join_relative(base, file));
            shown.extend(files.take(MAX_FILES_SHOWN - shown.len()));
            ControlFlow::Continue(())
        })
        .await?;
        let mut output = format!("Found {found} files matching '{pattern}':");
        for file in &shown {
            output.push_str("\n  ");
            output.push_str(file);
        }

        let warning = (found > shown.len())
            .then(|| format!("Warning: Found {found} matches, showing first {MAX_FILES_SHOWN}"));
        let output = CliOutput {
            output,
            metadata: json!({ "matches": found, "pattern": pattern }),
            warnings: warning.into_iter().collect(),
            ..CliOutput::default()
        };
        Ok(output.into_response(started))
    })
}

pub(super) fn grep_search(
    params: DialectParams,
    tools: &mut dyn CanonicalTools,
) -> DialectResponseFuture<'_> {
    Box::pin(async move {
        let started = Instant::now();
        let pattern = params.str("pattern");
        let globs: Vec<_> = params.text("file_pattern").into_iter().collect();
        let call = CanonicalCall::new(
            "search",
            json!({
                "query": pattern,
                "is_regex": params.flag("is_regex"),
                "globs": globs,
                "max_results": params.integer("max_results"),
                "context_lines": 0,
            }),
        )
        .with_aliases(&[("query", "pattern"), ("globs[0]", "file_pattern")])
        .with_timeout(SEARCH_TIMEOUT);
        let results = tools.call(call).await?;
        let total = results.count("total_matches");
        let mut output = format!("Found {total} matches for '{pattern}':");
        for found in results.objects("matches") {
            output.push_str("\n  ");
            output.push_str(&format_match(&found));
        }

        let shown = results.list("matches").len() as u64;
        let limit_warning = (total > shown)
            .then(|| format!("Warning: Found {total} matches, showing first {shown}"));
        let timeout_warning = results.flag("timed_out").then(|| {
            format!(
                "Warning: Search timed out after {}s, returning partial results",
                SEARCH_TIMEOUT.as_secs()
            )
        });

        let output = CliOutput {
            output,
            metadata: json!({
                "total_matches": total,
                "files_searched": results.count("files_searched"),
                "pattern": pattern,
            }),
            warnings: limit_warning.into_iter().chain(timeout_warning).collect(),
            ..CliOutput::default()
        };
        Ok(output.into_response(started))
    })
}

fn format_match(found: &ResponseData) -> String {
    let (file, line) = (found.text("file"), found.count("line"));
    format!("{file}:{line}: {}", found.text("content").trim_start())
}

/// Message and suggestion for an error of these tools, if it has its own.
pub(super) fn explain_error(
    invocation: &DialectInvocation,
    error: &Error,
) -> Option<(String, &'static str)> {
    let pattern = invocation.text("pattern");
    match (invocation.tool.as_str(), error.reason) {
        ("file_search", Reason::InvalidGlob) => {
            Some((format!("Invalid glob pattern '{pattern}'"), "Mend the pattern, and try again"))
        }
        ("grep_search", Reason::InvalidGlob) => Some((
            format!("Invalid glob pattern '{}'", invocation.text("file_pattern")),
            "Mend the pattern, and try again",
        )),
        ("grep_search", Reason::InvalidRegex) => {
            // The description of the error follows its position.
            let problem = error.message.rsplit("error: ").next().unwrap_or_default();
            Some((
                format!("Invalid regex pattern: {}", problem.trim()),
                "Mend the pattern, or search for it as it is with is_regex: false",
            ))
        }
        _ => None,
    }
}
