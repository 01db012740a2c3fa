//! `read_notebook`: the cells of a Jupyter notebook.
//!
//! [`Notebook`] understands the file; this file translates what is asked for and what is answered.

use super::{Done, Scene, Tool, Work, on_files};
use crate::{
    api::v1,
    daemon::{
        error::{Error, Reason, Violation},
        text::notebook::{CellText, Kind, Notebook, Wanted, no_notebook},
        workspace::{Excerpt, RelativePath, Room, Stop, Wish, Workspace},
    },
};

/// Most bytes of a notebook.
pub(super) const LARGEST: u64 = 256 << 20;

/// The tool.
#[derive(Debug)]
pub(crate) struct ReadNotebook;

/// What is asked, checked.
#[derive(Debug)]
pub(crate) struct Params {
    path: RelativePath,
    wanted: Option<Wanted>,
}

impl Tool for ReadNotebook {
    const NAME: &'static str = "read_notebook";
    type Request = v1::ReadNotebookRequest;
    type Response = v1::ReadNotebookResponse;
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
        on_files(work, move |workspace, stop| read_notebook(workspace, &params, stop)).await
    }
}

fn params(
    request: v1::ReadNotebookRequest,
    workspace: &Workspace,
    violations: &mut Vec<Violation>,
) -> Result<Option<Params>, Error> {
    let wanted = wanted(request.cell_id, request.cell_index, violations);
    if !violations.is_empty() {
        return Ok(None);
    }
    Ok(Some(Params { path: workspace.resolve(&request.path)?, wanted }))
}

/// The cell that a request names, by its id or its position.
pub(super) fn wanted(
    id: Option<String>,
    index: Option<u32>,
    violations: &mut Vec<Violation>,
) -> Option<Wanted> {
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
        (Some(id), None) => Some(Wanted::Id(id)),
        // An index that does not fit is behind every cell.
        (None, Some(index)) => Some(Wanted::Index(usize::try_from(index).unwrap_or(usize::MAX))),
        (None, None) => None,
    }
}

/// The text of a notebook's file.
pub(super) fn text(content: &[u8]) -> Result<&str, Error> {
    str::from_utf8(content).map_err(|problem| no_notebook("it is not UTF-8").caused_by(problem))
}

/// Reads a notebook.
fn read_notebook(
    workspace: &Workspace,
    params: &Params,
    stop: &Stop,
) -> Result<v1::ReadNotebookResponse, Error> {
    let (content, _room) = read(workspace, &params.path, stop)?;
    let text = text(&content)?;
    stop.check()?;
    let notebook = Notebook::parse(text)?;
    stop.check()?;
    let cells = notebook
        .read(params.wanted.as_ref())
        .map_err(|error| error.with("path", params.path.as_str()))?;
    Ok(v1::ReadNotebookResponse {
        cells: cells.into_iter().map(cell).collect(),
        language: notebook.language(),
    })
}

/// All bytes of a file. Nobody has to wait for whoever reads.
fn read(workspace: &Workspace, path: &RelativePath, stop: &Stop) -> Result<(Vec<u8>, Room), Error> {
    let file = workspace.open_file(path)?;
    let room = Room::take(file.size().min(LARGEST))?;
    let wish = Wish {
        lines: Some((1, u64::MAX)),
        most: usize::try_from(LARGEST).unwrap_or(usize::MAX),
        as_text: false,
    };
    let excerpt = match file.size() {
        size if size > LARGEST => None,
        _ => Some(Excerpt::read(&file, wish, stop)?),
    };
    match excerpt {
        Some(excerpt) if !excerpt.truncated => Ok((excerpt.content, room)),
        _ => Err(Error::new(
            Reason::FileTooLarge,
            format!("{:?} is over 256 MiB: no notebook of that size is read", path.as_str()),
        )
        .with("path", path.as_str())),
    }
}

fn cell(cell: CellText) -> v1::NotebookCell {
    let kind = match cell.kind {
        Some(Kind::Code) => v1::CellType::Code,
        Some(Kind::Markdown) => v1::CellType::Markdown,
        Some(Kind::Raw) => v1::CellType::Raw,
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
        match params(request, &workspace, &mut violations)? {
            Some(params) => read_notebook(&workspace, &params, &Stop::new()),
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
