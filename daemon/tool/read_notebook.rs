//! `read_notebook`: the cells of a Jupyter notebook.
//!
//! [`Notebook`] understands the file; this file translates what is asked for and what is answered.

use super::{Tool, ToolContext, ToolOutput, WorkspaceContext, run_on_files};
use crate::{
    api::v1,
    daemon::{
        error::{Error, Reason, Violation},
        text::notebook::{CellKind, CellSelector, Notebook, RenderedCell, not_a_notebook},
        workspace::{
            CancelToken, FileExcerpt, MemoryReservation, ReadOptions, RelativePath, Workspace,
        },
    },
};

/// Most bytes of a notebook.
pub(super) const MAX_NOTEBOOK_BYTES: u64 = 256 << 20;

/// The tool.
#[derive(Debug)]
pub(crate) struct ReadNotebook;

/// What is asked, checked.
#[derive(Debug)]
pub(crate) struct Params {
    path: RelativePath,
    requested_cell: Option<CellSelector>,
}

impl Tool for ReadNotebook {
    const NAME: &'static str = "read_notebook";
    type Request = v1::ReadNotebookRequest;
    type Response = v1::ReadNotebookResponse;
    type Params = Params;

    fn validate(
        request: Self::Request,
        workspace_context: &WorkspaceContext,
        violations: &mut Vec<Violation>,
    ) -> Result<Option<Self::Params>, Error> {
        parse_params(request, &workspace_context.workspace, violations)
    }

    fn affected_paths(params: &Self::Params, _scene: &WorkspaceContext) -> Vec<String> {
        vec![params.path.as_str().to_owned()]
    }

    async fn execute(
        params: Self::Params,
        context: ToolContext,
    ) -> Result<ToolOutput<Self::Response>, Error> {
        run_on_files(context, move |workspace, stop| read_notebook(workspace, &params, stop)).await
    }
}

fn parse_params(
    request: v1::ReadNotebookRequest,
    workspace: &Workspace,
    violations: &mut Vec<Violation>,
) -> Result<Option<Params>, Error> {
    let wanted = requested_cell(request.cell_id, request.cell_index, violations);
    if !violations.is_empty() {
        return Ok(None);
    }
    Ok(Some(Params { path: workspace.resolve(&request.path)?, requested_cell: wanted }))
}

/// The cell that a request names, by its id or its position.
pub(super) fn requested_cell(
    id: Option<String>,
    index: Option<u32>,
    violations: &mut Vec<Violation>,
) -> Option<CellSelector> {
    match (id, index) {
        (Some(_), Some(_)) => {
            violations.push(Violation {
                field: "cell_index".to_owned(),
                description:
                    "must not be given together with cell_id: name the cell by one of them"
                        .to_owned(),
            });
            None
        }
        (Some(id), None) => Some(CellSelector::Id(id)),
        // An index that does not fit is behind every cell.
        (None, Some(index)) => {
            Some(CellSelector::Index(usize::try_from(index).unwrap_or(usize::MAX)))
        }
        (None, None) => None,
    }
}

/// The text of a notebook's file.
pub(super) fn notebook_text(content: &[u8]) -> Result<&str, Error> {
    str::from_utf8(content).map_err(|problem| not_a_notebook("it is not UTF-8").with_cause(problem))
}

/// Reads a notebook.
fn read_notebook(
    workspace: &Workspace,
    params: &Params,
    stop: &CancelToken,
) -> Result<v1::ReadNotebookResponse, Error> {
    let (content, _room) = read_file_bytes(workspace, &params.path, stop)?;
    let text = notebook_text(&content)?;
    stop.check()?;
    let notebook = Notebook::parse(text)?;
    stop.check()?;
    let cells = notebook
        .read_cells(params.requested_cell.as_ref())
        .map_err(|error| error.with_metadata("path", params.path.as_str()))?;
    Ok(v1::ReadNotebookResponse {
        cells: cells.into_iter().map(wire_cell).collect(),
        language: notebook.language(),
    })
}

