//! The client against a server that does what real ones rarely do: answers too late, leaves gaps,
//! breaks off.

use std::{collections::HashMap, pin::Pin, time::Duration};

use tempfile::TempDir;
use tokio::{
    net::UnixListener,
    runtime::{Builder, Runtime},
    sync::oneshot,
};
use tokio_stream::{Stream, StreamExt as _, wrappers::UnixListenerStream};
use tonic::{Code, Request, Response, Status, transport::Server};
use tonic_types::{ErrorDetails, StatusExt as _};

use super::{CallError, Client, CopyError, Options, ServingStatus};
use crate::api::v1::{
    self, DownloadRequest, DownloadResponse, ListFilesRequest, ListFilesResponse,
    ReadArtifactRequest, ReadArtifactResponse, ReadFileRequest, ReadFileResponse, RunRequest,
    RunResponse,
    artifact_service_server::{ArtifactService, ArtifactServiceServer},
    tool_service_server::{ToolService, ToolServiceServer},
    transfer_service_server::{TransferService, TransferServiceServer},
};

struct Fake;

/// A fake that serves until this is dropped.
struct Serving {
    address: String,
    /// One of its own, as a server's connections are tasks that outlive the server.
    runtime: Option<Runtime>,
    _directory: TempDir,
}

#[tokio::test]
async fn each_call_carries_the_context() {
    let fake = serve().await;
    let options = Options {
        key: Some("k".into()),
        workspace: Some("w".into()),
        session: Some("s".into()),
        deadline: Some(Duration::from_secs(9)),
        traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()),
    };
    let client = Client::connect(&fake.address, options).await.unwrap();
    let metadata = client.run(command("metadata")).await.unwrap().stdout;
    for pair in [
        "authorization=Bearer k;",
        "jig-workspace=w;",
        "jig-session=s;",
        "grpc-timeout=9000000u;",
        "traceparent=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01;",
    ] {
        assert!(metadata.contains(pair), "{metadata}");
    }
}

#[tokio::test]
async fn deadlines_end_calls_and_streams() {
    let fake = serve().await;
    let client = client(&fake, Some(Duration::from_millis(50))).await;
    let error = client.run(command("hang")).await.unwrap_err();
    assert_eq!(
        (error.code, error.name()),
        (Code::DeadlineExceeded, "TIMEOUT")
    );

    let mut written = Vec::new();
    let error = copy(&client, "hang", &mut written).await.unwrap_err();
    assert_eq!(error.code, Code::DeadlineExceeded);
    assert_eq!(
        written, b"0123456789",
        "what came before the deadline stays"
    );
}

#[tokio::test]
async fn details_of_errors_survive_the_wire() {
    let fake = serve().await;
    let client = client(&fake, None).await;
    let request = ReadFileRequest {
        path: "nope".into(),
        ..ReadFileRequest::default()
    };
    let error = client.read_file(request).await.unwrap_err();
    assert_eq!(error.to_string(), "FILE_NOT_FOUND: nothing is there");
    assert_eq!(error.metadata["path"], "nope");
    assert_eq!(error.violations[0].field, "path");
    assert_eq!(error.call_id.as_deref(), Some("01ABC"));
}

#[tokio::test]
async fn pages_are_asked_for_until_the_last() {
    let fake = serve().await;
    let client = client(&fake, None).await;
    let mut pages = client.list_files_by_page(ListFilesRequest::default());
    let mut files = Vec::new();
    while let Some(page) = pages.next().await.unwrap() {
        files.extend(page.files);
    }
    assert_eq!(files, ["0", "1", "2"]);
    assert!(pages.next().await.unwrap().is_none());
}

#[tokio::test]
async fn artifacts_have_no_gaps() {
    let fake = serve().await;
    let client = client(&fake, None).await;
    let mut written = Vec::new();
    copy(&client, "whole", &mut written).await.unwrap();
    assert_eq!(written, b"01234567890123456789");
    let error = copy(&client, "gap", &mut Vec::new()).await.unwrap_err();
    assert_eq!(error.code, Code::DataLoss);
    let error = copy(&client, "broken", &mut Vec::new()).await.unwrap_err();
    assert_eq!(error.code, Code::Internal);
}

#[tokio::test]
async fn downloads_are_whole_and_what_was_sent() {
    let fake = serve().await;
    let client = client(&fake, None).await;
    let directory = tempfile::tempdir().unwrap();
    for (path, outcome) in [
        ("whole", Ok(20)),
        ("gap", Err(Code::DataLoss)),
        ("wrong", Err(Code::DataLoss)),
        ("short", Err(Code::Unavailable)),
    ] {
        let request = DownloadRequest {
            path: path.to_owned(),
            ..DownloadRequest::default()
        };
        let mut parts = client.download(request).await.unwrap();
        let came = async {
            let mut bytes = 0;
            while let Some(part) = parts.next().await? {
                bytes += part.data.len();
            }
            Ok(bytes)
        };
        let came = came.await.map_err(|error: CallError| error.code);
        assert_eq!(came, outcome, "{path}");
    }
    let mut file = std::fs::File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(directory.path().join("file"))
        .unwrap();
    let whole = client
        .receive_file("replaced", &mut file, |_, _| {})
        .await
        .unwrap();
    assert_eq!(whole.size_bytes, 20);
    let content = std::fs::read(directory.path().join("file")).unwrap();
    assert_eq!(
        content, b"01234567890123456789",
        "it was read from the start again"
    );
}

