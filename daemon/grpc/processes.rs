//! `jig.v1.ProcessService`: starts processes, streams their output, and controls them.

mod forward;
mod process_ended;
mod stream;

use std::{sync::Arc, time::Duration};

use prost::Message;
use tonic::{Request, Response, Status, Streaming};

use self::{
    process_ended::process_ended_error,
    stream::{OnDeadline, ProcessStream},
};
use super::{
    handle, handle_stream,
    response_stream::{WorkspaceStream, keep_alive_interval},
};
use crate::{
    api::v1::{
        self, AttachRequest, AttachResponse, ForwardPortRequest, ForwardPortResponse,
        ListProcessesRequest, ListProcessesResponse, OnDisconnect, ProcessInfo, ProcessState,
        ResizeTerminalRequest, ResizeTerminalResponse, SendSignalRequest, SendSignalResponse,
        StartRequest, StartResponse, WriteStdinRequest, WriteStdinResponse,
        process_service_server::ProcessService,
    },
    daemon::{
        error::{Error, Reason, Violation},
        pipeline::{Pipeline, context::CallContext, process_start::too_many_readers_error},
        process::{
            handle::{AttachError, ControlError, OutputReader, ProcessControl, ProcessHandle},
            input::{InputWrite, InputWriteError},
            outcome::{signal_name, signal_number},
            registry::ProcessEntry,
            replay_buffer::OutputPosition,
        },
        queue::Limiter,
        sandbox::image::TerminalSize,
        tool::run::response::wire_outcome,
    },
};

/// Retry delay when too many writes or control messages are pending.
const PENDING_INPUT_RETRY_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub(crate) struct ProcessServiceHandler {
    pipeline: Arc<Pipeline>,
    /// Permits for connections to ports.
    port_limiter: Arc<Limiter>,
}

#[tonic::async_trait]
impl ProcessService for ProcessServiceHandler {
    type StartStream = WorkspaceStream<StartResponse>;
    type AttachStream = WorkspaceStream<AttachResponse>;
    type ForwardPortStream = WorkspaceStream<ForwardPortResponse>;

    async fn start(
        &self,
        request: Request<StartRequest>,
    ) -> Result<Response<Self::StartStream>, Status> {
        handle_stream(request, async |context, request| {
            let deadline = context.deadline;
            let keep_alive_interval = keep_alive_interval(request.keep_alive_sec);
            let call_id = context.call_id.clone();
            // With a request id, the client can repeat the call and get the same process.
            let is_repeatable = context.request_id.is_some();
            let isolation = self.isolation_level(&context);

            let reader = self.pipeline.start_process(context, request).await?;
            let on_deadline = if reader.process().info.ends_with_last_reader && !is_repeatable {
                OnDeadline::EndProcess
            } else {
                OnDeadline::Detach
            };
            let stream = ProcessStream {
                reader,
                call_id,
                isolation,
                keep_alive_interval,
                deadline,
                on_deadline,
            };
            Ok(stream.spawn())
        })
        .await
    }

    async fn attach(
        &self,
        request: Request<AttachRequest>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        handle_stream(request, async |context, request| {
            let keep_alive_interval = keep_alive_interval(request.keep_alive_sec);
            let stream = ProcessStream {
                reader: self.attach_reader(&context, request)?,
                isolation: self.isolation_level(&context),
                call_id: context.call_id,
                keep_alive_interval,
                deadline: context.deadline,
                on_deadline: OnDeadline::Detach,
            };
            Ok(stream.spawn())
        })
        .await
    }

    async fn write_stdin(
        &self,
        request: Request<WriteStdinRequest>,
    ) -> Result<Response<WriteStdinResponse>, Status> {
        self.handle_once("WriteStdin", request, |service, context, request| async move {
            let accepted_bytes = service.write_input(&context, request).await?;
            Ok(WriteStdinResponse { accepted_bytes })
        })
        .await
    }

    async fn send_signal(
        &self,
        request: Request<SendSignalRequest>,
    ) -> Result<Response<SendSignalResponse>, Status> {
        self.handle_once("SendSignal", request, |service, context, request| async move {
            service.deliver_signal(&context, request).await?;
            Ok(SendSignalResponse {})
        })
        .await
    }

    async fn resize_terminal(
        &self,
        request: Request<ResizeTerminalRequest>,
    ) -> Result<Response<ResizeTerminalResponse>, Status> {
        self.handle_once("ResizeTerminal", request, |service, context, request| async move {
            service.resize(&context, request).await?;
            Ok(ResizeTerminalResponse {})
        })
        .await
    }

