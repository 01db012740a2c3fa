//! Tests of the client against a fake server with rare behaviour: late responses, gaps, broken
//! streams.

mod fake;

use std::time::Duration;

use tempfile::TempDir;
use tokio::{
    net::UnixListener,
    runtime::{Builder, Runtime},
    sync::oneshot,
};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Code, transport::Server};

use self::fake::FakeDaemon;
use super::{CallError, Client, CopyError, Options, ServingStatus};
use crate::api::v1::{
    DownloadRequest, ListFilesRequest, ReadArtifactRequest, ReadFileRequest, RunRequest,
    artifact_service_server::ArtifactServiceServer, tool_service_server::ToolServiceServer,
    transfer_service_server::TransferServiceServer,
};

/// A fake server that runs until this is dropped.
struct Serving {
    address: String,
    /// A runtime of its own, because a server's connections are tasks that outlive the server.
    runtime: Option<Runtime>,
    _directory: TempDir,
}

#[tokio::test]
async fn each_call_carries_the_options() {
    let fake = serve().await;
    let options = Options {
        key: Some("k".into()),
        workspace: Some("w".into()),
        session: Some("s".into()),
        deadline: Some(Duration::from_secs(9)),
        traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()),
        request_id: Some("r".into()),
        ..Options::default()
    };
    let client = Client::connect(&fake.address, options).await.unwrap();

    let metadata = client.run(command("metadata")).await.unwrap().stdout;
    for pair in [
        "authorization=Bearer k;",
        "jig-workspace=w;",
        "jig-session=s;",
        "jig-request-id=r;",
        "grpc-timeout=9000000u;",
        "traceparent=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01;",
    ] {
        assert!(metadata.contains(pair), "{metadata}");
    }

    let other = client.without_request_id();
    let metadata = other.run(command("metadata")).await.unwrap().stdout;
    assert!(metadata.contains("jig-session=s;"), "{metadata}");
    assert!(!metadata.contains("jig-request-id"), "{metadata}");
}

#[tokio::test]
async fn deadlines_end_calls_and_streams() {
    let fake = serve().await;
    let client = client(&fake, Some(Duration::from_millis(50))).await;
    let error = client.run(command("hang")).await.unwrap_err();
    assert_eq!((error.code, error.name()), (Code::DeadlineExceeded, "TIMEOUT"));

    let mut written = Vec::new();
    let error = copy(&client, "hang", &mut written).await.unwrap_err();
    assert_eq!(error.code, Code::DeadlineExceeded);
    assert_eq!(written, b"0123456789", "output before the deadline is kept");
}

#[tokio::test]
async fn error_details_survive_the_wire() {
    let fake = serve().await;
    let client = client(&fake, None).await;
    let request = ReadFileRequest { path: "nope".into(), ..ReadFileRequest::default() };
    let error = client.read_file(request).await.unwrap_err();
    assert_eq!(error.to_string(), "FILE_NOT_FOUND: nothing is there");
    assert_eq!(error.metadata["path"], "nope");
    assert_eq!(error.violations[0].field, "path");
    assert_eq!(error.call_id.as_deref(), Some("01ABC"));
}

#[tokio::test]
async fn listing_fetches_all_pages() {
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
async fn artifacts_with_gaps_are_rejected() {
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
async fn incomplete_or_corrupt_downloads_are_rejected() {
    let fake = serve().await;
    let client = client(&fake, None).await;
    let directory = tempfile::tempdir().unwrap();

    for (path, outcome) in [
        ("whole", Ok(20)),
        ("gap", Err(Code::DataLoss)),
        ("wrong", Err(Code::DataLoss)),
        ("short", Err(Code::Unavailable)),
    ] {
        let request = DownloadRequest { path: path.to_owned(), ..DownloadRequest::default() };
        let mut parts = client.download(request).await.unwrap();
        let received = async {
            let mut bytes = 0;
            while let Some(part) = parts.next().await? {
                bytes += part.data.len();
            }
            Ok(bytes)
        };
        let received = received.await.map_err(|error: CallError| error.code);
        assert_eq!(received, outcome, "{path}");
    }

    let mut file = std::fs::File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(directory.path().join("file"))
        .unwrap();

    let summary = client.receive_file("replaced", &mut file, |_, _| {}).await.unwrap();
    assert_eq!(summary.size_bytes, 20);
    let content = std::fs::read(directory.path().join("file")).unwrap();
    assert_eq!(content, b"01234567890123456789", "the download restarted");
}

#[tokio::test]
async fn health_check_follows_the_standard() {
    let fake = serve().await;
    let client = client(&fake, None).await;
    assert_eq!(client.check_health("").await.unwrap(), ServingStatus::Serving);
    assert_eq!(client.check_health("sick").await.unwrap(), ServingStatus::NotServing);
    let error = client.check_health("nosuch").await.unwrap_err();
    assert_eq!(error.code, Code::NotFound);
}

#[tokio::test]
async fn dead_daemon_is_unavailable() {
    let mut fake = serve().await;
    let client = client(&fake, None).await;
    let call = client.run(command("hang"));
    let kill = async {
        // The call must have reached the daemon.
        client.check_health("").await.unwrap();
        fake.kill();
    };
    let (response, ()) = tokio::join!(call, kill);
    assert_eq!(response.unwrap_err().code, Code::Unavailable);

    let error = client.run(command("metadata")).await.unwrap_err();
    assert_eq!(error.code, Code::Unavailable);
}

async fn copy(client: &Client, path: &str, written: &mut Vec<u8>) -> Result<u64, CallError> {
    let request =
        ReadArtifactRequest { path: path.to_owned(), offset: 5, ..ReadArtifactRequest::default() };
    match client.copy_artifact(request, written).await {
        Ok(bytes) => Ok(bytes),
        Err(CopyError::Call(error)) => Err(error),
        Err(CopyError::Write(error)) => panic!("{error}"),
    }
}

async fn client(fake: &Serving, deadline: Option<Duration>) -> Client {
    let options = Options { deadline, ..Options::default() };
    Client::connect(&fake.address, options).await.unwrap()
}

fn command(command: &str) -> RunRequest {
    RunRequest { command: Some(command.to_owned()), ..RunRequest::default() }
}

async fn serve() -> Serving {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("sock");
    let address = format!("unix:{}", socket.display());
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (bound, is_bound) = oneshot::channel();

    let server = async move {
        let (reporter, health) = tonic_health::server::health_reporter();
        reporter.set_service_status("sick", tonic_health::ServingStatus::NotServing).await;
        let listener = UnixListenerStream::new(UnixListener::bind(socket).unwrap());
        bound.send(()).unwrap();
        Server::builder()
            .add_service(health)
            .add_service(ToolServiceServer::new(FakeDaemon))
            .add_service(ArtifactServiceServer::new(FakeDaemon))
            .add_service(TransferServiceServer::new(FakeDaemon))
            .serve_with_incoming(listener)
            .await
            .unwrap();
    };

    runtime.spawn(server);
    is_bound.await.unwrap();
    Serving { address, runtime: Some(runtime), _directory: directory }
}

impl Serving {
    fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.kill();
    }
}
