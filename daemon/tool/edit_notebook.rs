//! `edit_notebook`: replaces, inserts or deletes one cell of a Jupyter notebook.
//!
//! [`Notebook`] computes the new text; this file converts request and response, and writes the
//! file.

use super::{
    Tool, ToolContext, ToolOutput, WorkspaceContext,
    file_work::run_on_files,
    read_notebook::{MAX_NOTEBOOK_BYTES, notebook_text, requested_cell},
};
use crate::{
    api::v1,
    daemon::{
        error::{Error, Violation},
        text::notebook::{CellChange, CellKind, NewCell, Notebook},
        workspace::{CancelToken, NewContent, RelativePath, Workspace, file_not_found_error},
    },
};

#[derive(Debug)]
pub(crate) struct EditNotebook;

/// The validated request.
#[derive(Debug)]
pub(crate) struct Params {
    path: RelativePath,
    edit: CellChange,
}

impl Tool for EditNotebook {
    const NAME: &'static str = "edit_notebook";
    type Request = v1::EditNotebookRequest;
    type Response = v1::EditNotebookResponse;
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
        run_on_files(context, move |workspace, cancel| edit_notebook(workspace, &params, cancel))
            .await
    }
}

fn parse_params(
    request: v1::EditNotebookRequest,
    workspace: &Workspace,
    violations: &mut Vec<Violation>,
) -> Result<Option<Params>, Error> {
    let path = request.path.clone();
    let edit = parse_edit(request, violations);
    if !violations.is_empty() {
        return Ok(None);
    }

    let path = workspace.resolve(&path)?;
    Ok(edit.map(|edit| Params { path, edit }))
}

/// The requested change; `None` if there are violations.
fn parse_edit(
    request: v1::EditNotebookRequest,
    violations: &mut Vec<Violation>,
) -> Option<CellChange> {
    let (mode, kind) = (request.mode(), cell_kind(request.cell_type()));
    let has_selector = request.cell_id.is_some() || request.cell_index.is_some();
    let selector = requested_cell(request.cell_id, request.cell_index, violations);
    let mut require = |field: &str, description: &str| {
        violations.push(Violation::new(field, description));
        None
    };

    let source_missing = "is required, empty or not, unless a cell is deleted";
    let selector_missing = "either it or cell_index must be given, unless a cell is inserted";
    match (mode, selector, kind, request.source) {
        (v1::CellEdit::Delete, Some(selector), _, _) => Some(CellChange::Delete(selector)),
        (v1::CellEdit::Insert, selector, Some(kind), Some(source)) => {
            Some(CellChange::Insert(selector, NewCell { kind, source }))
        }
        (v1::CellEdit::Insert, _, None, _) => {
            require("cell_type", "is required for a cell that is inserted")
        }
        (v1::CellEdit::Unspecified | v1::CellEdit::Replace | v1::CellEdit::Insert, _, _, None) => {
            require("source", source_missing)
        }
        (_, Some(selector), kind, Some(source)) => {
            Some(CellChange::Replace(selector, kind, source))
        }
        // Given twice, which `requested_cell` has reported.
        (_, None, _, _) if has_selector => None,
        (_, None, _, _) => require("cell_id", selector_missing),
    }
}

fn cell_kind(kind: v1::CellType) -> Option<CellKind> {
    match kind {
        v1::CellType::Unspecified => None,
        v1::CellType::Code => Some(CellKind::Code),
        v1::CellType::Markdown => Some(CellKind::Markdown),
        v1::CellType::Raw => Some(CellKind::Raw),
    }
}

