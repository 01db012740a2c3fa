//! RPCs of `ProcessService`: start, watch and control long-running and interactive commands.

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

/// Stream of the events of a process, from a position on.
///
/// It ends with exactly one [`ProcessEvent::Exited`], or with an error.
#[derive(Debug)]
pub struct ProcessEvents {
    source: ProcessEventStream,
    deadline: CallDeadline,
    position: AttachRequest,
    ended: bool,
    /// Call id from the stream's initial metadata. Its trailing metadata lacks the id.
    call_id: Option<String>,
}

#[derive(Debug)]
enum ProcessEventStream {
    Start(Streaming<StartResponse>),
    Attach(Streaming<AttachResponse>),
}

/// An event of a process.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum ProcessEvent {
    /// The process started. First event of each stream, except for [`ProcessEvent::KeepAlive`].
    Started(ProcessStarted),
    /// Output on standard output, or on the terminal.
    Stdout(ProcessOutput),
    /// Output on standard error.
    Stderr(ProcessOutput),
    /// Output that the daemon has already dropped.
    Gap(ProcessGap),
    /// No event for a while; the process may still wait for a sandbox.
    KeepAlive,
    /// The process ended. Last event of each stream.
    Exited(ProcessExited),
}

impl Client {
    /// Starts a command and streams its events.
    ///
    /// By default the daemon kills the command when the stream ends early, for example because
    /// [`ProcessEvents`] is dropped. With `ON_DISCONNECT_KEEP` the command continues, and
    /// [`Client::attach`] reads on.
    ///
    /// # Errors
    ///
    /// Returns an error if the call fails. A command that cannot start may be reported by
    /// [`ProcessEvents::next`] instead.
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

    /// Streams the events of a process from a position on.
    ///
    /// After a lost connection, resume at [`ProcessEvents::position`] of the previous stream.
    ///
    /// # Errors
    ///
    /// Returns an error if the call fails.
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

    /// Writes to the standard input of a process, or closes it. A retry with the same `write_id` is
    /// safe.
    ///
    /// # Errors
    ///
    /// Returns an error if the call fails.
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
    /// Returns an error if the call fails.
    pub async fn send_signal(
        &self,
        request: SendSignalRequest,
    ) -> Result<SendSignalResponse, CallError> {
        let mut processes = self.processes();
        self.unary(request, |request| async move { processes.send_signal(request).await }).await
    }

    /// Sets the size of a process's terminal.
    ///
    /// # Errors
    ///
    /// Returns an error if the call fails.
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
    /// Returns an error if the call fails.
    pub async fn list_processes(&self) -> Result<ListProcessesResponse, CallError> {
        let mut processes = self.processes();
        self.unary(ListProcessesRequest {}, |request| async move {
            processes.list_processes(request).await
        })
        .await
    }
}

impl ProcessEvents {
    /// Waits for the next event. Returns `None` after the end of the process.
    ///
    /// # Errors
    ///
    /// Returns an error if the call fails, or if the stream ends before the process does.
    pub async fn next(&mut self) -> Result<Option<ProcessEvent>, CallError> {
        if self.ended {
            return Ok(None);
        }

        let with_call_id = |mut error: CallError| {
            error.call_id = error.call_id.or_else(|| self.call_id.clone());
            error
        };

        loop {
            let event = match &mut self.source {
                ProcessEventStream::Start(events) => {
                    let message =
                        self.deadline.enforce(events.message()).await.map_err(with_call_id)?;
                    message.map(|message| message.event.map(ProcessEvent::from))
                }
                ProcessEventStream::Attach(events) => {
                    let message =
                        self.deadline.enforce(events.message()).await.map_err(with_call_id)?;
                    message.map(|message| message.event.map(ProcessEvent::from))
                }
            };

            match event {
                // A newer daemon may send an event that this client does not know.
                Some(None) => {}
                Some(Some(event)) => {
                    self.update_position(&event);
                    return Ok(Some(event));
                }
                None => {
                    let text = "the stream ended before the process did";
                    return Err(with_call_id(CallError::local(Code::DataLoss, text)));
                }
            }
        }
    }

    /// Returns the position from which another stream can resume. Its `process_id` is empty until
    /// the process has started.
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

/// Converts the events of both streams, which have the same variants.
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
