//! `edit_file`: replaces strings in a text file, atomically.
//!
//! [`edit`] computes the new text and [`diff`] describes the change; this file converts request and
//! response, and writes the file.

use std::cell::RefCell;

use super::{Tool, ToolContext, ToolOutput, WorkspaceContext, file_work::run_on_files};
use crate::{
    api::v1,
    daemon::{
        checksum::{sha256, sha256_violation},
        error::{Error, Reason, Violation},
        text::{
            diff,
            edit::{self, Occurrence, StringEdit},
        },
        workspace::{
            CancelToken, MemoryReservation, NewContent, RelativePath, Workspace,
            file_not_found_error,
        },
    },
};

/// Approximate limit on the diff in a response. The rest of the response then fits into a message.
const MAX_DIFF_BYTES: usize = 1 << 20;

#[derive(Debug)]
pub(crate) struct EditFile;

/// The validated request.
#[derive(Debug)]
pub(crate) struct Params {
    path: RelativePath,
    edits: Vec<StringEdit>,
    expected_sha256: Option<String>,
    dry_run: bool,
}

impl Tool for EditFile {
    const NAME: &'static str = "edit_file";
    type Request = v1::EditFileRequest;
    type Response = v1::EditFileResponse;
    type Params = Params;

    fn validate(
        request: Self::Request,
        workspace_context: &WorkspaceContext,
        violations: &mut Vec<Violation>,
    ) -> Result<Option<Self::Params>, Error> {
        parse_params(request, &workspace_context.workspace, violations)
    }

    fn affected_paths(params: &Self::Params, _workspace_context: &WorkspaceContext) -> Vec<String> {
        vec![params.path.as_str().to_owned()]
    }

    async fn execute(
        params: Self::Params,
        context: ToolContext,
    ) -> Result<ToolOutput<Self::Response>, Error> {
        run_on_files(context, move |workspace, cancel| edit_file(workspace, &params, cancel)).await
    }
}

fn parse_params(
    request: v1::EditFileRequest,
    workspace: &Workspace,
    violations: &mut Vec<Violation>,
) -> Result<Option<Params>, Error> {
    let mut edits = Vec::with_capacity(request.edits.len());
    for (index, edit) in request.edits.into_iter().enumerate() {
        let occurrence = match edit.occurrence() {
            v1::Occurrence::Unspecified | v1::Occurrence::Unique => Occurrence::Unique,
            v1::Occurrence::First => Occurrence::First,
            v1::Occurrence::All => Occurrence::All,
        };
        match StringEdit::new(index, edit.old_string, edit.new_string, occurrence) {
            Ok(edit) => edits.push(edit),
            Err(violation) => violations.push(violation),
        }
    }

    let hash = request.expected_sha256.as_deref();
    violations.extend(hash.and_then(|hash| sha256_violation("expected_sha256", hash)));
    if !violations.is_empty() {
        return Ok(None);
    }

    Ok(Some(Params {
        path: workspace.resolve(&request.path)?,
        edits,
        expected_sha256: request.expected_sha256,
        dry_run: request.dry_run.unwrap_or(false),
    }))
}

fn edit_file(
    workspace: &Workspace,
    params: &Params,
    cancel: &CancelToken,
) -> Result<v1::EditFileResponse, Error> {
    let path = &params.path;
    let mut transaction = workspace.begin_transaction(std::slice::from_ref(path), cancel)?;
    let max_bytes = u64::try_from(edit::MAX_TEXT_BYTES).unwrap_or(u64::MAX);
    let original = transaction.read(path, max_bytes)?.ok_or_else(|| file_not_found_error(path))?;
    original.check_sha256(path, params.expected_sha256.as_deref())?;
    let text = str::from_utf8(&original.content).map_err(|problem| {
        let path = path.as_str();
        let message = format!("{path:?} holds bytes that are not UTF-8: only text can be edited");
        Error::new(Reason::BinaryFile, message).with_metadata("path", path).with_cause(problem)
    })?;

    let memory = RefCell::new(MemoryReservation::default());
    let reserve = |bytes: usize| memory.borrow_mut().grow_to(bytes as u64);
    let edited = edit::apply(text, &params.edits, &|| cancel.check(), &reserve)
        .map_err(|error| error.with_metadata("path", path.as_str()))?;

    let results = edited.results.into_iter().map(|result| v1::EditResult {
        replacements: saturating_u32(result.replacements),
        occurrences_found: saturating_u32(result.occurrences),
        lines_changed: result.lines,
    });
    let response = v1::EditFileResponse {
        edits: results.collect(),
        diff: diff::unified(path.as_str(), text, &edited.text, MAX_DIFF_BYTES),
        sha256: sha256(edited.text.as_bytes()),
    };

    original.check_writable(path, None)?;
    // Edits may cancel each other out.
    if !params.dry_run && edited.text != text {
        transaction.write(path, Some(&original), NewContent::new(edited.text.as_bytes()))?;
        transaction.commit()?.sync_result()?;
    }
    Ok(response)
}

