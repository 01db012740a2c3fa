//! JSON form of the responses of the file tools, by the rules of `json.rs`.

use jig::api::v1::{
    ApplyPatchResponse, CellType, CreateDirectoryResponse, DeletePathResponse, EditFileResponse,
    EditNotebookResponse, FileChange, FileType, ListDirectoryResponse, MovePathResponse,
    ReadNotebookResponse, SearchResponse, StatPathResponse, WriteFileResponse,
};
use serde_json::{Value, json};

use crate::json::enum_name;

pub(crate) fn list_directory(response: &ListDirectoryResponse) -> Value {
    let entries = response.entries.iter().map(|entry| {
        json!({
            "name": entry.name,
            "type": file_type(entry.r#type),
            "size_bytes": entry.size_bytes,
            "modify_time": entry.modify_time.map(|time| time.to_string()),
            "mode": entry.mode,
        })
    });
    json!({
        "entries": entries.collect::<Vec<_>>(),
        "file_count": response.file_count,
        "directory_count": response.directory_count,
        "next_page_token": response.next_page_token,
        "skipped_names": response.skipped_names,
    })
}

pub(crate) fn stat_path(response: &StatPathResponse) -> Value {
    json!({
        "type": file_type(response.r#type),
        "size_bytes": response.size_bytes,
        "mode": response.mode,
        "modify_time": response.modify_time.map(|time| time.to_string()),
        "sha256": response.sha256,
    })
}

pub(crate) fn write_file(response: &WriteFileResponse) -> Value {
    json!({
        "bytes_written": response.bytes_written,
        "created": response.created,
        "sha256": response.sha256,
    })
}

pub(crate) fn edit_file(response: &EditFileResponse) -> Value {
    let edits = response.edits.iter().map(|edit| {
        json!({
            "replacements": edit.replacements,
            "occurrences_found": edit.occurrences_found,
            "lines_changed": edit.lines_changed,
        })
    });
    json!({
        "edits": edits.collect::<Vec<_>>(),
        "diff": response.diff,
        "sha256": response.sha256,
    })
}

pub(crate) fn apply_patch(response: &ApplyPatchResponse) -> Value {
    let files = response.changed_files.iter().map(|file| {
        json!({
            "path": file.path,
            "change": enum_name(FileChange::try_from(file.change).map(|kind| kind.as_str_name()), file.change),
            "previous_path": file.previous_path,
            "hunks": file.hunks,
            "fuzz": file.fuzz,
            "offset": file.offset,
        })
    });
    json!({
        "changed_files": files.collect::<Vec<_>>(),
        "patch_size_bytes": response.patch_size_bytes,
        "patch_path": response.patch_path,
    })
}

pub(crate) fn search(response: &SearchResponse) -> Value {
    let matches = response.matches.iter().map(|found| {
        json!({
            "file": found.file,
            "line": found.line,
            "column": found.column,
            "content": found.content,
            "context_before": found.context_before,
            "context_after": found.context_after,
        })
    });
    json!({
        "matches": matches.collect::<Vec<_>>(),
        "truncated": response.truncated,
        "total_matches": response.total_matches,
        "files_incomplete": response.files_incomplete,
        "files_searched": response.files_searched,
        "truncated_ignore_files": response.truncated_ignore_files,
        "timed_out": response.timed_out,
    })
}

pub(crate) fn create_directory(response: &CreateDirectoryResponse) -> Value {
    json!({ "created": response.created })
}

pub(crate) fn move_path(response: &MovePathResponse) -> Value {
    json!({ "replaced": response.replaced })
}

pub(crate) fn delete_path(response: &DeletePathResponse) -> Value {
    json!({ "deleted_count": response.deleted_count })
}

pub(crate) fn read_notebook(response: &ReadNotebookResponse) -> Value {
    let cells = response.cells.iter().map(|cell| {
        let outputs = cell.outputs.iter().map(|output| {
            json!({
                "type": output.r#type,
                "text": output.text,
                "truncated": output.truncated,
            })
        });
        json!({
            "id": cell.id,
            "index": cell.index,
            "type": enum_name(CellType::try_from(cell.r#type).map(|kind| kind.as_str_name()), cell.r#type),
            "source": cell.source,
            "execution_count": cell.execution_count,
            "outputs": outputs.collect::<Vec<_>>(),
        })
    });
    json!({
        "cells": cells.collect::<Vec<_>>(),
        "language": response.language,
    })
}

pub(crate) fn edit_notebook(response: &EditNotebookResponse) -> Value {
    json!({
        "cell_id": response.cell_id,
        "cell_count": response.cell_count,
    })
}

pub(crate) fn file_type(number: i32) -> Value {
    enum_name(FileType::try_from(number).map(|kind| kind.as_str_name()), number)
}

#[cfg(test)]
mod tests {
    /// Compares with the descriptors, so that new fields are noticed.
    #[cfg(feature = "daemon")]
    #[test]
    fn all_fields_are_there() {
        use jig::api::v1;
        use serde_json::Value;

        use super::*;
        use crate::contract::has_all_fields;

        let check = |message: &str, value: &Value| {
            has_all_fields(&format!("jig.v1.{message}"), value);
        };
        let listed = list_directory(&ListDirectoryResponse {
            entries: vec![v1::DirectoryEntry::default()],
            ..Default::default()
        });
        check("ListDirectoryResponse", &listed);
        check("DirectoryEntry", &listed["entries"][0]);
        check("StatPathResponse", &stat_path(&Default::default()));
        check("WriteFileResponse", &write_file(&Default::default()));
        let edited = edit_file(&EditFileResponse {
            edits: vec![v1::EditResult::default()],
            ..Default::default()
        });
        check("EditFileResponse", &edited);
        check("EditResult", &edited["edits"][0]);
        let patched = apply_patch(&ApplyPatchResponse {
            changed_files: vec![v1::ChangedFile::default()],
            ..Default::default()
        });
        check("ApplyPatchResponse", &patched);
        check("ChangedFile", &patched["changed_files"][0]);
        let found = search(&SearchResponse {
            matches: vec![v1::SearchMatch::default()],
            ..Default::default()
        });
        check("SearchResponse", &found);
        check("SearchMatch", &found["matches"][0]);
        check("CreateDirectoryResponse", &create_directory(&Default::default()));
        check("MovePathResponse", &move_path(&Default::default()));
        check("DeletePathResponse", &delete_path(&Default::default()));
        let cells = read_notebook(&ReadNotebookResponse {
            cells: vec![v1::NotebookCell {
                outputs: vec![v1::CellOutput::default()],
                ..Default::default()
            }],
            ..Default::default()
        });
        check("ReadNotebookResponse", &cells);
        check("NotebookCell", &cells["cells"][0]);
        check("CellOutput", &cells["cells"][0]["outputs"][0]);
        check("EditNotebookResponse", &edit_notebook(&Default::default()));
    }
}
