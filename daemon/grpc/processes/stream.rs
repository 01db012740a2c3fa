//! A stream that sends start, output and exit of a process, at the speed of its client.

use std::time::{Duration, Instant};

use tokio::{sync::mpsc::Sender, time::sleep};

use crate::{
    api::v1::{
        AttachResponse, ProcessExited, ProcessGap, ProcessKeepAlive, ProcessOutput, ProcessStarted,
        StartResponse, attach_response, start_response,
    },
    daemon::{
        error::{Error, Reason},
        grpc::response_stream::{ResponseStream, StreamItem, StreamTerminator, response_channel},
        process::{
            handle::{OutputReader, ProcessExit},
            outcome::signal_name,
            replay_buffer::{OutputChunk, OutputEvent, OutputGap},
        },
        store::session::StreamName,
        task,
        tool::run::response::{limit_name, wire_outcome, wire_usage},
    },
};

/// Messages buffered for a slow client.
const STREAM_BUFFER_MESSAGES: usize = 2;

/// An event, before it becomes a message of `Start` or `Attach`.
#[derive(Debug)]
pub(super) enum StreamEvent {
    Started(ProcessStarted),
    Stdout(ProcessOutput),
    Stderr(ProcessOutput),
    Gap(ProcessGap),
    KeepAlive(ProcessKeepAlive),
    Exited(ProcessExited),
}

/// What the client's deadline ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnDeadline {
    /// The stream and the process.
    EndProcess,
    /// Only the stream.
    Detach,
}

/// An open stream.
pub(super) struct ProcessStream {
    pub(super) reader: OutputReader,
    pub(super) call_id: String,
    /// The isolation level of the workspace.
    pub(super) isolation: String,
    /// How long the stream may be silent before it sends a keep-alive.
    pub(super) keep_alive_interval: Duration,
    pub(super) deadline: Option<Instant>,
    pub(super) on_deadline: OnDeadline,
}

impl ProcessStream {
    /// Starts a task that sends the stream.
    pub(super) fn spawn<M>(self) -> ResponseStream<M>
    where
        M: From<StreamEvent> + Send + 'static,
    {
        let (sender, terminator, responses) =
            response_channel(STREAM_BUFFER_MESSAGES, &self.call_id);
        task::spawn("process stream", self.run(sender, terminator));
        responses
    }

    async fn run<M: From<StreamEvent>>(
        mut self,
        sender: Sender<StreamItem<M>>,
        terminator: StreamTerminator<M>,
    ) {
        let error = loop {
            let event = tokio::select! {
                biased;
                () = sender.closed() => return,
                () = task::sleep_until(self.deadline) => break self.deadline_error(),
                event = self.reader.next_event() => match event {
                    Some(OutputEvent::End(end)) => match &*end {
                        Ok(exit) => StreamEvent::Exited(self.exited_event(exit)),
                        Err(error) => return terminator.fail(error),
                    },
                    Some(OutputEvent::Started) => StreamEvent::Started(self.started_event()),
                    Some(OutputEvent::Chunk(chunk)) => output_event(chunk),
                    Some(OutputEvent::Gap(gap)) => StreamEvent::Gap(wire_gap(gap)),
                    None => return,
                },
                () = sleep(self.keep_alive_interval) => StreamEvent::KeepAlive(ProcessKeepAlive {
                    last_sequence: self.reader.process().replay_buffer.last_sequence(),
                }),
            };

            tokio::select! {
                biased;
                () = task::sleep_until(self.deadline) => break self.deadline_error(),
                sent = sender.send(Ok(M::from(event))) => if sent.is_err() {
                    return;
                },
            }
        };
        terminator.fail(&error);
    }

    fn started_event(&self) -> ProcessStarted {
        let process = self.reader.process();
        let [stdout_path, stderr_path] = process.output_paths();
        ProcessStarted {
            process_id: process.info.id.clone(),
            start_time: process.start_time().map(Into::into),
            stdout_path,
            stderr_path,
            isolation: self.isolation.clone(),
        }
    }

    fn exited_event(&self, exit: &ProcessExit) -> ProcessExited {
        let result = &exit.result;
        let termination = &result.termination;
        ProcessExited {
            outcome: wire_outcome(termination.outcome).into(),
            exit_code: termination.outcome.exit_code(),
            signal: termination.outcome.signal().map(signal_name).unwrap_or_default(),
            stdout: result.stdout.text.clone(),
            stderr: result.stderr.text.clone(),
            stdout_bytes: result.stdout.total_bytes,
            stderr_bytes: result.stderr.total_bytes,
            stdout_truncated: result.stdout.truncated,
            stderr_truncated: result.stderr.truncated,
            stdout_path: exit.stdout_path.clone(),
            stderr_path: exit.stderr_path.clone(),
            limit: limit_name(termination.exceeded_limit),
            kill_pending: termination.kill_pending,
            duration_ms: u64::try_from(result.duration.as_millis()).unwrap_or(u64::MAX),
            usage: termination.usage.as_ref().map(wire_usage),
            isolation: self.isolation.clone(),
            artifact_error: exit.artifact_error(),
            last_sequence: self.reader.process().replay_buffer.last_sequence(),
        }
    }

    /// The error at the deadline. Ends the process if it is to end with the stream.
    fn deadline_error(&self) -> Error {
        match self.on_deadline {
            OnDeadline::EndProcess => {
                self.reader.process().abandon();
                timeout_error(
                    "the command was ended with the stream: set a longer deadline, or ON_DISCONNECT_KEEP",
                )
            }
            OnDeadline::Detach => {
                timeout_error("the process continues: Attach returns its further output")
            }
        }
    }
}

fn timeout_error(what: &str) -> Error {
    let text = format!("the deadline of this stream has passed; {what}");
    Error::new(Reason::Timeout, text)
}

fn output_event(chunk: OutputChunk) -> StreamEvent {
    let output = ProcessOutput { sequence: chunk.sequence, offset: chunk.offset, data: chunk.data };
    match chunk.stream {
        StreamName::Stdout => StreamEvent::Stdout(output),
        StreamName::Stderr => StreamEvent::Stderr(output),
    }
}

fn wire_gap(gap: OutputGap) -> ProcessGap {
    ProcessGap {
        next_sequence: gap.next_sequence,
        stdout_offset: gap.stdout_offset,
        stderr_offset: gap.stderr_offset,
    }
}

impl From<StreamEvent> for StartResponse {
    fn from(event: StreamEvent) -> Self {
        use start_response::Event;
        let event = match event {
            StreamEvent::Started(started) => Event::Started(started),
            StreamEvent::Stdout(output) => Event::Stdout(output),
            StreamEvent::Stderr(output) => Event::Stderr(output),
            StreamEvent::Gap(gap) => Event::Gap(gap),
            StreamEvent::KeepAlive(keep_alive) => Event::KeepAlive(keep_alive),
            StreamEvent::Exited(exited) => Event::Exited(exited),
        };
        Self { event: Some(event) }
    }
}

impl From<StreamEvent> for AttachResponse {
    fn from(event: StreamEvent) -> Self {
        use attach_response::Event;
        let event = match event {
            StreamEvent::Started(started) => Event::Started(started),
            StreamEvent::Stdout(output) => Event::Stdout(output),
            StreamEvent::Stderr(output) => Event::Stderr(output),
            StreamEvent::Gap(gap) => Event::Gap(gap),
            StreamEvent::KeepAlive(keep_alive) => Event::KeepAlive(keep_alive),
            StreamEvent::Exited(exited) => Event::Exited(exited),
        };
        Self { event: Some(event) }
    }
}
