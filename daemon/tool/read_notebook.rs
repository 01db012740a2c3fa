//! `read_notebook`: returns the cells of a Jupyter notebook.
//!
//! [`Notebook`] parses the file; this file converts request and response.

use super::{Tool, ToolContext, ToolOutput, WorkspaceContext, file_work::run_on_files};
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

pub(super) const MAX_NOTEBOOK_BYTES: u64 = 256 << 20;

#[derive(Debug)]
pub(crate) struct ReadNotebook;

/// The validated request.
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

    fn affected_paths(params: &Self::Params, _workspace_context: &WorkspaceContext) -> Vec<String> {
        vec![params.path.as_str().to_owned()]
    }

    async fn execute(
        params: Self::Params,
        context: ToolContext,
    ) -> Result<ToolOutput<Self::Response>, Error> {
        run_on_files(context, move |workspace, cancel| read_notebook(workspace, &params, cancel))
            .await
    }
}

fn parse_params(
    request: v1::ReadNotebookRequest,
    workspace: &Workspace,
    violations: &mut Vec<Violation>,
) -> Result<Option<Params>, Error> {
    let requested_cell = requested_cell(request.cell_id, request.cell_index, violations);
    if !violations.is_empty() {
        return Ok(None);
    }

    Ok(Some(Params { path: workspace.resolve(&request.path)?, requested_cell }))
}

/// The cell that a request names, by id or by position.
pub(super) fn requested_cell(
    id: Option<String>,
    index: Option<u32>,
    violations: &mut Vec<Violation>,
) -> Option<CellSelector> {
    match (id, index) {
        (Some(_), Some(_)) => {
            violations.push(Violation::new(
                "cell_index",
                "must not be given together with cell_id: name the cell by one of them",
            ));
            None
        }
        (Some(id), None) => Some(CellSelector::Id(id)),
        // An index that does not fit exceeds the number of cells anyway.
        (None, Some(index)) => {
            Some(CellSelector::Index(usize::try_from(index).unwrap_or(usize::MAX)))
        }
        (None, None) => None,
    }
}

/// The file's content as text.
pub(super) fn notebook_text(content: &[u8]) -> Result<&str, Error> {
    str::from_utf8(content).map_err(|problem| not_a_notebook("it is not UTF-8").with_cause(problem))
}

fn read_notebook(
    workspace: &Workspace,
    params: &Params,
    cancel: &CancelToken,
) -> Result<v1::ReadNotebookResponse, Error> {
    let (content, _reservation) = read_file_bytes(workspace, &params.path, cancel)?;
    let text = notebook_text(&content)?;
    cancel.check()?;

    let notebook = Notebook::parse(text)?;
    cancel.check()?;

    let cells = notebook
        .read_cells(params.requested_cell.as_ref())
        .map_err(|error| error.with_metadata("path", params.path.as_str()))?;
    Ok(v1::ReadNotebookResponse {
        cells: cells.into_iter().map(wire_cell).collect(),
        language: notebook.language(),
    })
}

/// Reads the whole file, with a reservation for its memory. Takes no path lock, so writers need not
/// wait.
fn read_file_bytes(
    workspace: &Workspace,
    path: &RelativePath,
    cancel: &CancelToken,
) -> Result<(Vec<u8>, MemoryReservation), Error> {
    let file = workspace.open_file(path)?;
    let reservation = MemoryReservation::reserve(file.size().min(MAX_NOTEBOOK_BYTES))?;
    let too_large = || {
        let text = format!("{:?} exceeds 256 MiB, the limit for notebooks", path.as_str());
        Error::new(Reason::FileTooLarge, text).with_metadata("path", path.as_str())
    };
    if file.size() > MAX_NOTEBOOK_BYTES {
        return Err(too_large());
    }

    let options = ReadOptions {
        lines: Some((1, u64::MAX)),
        max_bytes: usize::try_from(MAX_NOTEBOOK_BYTES).unwrap_or(usize::MAX),
        require_utf8: false,
    };
    let excerpt = FileExcerpt::read(&file, options, cancel)?;
    if excerpt.truncated {
        return Err(too_large());
    }
    Ok((excerpt.content, reservation))
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
    fn all_cells_or_one_are_returned() {
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
    fn unreadable_notebooks_report_a_reason() {
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
