//! Reads the events of a process to its end, and restores lost connections.

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

/// Time after which a command that has not started is reported as waiting.
const SLOW_START_AFTER: Duration = Duration::from_secs(2);

/// Process to follow.
#[derive(Debug)]
pub(super) enum FollowStart {
    /// Start a command.
    Start(Box<StartRequest>),
    /// Start a command with the default timeout of `ToolService.Run`, unless the request has one.
    Run(Box<StartRequest>),
    /// Attach to a process from a position on.
    Attach(AttachRequest),
}

/// Reader of a process's events.
#[derive(Debug)]
pub(super) struct ProcessFollower {
    pub(super) start: FollowStart,
    /// Publishes the process once it has started.
    pub(super) process: watch::Sender<Option<FollowedProcess>>,
    /// Whether to restore a lost connection.
    pub(super) reconnects: bool,
    /// Whether to stop following once the process has started.
    pub(super) detaches: bool,
}

impl ProcessFollower {
    /// Follows the process to its end.
    pub(super) async fn follow(
        self,
        connecting: PendingClient,
        mut printer: Printer,
    ) -> Result<FollowEnd, CliError> {
        let Self { start, process, reconnects, detaches } = self;
        let client = connecting.await?;
        let mut events = open_events(&client, start).await?;

        let mut exit = ObservedExit::default();
        // End offsets of the received output, per stream.
        let mut ends = [events.position().stdout_offset, events.position().stderr_offset];
        loop {
            let event = match next_event(&mut events, &mut printer).await? {
                Ok(event) => event,
                Err(error) if !reconnects => return Err(error.into()),
                Err(error) => {
                    set_connected(&process, false);
                    events = reconnect(&client, &events, error, exit.connection_was_lost).await?;
                    set_connected(&process, true);
                    exit.connection_was_lost = true;
                    continue;
                }
            };

            match &event {
                ProcessEvent::Started(started) => {
                    process.send_replace(Some(FollowedProcess {
                        client: client.without_request_id(),
                        process_id: started.process_id.clone(),
                        is_connected: true,
                    }));
                    if detaches {
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

/// Starts the process or attaches to it.
async fn open_events(client: &Client, start: FollowStart) -> Result<ProcessEvents, CallError> {
    match start {
        FollowStart::Start(request) => note_slow_start(client.start(*request)).await,
        FollowStart::Run(request) => {
            let request = with_run_timeout(client, *request).await?;
            note_slow_start(client.start(request)).await
        }
        FollowStart::Attach(request) => client.attach(request).await,
    }
}

/// Gives a request without a timeout that of a run, which the operator of the daemon sets.
async fn with_run_timeout(
    client: &Client,
    request: StartRequest,
) -> Result<StartRequest, CallError> {
    if request.timeout_sec.is_some() {
        return Ok(request);
    }

    let limits = client.without_request_id().get_info().await?.run_limits;
    let timeout_sec = limits.map(|limits| limits.default_timeout_sec).filter(|sec| *sec > 0);
    Ok(StartRequest { timeout_sec, ..request })
}

/// Waits for the next event or a failed call. Fails if the output cannot be written.
async fn next_event(
    events: &mut ProcessEvents,
    printer: &mut Printer,
) -> Result<Result<ProcessEvent, CallError>, CliError> {
    let event = tokio::select! {
        event = events.next() => event,
        // Detects a closed output even while the command writes nothing.
        failure = printer.wait_for_failure() => return Err(failure),
    };
    let no_end = || {
        CliError::Daemon("the daemon ended the stream without an exit event: list the process with `jig ps --all`, and run `jig attach`".to_owned())
    };
    event.transpose().ok_or_else(no_end)
}

/// Waits for the start of a command. If it takes long, reports possible causes.
async fn note_slow_start<T>(starting: impl Future<Output = T>) -> T {
    let mut starting = pin!(starting);
    if let Ok(started) = timeout(SLOW_START_AFTER, &mut starting).await {
        return started;
    }
    note_in_background(
        "the command has not started yet: it is queued, or pending approval (jig approvals)",
    );
    starting.await
}

fn set_connected(process: &watch::Sender<Option<FollowedProcess>>, is_connected: bool) {
    process.send_modify(|process| {
        if let Some(process) = process {
            process.is_connected = is_connected;
        }
    });
}

/// Explains that the process is gone although the connection is back.
fn process_gone_error(mut error: CallError) -> CliError {
    if error.name() == "PROCESS_NOT_FOUND" {
        error.message += "; the daemon was restarted, which ended the command, or the command ended too long ago: its result is no longer stored";
    }
    error.into()
}

/// Restores a lost connection, and resumes at the position of the previous stream.
///
/// `was_lost`: whether the connection was lost before.
async fn reconnect(
    client: &Client,
    previous: &ProcessEvents,
    error: CallError,
    was_lost: bool,
) -> Result<ProcessEvents, CliError> {
    let position = previous.position();
    if position.process_id.is_empty() || !is_connection_loss(&error) {
        return Err(if was_lost { process_gone_error(error) } else { error.into() });
    }

    let mut attempts = ReconnectAttempts::start();
    let mut last = error;
    loop {
        attempts.wait_backoff().await;

        // The deadline also covers a peer that accepts the call but does not answer.
        let deadline = attempts.deadline(RECONNECT_TIMEOUT);
        let attached = timeout_at(deadline, client.attach(position.clone())).await;

        last = match attached {
            Ok(Ok(events)) => return Ok(events),
            Ok(Err(error))
                if is_connection_loss(&error) && !attempts.have_lasted(RECONNECT_TIMEOUT) =>
            {
                error
            }
            Ok(Err(error)) => return Err(process_gone_error(error)),
            Err(_elapsed) => return Err(last.into()),
        };
    }
}
