//! Commands that are watched and fed while they run.

use tonic::{Code, Streaming};

use super::{
    call::Client,
    deadline::CallDeadline,
    error::{CallError, call_id_of},
};
use crate::api::v1::{
    AttachRequest, AttachResponse, ListProcessesRequest, ListProcessesResponse, ProcessExited,
    ProcessGap, ProcessOutput, ProcessStarted, ResizeTerminalRequest, ResizeTerminalResponse,
    SendSignalRequest, SendSignalResponse, StartRequest, StartResponse, WriteStdinRequest,
    WriteStdinResponse, attach_response, start_response,
};

/// What becomes of a process, from a position on.
#[derive(Debug)]
pub struct ProcessEvents {
    source: ProcessEventStream,
    deadline: CallDeadline,
    position: AttachRequest,
    ended: bool,
    /// The call, as the stream's first metadata name it: those at its end do not.
    call_id: Option<String>,
}

#[derive(Debug)]
enum ProcessEventStream {
    Start(Streaming<StartResponse>),
    Attach(Streaming<AttachResponse>),
}

/// Something that has become of a process.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ProcessEvent {
    /// It was executed. The first event of each stream, but for [`ProcessEvent::KeepAlive`].
    Started(ProcessStarted),
    /// It wrote to its standard output, or to its terminal.
    Stdout(ProcessOutput),
    /// It wrote to its standard error.
    Stderr(ProcessOutput),
    /// Output was left out that is not kept any more.
    Gap(ProcessGap),
    /// Nothing has happened for a while; maybe it waits for a sandbox.
    KeepAlive,
    /// It has ended. The last event.
    Exited(ProcessExited),
}

impl Client {
    /// Starts a command, and reads what becomes of it.
    ///
    /// # Errors
    ///
    /// When the call failed; that the command was not started may be told by
    /// [`ProcessEvents::next`] only.
    pub async fn start(&self, request: StartRequest) -> Result<ProcessEvents, CallError> {
        let deadline = self.deadline();
        let keep_alive_sec = request.keep_alive_sec;
        let mut processes = self.processes();
        let events = deadline.enforce(processes.start(self.with_context(request))).await?;
        Ok(ProcessEvents {
            call_id: call_id_of(events.metadata()),
            source: ProcessEventStream::Start(events.into_inner()),
            deadline,
            position: AttachRequest { keep_alive_sec, ..AttachRequest::default() },
            ended: false,
        })
    }

    /// Reads what becomes of a command that was started before, from a position on:
    /// [`ProcessEvents::position`] of the stream that was cut off.
    ///
    /// # Errors
    ///
    /// When the call failed.
    pub async fn attach(&self, position: AttachRequest) -> Result<ProcessEvents, CallError> {
        let deadline = self.deadline();
        let mut processes = self.processes();
        let events =
            deadline.enforce(processes.attach(self.with_context(position.clone()))).await?;
        Ok(ProcessEvents {
            call_id: call_id_of(events.metadata()),
            source: ProcessEventStream::Attach(events.into_inner()),
            deadline,
            position,
            ended: false,
        })
    }

    /// Gives a process more to read, or ends its input. May be repeated with the same `write_id`.
    ///
    /// # Errors
    ///
    /// When the call failed.
    pub async fn write_stdin(
        &self,
        request: WriteStdinRequest,
    ) -> Result<WriteStdinResponse, CallError> {
        let mut processes = self.processes();
        self.unary(request, |request| async move { processes.write_stdin(request).await }).await
    }

    /// Sends a signal to a process and its process group.
    ///
    /// # Errors
    ///
    /// When the call failed.
    pub async fn send_signal(
        &self,
        request: SendSignalRequest,
    ) -> Result<SendSignalResponse, CallError> {
        let mut processes = self.processes();
        self.unary(request, |request| async move { processes.send_signal(request).await }).await
    }

    /// Tells the terminal of a process how large it is.
    ///
    /// # Errors
    ///
    /// When the call failed.
    pub async fn resize_terminal(
        &self,
        request: ResizeTerminalRequest,
    ) -> Result<ResizeTerminalResponse, CallError> {
        let mut processes = self.processes();
        self.unary(request, |request| async move { processes.resize_terminal(request).await }).await
    }

    /// Lists the processes of the workspace.
    ///
    /// # Errors
    ///
    /// When the call failed.
    pub async fn list_processes(&self) -> Result<ListProcessesResponse, CallError> {
        let mut processes = self.processes();
        self.unary(ListProcessesRequest {}, |request| async move {
            processes.list_processes(request).await
        })
        .await
    }
}

impl ProcessEvents {
    /// What comes next; nothing behind the end of the process.
    ///
    /// # Errors
    ///
    /// When the call failed; also when the stream ends before the process does.
    pub async fn next(&mut self) -> Result<Option<ProcessEvent>, CallError> {
        if self.ended {
            return Ok(None);
        }
        let named = |mut error: CallError| {
            error.call_id = error.call_id.or_else(|| self.call_id.clone());
            error
        };
        loop {
            let event = match &mut self.source {
                ProcessEventStream::Start(events) => {
                    let message = self.deadline.enforce(events.message()).await.map_err(named)?;
                    message.map(|message| message.event.map(ProcessEvent::from))
                }
                ProcessEventStream::Attach(events) => {
                    let message = self.deadline.enforce(events.message()).await.map_err(named)?;
                    message.map(|message| message.event.map(ProcessEvent::from))
                }
            };
            match event {
                // An event of a newer daemon, which the contract lets us pass over.
                Some(None) => {}
                Some(Some(event)) => {
                    self.update_position(&event);
                    return Ok(Some(event));
                }
                None => {
                    let text = "the stream ended before the process did";
                    return Err(named(CallError::local(Code::DataLoss, text)));
                }
            }
        }
    }

    /// Where another stream is to go on. Its `process_id` is empty before the process is known.
    #[must_use]
    pub fn position(&self) -> &AttachRequest {
        &self.position
    }

    fn update_position(&mut self, event: &ProcessEvent) {
        let position = &mut self.position;
        let end = |output: &ProcessOutput| output.offset + output.data.len() as u64;
        match event {
            ProcessEvent::Started(started) => position.process_id.clone_from(&started.process_id),
            ProcessEvent::Stdout(output) => {
                position.after_sequence = output.sequence;
                position.stdout_offset = end(output);
            }
            ProcessEvent::Stderr(output) => {
                position.after_sequence = output.sequence;
                position.stderr_offset = end(output);
            }
            ProcessEvent::Gap(gap) => {
                position.after_sequence = gap.next_sequence.saturating_sub(1);
                position.stdout_offset = gap.stdout_offset;
                position.stderr_offset = gap.stderr_offset;
            }
            ProcessEvent::Exited(_) => self.ended = true,
            ProcessEvent::KeepAlive => {}
        }
    }
}

/// The two kinds of messages hold the same events.
macro_rules! events {
    ($($module:ident)*) => {
        $(
            impl From<$module::Event> for ProcessEvent {
                fn from(event: $module::Event) -> Self {
                    match event {
                        $module::Event::Started(started) => Self::Started(started),
                        $module::Event::Stdout(output) => Self::Stdout(output),
                        $module::Event::Stderr(output) => Self::Stderr(output),
                        $module::Event::Gap(gap) => Self::Gap(gap),
                        $module::Event::KeepAlive(_) => Self::KeepAlive,
                        $module::Event::Exited(exited) => Self::Exited(exited),
                    }
                }
            }
        )*
    };
}

events! { start_response attach_response }
