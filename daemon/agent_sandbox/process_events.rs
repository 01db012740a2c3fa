//! The stream of a started process, in the events of the API.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio_stream::Stream;
use tonic::{Code, Status, Streaming};

use super::process_ids::{KnownProcess, ProcessIds, RegisteredId};
use crate::{
    api::{
        process_v1::{ExitEvent, InitEvent, StartResponse, start_response::Event},
        v1::{self, start_response::Event as ProcessEvent},
    },
    daemon::{grpc::status::to_status, process::outcome::signal_number},
};

/// Exit code of a command that signal 0 would have ended: shells add the number of the signal.
const SIGNAL_EXIT_CODE: i32 = 128;

/// The events of one process. The caller knows the process by its id until this is dropped, which
/// also ends the process.
#[derive(Debug)]
pub(super) struct AgentProcessEvents {
    pub(super) events: Streaming<v1::StartResponse>,
    pub(super) ids: Arc<ProcessIds>,
    pub(super) owner: Arc<str>,
    pub(super) has_terminal: bool,
    pub(super) registered: Option<RegisteredId>,
}

impl AgentProcessEvents {
    /// The event in the API. `None` if the API has none for it.
    fn translate(&mut self, event: ProcessEvent) -> Option<Result<Event, Status>> {
        Some(Ok(match event {
            ProcessEvent::Started(started) => {
                let process = KnownProcess {
                    owner: Arc::clone(&self.owner),
                    process_id: started.process_id,
                    has_terminal: self.has_terminal,
                };
                let registered = match self.ids.register(process) {
                    Ok(registered) => self.registered.insert(registered),
                    Err(error) => return Some(Err(to_status(&error))),
                };
                Event::Init(InitEvent { process_id: registered.id })
            }
            ProcessEvent::Stdout(output) => Event::Stdout(output.data),
            ProcessEvent::Stderr(output) => Event::Stderr(output.data),
            ProcessEvent::Exited(exited) => {
                Event::Exit(ExitEvent { exit_code: exit_code(&exited) })
            }
            ProcessEvent::Gap(_) => {
                let text = "output was dropped: this stream fell behind another reader of the process, and was ended";
                return Some(Err(Status::new(Code::DataLoss, text)));
            }
            ProcessEvent::KeepAlive(_) => return None,
        }))
    }
}

impl Stream for AgentProcessEvents {
    type Item = Result<StartResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let event = match ready!(Pin::new(&mut self.events).poll_next(context)) {
                Some(Ok(message)) => message.event,
                Some(Err(status)) => return Poll::Ready(Some(Err(status))),
                None => return Poll::Ready(None),
            };
            if let Some(event) = event.and_then(|event| self.translate(event)) {
                let message = event.map(|event| StartResponse { event: Some(event) });
                return Poll::Ready(Some(message));
            }
        }
    }
}

/// The exit code of a command, or that of shells for the signal that ended it.
fn exit_code(exited: &v1::ProcessExited) -> i32 {
    exited.exit_code.unwrap_or_else(|| {
        SIGNAL_EXIT_CODE + signal_number(&exited.signal).unwrap_or(libc::SIGKILL)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_the_exit_codes_of_shells() {
        for (code, signal, expected) in
            [(Some(3), "", 3), (None, "SIGTERM", 143), (None, "SIGKILL", 137), (None, "", 137)]
        {
            let exited = v1::ProcessExited {
                exit_code: code,
                signal: signal.to_owned(),
                ..v1::ProcessExited::default()
            };
            assert_eq!(exit_code(&exited), expected, "{code:?} {signal}");
        }
    }
}
