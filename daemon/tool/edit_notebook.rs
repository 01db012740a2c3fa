//! `edit_notebook`: one cell of a Jupyter notebook replaced, inserted or deleted.
//!
//! [`Notebook`] makes the new text; this file translates what is asked for and what is answered,
//! and makes the change.

use super::{
    Done, Scene, Tool, Work, on_files,
    read_notebook::{LARGEST, text, wanted},
};
use crate::{
    api::v1,
    daemon::{
        error::{Error, Violation},
        text::notebook::{Cell, Edit, Kind, Notebook},
        workspace::{Content, RelativePath, Stop, Workspace, no_file_at},
    },
};

/// The tool.
#[derive(Debug)]
pub(crate) struct EditNotebook;

/// What is asked, checked.
#[derive(Debug)]
pub(crate) struct Params {
    path: RelativePath,
    edit: Edit,
}

impl Tool for EditNotebook {
    const NAME: &'static str = "edit_notebook";
    type Request = v1::EditNotebookRequest;
    type Response = v1::EditNotebookResponse;
    type Params = Params;

    fn check(
        request: Self::Request,
        scene: &Scene,
        violations: &mut Vec<Violation>,
    ) -> Result<Option<Self::Params>, Error> {
        params(request, &scene.workspace, violations)
    }

    fn files(params: &Self::Params, _scene: &Scene) -> Vec<String> {
        vec![params.path.as_str().to_owned()]
    }

    async fn execute(params: Self::Params, work: Work) -> Result<Done<Self::Response>, Error> {
        on_files(work, move |workspace, stop| edit_notebook(workspace, &params, stop)).await
    }
}

fn params(
    request: v1::EditNotebookRequest,
    workspace: &Workspace,
    violations: &mut Vec<Violation>,
) -> Result<Option<Params>, Error> {
    let path = request.path.clone();
    let edit = edit(request, violations);
    if !violations.is_empty() {
        return Ok(None);
    }
    let path = workspace.resolve(&path)?;
    Ok(edit.map(|edit| Params { path, edit }))
}

/// The change that is asked for; none when there are violations.
fn edit(request: v1::EditNotebookRequest, violations: &mut Vec<Violation>) -> Option<Edit> {
    let (mode, kind) = (request.mode(), kind(request.cell_type()));
    let is_named = request.cell_id.is_some() || request.cell_index.is_some();
    let wanted = wanted(request.cell_id, request.cell_index, violations);
    let mut need = |field: &str, description: &str| {
        violations.push(Violation { field: field.to_owned(), description: description.to_owned() });
        None
    };
    let without_source = "must be given, empty or not, unless a cell is deleted";
    let without_cell = "either it or cell_index must be given, unless a cell is inserted";
    match (mode, wanted, kind, request.source) {
        (v1::CellEdit::Delete, Some(wanted), _, _) => Some(Edit::Delete(wanted)),
        (v1::CellEdit::Insert, wanted, Some(kind), Some(source)) => {
            Some(Edit::Insert(wanted, Cell { kind, source }))
        }
        (v1::CellEdit::Insert, _, None, _) => {
            need("cell_type", "must be given for a cell that is inserted")
        }
        (v1::CellEdit::Unspecified | v1::CellEdit::Replace | v1::CellEdit::Insert, _, _, None) => {
            need("source", without_source)
        }
        (_, Some(wanted), kind, Some(source)) => Some(Edit::Replace(wanted, kind, source)),
        // Twice, as was told.
        (_, None, _, _) if is_named => None,
        (_, None, _, _) => need("cell_id", without_cell),
    }
}

fn kind(kind: v1::CellType) -> Option<Kind> {
    match kind {
        v1::CellType::Unspecified => None,
        v1::CellType::Code => Some(Kind::Code),
        v1::CellType::Markdown => Some(Kind::Markdown),
        v1::CellType::Raw => Some(Kind::Raw),
    }
}

/// Edits a notebook.
fn edit_notebook(
    workspace: &Workspace,
    params: &Params,
    stop: &Stop,
) -> Result<v1::EditNotebookResponse, Error> {
    let path = &params.path;
    let mut change = workspace.change(std::slice::from_ref(path), stop)?;
    let original = change.read(path, LARGEST)?.ok_or_else(|| no_file_at(path))?;
    let text = text(&original.content)?;
    stop.check()?;
    let changed = Notebook::parse(text)?
        .edit(&params.edit)
        .map_err(|error| error.with("path", path.as_str()))?;
    if changed.text != text {
        change.write(path, Some(&original), Content::new(changed.text.as_bytes()))?;
        change.commit()?.written_down()?;
    }
    Ok(v1::EditNotebookResponse {
        cell_id: changed.id,
        cell_count: u32::try_from(changed.count).unwrap_or(u32::MAX),
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
        let result = match params(request, &workspace, &mut violations) {
            Ok(Some(params)) => edit_notebook(&workspace, &params, &Stop::new()),
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
    fn what_is_missing_or_contradicts_is_told() {
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
