//! Follows one process to its end: output, input, signals, escape keys and terminal size.
//!
//! Signals and escape keys are handled from start to end, even if the daemon does not respond.

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

/// Maximum time to forward the input that was typed before `~.`.
const MAX_FLUSH_TIME: Duration = Duration::from_millis(500);

/// Settings of a session.
#[derive(Debug)]
pub(super) struct ExecSession {
    pub(super) start: FollowStart,
    /// Whether to forward input.
    pub(super) forwards_stdin: bool,
    /// Whether the process has a terminal, whose size follows this one.
    pub(super) has_terminal: bool,
    /// Whether to stop following once the process has started.
    pub(super) detaches: bool,
    /// Whether the process continues without a reader.
    pub(super) keeps_running: bool,
    /// Whether to restore a lost connection.
    pub(super) reconnects: bool,
    /// Whether to forward the first interrupt to the process. Otherwise it ends the session.
    pub(super) forwards_interrupts: bool,
    /// Whether to print events as JSON.
    pub(super) as_json: bool,
}

impl ExecSession {
    /// Follows the process to its end.
    pub(super) async fn follow(
        self,
        connecting: PendingClient,
        signals: &mut TerminationSignals,
    ) -> FollowOutcome {
        let (keeps_running, forwards_stdin) = (self.keeps_running, self.forwards_stdin);
        // Without input, this side only watches the process.
        let (requested_id, is_view_only) = match &self.start {
            FollowStart::Start(_) | FollowStart::Run(_) => (None, false),
            FollowStart::Attach(request) => (Some(request.process_id.clone()), !forwards_stdin),
        };
        let (sender, receiver) = watch::channel(None);
        let process = FollowedProcessWatch(receiver);

        let end = self.run(connecting, signals, sender, &process).await;

        FollowOutcome {
            process_id: process.current().map(|process| process.process_id).or(requested_id),
            keeps_running,
            forwards_stdin,
            is_view_only,
            end,
        }
    }

    async fn run(
        self,
        connecting: PendingClient,
        signals: &mut TerminationSignals,
        process_sender: watch::Sender<Option<FollowedProcess>>,
        process: &FollowedProcessWatch,
    ) -> Result<FollowEnd, CliError> {
        let forwards_stdin = self.forwards_stdin && !self.detaches;
        // Signals are handled already, so that the terminal is always restored.
        let terminal =
            if forwards_stdin && self.has_terminal { RawTerminal::enter()? } else { None };
        let is_raw = terminal.is_some();

        let printer = Printer::start(self.as_json)?;
        let follower = ProcessFollower {
            start: self.start,
            process: process_sender,
            reconnects: self.reconnects,
            detaches: self.detaches,
        };
        let input = async {
            if !forwards_stdin {
                return pending().await;
            }
            let stdin = stdin::spawn_stdin_reader(is_raw);
            tokio::select! {
                end = forward_stdin(stdin.parts, process.clone(), is_raw) => end,
                end = handle_commands(stdin.commands, process, terminal.as_ref()) => end,
            }
        };
        let forwards_size = self.has_terminal && !self.detaches;

        tokio::select! {
            end = follower.follow(connecting, printer) => end,
            end = input => end,
            failure = handle_signals(signals, process, self.forwards_interrupts) => Err(failure),
            failure = forward_terminal_size(process.clone(), forwards_size) => Err(failure),
        }
    }
}

/// Executes escape commands of the user.
async fn handle_commands(
    mut commands: mpsc::Receiver<EscapeCommand>,
    process: &FollowedProcessWatch,
    terminal: Option<&RawTerminal>,
) -> Result<FollowEnd, CliError> {
    while let Some(command) = commands.recv().await {
        match command {
            EscapeCommand::Detach => {
                // `forward_stdin` returns earlier if it has forwarded all earlier input.
                sleep(MAX_FLUSH_TIME).await;
                return Ok(FollowEnd::DetachedByUser);
            }
            EscapeCommand::Suspend => {
                if let Some(terminal) = terminal {
                    let suspended = terminal.suspend().await;
                    suspended.map_err(|error| LocalError::new("cannot suspend jig", &error))?;
                }
            }
            EscapeCommand::Help => note_in_background(ESCAPE_HELP),
            EscapeCommand::CancelStart if process.current().is_none() => {
                return Err(CliError::Interrupted(exit::CANCELLED));
            }
            EscapeCommand::CancelStart => {}
        }
    }
    pending().await
}

/// Forwards the first interrupt to the process. Returns after a second one or another signal.
///
/// Returns at once if the process has not started, or if interrupts are not forwarded.
async fn handle_signals(
    signals: &mut TerminationSignals,
    process: &FollowedProcessWatch,
    forwards_interrupts: bool,
) -> CliError {
    let mut interrupted = false;
    let mut sending: Pin<Box<dyn Future<Output = Infallible> + Send>> = Box::pin(pending());
    loop {
        let code = tokio::select! {
            code = signals.next() => code,
            never = &mut sending => match never {},
        };
        let forwards = forwards_interrupts && process.current().is_some();
        if code != exit::CANCELLED || interrupted || !forwards {
            return CliError::Interrupted(code);
        }

        interrupted = true;
        sending = Box::pin(send_interrupt(process.clone()));
    }
}

/// Sends SIGINT to the process, with retries while the connection is lost.
async fn send_interrupt(mut process: FollowedProcessWatch) -> Infallible {
    let mut attempts = ReconnectAttempts::start();
    loop {
        let target = process.started().await;
        let request =
            SendSignalRequest { process_id: target.process_id, signal: "SIGINT".to_owned() };
        match target.client.send_signal(request).await {
            Err(error)
                if is_connection_loss(&error) && !attempts.have_lasted(RECONNECT_TIMEOUT) =>
            {
                attempts.wait_backoff().await
            }
            Err(error) if error.name() != "PROCESS_ENDED" => {
                note_in_background(&format!(
                    "cannot interrupt the command, another Ctrl-C ends jig: {error}"
                ));
                return pending().await;
            }
            Ok(_) | Err(_) => return pending().await,
        }
    }
}

/// Sends each new size of this terminal to the terminal of the process.
async fn forward_terminal_size(mut process: FollowedProcessWatch, has_terminal: bool) -> CliError {
    if !has_terminal {
        return pending().await;
    }

    let mut changes = match signal(SignalKind::window_change()) {
        Ok(changes) => changes,
        Err(error) => return LocalError::new("cannot listen for signals", &error).into(),
    };

    let mut attempts = ReconnectAttempts::start();
    loop {
        let target = process.connected().await;
        let size = terminal_size();
        let request = ResizeTerminalRequest {
            process_id: target.process_id,
            cols: size.cols,
            rows: size.rows,
        };
        // Ignores other errors: if the process has ended, its stream reports that.
        match target.client.resize_terminal(request).await {
            Err(error) if is_connection_loss(&error) => attempts.wait_backoff().await,
            Ok(_) | Err(_) => {
                changes.recv().await;
                attempts = ReconnectAttempts::start();
            }
        }
    }
}
