//! A command that others watch and talk to while it runs, and for a while after.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use tokio::sync::{
    mpsc::{self, error::TrySendError},
    oneshot,
};
use tokio_util::sync::CancellationToken;

use super::{
    finished::Finished,
    input::Input,
    transcript::{self, Beyond, Event, PATIENCE, Position, Transcript},
};
use crate::daemon::{
    error::Error,
    queue::{self, Full, Name, Queue, Share},
    sandbox::image::TerminalSize,
    task,
};

/// Orders that may wait for the task that owns the command, which takes them at once.
const ORDERS: usize = 64;
/// Readers of one command at a time; each may hold up to 256 KiB on its way to the client.
const READERS: usize = 128;
/// Those of one caller: some are left for others, of whom one may have started it.
const READERS_OF_ONE: usize = 64;

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
    /// Places for those who read it.
    readers: Arc<Queue>,
    /// Paths under which its whole output can be read.
    paths: OnceLock<[String; 2]>,
    /// When it was executed.
    started: OnceLock<SystemTime>,
    /// When nothing of it was left.
    ended: OnceLock<SystemTime>,
    orders: mpsc::Sender<(Order, oneshot::Sender<()>)>,
    /// Ends it at once.
    abandon: OnceLock<CancellationToken>,
    /// How long it goes on without readers although it is to end with the last one.
    linger: OnceLock<Duration>,
    /// How often it was left without readers.
    left: AtomicU64,
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
#[derive(Debug, Clone)]
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
    pub(super) orders: Orders,
}

/// What a command is told, each with where to say that it was done.
pub(super) type Orders = mpsc::Receiver<(Order, oneshot::Sender<()>)>;

/// Why a command was not told something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum OrderError {
    /// It has ended.
    #[error("the process has ended")]
    Ended,
    /// Too much is to be told it already.
    #[error("{ORDERS} signals and sizes wait for this process already")]
    TooMany,
}

/// Somebody who reads. When the last one is dropped, a command that is not to run alone is ended.
#[derive(Debug)]
pub(crate) struct Reader {
    process: Arc<Process>,
    place: transcript::Place,
    _of_readers: queue::Place,
}

/// Why somebody cannot read.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Refused {
    /// The position lies behind this, which is all that was written.
    Beyond(Position),
    /// As many read already as may.
    TooMany(Full),
}

impl Process {
    /// A command that is about to run, with the side of the task that is to own it.
    pub(crate) fn prepare(about: About, input: Input, keep_bytes: usize) -> Live {
        let (sender, orders) = mpsc::channel(ORDERS);
        let process = Arc::new(Self {
            // The last reader of a command that ends with it owns it: it waits, as for a terminal.
            transcript: Transcript::new(keep_bytes, (!about.ends_alone).then_some(PATIENCE)),
            about,
            input,
            readers: Queue::new(READERS, Share::Reserve, 0),
            paths: OnceLock::new(),
            started: OnceLock::new(),
            ended: OnceLock::new(),
            orders: sender,
            abandon: OnceLock::new(),
            linger: OnceLock::new(),
            left: AtomicU64::new(0),
        });
        Live { process, orders }
    }

    /// Begins to read behind `position`.
    pub(crate) fn read(
        self: &Arc<Self>,
        caller: &Name,
        position: Position,
    ) -> Result<Reader, Refused> {
        let of_readers = self.readers.at_once(caller, READERS_OF_ONE);
        let of_readers = of_readers.map_err(Refused::TooMany)?;
        let place = self.transcript.enter(position);
        let place = place.map_err(|Beyond(written)| Refused::Beyond(written))?;
        Ok(Reader { process: Arc::clone(self), place, _of_readers: of_readers })
    }

    /// Tells the task that owns it something, and waits until that is done: where it was not executed
    /// yet, until it was. Fails where that cannot be done any more.
    pub(crate) async fn order(&self, order: Order) -> Result<(), OrderError> {
        let (done, is_done) = oneshot::channel();
        self.orders.try_send((order, done)).map_err(|error| match error {
            TrySendError::Full(_) => OrderError::TooMany,
            TrySendError::Closed(_) => OrderError::Ended,
        })?;
        is_done.await.map_err(|_| OrderError::Ended)
    }

    /// Lets it go on for a while when its last reader has left: he may come back.
    pub(crate) fn linger(&self, linger: Duration) {
        let _only_once = self.linger.set(linger);
    }

    /// It has no reader any more.
    fn left_alone(self: &Arc<Self>) {
        let times = self.left.fetch_add(1, Ordering::Relaxed) + 1;
        if !self.about.ends_alone {
            return;
        }
        let Some(linger) = self.linger.get().copied() else {
            self.abandon();
            return;
        };
        let process = Arc::downgrade(self);
        task::spawn("a process without readers", async move {
            tokio::time::sleep(linger).await;
            let left_since = |process: &Arc<Self>| {
                process.left.load(Ordering::Relaxed) == times && process.transcript.readers() == 0
            };
            if let Some(process) = process.upgrade().filter(left_since) {
                process.abandon();
            }
        });
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
        self.transcript.end(Arc::new(result));
        let _only_once = self.ended.set(SystemTime::now());
    }

    /// Bytes of memory that are kept of what it wrote.
    pub(super) fn kept_bytes(&self) -> u64 {
        let ending = self.transcript.ending();
        let texts = ending.as_deref().and_then(|ending| ending.as_ref().ok());
        let texts = texts
            .map_or(0, |exit| exit.finished.stdout.text.len() + exit.finished.stderr.text.len());
        self.transcript.kept_bytes() + texts as u64
    }

    /// Drops what is kept of what it wrote, for want of memory; how it ended stays.
    pub(super) fn forget(&self) {
        self.transcript.forget();
        self.transcript.replace_end(|ending| match &**ending {
            Err(_) => Arc::clone(ending),
            Ok(exit) => {
                let mut exit = exit.clone();
                for stream in [&mut exit.finished.stdout, &mut exit.finished.stderr] {
                    stream.truncated |= !stream.text.is_empty();
                    stream.text = String::new();
                }
                Arc::new(Ok(exit))
            }
        });
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
        let streams = [("stdout", &self.finished.stdout), ("stderr", &self.finished.stderr)];
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
        if left == 0 {
            self.process.left_alone();
        }
    }
}
