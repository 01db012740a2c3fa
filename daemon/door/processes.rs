//! `jig.v1.ProcessService`: commands that are watched and fed while they run.

mod stream;

use std::{sync::Arc, time::Duration};

use prost::Message;
use tonic::{Request, Response, Status};

use self::stream::{AtDeadline, Sending};
use super::{answered, once, outlet::Answers};
use crate::{
    api::v1::{
        self, AttachRequest, AttachResponse, ListProcessesRequest, ListProcessesResponse,
        OnDisconnect, ProcessInfo, ProcessState, ResizeTerminalRequest, ResizeTerminalResponse,
        SendSignalRequest, SendSignalResponse, StartRequest, StartResponse, WriteStdinRequest,
        WriteStdinResponse, process_service_server::ProcessService,
    },
    daemon::{
        call::{Pipeline, context::Incoming, start::too_many},
        error::{Error, Reason, Violation},
        process::{
            input::{Write, WriteError},
            live::{Order, OrderError, Process, Reader, Refused},
            outcome::{signal_name, signal_number},
            registry::Entry,
            transcript::Position,
        },
        sandbox::image::TerminalSize,
        tool::run::answer::wire_outcome,
    },
};

/// How long to wait before asking again when too many read.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The service.
#[derive(Debug)]
pub(crate) struct Processes(pub(crate) Arc<Pipeline>);

#[tonic::async_trait]
impl ProcessService for Processes {
    type StartStream = Answers<StartResponse>;
    type AttachStream = Answers<AttachResponse>;

    async fn start(
        &self,
        request: Request<StartRequest>,
    ) -> Result<Response<Self::StartStream>, Status> {
        answered(request, async |incoming, request| {
            let (deadline, silence) = (incoming.deadline, request.keep_alive_sec);
            let (call_id, is_repeatable) =
                (incoming.call_id.clone(), incoming.request_id.is_some());
            let isolation = self.isolation(&incoming);
            let reader = self.0.start(incoming, request).await?;
            let at_deadline = if reader.process().about.ends_alone && !is_repeatable {
                AtDeadline::End
            } else {
                AtDeadline::Leave
            };
            let sending = Sending {
                reader,
                call_id,
                isolation,
                silence: keep_alive(silence),
                deadline,
                at_deadline,
            };
            Ok(sending.begin())
        })
        .await
    }

    async fn attach(
        &self,
        request: Request<AttachRequest>,
    ) -> Result<Response<Self::AttachStream>, Status> {
        answered(request, async |incoming, request| {
            let (reader, silence) = self.read(&incoming, request)?;
            let sending = Sending {
                reader,
                isolation: self.isolation(&incoming),
                call_id: incoming.call_id,
                silence: keep_alive(silence),
                deadline: incoming.deadline,
                at_deadline: AtDeadline::Leave,
            };
            Ok(sending.begin())
        })
        .await
    }

    async fn write_stdin(
        &self,
        request: Request<WriteStdinRequest>,
    ) -> Result<Response<WriteStdinResponse>, Status> {
        self.once("WriteStdin", request, |door, incoming, request| async move {
            let accepted_bytes = door.write(&incoming, request).await?;
            Ok(WriteStdinResponse { accepted_bytes })
        })
        .await
    }

    async fn send_signal(
        &self,
        request: Request<SendSignalRequest>,
    ) -> Result<Response<SendSignalResponse>, Status> {
        self.once("SendSignal", request, |door, incoming, request| async move {
            door.signal(&incoming, request).await?;
            Ok(SendSignalResponse {})
        })
        .await
    }

    async fn resize_terminal(
        &self,
        request: Request<ResizeTerminalRequest>,
    ) -> Result<Response<ResizeTerminalResponse>, Status> {
        self.once("ResizeTerminal", request, |door, incoming, request| async move {
            door.resize(&incoming, request).await?;
            Ok(ResizeTerminalResponse {})
        })
        .await
    }

    async fn list_processes(
        &self,
        request: Request<ListProcessesRequest>,
    ) -> Result<Response<ListProcessesResponse>, Status> {
        answered(request, async |incoming, _| {
            let workspace = self.0.scene(&incoming)?.workspace.name();
            self.0.may_see_commands(&incoming)?;
            let entries = self.0.processes.list(workspace);
            Ok(ListProcessesResponse { processes: entries.iter().map(info).collect() })
        })
        .await
    }
}

impl Processes {
    /// Answers a request that changes something with what `work` makes of it; a repeated one, with what
    /// came of the first.
    async fn once<Q, A, F>(
        &self,
        method: &str,
        request: Request<Q>,
        work: impl FnOnce(Self, Incoming, Q) -> F,
    ) -> Result<Response<A>, Status>
    where
        Q: Message,
        A: Message + Default + 'static,
        F: Future<Output = Result<A, Error>> + Send + 'static,
    {
        let method = format!("jig.v1.ProcessService/{method}");
        once(&self.0, &method, request, |incoming, request| {
            work(Self(Arc::clone(&self.0)), incoming, request)
        })
        .await
    }

