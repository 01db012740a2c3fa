//! Typed gRPC: `jig.v1.ToolService`.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use super::{metadata::incoming, status};
use crate::{
    api::v1::{self, tool_service_server::ToolService},
    daemon::{
        call::Pipeline,
        tool::{Tool, list_files::ListFiles, read_file::ReadFile, run::Run},
    },
};

/// The service.
#[derive(Debug)]
pub(crate) struct Tools(pub(crate) Arc<Pipeline>);

impl Tools {
    async fn call<T: Tool>(
        &self,
        request: Request<T::Request>,
    ) -> Result<Response<T::Response>, Status> {
        let incoming = incoming(&request)?;
        let call_id = incoming.call_id.clone();
        let answer = self.0.call::<T>(incoming, request.into_inner()).await;
        answer
            .map(Response::new)
            .map_err(|error| status::answer(&error, &call_id))
    }
}

#[tonic::async_trait]
impl ToolService for Tools {
    async fn list_files(
        &self,
        request: Request<v1::ListFilesRequest>,
    ) -> Result<Response<v1::ListFilesResponse>, Status> {
        self.call::<ListFiles>(request).await
    }

    async fn read_file(
        &self,
        request: Request<v1::ReadFileRequest>,
    ) -> Result<Response<v1::ReadFileResponse>, Status> {
        self.call::<ReadFile>(request).await
    }

    async fn run(
        &self,
        request: Request<v1::RunRequest>,
    ) -> Result<Response<v1::RunResponse>, Status> {
        self.call::<Run>(request).await
    }
}
