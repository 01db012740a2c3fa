//! `jig.v1.ProcessService`: commands that are watched and fed while they run.

mod stream;

use std::{sync::Arc, time::Duration};

use prost::Message;
use tonic::{Request, Response, Status};

use self::stream::{OnDeadline, ProcessStream};
use super::{handle, handle_once, response_stream::ResponseStream};
use crate::{
    api::v1::{
        self, AttachRequest, AttachResponse, ListProcessesRequest, ListProcessesResponse,
        OnDisconnect, ProcessInfo, ProcessState, ResizeTerminalRequest, ResizeTerminalResponse,
        SendSignalRequest, SendSignalResponse, StartRequest, StartResponse, WriteStdinRequest,
        WriteStdinResponse, process_service_server::ProcessService,
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
        sandbox::image::TerminalSize,
        tool::run::response::wire_outcome,
    },
};

/// How long to wait before asking again when too many read.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The service.
#[derive(Debug)]
pub(crate) struct ProcessServiceHandler(pub(crate) Arc<Pipeline>);

#[tonic::async_trait]
impl ProcessService for ProcessServiceHandler {
    type StartStream = ResponseStream<StartResponse>;
    type AttachStream = ResponseStream<AttachResponse>;

    async fn start(
        &self,
        request: Request<StartRequest>,
    ) -> Result<Response<Self::StartStream>, Status> {
        handle(request, async |incoming, request| {
            let (deadline, silence) = (incoming.deadline, request.keep_alive_sec);
            let (call_id, is_repeatable) =
                (incoming.call_id.clone(), incoming.request_id.is_some());
            let isolation = self.isolation_level(&incoming);
            let reader = self.0.start_process(incoming, request).await?;
            let at_deadline = if reader.process().info.ends_with_last_reader && !is_repeatable {
                OnDeadline::EndProcess
            } else {
                OnDeadline::Detach
            };
            let sending = ProcessStream {
                reader,
                call_id,
                isolation,
                keep_alive_interval: keep_alive_interval(silence),
                deadline,
                on_deadline: at_deadline,
            };
            Ok(sending.spawn())
        })
        .await
    }

    async fn attach(
        &self,
        request: Request<AttachRequest>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        handle(request, async |incoming, request| {
            let (reader, silence) = self.attach_reader(&incoming, request)?;
            let sending = ProcessStream {
                reader,
                isolation: self.isolation_level(&incoming),
                call_id: incoming.call_id,
                keep_alive_interval: keep_alive_interval(silence),
                deadline: incoming.deadline,
                on_deadline: OnDeadline::Detach,
            };
            Ok(sending.spawn())
        })
        .await
    }

    async fn write_stdin(
        &self,
        request: Request<WriteStdinRequest>,
    ) -> Result<Response<WriteStdinResponse>, Status> {
        self.handle_once("WriteStdin", request, |door, incoming, request| async move {
            let accepted_bytes = door.write_input(&incoming, request).await?;
            Ok(WriteStdinResponse { accepted_bytes })
        })
        .await
    }

    async fn send_signal(
        &self,
        request: Request<SendSignalRequest>,
    ) -> Result<Response<SendSignalResponse>, Status> {
        self.handle_once("SendSignal", request, |door, incoming, request| async move {
            door.deliver_signal(&incoming, request).await?;
            Ok(SendSignalResponse {})
        })
        .await
    }

    async fn resize_terminal(
        &self,
        request: Request<ResizeTerminalRequest>,
    ) -> Result<Response<ResizeTerminalResponse>, Status> {
        self.handle_once("ResizeTerminal", request, |door, incoming, request| async move {
            door.resize(&incoming, request).await?;
            Ok(ResizeTerminalResponse {})
        })
        .await
    }

    async fn list_processes(
        &self,
        request: Request<ListProcessesRequest>,
    ) -> Result<Response<ListProcessesResponse>, Status> {
        handle(request, async |incoming, _| {
            let workspace = self.0.workspace_context(&incoming)?.workspace.name();
            self.0.require_command_access(&incoming)?;
            let entries = self.0.processes.list(workspace);
            Ok(ListProcessesResponse { processes: entries.iter().map(wire_process).collect() })
        })
        .await
    }
}

