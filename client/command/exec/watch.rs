//! Reading what becomes of a process, to its end: a connection that is lost is made again.

use std::{future::Future, pin::pin, time::Duration};

use jig::{
    api::v1::{AttachRequest, StartRequest},
    client::{CallError, Client, ProcessEvent, ProcessEvents},
};
use tokio::{
    sync::watch,
    time::{timeout, timeout_at},
};

use super::{
    aside::aside,
    ending::{End, Exit},
    loss::{PATIENCE, Tries, is_loss},
    printer::Printer,
    running::Running,
};
use crate::{connection::Connecting, failure::Failure};

/// A command that is not started within this time waits for something.
const LATE: Duration = Duration::from_secs(2);

/// What is to be followed.
#[derive(Debug)]
pub(super) enum Begin {
    /// A command that is started first.
    Start(Box<StartRequest>),
    /// A process from a position on.
    Attach(AttachRequest),
}

/// Who reads what becomes of the process.
#[derive(Debug)]
pub(super) struct Watcher {
    pub(super) begin: Begin,
    /// Where it is told as soon as it is known.
    pub(super) process: watch::Sender<Option<Running>>,
    /// Whether a lost connection is made again.
    pub(super) comes_back: bool,
    /// Whether it is left as soon as it was started.
    pub(super) detaches: bool,
}

impl Watcher {
    /// Reads to the end.
    pub(super) async fn watch(
        self,
        connecting: Connecting,
        mut printer: Printer,
    ) -> Result<End, Failure> {
        let client = connecting.await?;
        let mut events = match self.begin {
            Begin::Start(request) => started(client.start(*request)).await?,
            Begin::Attach(request) => client.attach(request).await?,
        };
        let mut exit = Exit::default();
        // Bytes that came of each stream.
        let mut ends = [events.position().stdout_offset, events.position().stderr_offset];
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                // Also while the command writes nothing.
                failure = printer.fails() => return Err(failure),
            };
            let event = match event {
                Ok(Some(event)) => event,
                Ok(None) => return Err(Failure::Daemon("the process has no end".to_owned())),
                Err(error) => {
                    if !self.comes_back {
                        return Err(error.into());
                    }
                    tell_read(&self.process, false);
                    events = come_back(&client, &events, error, exit.was_lost).await?;
                    tell_read(&self.process, true);
                    exit.was_lost = true;
                    continue;
                }
            };
            match &event {
                ProcessEvent::Started(started) => {
                    self.process.send_replace(Some(Running {
                        client: client.without_request_id(),
                        process_id: started.process_id.clone(),
                        is_read: true,
                    }));
                    if self.detaches {
                        return Ok(End::Detached);
                    }
                }
                ProcessEvent::Gap(gap) => {
                    exit.left_out[0] |= gap.stdout_offset > ends[0];
                    exit.left_out[1] |= gap.stderr_offset > ends[1];
                }
                ProcessEvent::Stdout(_)
                | ProcessEvent::Stderr(_)
                | ProcessEvent::KeepAlive
                | ProcessEvent::Exited(_)
                | _ => {}
            }
            let position = events.position();
            ends = [position.stdout_offset, position.stderr_offset];
            printer.print(&event).await?;
            if let ProcessEvent::Exited(exited) = event {
                printer.finish().await?;
                exit.exited = exited;
                return Ok(End::Exited(Box::new(exit)));
            }
        }
    }
}

/// Waits for a start, and says what that may wait for where it takes long: nothing else tells.
async fn started<T>(starting: impl Future<Output = T>) -> T {
    let mut starting = pin!(starting);
    if let Ok(started) = timeout(LATE, &mut starting).await {
        return started;
    }
    aside(
        "the command has not been started yet: it waits for its turn, or to be approved (jig approvals)",
    );
    starting.await
}

fn tell_read(process: &watch::Sender<Option<Running>>, is_read: bool) {
    process.send_modify(|known| {
        if let Some(running) = known {
            running.is_read = is_read;
        }
    });
}

/// What is told where the connection is back, and the process is not.
fn gone(mut error: CallError) -> Failure {
    if error.name() == "PROCESS_NOT_FOUND" {
        error.message += "; the daemon was restarted, and the command ended with it, or it ended too long ago: how is not known any more";
    }
    error.into()
}

/// Makes a lost connection again, and goes on where it broke off. `was_lost` says whether it was lost
/// before.
async fn come_back(
    client: &Client,
    before: &ProcessEvents,
    error: CallError,
    was_lost: bool,
) -> Result<ProcessEvents, Failure> {
    let position = before.position();
    if position.process_id.is_empty() || !is_loss(&error) {
        return Err(if was_lost { gone(error) } else { error.into() });
    }
    let mut tries = Tries::begin();
    let mut last = error;
    loop {
        tries.pause().await;
        // Also where somebody takes the call and does not answer.
        let attached = timeout_at(tries.end(PATIENCE), client.attach(position.clone())).await;
        last = match attached {
            Ok(Ok(events)) => return Ok(events),
            Ok(Err(again)) if is_loss(&again) && !tries.last(PATIENCE) => again,
            Ok(Err(again)) => return Err(gone(again)),
            Err(_elapsed) => return Err(last.into()),
        };
    }
}
