//! `read_notebook` and `edit_notebook`: an edit changes its cell and no other byte.

use std::fs;

use jig::api::v1::{
    CellEdit, CellType, EditNotebookRequest, EditNotebookResponse, ReadNotebookRequest,
    ReadNotebookResponse,
};

use crate::support::{Daemon, Refusal};

/// A notebook with unknown fields, unusual spellings of numbers and strings, and CRLF.
const NOTEBOOK: &str = "{\r\n  \"nbformat_minor\": 5, \"nbformat\": 4,\r\n  \"cells\": [\r\n    {\r\n      \"cell_type\": \"code\", \"x-unknown\": [1.00, -0, 1e+2],\r\n      \"id\": \"first\",\r\n      \"metadata\": {\"b\": 1, \"a\": \"\\u00e9\\/\"},\r\n      \"execution_count\": 12,\r\n      \"outputs\": [\r\n        {\"output_type\": \"stream\", \"name\": \"stdout\", \"text\": [\"1\\n\", \"2\\n\"]},\r\n        {\"output_type\": \"display_data\", \"metadata\": {}, \"data\": {\"text/plain\": \"<Figure>\", \"image/png\": \"iVBORw0KGgo=\"}},\r\n        {\"output_type\": \"error\", \"ename\": \"E\", \"evalue\": \"v\", \"traceback\": [\"\\u001b[31mE\\u001b[0m: v\"]}\r\n      ],\r\n      \"source\": \"print(1)\"\r\n    },\r\n    {\"cell_type\": \"markdown\", \"id\": \"second\", \"metadata\": {}, \"source\": [\"# T\\n\",   \"t\"]}\r\n  ],\r\n  \"metadata\": {\"kernelspec\": {\"language\": \"python\"}}\r\n}\r\n\r\n";

fn edit_request(mode: CellEdit, id: &str, source: &str) -> EditNotebookRequest {
    EditNotebookRequest {
        path: "n.ipynb".to_owned(),
        cell_id: (!id.is_empty()).then(|| id.to_owned()),
        mode: Some(mode.into()),
        source: Some(source.to_owned()),
        ..EditNotebookRequest::default()
    }
}

async fn edit(
    daemon: &Daemon,
    request: EditNotebookRequest,
) -> Result<EditNotebookResponse, Refusal> {
    match daemon.tools().edit_notebook(request).await {
        Ok(response) => Ok(response.into_inner()),
        Err(status) => Err(Refusal::from_status(&status)),
    }
}

async fn read(
    daemon: &Daemon,
    change: impl FnOnce(&mut ReadNotebookRequest),
) -> Result<ReadNotebookResponse, Refusal> {
    let mut request =
        ReadNotebookRequest { path: "n.ipynb".to_owned(), ..ReadNotebookRequest::default() };
    change(&mut request);
    match daemon.tools().read_notebook(request).await {
        Ok(response) => Ok(response.into_inner()),
        Err(status) => Err(Refusal::from_status(&status)),
    }
}

async fn start_with_notebook() -> Daemon {
    let daemon = Daemon::start().await;
    fs::write(daemon.file("n.ipynb"), NOTEBOOK).unwrap();
    daemon
}

fn notebook_text(daemon: &Daemon) -> String {
    fs::read_to_string(daemon.file("n.ipynb")).unwrap()
}

