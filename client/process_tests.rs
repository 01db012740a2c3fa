//! Tests of process streams against a fake daemon with rare behaviour.

use std::{pin::Pin, time::Duration};

use tokio::net::UnixListener;
use tokio_stream::{Stream, wrappers::UnixListenerStream};
use tonic::{Code, Request, Response, Status, transport::Server};

use super::{Client, Options, ProcessEvent};
use crate::api::v1::{
    AttachRequest, AttachResponse, ForwardPortRequest, ForwardPortResponse, ListProcessesRequest,
    ListProcessesResponse, ProcessKeepAlive, ProcessStarted, ResizeTerminalRequest,
    ResizeTerminalResponse, SendSignalRequest, SendSignalResponse, StartRequest, StartResponse,
    WriteStdinRequest, WriteStdinResponse,
    process_service_server::{ProcessService, ProcessServiceServer},
    start_response::Event,
};

/// A daemon whose commands first wait for a sandbox and are then lost.
struct FakeProcessService;

#[tokio::test]
async fn keep_alive_precedes_start_and_errors_carry_the_call_id() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let incoming = UnixListenerStream::new(UnixListener::bind(&path).unwrap());
    let serving = Server::builder()
        .add_service(ProcessServiceServer::new(FakeProcessService))
        .serve_with_incoming(incoming);

    let calling = async {
        let address = format!("unix:{}", path.display());
        let client = Client::connect(&address, Options::default()).await.unwrap();
        let mut events = client.start(StartRequest::default()).await.unwrap();

        let first = events.next().await.unwrap();
        assert_eq!(first, Some(ProcessEvent::KeepAlive));
        assert_eq!(events.position().process_id, "");

        let second = events.next().await.unwrap();
        assert!(matches!(second, Some(ProcessEvent::Started(_))), "{second:?}");
        assert_eq!(events.position().process_id, "01ID");

        // The trailing status lacks the call id; the initial metadata has it.
        let error = events.next().await.unwrap_err();
        assert_eq!(error.code, Code::Internal);
        assert_eq!(error.call_id.as_deref(), Some("01CALL"));
    };
    tokio::select! {
        served = serving => panic!("{served:?}"),
        called = tokio::time::timeout(Duration::from_secs(20), calling) => called.unwrap(),
    }
}

fn event(event: Event) -> Result<StartResponse, Status> {
    Ok(StartResponse { event: Some(event) })
}

#[tonic::async_trait]
impl ProcessService for FakeProcessService {
    type StartStream = Pin<Box<dyn Stream<Item = Result<StartResponse, Status>> + Send>>;
    type AttachStream = Pin<Box<dyn Stream<Item = Result<AttachResponse, Status>> + Send>>;
    type ForwardPortStream =
        Pin<Box<dyn Stream<Item = Result<ForwardPortResponse, Status>> + Send>>;

    async fn start(&self, _: Request<StartRequest>) -> Result<Response<Self::StartStream>, Status> {
        let events = [
            event(Event::KeepAlive(ProcessKeepAlive { last_sequence: 0 })),
            event(Event::Started(ProcessStarted {
                process_id: "01ID".into(),
                ..ProcessStarted::default()
            })),
            Err(Status::internal("lost")),
        ];
        let stream: Self::StartStream = Box::pin(tokio_stream::iter(events));
        let mut response = Response::new(stream);
        let id = "01CALL".parse().unwrap();
        response.metadata_mut().insert("jig-call-id", id);
        Ok(response)
    }

    async fn attach(
        &self,
        _: Request<AttachRequest>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn write_stdin(
        &self,
        _: Request<WriteStdinRequest>,
    ) -> Result<Response<WriteStdinResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn forward_port(
        &self,
        _: Request<tonic::Streaming<ForwardPortRequest>>,
    ) -> Result<Response<Self::ForwardPortStream>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn send_signal(
        &self,
        _: Request<SendSignalRequest>,
    ) -> Result<Response<SendSignalResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn resize_terminal(
        &self,
        _: Request<ResizeTerminalRequest>,
    ) -> Result<Response<ResizeTerminalResponse>, Status> {
        Err(Status::unimplemented(""))
    }

    async fn list_processes(
        &self,
        _: Request<ListProcessesRequest>,
    ) -> Result<Response<ListProcessesResponse>, Status> {
        Err(Status::unimplemented(""))
    }
}
