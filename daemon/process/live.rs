//! A command that others watch and talk to while it runs, and for a while after.

use std::{
    sync::{Arc, OnceLock},
    time::SystemTime,
};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    finished::Finished,
    input::Input,
    transcript::{Event, Place, Position, Transcript},
};
use crate::daemon::{error::Error, sandbox::image::TerminalSize};

/// Orders that may wait for the task that owns the command, which takes them at once.
const ORDERS: usize = 64;
/// Readers of one command at a time; each may hold up to 256 KiB on its way to the client.
const READERS_AT_MOST: usize = 64;

/// How a command ended, or why it cannot be said.
pub(crate) type Ending = Arc<Result<Exit, Error>>;

/// A command, for those who watch it and talk to it.
#[derive(Debug)]
pub(crate) struct Process {
    /// What it is.
    pub(crate) about: About,
    /// What it writes.
    pub(crate) transcript: Transcript<Ending>,
    /// What it reads.
    pub(crate) input: Input,
    /// Paths under which its whole output can be read.
    paths: OnceLock<[String; 2]>,
    /// When it was executed.
    started: OnceLock<SystemTime>,
    /// When nothing of it was left.
    ended: OnceLock<SystemTime>,
    orders: mpsc::Sender<Order>,
    /// Ends it at once.
    abandon: OnceLock<CancellationToken>,
}

/// What a command is.
#[derive(Debug, Clone)]
pub(crate) struct About {
    /// Its id: a ULID, and no number of the operating system's.
    pub(crate) id: String,
    /// The program and its arguments, for people.
    pub(crate) command: String,
    /// Where it was started, as it sees that itself.
    pub(crate) cwd: String,
    /// Whether it has a terminal.
    pub(crate) has_terminal: bool,
    /// Whether it is ended when its last reader leaves.
    pub(crate) ends_alone: bool,
}

/// How a command ended, and where the whole of what it wrote is.
#[derive(Debug)]
pub(crate) struct Exit {
    /// How it ended.
    pub(crate) finished: Finished,
    /// Path of the artifact of its standard output.
    pub(crate) stdout_path: String,
    /// Path of the artifact of its standard error.
    pub(crate) stderr_path: String,
}

/// What a running command may be told.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Order {
    /// To send it a signal.
    Signal(i32),
    /// That its terminal has another size.
    Resize(TerminalSize),
}

/// The side of the task that owns the command.
#[derive(Debug)]
pub(crate) struct Live {
    /// The command.
    pub(crate) process: Arc<Process>,
    /// What it is told.
    pub(super) orders: mpsc::Receiver<Order>,
}

/// Why somebody cannot read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum EnterError {
    /// That much was never written.
    #[error("the position lies behind the last byte")]
    Beyond(Position),
    /// Too many read already.
    #[error("{READERS_AT_MOST} streams of this process go on already")]
    TooMany,
}

/// Somebody who reads. When the last one is dropped, a command that is not to run alone is ended.
#[derive(Debug)]
pub(crate) struct Reader {
    process: Arc<Process>,
    place: Place,
}

impl Process {
    /// A command that is about to run, with the side of the task that is to own it.
    pub(crate) fn prepare(about: About, input: Input, keep_bytes: usize) -> Live {
        let (sender, orders) = mpsc::channel(ORDERS);
        let process = Arc::new(Self {
            about,
            transcript: Transcript::new(keep_bytes),
            input,
            paths: OnceLock::new(),
            started: OnceLock::new(),
            ended: OnceLock::new(),
            orders: sender,
            abandon: OnceLock::new(),
        });
        Live { process, orders }
    }

    /// Begins to read behind `position`.
    pub(crate) fn read(self: &Arc<Self>, position: Position) -> Result<Reader, EnterError> {
        if self.transcript.readers() >= READERS_AT_MOST {
            return Err(EnterError::TooMany);
        }
        let place = self
            .transcript
            .enter(position)
            .map_err(EnterError::Beyond)?;
        Ok(Reader {
            process: Arc::clone(self),
            place,
        })
    }

    /// Tells the task that owns it something. Answers whether it still runs.
    pub(crate) async fn order(&self, order: Order) -> bool {
        self.orders.send(order).await.is_ok()
    }

    /// What ends it at once.
    pub(crate) fn set_abandon(&self, abandon: CancellationToken) {
        let _only_once = self.abandon.set(abandon);
    }

    /// Ends it at once.
    pub(crate) fn abandon(&self) {
        if let Some(abandon) = self.abandon.get() {
            abandon.cancel();
        }
    }

    /// Says under which paths its whole output can be read.
    pub(crate) fn set_paths(&self, stdout: String, stderr: String) {
        let _only_once = self.paths.set([stdout, stderr]);
    }

    /// Paths under which its whole standard output and error can be read; empty before it runs.
    pub(crate) fn paths(&self) -> [String; 2] {
        self.paths.get().cloned().unwrap_or_default()
    }

    /// It was executed.
    pub(super) fn start(&self) {
        let _only_once = self.started.set(SystemTime::now());
        self.transcript.start();
    }

    /// Nothing of it is left, or it never was.
    pub(crate) fn end(&self, result: Result<Exit, Error>) {
        self.input.close();
        let _only_once = self.ended.set(SystemTime::now());
        self.transcript.end(Arc::new(result));
    }

    /// When it was executed, if it was.
    pub(crate) fn start_time(&self) -> Option<SystemTime> {
        self.started.get().copied()
    }

    /// When nothing of it was left.
    pub(crate) fn end_time(&self) -> Option<SystemTime> {
        self.ended.get().copied()
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.get().is_some()
    }
}

impl Exit {
    /// Why an artifact is incomplete although it is under its cap; empty when none is.
    pub(crate) fn artifact_error(&self) -> String {
        let streams = [
            ("stdout", &self.finished.stdout),
            ("stderr", &self.finished.stderr),
        ];
        let errors: Vec<_> = streams
            .into_iter()
            .filter(|(_, stream)| !stream.artifact_error.is_empty())
            .map(|(name, stream)| format!("{name}: {}", stream.artifact_error))
            .collect();
        errors.join("; ")
    }
}

impl Reader {
    /// The command that is read from.
    pub(crate) fn process(&self) -> &Arc<Process> {
        &self.process
    }

    /// Waits for what comes next. Answers nothing behind the end. May be cancelled.
    pub(crate) async fn next(&mut self) -> Option<Event<Ending>> {
        self.process.transcript.next(&mut self.place).await
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let left = self.process.transcript.leave(&self.place);
        if left == 0 && self.process.about.ends_alone {
            self.process.abandon();
        }
    }
}
