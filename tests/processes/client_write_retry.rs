//! `jig exec` and a daemon some of whose answers are lost on their way: each kind of loss is one.

use std::{pin::Pin, process::Stdio, sync::Mutex};

use jig::api::v1::{
    AttachRequest, AttachResponse, ListProcessesRequest, ListProcessesResponse, Outcome,
    ProcessExited, ProcessStarted, ResizeTerminalRequest, ResizeTerminalResponse,
    SendSignalRequest, SendSignalResponse, StartRequest, StartResponse, WriteStdinRequest,
    WriteStdinResponse,
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

/// How calls fail whose connection is lost, beside UNAVAILABLE. Few: a daemon that takes nothing for
/// seconds, although the process is read, is taken for one that ends.
const LOST_RESPONSE_CODES: [Code; 3] = [Code::Unknown, Code::Internal, Code::DataLoss];

/// A daemon with one process, which ends when it was given what it waits for.
#[derive(Debug, Default)]
struct LossyProcessService {
    /// Names of the writes that came.
    write_ids: Mutex<Vec<String>>,
    watcher: Mutex<Option<mpsc::Sender<Event>>>,
}

#[tokio::test]
async fn lost_write_is_retried_under_its_write_id() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let incoming = UnixListenerStream::new(UnixListener::bind(&path).unwrap());
    let service = ProcessServiceServer::new(LossyProcessService::default());
    let serving = Server::builder().add_service(service).serve_with_incoming(incoming);
    let mut child =
        jig_command(&path, &["exec", "-i", "cat"]).stdin(Stdio::piped()).spawn().unwrap();
    drop(child.stdin.take());
    let ended = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap());
    let ended = tokio::select! {
        served = serving => panic!("{served:?}"),
        ended = promptly("jig ends", ended) => ended.unwrap(),
    };
    let stderr = String::from_utf8(ended.stderr).unwrap();
    assert_eq!((ended.status.code(), stderr.as_str()), (Some(7), ""));
}

#[tonic::async_trait]
impl ProcessService for LossyProcessService {
    type StartStream = Pin<Box<dyn Stream<Item = Result<StartResponse, Status>> + Send>>;
    type AttachStream = Pin<Box<dyn Stream<Item = Result<AttachResponse, Status>> + Send>>;

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
        let name = request.into_inner().write_id;
        let is_same = writes.iter().all(|before| *before == name);
        let loss = LOST_RESPONSE_CODES.get(writes.len());
        writes.push(name);
        if let Some(code) = loss {
            return Err(Status::new(*code, "the answer is lost"));
        }
        let exited = ProcessExited {
            outcome: Outcome::Exited.into(),
            exit_code: Some(if is_same { 7 } else { 8 }),
            ..ProcessExited::default()
        };
        let watching = self.watcher.lock().unwrap().take().unwrap();
        watching.try_send(Event::Exited(exited)).unwrap();
        Ok(Response::new(WriteStdinResponse::default()))
    }

    async fn attach(
        &self,
        _: Request<AttachRequest>,
    ) -> Result<Response<Self::AttachStream>, Status> {
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