#[tokio::test]
async fn health_is_that_of_the_standard() {
    let fake = serve().await;
    let client = client(&fake, None).await;
    assert_eq!(
        client.check_health("").await.unwrap(),
        ServingStatus::Serving
    );
    assert_eq!(
        client.check_health("sick").await.unwrap(),
        ServingStatus::NotServing
    );
    let error = client.check_health("nosuch").await.unwrap_err();
    assert_eq!(error.code, Code::NotFound);
}

#[tokio::test]
async fn a_daemon_that_dies_is_unavailable() {
    let mut fake = serve().await;
    let client = client(&fake, None).await;
    let call = client.run(command("hang"));
    let death = async {
        // The call must have reached the daemon.
        client.check_health("").await.unwrap();
        fake.die();
    };
    let (answer, ()) = tokio::join!(call, death);
    assert_eq!(answer.unwrap_err().code, Code::Unavailable);
    let error = client.run(command("metadata")).await.unwrap_err();
    assert_eq!(error.code, Code::Unavailable);
}

async fn copy(client: &Client, path: &str, written: &mut Vec<u8>) -> Result<u64, CallError> {
    let request = ReadArtifactRequest {
        path: path.to_owned(),
        offset: 5,
        limit: None,
    };
    match client.copy_artifact(request, written).await {
        Ok(bytes) => Ok(bytes),
        Err(CopyError::Call(error)) => Err(error),
        Err(CopyError::Write(error)) => panic!("{error}"),
    }
}

async fn client(fake: &Serving, deadline: Option<Duration>) -> Client {
    let options = Options {
        deadline,
        ..Options::default()
    };
    Client::connect(&fake.address, options).await.unwrap()
}

fn command(command: &str) -> RunRequest {
    RunRequest {
        command: Some(command.to_owned()),
        ..RunRequest::default()
    }
}

async fn serve() -> Serving {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("sock");
    let address = format!("unix:{}", socket.display());
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let (bound, is_bound) = oneshot::channel();
    let server = async move {
        let (reporter, health) = tonic_health::server::health_reporter();
        reporter
            .set_service_status("sick", tonic_health::ServingStatus::NotServing)
            .await;
        let listener = UnixListenerStream::new(UnixListener::bind(socket).unwrap());
        bound.send(()).unwrap();
        Server::builder()
            .add_service(health)
            .add_service(ToolServiceServer::new(Fake))
            .add_service(ArtifactServiceServer::new(Fake))
            .add_service(TransferServiceServer::new(Fake))
            .serve_with_incoming(listener)
            .await
            .unwrap();
    };
    runtime.spawn(server);
    is_bound.await.unwrap();
    Serving {
        address,
        runtime: Some(runtime),
        _directory: directory,
    }
}

impl Serving {
    fn die(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.die();
    }
}

#[tonic::async_trait]
impl ToolService for Fake {
    async fn list_files(
        &self,
        request: Request<ListFilesRequest>,
    ) -> Result<Response<ListFilesResponse>, Status> {
        let token = request.into_inner().page_token.unwrap_or_default();
        let page: u32 = token.parse().unwrap_or(0);
        Ok(Response::new(ListFilesResponse {
            files: vec![page.to_string()],
            truncated: page < 2,
            next_page_token: if page < 2 {
                (page + 1).to_string()
            } else {
                String::new()
            },
            skipped_names: 0,
            ignore_files_cut: 0,
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
        Ok(Response::new(RunResponse {
            stdout,
            ..RunResponse::default()
        }))
    }
}

#[tonic::async_trait]
impl ArtifactService for Fake {
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
            return Ok(Response::new(Box::pin(
                parts.chain(tokio_stream::pending()),
            )));
        }
        Ok(Response::new(Box::pin(parts)))
    }
}

#[tonic::async_trait]
impl TransferService for Fake {
    type DownloadStream = Pin<Box<dyn Stream<Item = Result<DownloadResponse, Status>> + Send>>;

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

    /// `replaced` breaks off once, and is another file when the rest is asked for.
    async fn download(
        &self,
        request: Request<DownloadRequest>,
    ) -> Result<Response<Self::DownloadStream>, Status> {
        const SUM: &str = "bcc4f85ba8b31c4ff8a5a8d3a8b0b8f1";
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
            })
        };
        let whole = || vec![part(0, None), part(10, Some(sha256_of_twenty()))];
        static BROKEN_OFF: std::sync::Once = std::sync::Once::new();
        let parts = match request.path.as_str() {
            "gap" => vec![part(0, None), part(11, None)],
            "wrong" => vec![part(0, None), part(10, Some(SUM.to_owned()))],
            "short" => vec![part(0, None)],
            "replaced" => {
                let mut parts = whole();
                BROKEN_OFF.call_once(|| parts.truncate(1));
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
