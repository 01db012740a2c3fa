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
    followed_process::FollowedProcess,
    notes::note_in_background,
    outcome::{FollowEnd, ObservedExit},
    printer::Printer,
    reconnect::{RECONNECT_TIMEOUT, ReconnectAttempts, is_connection_loss},
};
use crate::{cli_error::CliError, connection::PendingClient};

/// A command that is not started within this time waits for something.
const SLOW_START_AFTER: Duration = Duration::from_secs(2);

/// What is to be followed.
#[derive(Debug)]
pub(super) enum FollowStart {
    /// A command that is started first.
    Start(Box<StartRequest>),
    /// A process from a position on.
    Attach(AttachRequest),
}

/// Who reads what becomes of the process.
#[derive(Debug)]
pub(super) struct ProcessFollower {
    pub(super) start: FollowStart,
    /// Where it is told as soon as it is known.
    pub(super) process: watch::Sender<Option<FollowedProcess>>,
    /// Whether a lost connection is made again.
    pub(super) reconnects: bool,
    /// Whether it is left as soon as it was started.
    pub(super) detaches: bool,
}

impl ProcessFollower {
    /// Reads to the end.
    pub(super) async fn follow(
        self,
        connecting: PendingClient,
        mut printer: Printer,
    ) -> Result<FollowEnd, CliError> {
        let client = connecting.await?;
        let mut events = match self.start {
            FollowStart::Start(request) => note_slow_start(client.start(*request)).await?,
            FollowStart::Attach(request) => client.attach(request).await?,
        };
        let mut exit = ObservedExit::default();
        // Bytes that came of each stream.
        let mut ends = [events.position().stdout_offset, events.position().stderr_offset];
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                // Also while the command writes nothing.
                failure = printer.wait_for_failure() => return Err(failure),
            };
            let event = match event {
                Ok(Some(event)) => event,
                Ok(None) => return Err(CliError::Daemon("the process has no end".to_owned())),
                Err(error) => {
                    if !self.reconnects {
                        return Err(error.into());
                    }
                    set_connected(&self.process, false);
                    events = reconnect(&client, &events, error, exit.connection_was_lost).await?;
                    set_connected(&self.process, true);
                    exit.connection_was_lost = true;
                    continue;
                }
            };
            match &event {
                ProcessEvent::Started(started) => {
                    self.process.send_replace(Some(FollowedProcess {
                        client: client.without_request_id(),
                        process_id: started.process_id.clone(),
                        is_connected: true,
                    }));
                    if self.detaches {
                        return Ok(FollowEnd::Detached);
                    }
                }
                ProcessEvent::Gap(gap) => {
                    exit.has_gaps[0] |= gap.stdout_offset > ends[0];
                    exit.has_gaps[1] |= gap.stderr_offset > ends[1];
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
                return Ok(FollowEnd::Exited(Box::new(exit)));
            }
        }
    }
}

/// Waits for a start, and says what that may wait for where it takes long: nothing else tells.
async fn note_slow_start<T>(starting: impl Future<Output = T>) -> T {
    let mut starting = pin!(starting);
    if let Ok(started) = timeout(SLOW_START_AFTER, &mut starting).await {
        return started;
    }
    note_in_background(
        "the command has not been started yet: it waits for its turn, or to be approved (jig approvals)",
    );
    starting.await
}

fn set_connected(process: &watch::Sender<Option<FollowedProcess>>, is_read: bool) {
    process.send_modify(|known| {
        if let Some(running) = known {
            running.is_connected = is_read;
        }
    });
}

/// What is told where the connection is back, and the process is not.
fn process_gone_error(mut error: CallError) -> CliError {
    if error.name() == "PROCESS_NOT_FOUND" {
        error.message += "; the daemon was restarted, and the command ended with it, or it ended too long ago: how is not known any more";
    }
    error.into()
}

/// Makes a lost connection again, and goes on where it broke off. `was_lost` says whether it was lost
/// before.
async fn reconnect(
    client: &Client,
    before: &ProcessEvents,
    error: CallError,
    was_lost: bool,
) -> Result<ProcessEvents, CliError> {
    let position = before.position();
    if position.process_id.is_empty() || !is_connection_loss(&error) {
        return Err(if was_lost { process_gone_error(error) } else { error.into() });
    }
    let mut tries = ReconnectAttempts::start();
    let mut last = error;
    loop {
        tries.wait_backoff().await;
        // Also where somebody takes the call and does not answer.
        let attached =
            timeout_at(tries.deadline(RECONNECT_TIMEOUT), client.attach(position.clone())).await;
        last = match attached {
            Ok(Ok(events)) => return Ok(events),
            Ok(Err(again))
                if is_connection_loss(&again) && !tries.have_lasted(RECONNECT_TIMEOUT) =>
            {
                again
            }
            Ok(Err(again)) => return Err(process_gone_error(again)),
            Err(_elapsed) => return Err(last.into()),
        };
    }
}