    /// Finds the process that a request names.
    fn find(&self, incoming: &Incoming, id: &str) -> Result<Arc<Process>, Error> {
        let workspace = self.0.scene(incoming)?.workspace.name();
        self.0.may_see_commands(incoming)?;
        let found = self.0.processes.find(workspace, id);
        found.map(|entry| entry.process).ok_or_else(|| {
            let text = format!(
                "no process {id:?} runs in workspace {workspace}, nor ended there not long ago: ListProcesses tells which do"
            );
            Error::new(Reason::ProcessNotFound, text).with("process_id", id)
        })
    }

    fn isolation(&self, incoming: &Incoming) -> String {
        let scene = self.0.scene(incoming);
        scene.map_or_else(|_| String::new(), |scene| scene.isolation.level.to_string())
    }

    fn read(
        &self,
        incoming: &Incoming,
        request: AttachRequest,
    ) -> Result<(Reader, Option<u32>), Error> {
        let request = self.0.catalog.check("jig.v1.AttachRequest", request)?;
        let process = self.find(incoming, &request.process_id)?;
        let position = Position {
            after_sequence: request.after_sequence,
            stdout_offset: request.stdout_offset,
            stderr_offset: request.stderr_offset,
        };
        let reader = process.read(incoming.principal.lane(), position);
        let reader = reader.map_err(|refused| match refused {
            Refused::Beyond(written) => beyond(position, written),
            Refused::TooMany(full) => too_many(full),
        })?;
        Ok((reader, request.keep_alive_sec))
    }

    async fn write(&self, incoming: &Incoming, request: WriteStdinRequest) -> Result<u64, Error> {
        let mut checked = self.0.catalog.look_at("jig.v1.WriteStdinRequest", request, false)?;
        let request = checked.request;
        if request.data.is_empty() && !request.eof {
            let text = "must be given, unless eof is";
            checked.violations.push(Violation::new("data", text));
        }
        if !checked.violations.is_empty() {
            return Err(Error::invalid(checked.violations));
        }
        let process = self.find(incoming, &request.process_id)?;
        self.0.may_feed_commands(incoming)?;
        let write = Write { id: request.write_id.clone(), data: request.data, ends: request.eof };
        process
            .input
            .write(write)
            .await
            .map_err(|error| match error {
                WriteError::TooMany => {
                    let text = format!("{error}: it reads too slowly; wait for their answers");
                    Error::new(Reason::ResourceExhausted, text).retry_after(RETRY_AFTER)
                }
                WriteError::Closed if process.has_ended() => ended(&process),
                WriteError::Closed => {
                    let text = "the process reads nothing more: its input was ended, or it has closed it";
                    Error::new(Reason::StdinClosed, text)
                        .with("process_id", process.about.id.clone())
                }
                WriteError::Reused => {
                    let text = format!(
                        "write_id {:?} was that of another write of this process: give each write its own",
                        request.write_id
                    );
                    Error::new(Reason::RequestIdReused, text).with("write_id", request.write_id)
                }
            })
    }

    async fn signal(&self, incoming: &Incoming, request: SendSignalRequest) -> Result<(), Error> {
        let mut checked = self.0.catalog.look_at("jig.v1.SendSignalRequest", request, false)?;
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
        let process = self.find(incoming, &request.process_id)?;
        self.order(&process, Order::Signal(signal)).await
    }

    async fn resize(
        &self,
        incoming: &Incoming,
        request: ResizeTerminalRequest,
    ) -> Result<(), Error> {
        let request = self.0.catalog.check("jig.v1.ResizeTerminalRequest", request)?;
        let process = self.find(incoming, &request.process_id)?;
        if !process.about.has_terminal {
            let text =
                "must be that of a process with a terminal; this one was started without pty";
            return Err(Error::invalid_field("process_id", text));
        }
        let size = TerminalSize {
            columns: u16::try_from(request.cols).map_err(Error::internal)?,
            rows: u16::try_from(request.rows).map_err(Error::internal)?,
        };
        self.order(&process, Order::Resize(size)).await
    }

    async fn order(&self, process: &Process, order: Order) -> Result<(), Error> {
        process.order(order).await.map_err(|error| match error {
            OrderError::Ended => ended(process),
            OrderError::TooMany => {
                let text = format!("{error}: wait for their answers");
                Error::new(Reason::ResourceExhausted, text).retry_after(RETRY_AFTER)
            }
        })
    }
}

fn keep_alive(seconds: Option<u32>) -> Duration {
    Duration::from_secs(u64::from(seconds.unwrap_or(30)))
}

fn ended(process: &Process) -> Error {
    let text = "the process has ended; Attach tells how";
    Error::new(Reason::ProcessEnded, text).with("process_id", process.about.id.clone())
}

/// A position that lies behind what was written.
fn beyond(asked: Position, written: Position) -> Error {
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

fn info(entry: &Entry) -> ProcessInfo {
    let process = &entry.process;
    let about = &process.about;
    let ending = process.transcript.ending();
    let exit = ending.as_deref().and_then(|ending| ending.as_ref().ok());
    let outcome = exit.map(|exit| exit.finished.ended.outcome);
    let state = if process.has_ended() {
        ProcessState::Ended
    } else if process.transcript.has_started() {
        ProcessState::Running
    } else {
        ProcessState::Starting
    };
    let on_disconnect = if about.ends_alone { OnDisconnect::Kill } else { OnDisconnect::Keep };
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
        last_sequence: process.transcript.last_sequence(),
        attached: u32::try_from(process.transcript.readers()).unwrap_or(u32::MAX),
    }
}
