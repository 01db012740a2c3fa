//! Each file tool as a call on one path.

use jig::api::v1::{
    ApplyPatchRequest, CreateDirectoryRequest, DeletePathRequest, DownloadRequest,
    DownloadTreeRequest, Edit, EditFileRequest, EditNotebookRequest, ListDirectoryRequest,
    ListFilesRequest, MovePathRequest, Occurrence, ReadFileRequest, ReadNotebookRequest,
    SearchRequest, StatPathRequest, UploadRequest, UploadTreeStart, WriteFileRequest,
    transfer_service_client::TransferServiceClient, upload_request::Part,
};
use tonic::{Status, transport::Channel};

use super::{
    transfer::{chunk, upload_start},
    trees::{Archive, download_tree, upload_tree},
};
use crate::support::Daemon;

/// A file tool. `MoveFrom` and `MoveTo` are `move_path` with the path as source or destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Tool {
    Read,
    ListFiles,
    ListDirectory,
    Stat,
    Search,
    ReadNotebook,
    Download,
    DownloadTree,
    Write,
    Edit,
    Patch,
    EditNotebook,
    Upload,
    UploadTree,
    CreateDirectory,
    MoveFrom,
    MoveTo,
    Delete,
}

/// A notebook of one cell.
pub(crate) const NOTEBOOK: &str = r#"{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [{"id": "a", "cell_type": "raw", "metadata": {}, "source": "TEXT"}]}"#;
/// Tools that read the file or directory at a path.
pub(crate) const READ_TOOLS: &[Tool] = &[
    Tool::Read,
    Tool::ListFiles,
    Tool::ListDirectory,
    Tool::Search,
    Tool::ReadNotebook,
    Tool::Download,
];

/// Tools that change the file or directory at a path, and reject a link.
pub(crate) const WRITE_TOOLS: &[Tool] = &[
    Tool::Write,
    Tool::Edit,
    Tool::Patch,
    Tool::EditNotebook,
    Tool::Upload,
    Tool::CreateDirectory,
];

impl Tool {
    /// Whether the tool works on directories.
    pub(crate) fn accepts_directories(self) -> bool {
        matches!(self, Self::ListFiles | Self::ListDirectory | Self::CreateDirectory)
    }

    /// Calls the tool with `path`. Returns its whole response as text.
    pub(crate) async fn call(self, daemon: &Daemon, path: &str) -> Result<String, Status> {
        let mut tools = daemon.tools();
        let path = path.to_owned();
        Ok(match self {
            Self::Read => {
                let request = ReadFileRequest { path, ..Default::default() };
                tools.read_file(request).await?.into_inner().content
            }
            Self::ListFiles => {
                let request = ListFilesRequest { root: Some(path), ..Default::default() };
                format!("{:?}", tools.list_files(request).await?.into_inner())
            }
            Self::ListDirectory => {
                let request = ListDirectoryRequest { path: Some(path), ..Default::default() };
                format!("{:?}", tools.list_directory(request).await?.into_inner())
            }
            Self::Stat => {
                let request = StatPathRequest { path };
                format!("{:?}", tools.stat_path(request).await?.into_inner())
            }
            Self::Search => {
                let request = SearchRequest {
                    query: ".".to_owned(),
                    is_regex: Some(true),
                    path: Some(path),
                    hidden: Some(true),
                    ..Default::default()
                };
                format!("{:?}", tools.search(request).await?.into_inner())
            }
            Self::ReadNotebook => {
                let request = ReadNotebookRequest { path, ..Default::default() };
                format!("{:?}", tools.read_notebook(request).await?.into_inner())
            }
            Self::Download => {
                let request = DownloadRequest { path, ..Default::default() };
                let mut parts = transfer_client(daemon).download(request).await?.into_inner();
                let mut bytes = Vec::new();
                while let Some(part) = parts.message().await? {
                    bytes.extend_from_slice(&part.data);
                }
                String::from_utf8_lossy(&bytes).into_owned()
            }
            Self::DownloadTree => {
                let request = DownloadTreeRequest { path: Some(path), ..Default::default() };
                let (archive, summary) = download_tree(daemon, request).await?;
                format!("{} {summary:?}", String::from_utf8_lossy(&archive))
            }
            Self::UploadTree => {
                let start = UploadTreeStart { path: Some(path), ..Default::default() };
                let archive = Archive::new().file("up", b"written\n").finish();
                format!("{:?}", upload_tree(daemon, start, archive).await?)
            }
            Self::Upload => {
                let content = b"written\n";
                let start = Part::Start(upload_start(&path, content));
                let parts = [start, chunk(0, content)];
                let messages = parts.map(|part| UploadRequest { part: Some(part) });
                let messages = tokio_stream::iter(messages);
                let response = transfer_client(daemon).upload(messages).await?;
                format!("{:?}", response.into_inner())
            }
            Self::CreateDirectory => {
                let request = CreateDirectoryRequest { path };
                format!("{:?}", tools.create_directory(request).await?.into_inner())
            }
            Self::Write => {
                let content = "written\n".to_owned();
                let request = WriteFileRequest { path, content, ..Default::default() };
                format!("{:?}", tools.write_file(request).await?.into_inner())
            }
            Self::Edit => {
                let edit = Edit {
                    old_string: "written".to_owned(),
                    new_string: "edited".to_owned(),
                    occurrence: Some(Occurrence::First.into()),
                };
                let request = EditFileRequest { path, edits: vec![edit], ..Default::default() };
                format!("{:?}", tools.edit_file(request).await?.into_inner())
            }
            Self::Patch => {
                let name = path.trim_start_matches("/workspace/");
                let name = if path.starts_with("/proc") { &path } else { name };
                let unified_diff =
                    format!("--- {name}\n+++ {name}\n@@ -1 +1 @@\n-written\n+patched\n");
                let request =
                    ApplyPatchRequest { unified_diff, strip: Some(0), ..Default::default() };
                format!("{:?}", tools.apply_patch(request).await?.into_inner())
            }
            Self::EditNotebook => {
                let request = EditNotebookRequest {
                    path,
                    cell_index: Some(0),
                    source: Some("x".to_owned()),
                    ..Default::default()
                };
                format!("{:?}", tools.edit_notebook(request).await?.into_inner())
            }
            Self::MoveFrom | Self::MoveTo => {
                let other_path = "other-path".to_owned();
                let (source, destination) =
                    if self == Self::MoveFrom { (path, other_path) } else { (other_path, path) };
                let request = MovePathRequest { source, destination, overwrite: None };
                format!("{:?}", tools.move_path(request).await?.into_inner())
            }
            Self::Delete => {
                let request = DeletePathRequest { path, recursive: Some(true) };
                format!("{:?}", tools.delete_path(request).await?.into_inner())
            }
        })
    }
}

fn transfer_client(daemon: &Daemon) -> TransferServiceClient<Channel> {
    TransferServiceClient::new(daemon.channel())
}
