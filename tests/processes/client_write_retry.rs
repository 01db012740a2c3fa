//! `jig exec` with a daemon whose responses get lost. Each kind of loss occurs once.

use std::{pin::Pin, process::Stdio, sync::Mutex};

use jig::api::v1::{
    AttachRequest, AttachResponse, ForwardPortRequest, ForwardPortResponse, ListProcessesRequest,
    ListProcessesResponse, Outcome, ProcessExited, ProcessStarted, ResizeTerminalRequest,
    ResizeTerminalResponse, SendSignalRequest, SendSignalResponse, StartRequest, StartResponse,
    WriteStdinRequest, WriteStdinResponse,
    process_service_server::{ProcessService, ProcessServiceServer},
    start_response::Event,
};
use tokio::{net::UnixListener, sync::mpsc};
use tokio_stream::{
    Stream, StreamExt as _,
    wrappers::{ReceiverStream, UnixListenerStream},
};
use tonic::{Code, Request, Response, Status, transport::Server};

use super::command_line::jig_command;
use crate::support::promptly;

/// Status codes of a lost connection, beside UNAVAILABLE. The list is short: a daemon that accepts
/// no input for seconds, although the process is read, counts as one that is stopping.
const LOST_RESPONSE_CODES: [Code; 3] = [Code::Unknown, Code::Internal, Code::DataLoss];

/// A daemon with one process, which exits at the first write whose response is delivered.
#[derive(Debug, Default)]
struct LossyProcessService {
    /// Write ids of the received writes.
    write_ids: Mutex<Vec<String>>,
    watcher: Mutex<Option<mpsc::Sender<Event>>>,
}

#[tokio::test]
async fn lost_write_is_retried_under_its_write_id() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let incoming = UnixListenerStream::new(UnixListener::bind(&path).unwrap());
    let service = ProcessServiceServer::new(LossyProcessService::default());
    let server = Server::builder().add_service(service).serve_with_incoming(incoming);
    let mut child =
        jig_command(&path, &["exec", "-i", "cat"]).stdin(Stdio::piped()).spawn().unwrap();
    drop(child.stdin.take());
    let output = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap());

    let output = tokio::select! {
        result = server => panic!("{result:?}"),
        output = promptly("jig exits", output) => output.unwrap(),
    };
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), stderr.as_str()), (Some(7), ""));
}

#[tonic::async_trait]
impl ProcessService for LossyProcessService {
    type StartStream = Pin<Box<dyn Stream<Item = Result<StartResponse, Status>> + Send>>;
    type AttachStream = Pin<Box<dyn Stream<Item = Result<AttachResponse, Status>> + Send>>;
    type ForwardPortStream =
        Pin<Box<dyn Stream<Item = Result<ForwardPortResponse, Status>> + Send>>;

    async fn start(&self, _: Request<StartRequest>) -> Result<Response<Self::StartStream>, Status> {
        let (sender, receiver) = mpsc::channel(2);
        let started = ProcessStarted { process_id: "01ID".into(), ..ProcessStarted::default() };
        sender.try_send(Event::Started(started)).unwrap();
        *self.watcher.lock().unwrap() = Some(sender);
        let message = |event| Ok(StartResponse { event: Some(event) });
        Ok(Response::new(Box::pin(ReceiverStream::new(receiver).map(message))))
    }

    async fn write_stdin(
        &self,
        request: Request<WriteStdinRequest>,
    ) -> Result<Response<WriteStdinResponse>, Status> {
        let mut writes = self.write_ids.lock().unwrap();
        let write_id = request.into_inner().write_id;
        let all_equal = writes.iter().all(|earlier| *earlier == write_id);
        let lost_code = LOST_RESPONSE_CODES.get(writes.len());
        writes.push(write_id);
        if let Some(code) = lost_code {
            return Err(Status::new(*code, "the response is lost"));
        }

        let exited = ProcessExited {
            outcome: Outcome::Exited.into(),
            exit_code: Some(if all_equal { 7 } else { 8 }),
            ..ProcessExited::default()
        };
        let watcher = self.watcher.lock().unwrap().take().unwrap();
        watcher.try_send(Event::Exited(exited)).unwrap();

        Ok(Response::new(WriteStdinResponse::default()))
    }

    async fn attach(
        &self,
        _: Request<AttachRequest>,
    ) -> Result<Response<Self::AttachStream>, Status> {
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