#[tokio::test]
async fn read_notebook_returns_cells_with_outputs() {
    let daemon = start_with_notebook().await;
    let all = read(&daemon, |_| {}).await.unwrap();
    assert_eq!((all.language.as_str(), all.cells.len()), ("python", 2));

    let code = &all.cells[0];
    assert_eq!((code.id.as_str(), code.index), ("first", 0));
    assert_eq!(code.r#type(), CellType::Code);
    assert_eq!((code.source.as_str(), code.execution_count), ("print(1)", Some(12)));

    let outputs: Vec<_> =
        code.outputs.iter().map(|output| (output.r#type.as_str(), output.text.as_str())).collect();
    let expected = [
        ("stream", "1\n2\n"),
        ("display_data", "<Figure>\n[image/png, 8 bytes]"),
        ("error", "E: v"),
    ];
    assert_eq!(outputs, expected);

    let second = read(&daemon, |request| request.cell_index = Some(1)).await;
    assert_eq!(second.unwrap().cells, all.cells[1..]);
}

#[tokio::test]
async fn edit_keeps_the_bytes_of_other_cells() {
    let daemon = start_with_notebook().await;

    // A new source clears the cell's outputs; all other bytes stay.
    let response = edit(&daemon, edit_request(CellEdit::Replace, "first", "print(\"2\")\n"));
    assert_eq!(response.await.unwrap().cell_id, "first");

    let outputs = NOTEBOOK.find("[\r\n        {\"output_type\"").unwrap();
    let outputs = outputs..NOTEBOOK.find(",\r\n      \"source\"").unwrap();
    let mut expected = NOTEBOOK.to_owned();
    expected.replace_range(outputs, "[]");
    let expected = expected
        .replace("\"execution_count\": 12", "\"execution_count\": null")
        .replace("\"print(1)\"", "\"print(\\\"2\\\")\\n\"");
    assert_eq!(notebook_text(&daemon), expected);

    let as_raw = EditNotebookRequest {
        cell_type: Some(CellType::Raw.into()),
        ..edit_request(CellEdit::Replace, "second", "one\ntwo")
    };
    edit(&daemon, as_raw).await.unwrap();
    let expected = expected
        .replace("markdown", "raw")
        .replace("[\"# T\\n\",   \"t\"]", "[\"one\\n\",   \"two\"]");
    assert_eq!(notebook_text(&daemon), expected);

    // Inserting a cell and deleting it again restores the same bytes.
    for (id, index) in [("first", 1), ("second", 2), ("", 2)] {
        let insert = EditNotebookRequest {
            cell_type: Some(CellType::Code.into()),
            ..edit_request(CellEdit::Insert, id, "new")
        };
        let response = edit(&daemon, insert).await.unwrap();
        assert_eq!(response.cell_count, 3);

        let cells = read(&daemon, |_| {}).await.unwrap().cells;
        assert_eq!(cells[index].id, response.cell_id);
        assert_eq!(cells[index].source, "new");

        let delete = edit_request(CellEdit::Delete, &response.cell_id, "");
        assert_eq!(edit(&daemon, delete).await.unwrap().cell_count, 2);
        assert_eq!(notebook_text(&daemon), expected);
    }
}

#[tokio::test]
async fn failed_edit_leaves_the_notebook_unchanged() {
    let daemon = start_with_notebook().await;
    fs::write(daemon.file("text"), "no notebook").unwrap();
    fs::write(daemon.file("old"), r#"{"nbformat": 3, "worksheets": []}"#).unwrap();
    let request_for = |path: &str| EditNotebookRequest {
        path: path.to_owned(),
        ..edit_request(CellEdit::Replace, "first", "x")
    };
    let both_selectors = EditNotebookRequest {
        cell_index: Some(0),
        ..edit_request(CellEdit::Replace, "first", "x")
    };

    for (request, reason, message_part) in [
        (request_for("none"), "FILE_NOT_FOUND", "none"),
        (request_for("text"), "INVALID_PARAMS", "must be a Jupyter notebook"),
        (request_for("old"), "INVALID_PARAMS", "its nbformat is 3"),
        (request_for("."), "NOT_A_FILE", "a directory"),
        (request_for("/etc/passwd"), "PATH_ESCAPE", "/etc/passwd"),
        (both_selectors, "INVALID_PARAMS", "cell_index"),
        (edit_request(CellEdit::Delete, "", ""), "INVALID_PARAMS", "cell_id"),
        (edit_request(CellEdit::Insert, "", "x"), "INVALID_PARAMS", "cell_type"),
        (edit_request(CellEdit::Delete, "third", ""), "CELL_NOT_FOUND", "third"),
    ] {
        let request_text = format!("{request:?}");
        let refusal = edit(&daemon, request).await.unwrap_err();
        assert_eq!(refusal.reason, reason, "{request_text} {refusal:?}");
        assert!(refusal.message.contains(message_part), "{request_text} {refusal:?}");
        assert_eq!(notebook_text(&daemon), NOTEBOOK);
    }

    let refusal = read(&daemon, |request| request.cell_index = Some(2)).await;
    assert_eq!(refusal.unwrap_err().reason, "CELL_NOT_FOUND");

    let refusal = read(&daemon, |request| request.path = "text".to_owned()).await;
    assert_eq!(refusal.unwrap_err().reason, "INVALID_PARAMS");
}
