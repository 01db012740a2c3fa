//! `process.v1.ProcessService`: each RPC as calls of the contract's `ProcessService`.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use tokio_stream::StreamExt as _;
use tonic::{Request, Response, Status};

use super::{
    caller_name::CallerName,
    process_events::AgentProcessEvents,
    process_ids::{KnownProcess, ProcessIds},
};
use crate::{
    api::{
        process_v1::{
            ExecuteRequest, ExecuteResponse, ProcessConfig, Pty, ResizeTtyRequest,
            ResizeTtyResponse, SendSignalRequest, SendSignalResponse, Signal, StartRequest,
            WriteStdinRequest, WriteStdinResponse, process_service_server::ProcessService,
            start_response::Event, write_stdin_request::Payload,
        },
        v1::{self, process_service_client::ProcessServiceClient},
    },
    daemon::{
        error::{Error, Reason},
        grpc::status::to_status,
        http::{GrpcCaller, HttpService},
    },
};

/// Bytes that `Execute` returns of both streams together: as many as a response of `Run` may have of
/// one.
const MAX_EXECUTE_OUTPUT_BYTES: usize = 10 << 20;
/// Bytes that one `WriteStdin` of the contract takes.
const MAX_WRITE_BYTES: usize = 1 << 20;
/// Size of a terminal whose request has none.
const DEFAULT_TERMINAL_SIZE: v1::TerminalSize = v1::TerminalSize { cols: 80, rows: 24 };

/// Handles the RPCs.
#[derive(Debug, Clone)]
pub(super) struct AgentProcessHandler {
    grpc: HttpService,
    ids: Arc<ProcessIds>,
}

impl AgentProcessHandler {
    /// `grpc` has the gRPC services with their layers.
    pub(super) fn new(grpc: HttpService) -> Self {
        Self { grpc, ids: Arc::default() }
    }

    fn client(&self, caller: &GrpcCaller) -> ProcessServiceClient<HttpService> {
        ProcessServiceClient::with_origin(self.grpc.clone(), caller.origin.clone())
            .max_decoding_message_size(usize::MAX)
    }

    /// Starts a command in the name of a caller.
    async fn start_process(
        &self,
        caller: &GrpcCaller,
        owner: Arc<str>,
        request: v1::StartRequest,
    ) -> Result<Response<AgentProcessEvents>, Status> {
        let has_terminal = request.pty.is_some();
        let response = self.client(caller).start(caller.request(request)).await?;
        Ok(response.map(|events| AgentProcessEvents {
            events,
            ids: Arc::clone(&self.ids),
            owner,
            has_terminal,
            registered: None,
        }))
    }

    /// The process that a request names. Processes of other callers do not exist for this one.
    fn find<T>(&self, request: &Request<T>, id: i32) -> Result<KnownProcess, Status> {
        let caller = caller_name(request)?;
        self.ids.find(id, &caller).ok_or_else(|| {
            let text = format!(
                "no process {id}: the caller has not started it, or its stream has ended. Use the process_id of an open stream"
            );
            to_status(&Error::new(Reason::ProcessNotFound, text))
        })
    }
}

#[tonic::async_trait]
impl ProcessService for AgentProcessHandler {
    type StartStream = AgentProcessEvents;

    async fn start(
        &self,
        request: Request<StartRequest>,
    ) -> Result<Response<AgentProcessEvents>, Status> {
        let (caller, owner) = (GrpcCaller::of_grpc(&request), caller_name(&request)?);
        let StartRequest { config, pty } = request.into_inner();
        let start = v1::StartRequest {
            pty: pty.map(terminal_size),
            stdin_open: Some(true),
            ..command(config)?
        };
        self.start_process(&caller, owner, start).await
    }

    async fn execute(
        &self,
        request: Request<ExecuteRequest>,
    ) -> Result<Response<ExecuteResponse>, Status> {
        let (caller, owner) = (GrpcCaller::of_grpc(&request), caller_name(&request)?);
        let config = request.into_inner().config;
        let start = v1::StartRequest { stdin_open: Some(false), ..command(config)? };
        let started = self.start_process(&caller, owner, start).await?;

        let (metadata, events, extensions) = started.into_parts();
        let output = collect_output(events).await?;
        Ok(Response::from_parts(metadata, output, extensions))
    }

    async fn write_stdin(
        &self,
        request: Request<WriteStdinRequest>,
    ) -> Result<Response<WriteStdinResponse>, Status> {
        let process_id = self.find(&request, request.get_ref().process_id)?.process_id;
        let caller = GrpcCaller::of_grpc(&request);
        let mut client = self.client(&caller);
        let write = v1::WriteStdinRequest { process_id, ..v1::WriteStdinRequest::default() };

        match request.into_inner().payload {
            Some(Payload::Eof(())) => {
                let write = v1::WriteStdinRequest { eof: true, ..write };
                client.write_stdin(caller.request(write)).await?;
            }
            Some(Payload::Input(mut input)) => {
                while !input.is_empty() {
                    let data = input.split_to(input.len().min(MAX_WRITE_BYTES));
                    let write = v1::WriteStdinRequest { data, ..write.clone() };
                    client.write_stdin(caller.request(write)).await?;
                }
            }
            None => return Err(invalid("payload", "must be input or eof")),
        }
        Ok(Response::new(WriteStdinResponse {}))
    }