    async fn forward_port(
        &self,
        request: Request<Streaming<ForwardPortRequest>>,
    ) -> Result<Response<Self::ForwardPortStream>, Status> {
        handle_stream(request, async |context, mut requests| {
            let catalog = &self.pipeline.catalog;
            let (process_id, port) = forward::receive_start(catalog, &mut requests).await?;
            context.note_params([("port", Some(port.to_string().as_str()))]);
            let process = self.find_process(&context, &process_id)?;
            self.pipeline.require_command_input_access(&context)?;
            let limiter = &self.port_limiter;
            forward::forward_port(&process, port, &context, requests, limiter).await
        })
        .await
    }

    async fn list_processes(
        &self,
        request: Request<ListProcessesRequest>,
    ) -> Result<Response<ListProcessesResponse>, Status> {
        handle(request, async |context, _| {
            let workspace_context = self.pipeline.resolve_workspace(&context)?;
            let workspace = workspace_context.workspace.name();
            self.pipeline.require_command_access(&context)?;
            let entries = self.pipeline.processes.list(workspace);
            Ok(ListProcessesResponse { processes: entries.iter().map(wire_process).collect() })
        })
        .await
    }
}

impl ProcessServiceHandler {
    pub(crate) fn new(pipeline: Arc<Pipeline>) -> Self {
        Self { pipeline, port_limiter: forward::port_limiter() }
    }

    /// Handles a request with side effects. A repeat with the same request id gets the first
    /// result.
    async fn handle_once<Q, A, F>(
        &self,
        method: &str,
        request: Request<Q>,
        work: impl FnOnce(Self, CallContext, Q) -> F,
    ) -> Result<Response<A>, Status>
    where
        Q: Message,
        A: Message + Default + 'static,
        F: Future<Output = Result<A, Error>> + Send + 'static,
    {
        let method = format!("jig.v1.ProcessService/{method}");
        handle(request, async |context, request| {
            let call = self.pipeline.identify_call(&context, &method, &request)?;
            let work = work(self.clone(), context, request);
            self.pipeline.run_once(call, &method, work).await
        })
        .await
    }

    /// Finds a running or recently ended process of the workspace.
    fn find_process(&self, context: &CallContext, id: &str) -> Result<Arc<ProcessHandle>, Error> {
        context.access_log_entry.update(|fields| fields.process_id = Some(id.to_owned()));
        let workspace_context = self.pipeline.resolve_workspace(context)?;
        let workspace = workspace_context.workspace.name();
        self.pipeline.require_command_access(context)?;
        let entry = self.pipeline.processes.find(workspace, id);
        entry.map(|entry| entry.process).ok_or_else(|| {
            let text = format!(
                "workspace {workspace} has no process {id:?}, running or recently ended: ListProcesses lists them"
            );
            Error::new(Reason::ProcessNotFound, text).with_metadata("process_id", id)
        })
    }

    fn isolation_level(&self, context: &CallContext) -> String {
        self.pipeline
            .resolve_workspace(context)
            .map(|workspace| workspace.isolation.level.to_string())
            .unwrap_or_default()
    }

    fn attach_reader(
        &self,
        context: &CallContext,
        request: AttachRequest,
    ) -> Result<OutputReader, Error> {
        let request = self.pipeline.catalog.check("jig.v1.AttachRequest", request)?;
        let process = self.find_process(context, &request.process_id)?;
        let position = OutputPosition {
            after_sequence: request.after_sequence,
            stdout_offset: request.stdout_offset,
            stderr_offset: request.stderr_offset,
        };
        process.attach(context.principal.shared_name(), position).map_err(|error| match error {
            AttachError::PositionBeyondEnd(written) => position_past_end_error(position, written),
            AttachError::TooManyReaders(full) => too_many_readers_error(full),
        })
    }

    async fn write_input(
        &self,
        context: &CallContext,
        request: WriteStdinRequest,
    ) -> Result<u64, Error> {
        let mut checked =
            self.pipeline.catalog.validate("jig.v1.WriteStdinRequest", request, false)?;
        let request = checked.request;
        if request.data.is_empty() && !request.eof {
            let text = "must not be empty unless eof is set";
            checked.violations.push(Violation::new("data", text));
        }
        if !checked.violations.is_empty() {
            return Err(Error::invalid(checked.violations));
        }

        let process = self.find_process(context, &request.process_id)?;
        self.pipeline.require_command_input_access(context)?;
        let write = InputWrite {
            id: request.write_id.clone(),
            data: request.data,
            ends_input: request.eof,
        };
        process
            .input
            .write(write)
            .await
            .map_err(|error| match error {
                InputWriteError::TooManyPending => {
                    let text = format!("{error}: the process reads too slowly; wait for the responses");
                    Error::new(Reason::ResourceExhausted, text).with_retry_after(PENDING_INPUT_RETRY_AFTER)
                }
                InputWriteError::Closed if process.has_ended() => process_ended_error(&process),
                InputWriteError::Closed => {
                    let text = "standard input is closed: by eof in an earlier write, or by the process";
                    Error::new(Reason::StdinClosed, text)
                        .with_metadata("process_id", process.info.id.clone())
                }
                InputWriteError::IdReused => {
                    let text = format!(
                        "write_id {:?} was used for another write to this process: give each write its own",
                        request.write_id
                    );
                    Error::new(Reason::RequestIdReused, text).with_metadata("write_id", request.write_id)
                }
            })
    }

