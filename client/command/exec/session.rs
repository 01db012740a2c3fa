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
    aside::aside,
    ending::{End, Followed},
    feed::feed,
    keys::{Command, HELP},
    loss::{PATIENCE, Tries, is_loss},
    printer::Printer,
    running::{Known, Running},
    terminal::{LocalTerminal, size_of_terminal},
    typed,
    watch::{Begin, Watcher},
};
use crate::{
    connection::{Connecting, Signals},
    exit,
    failure::Failure,
    local::Local,
};

/// How long what was typed before the way out may take to reach the command.
const LAST_KEYS: Duration = Duration::from_millis(500);

/// How a process is to be followed.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) begin: Begin,
    /// Whether it is given what is typed.
    pub(super) is_fed: bool,
    /// Whether it has a terminal, whose size is this side's.
    pub(super) has_terminal: bool,
    /// Whether it is left as soon as it was started.
    pub(super) detaches: bool,
    /// Whether it goes on without a reader.
    pub(super) keeps: bool,
    /// Whether a lost connection is made again.
    pub(super) comes_back: bool,
    /// Whether the first interrupt is sent on to the process. Otherwise it ends this side.
    pub(super) forwards_interrupts: bool,
    /// Whether events are printed as JSON.
    pub(super) as_json: bool,
}

impl Session {
    /// Follows it to its end.
    pub(super) async fn follow(self, connecting: Connecting, signals: &mut Signals) -> Followed {
        let (keeps, is_fed) = (self.keeps, self.is_fed);
        // Without input, somebody else's process is only looked at.
        let (named, is_viewed) = match &self.begin {
            Begin::Start(_) => (None, false),
            Begin::Attach(request) => (Some(request.process_id.clone()), !is_fed),
        };
        let (process, known) = watch::channel(None);
        let known = Known(known);
        let ended = self.run(connecting, signals, process, &known);
        let end = ended.await;
        Followed {
            process_id: known.now().map(|running| running.process_id).or(named),
            keeps,
            is_fed,
            is_viewed,
            end,
        }
    }

    async fn run(
        self,
        connecting: Connecting,
        signals: &mut Signals,
        process: watch::Sender<Option<Running>>,
        known: &Known,
    ) -> Result<End, Failure> {
        let is_fed = self.is_fed && !self.detaches;
        // Signals are listened for already: nothing ends this side before it has taken it back.
        let terminal = match is_fed && self.has_terminal {
            true => LocalTerminal::hand_over()?,
            false => None,
        };
        let are_keys = terminal.is_some();
        let printer = Printer::start(self.as_json)?;
        let watcher = Watcher {
            begin: self.begin,
            process,
            comes_back: self.comes_back,
            detaches: self.detaches,
        };
        let typing = async {
            if !is_fed {
                return pending().await;
            }
            let typed = typed::read(are_keys);
            tokio::select! {
                end = feed(typed.parts, known.clone(), are_keys) => end,
                end = obey(typed.commands, known, terminal.as_ref()) => end,
            }
        };
        tokio::select! {
            end = watcher.watch(connecting, printer) => end,
            end = typing => end,
            failure = mind(signals, known, self.forwards_interrupts) => Err(failure),
            failure = follow_size(known.clone(), self.has_terminal && !self.detaches) => Err(failure),
        }
    }
}

/// Does what who types wants of this side.
async fn obey(
    mut commands: mpsc::Receiver<Command>,
    known: &Known,
    terminal: Option<&LocalTerminal>,
) -> Result<End, Failure> {
    while let Some(command) = commands.recv().await {
        match command {
            Command::Leave => {
                // Who feeds leaves earlier, if all that was typed before is given.
                sleep(LAST_KEYS).await;
                return Ok(End::Left);
            }
            Command::Suspend => {
                if let Some(terminal) = terminal {
                    let suspended = terminal.suspend().await;
                    suspended.map_err(|error| Local::new("jig cannot be suspended", &error))?;
                }
            }
            Command::Help => aside(HELP),
            Command::GiveUp if known.now().is_none() => {
                return Err(Failure::Interrupted(exit::CANCELLED));
            }
            Command::GiveUp => {}
        }
    }
    pending().await
}

/// Sends an interrupt on to the process; a second one, or another signal, ends this side. So does the
/// first where there is nothing to send it to, or it is not for this side to end it.
async fn mind(signals: &mut Signals, known: &Known, sends: bool) -> Failure {
    let mut interrupted = false;
    let mut sending: Pin<Box<dyn Future<Output = Infallible> + Send>> = Box::pin(pending());
    loop {
        let code = tokio::select! {
            code = signals.next() => code,
            never = &mut sending => match never {},
        };
        if code != exit::CANCELLED || interrupted || !sends || known.now().is_none() {
            return Failure::Interrupted(code);
        }
        interrupted = true;
        sending = Box::pin(interrupt(known.clone()));
    }
}

/// Interrupts the process, trying again while the connection is lost.
async fn interrupt(mut known: Known) -> Infallible {
    let mut tries = Tries::begin();
    loop {
        let running = known.running().await;
        let request =
            SendSignalRequest { process_id: running.process_id, signal: "SIGINT".to_owned() };
        match running.client.send_signal(request).await {
            Err(error) if is_loss(&error) && !tries.last(PATIENCE) => tries.pause().await,
            Err(error) if error.name() != "PROCESS_ENDED" => {
                aside(&format!("the interrupt cannot be sent, another one ends jig: {error}"));
                return pending().await;
            }
            Ok(_) | Err(_) => return pending().await,
        }
    }
}

/// Tells the process's terminal each size that this side's gets.
async fn follow_size(mut known: Known, has_terminal: bool) -> Failure {
    if !has_terminal {
        return pending().await;
    }
    let mut changes = match signal(SignalKind::window_change()) {
        Ok(changes) => changes,
        Err(error) => return Local::new("signals cannot be listened for", &error).into(),
    };
    let mut tries = Tries::begin();
    loop {
        let running = known.read().await;
        let size = size_of_terminal();
        let request = ResizeTerminalRequest {
            process_id: running.process_id,
            cols: size.cols,
            rows: size.rows,
        };
        // Whether it is told is told by the stream: it ends with the process.
        match running.client.resize_terminal(request).await {
            Err(error) if is_loss(&error) => tries.pause().await,
            Ok(_) | Err(_) => {
                changes.recv().await;
                tries = Tries::begin();
            }
        }
    }
}
