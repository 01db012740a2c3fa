//! One process, followed to its end: what it writes comes out here, what is typed here goes in, and
//! signals and keys that are meant for this side are minded from the first moment to the last,
//! whoever else does not answer.

use std::{
    convert::Infallible,
    future::{Future, pending},
    pin::Pin,
    time::Duration,
};

use jig::api::v1::{ResizeTerminalRequest, SendSignalRequest};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::{mpsc, watch},
    time::sleep,
};

use super::{
    escape_keys::{ESCAPE_HELP, EscapeCommand},
    followed_process::{FollowedProcess, FollowedProcessWatch},
    follower::{FollowStart, ProcessFollower},
    forward_stdin::forward_stdin,
    notes::note_in_background,
    outcome::{FollowEnd, FollowOutcome},
    printer::Printer,
    reconnect::{RECONNECT_TIMEOUT, ReconnectAttempts, is_connection_loss},
    stdin,
    terminal::{RawTerminal, terminal_size},
};
use crate::{
    cli_error::CliError,
    connection::{PendingClient, TerminationSignals},
    exit,
    local_error::LocalError,
};

/// How long what was typed before the way out may take to reach the command.
const MAX_FLUSH_TIME: Duration = Duration::from_millis(500);

/// How a process is to be followed.
#[derive(Debug)]
pub(super) struct ExecSession {
    pub(super) start: FollowStart,
    /// Whether it is given what is typed.
    pub(super) forwards_stdin: bool,
    /// Whether it has a terminal, whose size is this side's.
    pub(super) has_terminal: bool,
    /// Whether it is left as soon as it was started.
    pub(super) detaches: bool,
    /// Whether it goes on without a reader.
    pub(super) keeps_running: bool,
    /// Whether a lost connection is made again.
    pub(super) reconnects: bool,
    /// Whether the first interrupt is sent on to the process. Otherwise it ends this side.
    pub(super) forwards_interrupts: bool,
    /// Whether events are printed as JSON.
    pub(super) as_json: bool,
}

impl ExecSession {
    /// Follows it to its end.
    pub(super) async fn follow(
        self,
        connecting: PendingClient,
        signals: &mut TerminationSignals,
    ) -> FollowOutcome {
        let (keeps, is_fed) = (self.keeps_running, self.forwards_stdin);
        // Without input, somebody else's process is only looked at.
        let (named, is_viewed) = match &self.start {
            FollowStart::Start(_) => (None, false),
            FollowStart::Attach(request) => (Some(request.process_id.clone()), !is_fed),
        };
        let (process, known) = watch::channel(None);
        let known = FollowedProcessWatch(known);
        let ended = self.run(connecting, signals, process, &known);
        let end = ended.await;
        FollowOutcome {
            process_id: known.current().map(|running| running.process_id).or(named),
            keeps_running: keeps,
            forwards_stdin: is_fed,
            is_view_only: is_viewed,
            end,
        }
    }

    async fn run(
        self,
        connecting: PendingClient,
        signals: &mut TerminationSignals,
        process: watch::Sender<Option<FollowedProcess>>,
        known: &FollowedProcessWatch,
    ) -> Result<FollowEnd, CliError> {
        let is_fed = self.forwards_stdin && !self.detaches;
        // Signals are listened for already: nothing ends this side before it has taken it back.
        let terminal = match is_fed && self.has_terminal {
            true => RawTerminal::enter()?,
            false => None,
        };
        let are_keys = terminal.is_some();
        let printer = Printer::start(self.as_json)?;
        let watcher = ProcessFollower {
            start: self.start,
            process,
            reconnects: self.reconnects,
            detaches: self.detaches,
        };
        let typing = async {
            if !is_fed {
                return pending().await;
            }
            let typed = stdin::spawn_stdin_reader(are_keys);
            tokio::select! {
                end = forward_stdin(typed.parts, known.clone(), are_keys) => end,
                end = handle_commands(typed.commands, known, terminal.as_ref()) => end,
            }
        };
        tokio::select! {
            end = watcher.follow(connecting, printer) => end,
            end = typing => end,
            failure = handle_signals(signals, known, self.forwards_interrupts) => Err(failure),
            failure = forward_terminal_size(known.clone(), self.has_terminal && !self.detaches) => Err(failure),
        }
    }
}