impl ProcessServiceHandler {
    /// Answers a request that changes something with what `work` makes of it; a repeated one, with what
    /// came of the first.
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
        handle_once(&self.0, &method, request, |incoming, request| {
            work(Self(Arc::clone(&self.0)), incoming, request)
        })
        .await
    }

    /// Finds the process that a request names.
    fn find_process(&self, incoming: &CallContext, id: &str) -> Result<Arc<ProcessHandle>, Error> {
        let workspace = self.0.workspace_context(incoming)?.workspace.name();
        self.0.require_command_access(incoming)?;
        let found = self.0.processes.find(workspace, id);
        found.map(|entry| entry.process).ok_or_else(|| {
            let text = format!(
                "no process {id:?} runs in workspace {workspace}, nor ended there not long ago: ListProcesses tells which do"
            );
            Error::new(Reason::ProcessNotFound, text).with_metadata("process_id", id)
        })
    }

    fn isolation_level(&self, incoming: &CallContext) -> String {
        let scene = self.0.workspace_context(incoming);
        scene.map_or_else(|_| String::new(), |scene| scene.isolation.level.to_string())
    }

    fn attach_reader(
        &self,
        incoming: &CallContext,
        request: AttachRequest,
    ) -> Result<(OutputReader, Option<u32>), Error> {
        let request = self.0.catalog.check("jig.v1.AttachRequest", request)?;
        let process = self.find_process(incoming, &request.process_id)?;
        let position = OutputPosition {
            after_sequence: request.after_sequence,
            stdout_offset: request.stdout_offset,
            stderr_offset: request.stderr_offset,
        };
        let reader = process.attach(incoming.principal.key(), position);
        let reader = reader.map_err(|refused| match refused {
            AttachError::PositionBeyondEnd(written) => position_past_end_error(position, written),
            AttachError::TooManyReaders(full) => too_many_readers_error(full),
        })?;
        Ok((reader, request.keep_alive_sec))
    }

    async fn write_input(
        &self,
        incoming: &CallContext,
        request: WriteStdinRequest,
    ) -> Result<u64, Error> {
        let mut checked = self.0.catalog.validate("jig.v1.WriteStdinRequest", request, false)?;
        let request = checked.request;
        if request.data.is_empty() && !request.eof {
            let text = "must be given, unless eof is";
            checked.violations.push(Violation::new("data", text));
        }
        if !checked.violations.is_empty() {
            return Err(Error::invalid(checked.violations));
        }
        let process = self.find_process(incoming, &request.process_id)?;
        self.0.require_command_input_access(incoming)?;
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
                    let text = format!("{error}: it reads too slowly; wait for their answers");
                    Error::new(Reason::ResourceExhausted, text).retry_after(RETRY_AFTER)
                }
                InputWriteError::Closed if process.has_ended() => process_ended_error(&process),
                InputWriteError::Closed => {
                    let text = "the process reads nothing more: its input was ended, or it has closed it";
                    Error::new(Reason::StdinClosed, text)
                        .with_metadata("process_id", process.info.id.clone())
                }
                InputWriteError::IdReused => {
                    let text = format!(
                        "write_id {:?} was that of another write of this process: give each write its own",
                        request.write_id
                    );
                    Error::new(Reason::RequestIdReused, text).with_metadata("write_id", request.write_id)
                }
            })
    }

    async fn deliver_signal(
        &self,
        incoming: &CallContext,
        request: SendSignalRequest,
    ) -> Result<(), Error> {
        let mut checked = self.0.catalog.validate("jig.v1.SendSignalRequest", request, false)?;
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
        let process = self.find_process(incoming, &request.process_id)?;
        self.send_order(&process, ProcessControl::Signal(signal)).await
    }

    async fn resize(
        &self,
        incoming: &CallContext,
        request: ResizeTerminalRequest,
    ) -> Result<(), Error> {
        let request = self.0.catalog.check("jig.v1.ResizeTerminalRequest", request)?;
        let process = self.find_process(incoming, &request.process_id)?;
        if !process.info.has_terminal {
            let text =
                "must be that of a process with a terminal; this one was started without pty";
            return Err(Error::invalid_field("process_id", text));
        }
        let size = TerminalSize {
            columns: u16::try_from(request.cols).map_err(Error::internal)?,
            rows: u16::try_from(request.rows).map_err(Error::internal)?,
        };
        self.send_order(&process, ProcessControl::Resize(size)).await
    }

    async fn send_order(
        &self,
        process: &ProcessHandle,
        order: ProcessControl,
    ) -> Result<(), Error> {
        process.send_control(order).await.map_err(|error| match error {
            ControlError::Ended => process_ended_error(process),
            ControlError::TooManyPending => {
                let text = format!("{error}: wait for their answers");
                Error::new(Reason::ResourceExhausted, text).retry_after(RETRY_AFTER)
            }
        })
    }
}

fn keep_alive_interval(seconds: Option<u32>) -> Duration {
    Duration::from_secs(u64::from(seconds.unwrap_or(30)))
}

fn process_ended_error(process: &ProcessHandle) -> Error {
    let text = "the process has ended; Attach tells how";
    Error::new(Reason::ProcessEnded, text).with_metadata("process_id", process.info.id.clone())
}

/// A position that lies behind what was written.
fn position_past_end_error(asked: OutputPosition, written: OutputPosition) -> Error {
    let fields = [
        ("after_sequence", asked.after_sequence, written.after_sequence),
        ("stdout_offset", asked.stdout_offset, written.stdout_offset),
        ("stderr_offset", asked.stderr_offset, written.stderr_offset),
    ];
    let beyond = fields.into_iter().filter(|(_, asked, written)| asked > written);
    let violations = beyond.map(|(field, asked, written)| {
        let text =
            format!("is {asked}, but this process has only got to {written}: is it another?");
        Violation::new(field, text)
    });
    Error::invalid(violations.collect())
}

fn wire_process(entry: &ProcessEntry) -> ProcessInfo {
    let process = &entry.process;
    let about = &process.info;
    let ending = process.replay_buffer.end_value();
    let exit = ending.as_deref().and_then(|ending| ending.as_ref().ok());
    let outcome = exit.map(|exit| exit.result.termination.outcome);
    let state = if process.has_ended() {
        ProcessState::Ended
    } else if process.replay_buffer.has_started() {
        ProcessState::Running
    } else {
        ProcessState::Starting
    };
    let on_disconnect =
        if about.ends_with_last_reader { OnDisconnect::Kill } else { OnDisconnect::Keep };
    ProcessInfo {
        process_id: about.id.clone(),
        state: state.into(),
        command: about.command.clone(),
        cwd: about.cwd.clone(),
        has_terminal: about.has_terminal,
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