    async fn deliver_signal(
        &self,
        context: &CallContext,
        request: SendSignalRequest,
    ) -> Result<(), Error> {
        let mut checked =
            self.pipeline.catalog.validate("jig.v1.SendSignalRequest", request, false)?;
        let request = checked.request;
        let signal = signal_number(&request.signal);
        if signal.is_none() && !request.signal.is_empty() {
            let text =
                "must be the name of a signal, such as SIGTERM or TERM, or its number, 1 to 64";
            checked.violations.push(Violation::new("signal", text));
        }
        let (Some(signal), []) = (signal, checked.violations.as_slice()) else {
            return Err(Error::invalid(checked.violations));
        };

        context.note_params([("signal", Some(&request.signal))]);
        let process = self.find_process(context, &request.process_id)?;
        self.send_control(&process, ProcessControl::Signal(signal)).await
    }

    async fn resize(
        &self,
        context: &CallContext,
        request: ResizeTerminalRequest,
    ) -> Result<(), Error> {
        let request = self.pipeline.catalog.check("jig.v1.ResizeTerminalRequest", request)?;
        let process = self.find_process(context, &request.process_id)?;
        if !process.info.has_terminal {
            let text =
                "must be that of a process with a terminal; this one was started without pty";
            return Err(Error::invalid_field("process_id", text));
        }
        let size = TerminalSize {
            columns: u16::try_from(request.cols).map_err(Error::internal)?,
            rows: u16::try_from(request.rows).map_err(Error::internal)?,
        };
        self.send_control(&process, ProcessControl::Resize(size)).await
    }

    async fn send_control(
        &self,
        process: &ProcessHandle,
        control: ProcessControl,
    ) -> Result<(), Error> {
        process.send_control(control).await.map_err(|error| match error {
            ControlError::Ended => process_ended_error(process),
            ControlError::TooManyPending => {
                let text = format!("{error}: wait for the responses");
                Error::new(Reason::ResourceExhausted, text)
                    .with_retry_after(PENDING_INPUT_RETRY_AFTER)
            }
        })
    }
}

/// The error of a client that wants to resume after output that does not exist yet.
fn position_past_end_error(requested: OutputPosition, written: OutputPosition) -> Error {
    let fields = [
        ("after_sequence", requested.after_sequence, written.after_sequence),
        ("stdout_offset", requested.stdout_offset, written.stdout_offset),
        ("stderr_offset", requested.stderr_offset, written.stderr_offset),
    ];
    let beyond = fields.into_iter().filter(|(_, requested, written)| requested > written);
    let violations = beyond.map(|(field, requested, written)| {
        let text =
            format!("is {requested}, but this process has written up to {written}: check that it is the right process");
        Violation::new(field, text)
    });
    Error::invalid(violations.collect())
}

fn wire_process(entry: &ProcessEntry) -> ProcessInfo {
    let process = &entry.process;
    let info = &process.info;
    let end = process.replay_buffer.end_value();
    let exit = end.as_deref().and_then(|end| end.as_ref().ok());
    let outcome = exit.map(|exit| exit.result.termination.outcome);

    let state = if process.has_ended() {
        ProcessState::Ended
    } else if process.replay_buffer.has_started() {
        ProcessState::Running
    } else {
        ProcessState::Starting
    };
    let on_disconnect =
        if info.ends_with_last_reader { OnDisconnect::Kill } else { OnDisconnect::Keep };

    ProcessInfo {
        process_id: info.id.clone(),
        state: state.into(),
        command: info.command.clone(),
        cwd: info.cwd.clone(),
        has_terminal: info.has_terminal,
        on_disconnect: on_disconnect.into(),
        session: entry.session.clone(),
        start_time: process.start_time().map(Into::into),
        end_time: process.end_time().map(Into::into),
        outcome: outcome.map_or(v1::Outcome::Unspecified, wire_outcome).into(),
        exit_code: outcome.and_then(|outcome| outcome.exit_code()),
        signal: outcome.and_then(|outcome| outcome.signal()).map(signal_name).unwrap_or_default(),
        last_sequence: process.replay_buffer.last_sequence(),
        attached: u32::try_from(process.replay_buffer.reader_count()).unwrap_or(u32::MAX),
    }
}
