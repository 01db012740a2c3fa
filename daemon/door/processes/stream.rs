//! The stream of a process: what becomes of it, as messages, no faster than the client takes them.

use std::time::{Duration, Instant};

use tokio::{sync::mpsc::Sender, time::sleep};

use crate::{
    api::v1::{
        AttachResponse, ProcessExited, ProcessGap, ProcessKeepAlive, ProcessOutput, ProcessStarted,
        StartResponse, attach_response, start_response,
    },
    daemon::{
        door::outlet::{Answer, Answers, LastWord, outlet},
        error::{Error, Reason},
        process::{
            live::{Exit, Reader},
            outcome::signal_name,
            transcript::{Chunk, Event, Gap},
        },
        store::session::StreamName,
        task,
        tool::run::answer::{limit_name, wire_outcome, wire_usage},
    },
};

/// Messages that are on their way to a client that does not take them.
const MESSAGES_AHEAD: usize = 2;

/// What a stream says.
#[derive(Debug)]
pub(super) enum Said {
    Started(ProcessStarted),
    Stdout(ProcessOutput),
    Stderr(ProcessOutput),
    Gap(ProcessGap),
    KeepAlive(ProcessKeepAlive),
    Exited(ProcessExited),
}

/// What the caller's deadline means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AtDeadline {
    /// The process is ended with the stream.
    End,
    /// Only the stream ends.
    Leave,
}

/// A stream that goes on.
pub(super) struct Sending {
    pub(super) reader: Reader,
    /// Id of the call that it answers.
    pub(super) call_id: String,
    /// The isolation in force.
    pub(super) isolation: String,
    /// How long nothing is said before that is said.
    pub(super) silence: Duration,
    pub(super) deadline: Option<Instant>,
    pub(super) at_deadline: AtDeadline,
}

impl Sending {
    /// Begins to send.
    pub(super) fn begin<M>(self) -> Answers<M>
    where
        M: From<Said> + Send + 'static,
    {
        let (sender, last, answers) = outlet(MESSAGES_AHEAD, &self.call_id);
        task::spawn("process stream", self.send(sender, last));
        answers
    }

    async fn send<M: From<Said>>(mut self, sender: Sender<Answer<M>>, last: LastWord<M>) {
        let error = loop {
            let said = tokio::select! {
                biased;
                () = sender.closed() => return,
                () = task::until(self.deadline) => break self.timed_out(),
                event = self.reader.next() => match event {
                    Some(Event::End(ending)) => match &*ending {
                        Ok(exit) => Said::Exited(self.exited(exit)),
                        Err(error) => return last.say(error),
                    },
                    Some(Event::Started) => Said::Started(self.started()),
                    Some(Event::Chunk(chunk)) => output(chunk),
                    Some(Event::Gap(gap)) => Said::Gap(wire_gap(gap)),
                    None => return,
                },
                () = sleep(self.silence) => Said::KeepAlive(ProcessKeepAlive {
                    last_sequence: self.reader.process().transcript.last_sequence(),
                }),
            };
            tokio::select! {
                biased;
                () = task::until(self.deadline) => break self.timed_out(),
                sent = sender.send(Ok(M::from(said))) => if sent.is_err() {
                    return;
                },
            }
        };
        last.say(&error);
    }

    fn started(&self) -> ProcessStarted {
        let process = self.reader.process();
        let [stdout_path, stderr_path] = process.paths();
        ProcessStarted {
            process_id: process.about.id.clone(),
            start_time: process.start_time().map(Into::into),
            stdout_path,
            stderr_path,
            isolation: self.isolation.clone(),
        }
    }

    fn exited(&self, exit: &Exit) -> ProcessExited {
        let finished = &exit.finished;
        let ended = &finished.ended;
        ProcessExited {
            outcome: wire_outcome(ended.outcome).into(),
            exit_code: ended.outcome.exit_code(),
            signal: ended.outcome.signal().map(signal_name).unwrap_or_default(),
            stdout: finished.stdout.text.clone(),
            stderr: finished.stderr.text.clone(),
            stdout_bytes: finished.stdout.bytes,
            stderr_bytes: finished.stderr.bytes,
            stdout_truncated: finished.stdout.truncated,
            stderr_truncated: finished.stderr.truncated,
            stdout_path: exit.stdout_path.clone(),
            stderr_path: exit.stderr_path.clone(),
            limit: limit_name(ended.limit),
            kill_pending: ended.kill_pending,
            duration_ms: u64::try_from(finished.duration.as_millis()).unwrap_or(u64::MAX),
            usage: ended.usage.as_ref().map(wire_usage),
            isolation: self.isolation.clone(),
            artifact_error: exit.artifact_error(),
            last_sequence: self.reader.process().transcript.last_sequence(),
        }
    }

    fn timed_out(&self) -> Error {
        match self.at_deadline {
            AtDeadline::End => {
                self.reader.process().abandon();
                deadline_passed(
                    "the command was ended with it: give it more time, or have it go on (ON_DISCONNECT_KEEP)",
                )
            }
            AtDeadline::Leave => {
                deadline_passed("the process goes on: Attach reads what comes next")
            }
        }
    }
}

fn deadline_passed(what: &str) -> Error {
    let text = format!("the deadline of this stream has passed; {what}");
    Error::new(Reason::Timeout, text)
}

fn output(chunk: Chunk) -> Said {
    let output = ProcessOutput { sequence: chunk.sequence, offset: chunk.offset, data: chunk.data };
    match chunk.stream {
        StreamName::Stdout => Said::Stdout(output),
        StreamName::Stderr => Said::Stderr(output),
    }
}

fn wire_gap(gap: Gap) -> ProcessGap {
    ProcessGap {
        next_sequence: gap.next_sequence,
        stdout_offset: gap.stdout_offset,
        stderr_offset: gap.stderr_offset,
    }
}

impl From<Said> for StartResponse {
    fn from(said: Said) -> Self {
        use start_response::Event;
        let event = match said {
            Said::Started(started) => Event::Started(started),
            Said::Stdout(output) => Event::Stdout(output),
            Said::Stderr(output) => Event::Stderr(output),
            Said::Gap(gap) => Event::Gap(gap),
            Said::KeepAlive(keep_alive) => Event::KeepAlive(keep_alive),
            Said::Exited(exited) => Event::Exited(exited),
        };
        Self { event: Some(event) }
    }
}

impl From<Said> for AttachResponse {
    fn from(said: Said) -> Self {
        use attach_response::Event;
        let event = match said {
            Said::Started(started) => Event::Started(started),
            Said::Stdout(output) => Event::Stdout(output),
            Said::Stderr(output) => Event::Stderr(output),
            Said::Gap(gap) => Event::Gap(gap),
            Said::KeepAlive(keep_alive) => Event::KeepAlive(keep_alive),
            Said::Exited(exited) => Event::Exited(exited),
        };
        Self { event: Some(event) }
    }
}