/// Does what who types wants of this side.
async fn handle_commands(
    mut commands: mpsc::Receiver<EscapeCommand>,
    known: &FollowedProcessWatch,
    terminal: Option<&RawTerminal>,
) -> Result<FollowEnd, CliError> {
    while let Some(command) = commands.recv().await {
        match command {
            EscapeCommand::Leave => {
                // Who feeds leaves earlier, if all that was typed before is given.
                sleep(MAX_FLUSH_TIME).await;
                return Ok(FollowEnd::LeftByUser);
            }
            EscapeCommand::Suspend => {
                if let Some(terminal) = terminal {
                    let suspended = terminal.suspend().await;
                    suspended
                        .map_err(|error| LocalError::new("jig cannot be suspended", &error))?;
                }
            }
            EscapeCommand::Help => note_in_background(ESCAPE_HELP),
            EscapeCommand::CancelStart if known.current().is_none() => {
                return Err(CliError::Interrupted(exit::CANCELLED));
            }
            EscapeCommand::CancelStart => {}
        }
    }
    pending().await
}

/// Sends an interrupt on to the process; a second one, or another signal, ends this side. So does the
/// first where there is nothing to send it to, or it is not for this side to end it.
async fn handle_signals(
    signals: &mut TerminationSignals,
    known: &FollowedProcessWatch,
    sends: bool,
) -> CliError {
    let mut interrupted = false;
    let mut sending: Pin<Box<dyn Future<Output = Infallible> + Send>> = Box::pin(pending());
    loop {
        let code = tokio::select! {
            code = signals.next() => code,
            never = &mut sending => match never {},
        };
        if code != exit::CANCELLED || interrupted || !sends || known.current().is_none() {
            return CliError::Interrupted(code);
        }
        interrupted = true;
        sending = Box::pin(send_interrupt(known.clone()));
    }
}

/// Interrupts the process, trying again while the connection is lost.
async fn send_interrupt(mut known: FollowedProcessWatch) -> Infallible {
    let mut tries = ReconnectAttempts::start();
    loop {
        let running = known.started().await;
        let request =
            SendSignalRequest { process_id: running.process_id, signal: "SIGINT".to_owned() };
        match running.client.send_signal(request).await {
            Err(error) if is_connection_loss(&error) && !tries.have_lasted(RECONNECT_TIMEOUT) => {
                tries.wait_backoff().await
            }
            Err(error) if error.name() != "PROCESS_ENDED" => {
                note_in_background(&format!(
                    "the interrupt cannot be sent, another one ends jig: {error}"
                ));
                return pending().await;
            }
            Ok(_) | Err(_) => return pending().await,
        }
    }
}

/// Tells the process's terminal each size that this side's gets.
async fn forward_terminal_size(mut known: FollowedProcessWatch, has_terminal: bool) -> CliError {
    if !has_terminal {
        return pending().await;
    }
    let mut changes = match signal(SignalKind::window_change()) {
        Ok(changes) => changes,
        Err(error) => return LocalError::new("signals cannot be listened for", &error).into(),
    };
    let mut tries = ReconnectAttempts::start();
    loop {
        let running = known.connected().await;
        let size = terminal_size();
        let request = ResizeTerminalRequest {
            process_id: running.process_id,
            cols: size.cols,
            rows: size.rows,
        };
        // Whether it is told is told by the stream: it ends with the process.
        match running.client.resize_terminal(request).await {
            Err(error) if is_connection_loss(&error) => tries.wait_backoff().await,
            Ok(_) | Err(_) => {
                changes.recv().await;
                tries = ReconnectAttempts::start();
            }
        }
    }
}
