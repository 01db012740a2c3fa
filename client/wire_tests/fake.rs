//! Fake server. Names in requests (`hang`, `gap`, `wrong`, `short`) select its misbehaviour.

use std::{collections::HashMap, pin::Pin};

use tokio_stream::{Stream, StreamExt as _};
use tonic::{Code, Request, Response, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use crate::api::v1::{
    self, DownloadRequest, DownloadResponse, ListFilesRequest, ListFilesResponse,
    ReadArtifactRequest, ReadArtifactResponse, ReadFileRequest, ReadFileResponse, RunRequest,
    RunResponse, artifact_service_server::ArtifactService, tool_service_server::ToolService,
    transfer_service_server::TransferService,
};

pub(super) struct FakeDaemon;

#[tonic::async_trait]
impl ToolService for FakeDaemon {
    async fn list_files(
        &self,
        request: Request<ListFilesRequest>,
    ) -> Result<Response<ListFilesResponse>, Status> {
        let token = request.into_inner().page_token.unwrap_or_default();
        let page: u32 = token.parse().unwrap_or(0);
        Ok(Response::new(ListFilesResponse {
            files: vec![page.to_string()],
            truncated: page < 2,
            next_page_token: if page < 2 { (page + 1).to_string() } else { String::new() },
            skipped_names: 0,
            truncated_ignore_files: 0,
        }))
    }

    async fn read_file(
        &self,
        request: Request<ReadFileRequest>,
    ) -> Result<Response<ReadFileResponse>, Status> {
        let path = request.into_inner().path;
        let metadata = HashMap::from([("path".to_owned(), path)]);
        let mut details = ErrorDetails::with_error_info("FILE_NOT_FOUND", "jig.v1", metadata);
        details.add_bad_request_violation("path", "must be there");
        let mut headers = tonic::metadata::MetadataMap::new();
        headers.insert("jig-call-id", "01ABC".parse().unwrap());
        Err(Status::with_error_details_and_metadata(
            Code::NotFound,
            "nothing is there",
            details,
            headers,
        ))
    }

    async fn list_directory(
        &self,
        _: Request<v1::ListDirectoryRequest>,
    ) -> Result<Response<v1::ListDirectoryResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn stat_path(
        &self,
        _: Request<v1::StatPathRequest>,
    ) -> Result<Response<v1::StatPathResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn write_file(
        &self,
        _: Request<v1::WriteFileRequest>,
    ) -> Result<Response<v1::WriteFileResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn edit_file(
        &self,
        _: Request<v1::EditFileRequest>,
    ) -> Result<Response<v1::EditFileResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn apply_patch(
        &self,
        _: Request<v1::ApplyPatchRequest>,
    ) -> Result<Response<v1::ApplyPatchResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn search(
        &self,
        _: Request<v1::SearchRequest>,
    ) -> Result<Response<v1::SearchResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn create_directory(
        &self,
        _: Request<v1::CreateDirectoryRequest>,
    ) -> Result<Response<v1::CreateDirectoryResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn move_path(
        &self,
        _: Request<v1::MovePathRequest>,
    ) -> Result<Response<v1::MovePathResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn delete_path(
        &self,
        _: Request<v1::DeletePathRequest>,
    ) -> Result<Response<v1::DeletePathResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn read_notebook(
        &self,
        _: Request<v1::ReadNotebookRequest>,
    ) -> Result<Response<v1::ReadNotebookResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn edit_notebook(
        &self,
        _: Request<v1::EditNotebookRequest>,
    ) -> Result<Response<v1::EditNotebookResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn fetch_url(
        &self,
        _: Request<v1::FetchUrlRequest>,
    ) -> Result<Response<v1::FetchUrlResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn await_job(
        &self,
        _: Request<v1::AwaitJobRequest>,
    ) -> Result<Response<v1::AwaitJobResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn last_command(
        &self,
        _: Request<v1::LastCommandRequest>,
    ) -> Result<Response<v1::LastCommandResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn run(&self, request: Request<RunRequest>) -> Result<Response<RunResponse>, Status> {
        if request.get_ref().command.as_deref() == Some("hang") {
            std::future::pending::<()>().await;
        }
        let stdout = request
            .metadata()
            .clone()
            .into_headers()
            .iter()
            .map(|(name, value)| format!("{name}={};", value.to_str().unwrap()))
            .collect();
        Ok(Response::new(RunResponse { stdout, ..RunResponse::default() }))
    }
}

#[tonic::async_trait]
impl ArtifactService for FakeDaemon {
    type ReadArtifactStream =
        Pin<Box<dyn Stream<Item = Result<ReadArtifactResponse, Status>> + Send>>;

    async fn read_artifact(
        &self,
        request: Request<ReadArtifactRequest>,
    ) -> Result<Response<Self::ReadArtifactStream>, Status> {
        let request = request.into_inner();
        let part = |offset| {
            Ok(ReadArtifactResponse {
                data: b"0123456789".to_vec().into(),
                offset: request.offset + offset,
                size_bytes: 20,
            })
        };
        let parts = match request.path.as_str() {
            "gap" => vec![part(0), part(20)],
            "broken" => vec![part(0), Err(Status::internal("broken"))],
            "hang" => vec![part(0)],
            _ => vec![part(0), part(10)],
        };
        let parts = tokio_stream::iter(parts);
        if request.path == "hang" {
            return Ok(Response::new(Box::pin(parts.chain(tokio_stream::pending()))));
        }
        Ok(Response::new(Box::pin(parts)))
    }

    async fn list_artifacts(
        &self,
        _: Request<v1::ListArtifactsRequest>,
    ) -> Result<Response<v1::ListArtifactsResponse>, Status> {
        Err(Status::unimplemented(""))
    }
}

#[tonic::async_trait]
impl TransferService for FakeDaemon {
    type DownloadStream = Pin<Box<dyn Stream<Item = Result<DownloadResponse, Status>> + Send>>;
    type DownloadTreeStream =
        Pin<Box<dyn Stream<Item = Result<v1::DownloadTreeResponse, Status>> + Send>>;

    async fn upload_tree(
        &self,
        _: Request<tonic::Streaming<v1::UploadTreeRequest>>,
    ) -> Result<Response<v1::UploadTreeResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn download_tree(
        &self,
        _: Request<v1::DownloadTreeRequest>,
    ) -> Result<Response<Self::DownloadTreeStream>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn upload(
        &self,
        _: Request<tonic::Streaming<v1::UploadRequest>>,
    ) -> Result<Response<v1::UploadResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn get_upload(
        &self,
        _: Request<v1::GetUploadRequest>,
    ) -> Result<Response<v1::GetUploadResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    /// The path `replaced` is truncated once, and another file when the rest is requested.
    async fn download(
        &self,
        request: Request<DownloadRequest>,
    ) -> Result<Response<Self::DownloadStream>, Status> {
        const WRONG_SHA256: &str = "bcc4f85ba8b31c4ff8a5a8d3a8b0b8f1";
        let request = request.into_inner();

        if request.expected_version.is_some() {
            let details = ErrorDetails::with_error_info("STALE_FILE", "jig.v1", HashMap::new());
            return Err(Status::with_error_details(Code::Aborted, "", details));
        }

        let part = |offset, sha256: Option<String>| {
            Ok(DownloadResponse {
                data: b"0123456789".to_vec().into(),
                offset,
                size_bytes: 20,
                version: "1".into(),
                mode: 0o644,
                sha256,
                modify_time: None,
            })
        };

        let whole = || vec![part(0, None), part(10, Some(sha256_of_twenty()))];
        static TRUNCATED: std::sync::Once = std::sync::Once::new();
        let parts = match request.path.as_str() {
            "gap" => vec![part(0, None), part(11, None)],
            "wrong" => vec![part(0, None), part(10, Some(WRONG_SHA256.to_owned()))],
            "short" => vec![part(0, None)],
            "replaced" => {
                let mut parts = whole();
                TRUNCATED.call_once(|| parts.truncate(1));
                parts
            }
            _ => whole(),
        };
        Ok(Response::new(Box::pin(tokio_stream::iter(parts))))
    }
}

fn sha256_of_twenty() -> String {
    use sha2::{Digest as _, Sha256};

    let sum = Sha256::digest(b"01234567890123456789");
    sum.iter().map(|byte| format!("{byte:02x}")).collect()
}