    async fn send_signal(
        &self,
        request: Request<SendSignalRequest>,
    ) -> Result<Response<SendSignalResponse>, Status> {
        let process_id = self.find(&request, request.get_ref().process_id)?.process_id;
        let signal = match request.get_ref().signal() {
            Signal::Sigint => "SIGINT",
            Signal::Sigkill => "SIGKILL",
            Signal::Sigterm => "SIGTERM",
            Signal::Unspecified => {
                return Err(invalid(
                    "signal",
                    "must be SIGNAL_SIGINT, SIGNAL_SIGKILL or SIGNAL_SIGTERM",
                ));
            }
        };

        let caller = GrpcCaller::of_grpc(&request);
        let signal = v1::SendSignalRequest { process_id, signal: signal.to_owned() };
        let response = self.client(&caller).send_signal(caller.request(signal)).await?;
        Ok(response.map(|_sent| SendSignalResponse {}))
    }

    async fn resize_tty(
        &self,
        request: Request<ResizeTtyRequest>,
    ) -> Result<Response<ResizeTtyResponse>, Status> {
        let process = self.find(&request, request.get_ref().process_id)?;
        if !process.has_terminal {
            let text = "the process has no terminal: start it with pty";
            return Err(Status::failed_precondition(text));
        }

        let caller = GrpcCaller::of_grpc(&request);
        let ResizeTtyRequest { cols, rows, .. } = request.into_inner();
        let resize = v1::ResizeTerminalRequest { process_id: process.process_id, cols, rows };
        let response = self.client(&caller).resize_terminal(caller.request(resize)).await?;
        Ok(response.map(|_resized| ResizeTtyResponse {}))
    }
}

/// The name of the caller, which the listener has authenticated.
fn caller_name<T>(request: &Request<T>) -> Result<Arc<str>, Status> {
    let name = request.extensions().get::<CallerName>();
    let name = name.ok_or_else(|| to_status(&Error::internal("the caller is not known")))?;
    Ok(Arc::clone(&name.0))
}

/// The request for a command with pipes.
fn command(config: Option<ProcessConfig>) -> Result<v1::StartRequest, Status> {
    let ProcessConfig { command, env_vars, cwd } = config.unwrap_or_default();
    if command.is_empty() {
        return Err(invalid("config.command", "must have a program"));
    }
    Ok(v1::StartRequest {
        argv: command,
        env: env_vars,
        cwd: cwd.filter(|cwd| !cwd.is_empty()),
        ..v1::StartRequest::default()
    })
}

fn terminal_size(pty: Pty) -> v1::TerminalSize {
    match pty {
        Pty { cols: 0, .. } | Pty { rows: 0, .. } => DEFAULT_TERMINAL_SIZE,
        Pty { cols, rows } => v1::TerminalSize { cols, rows },
    }
}

/// Reads a process to its end. The process is killed if its output is too large.
async fn collect_output(mut events: AgentProcessEvents) -> Result<ExecuteResponse, Status> {
    let (mut stdout, mut stderr) = (BytesMut::new(), BytesMut::new());
    let mut exit_code = None;
    // A stream that is not read to its end is a cancelled call.
    while let Some(message) = events.next().await {
        match message?.event {
            Some(Event::Stdout(data)) => append(&mut stdout, &data, stderr.len())?,
            Some(Event::Stderr(data)) => append(&mut stderr, &data, stdout.len())?,
            Some(Event::Exit(exit)) => exit_code = Some(exit.exit_code),
            Some(Event::Init(_)) | None => {}
        }
    }
    let exit_code = exit_code.ok_or_else(|| {
        to_status(&Error::internal("the stream of a process ended without its exit"))
    })?;
    Ok(ExecuteResponse { exit_code, stdout: stdout.freeze(), stderr: stderr.freeze() })
}

fn append(output: &mut BytesMut, data: &Bytes, other_bytes: usize) -> Result<(), Status> {
    output.extend_from_slice(data);
    if output.len() + other_bytes <= MAX_EXECUTE_OUTPUT_BYTES {
        return Ok(());
    }
    let text = format!(
        "the command was ended: its output is larger than {MAX_EXECUTE_OUTPUT_BYTES} bytes, the most that Execute returns. Use Start, or write the output to a file"
    );
    let error = Error::new(Reason::ResourceExhausted, text);
    Err(to_status(&error.with_metadata("limit", MAX_EXECUTE_OUTPUT_BYTES.to_string())))
}

fn invalid(field: &str, description: &str) -> Status {
    to_status(&Error::invalid_field(field, description))
}