/// A count for the wire. A text of 256 MiB cannot exceed it.
fn saturating_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn run(
        content: &[u8],
        request: v1::EditFileRequest,
    ) -> (Result<v1::EditFileResponse, Error>, Vec<u8>) {
        let directory = tempfile::tempdir().unwrap();
        let workspace = Workspace::open("w", directory.path(), "/workspace").unwrap();
        let file = directory.path().join("f");
        fs::write(&file, content).unwrap();

        let mut violations = Vec::new();
        let result = match parse_params(request, &workspace, &mut violations) {
            Ok(Some(params)) => edit_file(&workspace, &params, &CancelToken::new()),
            Ok(None) => Err(Error::invalid(violations)),
            Err(error) => Err(error),
        };
        (result, fs::read(file).unwrap())
    }

    fn replace(old: &str, new: &str) -> v1::Edit {
        v1::Edit { old_string: old.to_owned(), new_string: new.to_owned(), occurrence: None }
    }

    fn request(edits: Vec<v1::Edit>) -> v1::EditFileRequest {
        v1::EditFileRequest { path: "/workspace/f".to_owned(), edits, ..Default::default() }
    }

    #[test]
    fn edits_are_written_except_in_a_dry_run() {
        let hash = sha256(b"a\nc\n");

        for dry_run in [false, true] {
            let request =
                v1::EditFileRequest { dry_run: Some(dry_run), ..request(vec![replace("b", "c")]) };
            let (response, after) = run(b"a\nb\n", request);
            let response = response.unwrap();
            assert_eq!(after, if dry_run { b"a\nb\n" } else { b"a\nc\n" });
            assert_eq!(response.sha256, hash);

            assert_eq!(
                response.diff,
                "diff --git a/f b/f\n--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a\n-b\n+c\n"
            );
            let result = &response.edits[0];
            assert_eq!((result.replacements, result.occurrences_found), (1, 1));
            assert_eq!(result.lines_changed, [2]);
        }

        // Edits that cancel each other out.
        let (response, after) = run(b"a", request(vec![replace("a", "b"), replace("b", "a")]));
        assert_eq!((response.unwrap().diff.as_str(), after.as_slice()), ("", &b"a"[..]));
    }

    #[test]
    fn rejected_edits_report_a_reason_and_change_nothing() {
        let with_hash = |hash: &str| v1::EditFileRequest {
            expected_sha256: Some(hash.to_owned()),
            ..request(vec![replace("a", "b")])
        };
        let at = |path: &str| v1::EditFileRequest {
            path: path.to_owned(),
            ..request(vec![replace("a", "b")])
        };

        for (content, request, reason) in [
            (&b"x"[..], request(vec![replace("a", "b")]), Reason::StringNotFound),
            (b"aa", request(vec![replace("a", "b")]), Reason::StringNotUnique),
            (b"a\xff", request(vec![replace("a", "b")]), Reason::BinaryFile),
            (b"a", request(vec![replace("a", "a")]), Reason::InvalidParams),
            (b"a", with_hash(&"0".repeat(64)), Reason::StaleFile),
            (b"a", with_hash("0"), Reason::InvalidParams),
            (b"a", at("none"), Reason::FileNotFound),
            (b"a", at("."), Reason::NotAFile),
            (b"a", at("../f"), Reason::PathEscape),
            (b"ab", request(vec![replace("a", "b"), replace("x", "")]), Reason::StringNotFound),
        ] {
            let (result, after) = run(content, request.clone());
            assert_eq!(result.unwrap_err().reason, reason, "{request:?}");
            assert_eq!(after, content);
        }
    }
}