/// All bytes of a file. Nobody has to wait for whoever reads.
fn read_file_bytes(
    workspace: &Workspace,
    path: &RelativePath,
    stop: &CancelToken,
) -> Result<(Vec<u8>, MemoryReservation), Error> {
    let file = workspace.open_file(path)?;
    let room = MemoryReservation::reserve(file.size().min(MAX_NOTEBOOK_BYTES))?;
    let wish = ReadOptions {
        lines: Some((1, u64::MAX)),
        max_bytes: usize::try_from(MAX_NOTEBOOK_BYTES).unwrap_or(usize::MAX),
        require_utf8: false,
    };
    let excerpt = match file.size() {
        size if size > MAX_NOTEBOOK_BYTES => None,
        _ => Some(FileExcerpt::read(&file, wish, stop)?),
    };
    match excerpt {
        Some(excerpt) if !excerpt.truncated => Ok((excerpt.content, room)),
        _ => Err(Error::new(
            Reason::FileTooLarge,
            format!("{:?} is over 256 MiB: no notebook of that size is read", path.as_str()),
        )
        .with_metadata("path", path.as_str())),
    }
}

fn wire_cell(cell: RenderedCell) -> v1::NotebookCell {
    let kind = match cell.kind {
        Some(CellKind::Code) => v1::CellType::Code,
        Some(CellKind::Markdown) => v1::CellType::Markdown,
        Some(CellKind::Raw) => v1::CellType::Raw,
        None => v1::CellType::Unspecified,
    };
    let outputs = cell.outputs.into_iter().map(|output| v1::CellOutput {
        r#type: output.kind,
        text: output.text,
        truncated: output.truncated,
    });
    v1::NotebookCell {
        id: cell.id,
        index: u32::try_from(cell.index).unwrap_or(u32::MAX),
        r#type: kind.into(),
        source: cell.source,
        execution_count: cell.execution_count,
        outputs: outputs.collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn run(
        content: &[u8],
        change: impl FnOnce(&mut v1::ReadNotebookRequest),
    ) -> Result<v1::ReadNotebookResponse, Error> {
        let directory = tempfile::tempdir().unwrap();
        let workspace = Workspace::open("w", directory.path(), "/workspace").unwrap();
        fs::write(directory.path().join("n.ipynb"), content).unwrap();
        let mut request =
            v1::ReadNotebookRequest { path: "n.ipynb".to_owned(), ..Default::default() };
        change(&mut request);
        let mut violations = Vec::new();
        match parse_params(request, &workspace, &mut violations)? {
            Some(params) => read_notebook(&workspace, &params, &CancelToken::new()),
            None => Err(Error::invalid(violations)),
        }
    }

    #[test]
    fn cells_come_all_or_one() {
        const NOTEBOOK: &[u8] = br##"{"nbformat": 4, "cells": [
            {"id": "a", "cell_type": "markdown", "source": "# T"},
            {"id": "b", "cell_type": "code", "source": ["x\n", "y"], "execution_count": 3,
             "outputs": [{"output_type": "stream", "name": "stdout", "text": "out"}]}
        ], "metadata": {"kernelspec": {"language": "python"}}}"##;
        let all = run(NOTEBOOK, |_| {}).unwrap();
        assert_eq!((all.cells.len(), all.language.as_str()), (2, "python"));
        let by_id = run(NOTEBOOK, |request| request.cell_id = Some("b".to_owned())).unwrap();
        let by_index = run(NOTEBOOK, |request| request.cell_index = Some(1)).unwrap();
        assert_eq!(by_id, by_index);
        assert_eq!(by_id.cells, all.cells[1..]);
        let cell = &by_id.cells[0];
        assert_eq!((cell.source.as_str(), cell.execution_count), ("x\ny", Some(3)));
        assert_eq!((cell.r#type(), cell.index), (v1::CellType::Code, 1));
        assert_eq!(cell.outputs[0].text, "out");
    }

    #[test]
    fn what_cannot_be_read_has_its_reason() {
        const EMPTY: &[u8] = br#"{"nbformat": 4, "cells": []}"#;
        for (content, id, index, reason) in [
            (EMPTY, Some("a"), None, Reason::CellNotFound),
            (EMPTY, None, Some(0), Reason::CellNotFound),
            (EMPTY, Some("a"), Some(0), Reason::InvalidParams),
            (b"\xff", None, None, Reason::InvalidParams),
            (b"", None, None, Reason::InvalidParams),
        ] {
            let result = run(content, |request| {
                request.cell_id = id.map(str::to_owned);
                request.cell_index = index;
            });
            assert_eq!(result.unwrap_err().reason, reason);
        }
        let error = run(EMPTY, |request| request.path = "none".to_owned()).unwrap_err();
        assert_eq!(error.reason, Reason::FileNotFound);
    }
}