fn edit_notebook(
    workspace: &Workspace,
    params: &Params,
    cancel: &CancelToken,
) -> Result<v1::EditNotebookResponse, Error> {
    let path = &params.path;

    let mut transaction = workspace.begin_transaction(std::slice::from_ref(path), cancel)?;
    let original =
        transaction.read(path, MAX_NOTEBOOK_BYTES)?.ok_or_else(|| file_not_found_error(path))?;

    let text = notebook_text(&original.content)?;
    cancel.check()?;
    let edited = Notebook::parse(text)?
        .apply_change(&params.edit)
        .map_err(|error| error.with_metadata("path", path.as_str()))?;

    if edited.text != text {
        transaction.write(path, Some(&original), NewContent::new(edited.text.as_bytes()))?;
        transaction.commit()?.sync_result()?;
    }

    Ok(v1::EditNotebookResponse {
        cell_id: edited.id,
        cell_count: u32::try_from(edited.count).unwrap_or(u32::MAX),
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::daemon::error::Reason;

    const NOTEBOOK: &str = r#"{"nbformat": 4, "nbformat_minor": 5, "cells": [{"id": "a", "cell_type": "raw", "source": "x"}]}"#;

    fn run(request: v1::EditNotebookRequest) -> (Result<v1::EditNotebookResponse, Error>, String) {
        let directory = tempfile::tempdir().unwrap();
        let workspace = Workspace::open("w", directory.path(), "/workspace").unwrap();
        let file = directory.path().join("n.ipynb");
        fs::write(&file, NOTEBOOK).unwrap();

        let mut violations = Vec::new();
        let result = match parse_params(request, &workspace, &mut violations) {
            Ok(Some(params)) => edit_notebook(&workspace, &params, &CancelToken::new()),
            Ok(None) => Err(Error::invalid(violations)),
            Err(error) => Err(error),
        };
        (result, fs::read_to_string(file).unwrap())
    }

    fn request(mode: v1::CellEdit) -> v1::EditNotebookRequest {
        v1::EditNotebookRequest {
            path: "n.ipynb".to_owned(),
            mode: Some(mode.into()),
            ..Default::default()
        }
    }

    #[test]
    fn a_cell_is_replaced_inserted_or_deleted() {
        let at = |mode, index| v1::EditNotebookRequest {
            cell_index: index,
            cell_type: Some(v1::CellType::Markdown.into()),
            source: Some("new".to_owned()),
            ..request(mode)
        };
        let (response, text) = run(at(v1::CellEdit::Replace, Some(0)));
        let response = response.unwrap();
        assert_eq!((response.cell_id.as_str(), response.cell_count), ("a", 1));
        assert_eq!(
            text,
            NOTEBOOK.replace(r#""raw", "source": "x""#, r#""markdown", "source": "new""#)
        );

        let (response, text) = run(at(v1::CellEdit::Insert, None));
        let response = response.unwrap();
        assert_eq!((response.cell_id.len(), response.cell_count), (8, 2));
        let new = format!(
            r#""x"}}, {{"cell_type": "markdown", "id": "{}", "metadata": {{}}, "source": "new"}}]"#,
            response.cell_id
        );
        assert_eq!(text, NOTEBOOK.replace(r#""x"}]"#, &new));

        let (response, text) = run(at(v1::CellEdit::Delete, Some(0)));
        assert_eq!(response.unwrap().cell_count, 0);
        assert_eq!(text, r#"{"nbformat": 4, "nbformat_minor": 5, "cells": []}"#);
    }

    #[test]
    fn missing_and_contradictory_fields_are_reported() {
        use v1::CellEdit::{Delete, Insert, Replace};
        let source = Some("s".to_owned());

        for (request, field) in [
            (request(Replace), "source"),
            (request(Delete), "cell_id"),
            (v1::EditNotebookRequest { source: source.clone(), ..request(Replace) }, "cell_id"),
            (v1::EditNotebookRequest { source: source.clone(), ..request(Insert) }, "cell_type"),
            (
                v1::EditNotebookRequest {
                    cell_id: Some("a".to_owned()),
                    cell_index: Some(0),
                    ..request(Delete)
                },
                "cell_index",
            ),
        ] {
            let (result, text) = run(request.clone());
            let error = result.unwrap_err();
            assert_eq!(error.reason, Reason::InvalidParams);
            let named = error.violations.iter().any(|violation| violation.field == field);
            assert!(named, "{request:?} {error}");
            assert_eq!(text, NOTEBOOK);
        }

        let missing = v1::EditNotebookRequest { cell_index: Some(1), ..request(Delete) };
        assert_eq!(run(missing).0.unwrap_err().reason, Reason::CellNotFound);
    }
}
