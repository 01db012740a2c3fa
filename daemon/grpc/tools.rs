//! `jig.v1.ToolService`: one typed RPC per tool.

use std::sync::Arc;

use prost::Message;
use tonic::{Request, Response, Status};

use super::handle;
use crate::{
    api::v1::{self, tool_service_server::ToolService},
    daemon::{
        pipeline::Pipeline,
        tool::{
            Tool, apply_patch::ApplyPatch, await_job::AwaitJob, create_directory::CreateDirectory,
            delete_path::DeletePath, edit_file::EditFile, edit_notebook::EditNotebook,
            fetch_url::FetchUrl, last_command::LastCommand, list_directory::ListDirectory,
            list_files::ListFiles, move_path::MovePath, read_file::ReadFile,
            read_notebook::ReadNotebook, run::RunCommand, search::SearchFiles, stat_path::StatPath,
            write_file::WriteFile,
        },
    },
};

#[derive(Debug)]
pub(crate) struct ToolServiceHandler(pub(crate) Arc<Pipeline>);

impl ToolServiceHandler {
    async fn call<T: Tool>(
        &self,
        request: Request<T::Request>,
    ) -> Result<Response<T::Response>, Status>
    where
        T::Response: Message + Default,
    {
        handle(request, |context, request| self.0.call::<T>(context, request)).await
    }
}

#[tonic::async_trait]
impl ToolService for ToolServiceHandler {
    async fn apply_patch(
        &self,
        request: Request<v1::ApplyPatchRequest>,
    ) -> Result<Response<v1::ApplyPatchResponse>, Status> {
        self.call::<ApplyPatch>(request).await
    }

    async fn await_job(
        &self,
        request: Request<v1::AwaitJobRequest>,
    ) -> Result<Response<v1::AwaitJobResponse>, Status> {
        self.call::<AwaitJob>(request).await
    }

    async fn create_directory(
        &self,
        request: Request<v1::CreateDirectoryRequest>,
    ) -> Result<Response<v1::CreateDirectoryResponse>, Status> {
        self.call::<CreateDirectory>(request).await
    }

    async fn delete_path(
        &self,
        request: Request<v1::DeletePathRequest>,
    ) -> Result<Response<v1::DeletePathResponse>, Status> {
        self.call::<DeletePath>(request).await
    }

    async fn edit_file(
        &self,
        request: Request<v1::EditFileRequest>,
    ) -> Result<Response<v1::EditFileResponse>, Status> {
        self.call::<EditFile>(request).await
    }

    async fn edit_notebook(
        &self,
        request: Request<v1::EditNotebookRequest>,
    ) -> Result<Response<v1::EditNotebookResponse>, Status> {
        self.call::<EditNotebook>(request).await
    }

    async fn fetch_url(
        &self,
        request: Request<v1::FetchUrlRequest>,
    ) -> Result<Response<v1::FetchUrlResponse>, Status> {
        self.call::<FetchUrl>(request).await
    }

    async fn last_command(
        &self,
        request: Request<v1::LastCommandRequest>,
    ) -> Result<Response<v1::LastCommandResponse>, Status> {
        self.call::<LastCommand>(request).await
    }

    async fn list_directory(
        &self,
        request: Request<v1::ListDirectoryRequest>,
    ) -> Result<Response<v1::ListDirectoryResponse>, Status> {
        self.call::<ListDirectory>(request).await
    }

    async fn list_files(
        &self,
        request: Request<v1::ListFilesRequest>,
    ) -> Result<Response<v1::ListFilesResponse>, Status> {
        self.call::<ListFiles>(request).await
    }

    async fn move_path(
        &self,
        request: Request<v1::MovePathRequest>,
    ) -> Result<Response<v1::MovePathResponse>, Status> {
        self.call::<MovePath>(request).await
    }

    async fn read_file(
        &self,
        request: Request<v1::ReadFileRequest>,
    ) -> Result<Response<v1::ReadFileResponse>, Status> {
        self.call::<ReadFile>(request).await
    }

    async fn read_notebook(
        &self,
        request: Request<v1::ReadNotebookRequest>,
    ) -> Result<Response<v1::ReadNotebookResponse>, Status> {
        self.call::<ReadNotebook>(request).await
    }

    async fn run(
        &self,
        request: Request<v1::RunRequest>,
    ) -> Result<Response<v1::RunResponse>, Status> {
        self.call::<RunCommand>(request).await
    }

    async fn search(
        &self,
        request: Request<v1::SearchRequest>,
    ) -> Result<Response<v1::SearchResponse>, Status> {
        self.call::<SearchFiles>(request).await
    }

    async fn stat_path(
        &self,
        request: Request<v1::StatPathRequest>,
    ) -> Result<Response<v1::StatPathResponse>, Status> {
        self.call::<StatPath>(request).await
    }

    async fn write_file(
        &self,
        request: Request<v1::WriteFileRequest>,
    ) -> Result<Response<v1::WriteFileResponse>, Status> {
        self.call::<WriteFile>(request).await
    }
}
