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
    input::InputQueue,
    replay_buffer::{
        self, OutputEvent, OutputPosition, PositionBeyondEnd, READER_STALL_TIMEOUT, ReplayBuffer,
    },
    result::CommandResult,
};
use crate::daemon::{
    error::Error,
    queue::{self, Limiter, PrincipalKey, Saturated, Sharing},
    sandbox::image::TerminalSize,
    task,
};

/// Orders that may wait for the task that owns the command, which takes them at once.
const MAX_PENDING_CONTROLS: usize = 64;
/// Readers of one command at a time; each may hold up to 256 KiB on its way to the client.
const MAX_READERS: usize = 128;
/// Those of one caller: some are left for others, of whom one may have started it.
const MAX_READERS_PER_PRINCIPAL: usize = 64;

/// How a command ended, or why it cannot be said.
pub(crate) type ExitResult = Arc<Result<ProcessExit, Error>>;

/// A command, for those who watch it and talk to it.
#[derive(Debug)]
pub(crate) struct ProcessHandle {
    /// What it is.
    pub(crate) info: ProcessInfo,
    /// What it writes.
    pub(crate) replay_buffer: ReplayBuffer<ExitResult>,
    /// What it reads.
    pub(crate) input: InputQueue,
    /// Places for those who read it.
    reader_limiter: Arc<Limiter>,
    /// Paths under which its whole output can be read.
    output_paths: OnceLock<[String; 2]>,
    /// When it was executed.
    started_at: OnceLock<SystemTime>,
    /// When nothing of it was left.
    ended_at: OnceLock<SystemTime>,
    controls: mpsc::Sender<(ProcessControl, oneshot::Sender<()>)>,
    /// Ends it at once.
    abandon_token: OnceLock<CancellationToken>,
    /// How long it goes on without readers although it is to end with the last one.
    detached_timeout: OnceLock<Duration>,
    /// How often it was left without readers.
    times_detached: AtomicU64,
}

/// What a command is.
#[derive(Debug, Clone)]
pub(crate) struct ProcessInfo {
    /// Its id: a ULID, and no number of the operating system's.
    pub(crate) id: String,
    /// The program and its arguments, for people.
    pub(crate) command: String,
    /// Where it was started, as it sees that itself.
    pub(crate) cwd: String,
    /// Whether it has a terminal.
    pub(crate) has_terminal: bool,
    /// Whether it is ended when its last reader leaves.
    pub(crate) ends_with_last_reader: bool,
}

/// How a command ended, and where the whole of what it wrote is.
#[derive(Debug, Clone)]
pub(crate) struct ProcessExit {
    /// How it ended.
    pub(crate) result: CommandResult,
    /// Path of the artifact of its standard output.
    pub(crate) stdout_path: String,
    /// Path of the artifact of its standard error.
    pub(crate) stderr_path: String,
}

/// What a running command may be told.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ProcessControl {
    /// To send it a signal.
    Signal(i32),
    /// That its terminal has another size.
    Resize(TerminalSize),
}

/// The side of the task that owns the command.
#[derive(Debug)]
pub(crate) struct SupervisedProcess {
    /// The command.
    pub(crate) process: Arc<ProcessHandle>,
    /// What it is told.
    pub(super) controls: ControlReceiver,
}

/// What a command is told, each with where to say that it was done.
pub(super) type ControlReceiver = mpsc::Receiver<(ProcessControl, oneshot::Sender<()>)>;

/// Why a command was not told something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ControlError {
    /// It has ended.
    #[error("the process has ended")]
    Ended,
    /// Too much is to be told it already.
    #[error("{MAX_PENDING_CONTROLS} signals and sizes wait for this process already")]
    TooManyPending,
}

/// Somebody who reads. When the last one is dropped, a command that is not to run alone is ended.
#[derive(Debug)]
pub(crate) struct OutputReader {
    process: Arc<ProcessHandle>,
    cursor: replay_buffer::ReaderCursor,
    _permit: queue::Permit,
}

/// Why somebody cannot read.
#[derive(Debug, Clone, Copy)]
pub(crate) enum AttachError {
    /// The position lies behind this, which is all that was written.
    PositionBeyondEnd(OutputPosition),
    /// As many read already as may.
    TooManyReaders(Saturated),
}

impl ProcessHandle {
    /// A command that is about to run, with the side of the task that is to own it.
    pub(crate) fn prepare(
        about: ProcessInfo,
        input: InputQueue,
        keep_bytes: usize,
    ) -> SupervisedProcess {
        let (sender, orders) = mpsc::channel(MAX_PENDING_CONTROLS);
        let process = Arc::new(Self {
            // The last reader of a command that ends with it owns it: it waits, as for a terminal.
            replay_buffer: ReplayBuffer::new(
                keep_bytes,
                (!about.ends_with_last_reader).then_some(READER_STALL_TIMEOUT),
            ),
            info: about,
            input,
            reader_limiter: Limiter::new(MAX_READERS, Sharing::KeepHeadroom, 0),
            output_paths: OnceLock::new(),
            started_at: OnceLock::new(),
            ended_at: OnceLock::new(),
            controls: sender,
            abandon_token: OnceLock::new(),
            detached_timeout: OnceLock::new(),
            times_detached: AtomicU64::new(0),
        });
        SupervisedProcess { process, controls: orders }
    }

    /// Begins to read behind `position`.
    pub(crate) fn attach(
        self: &Arc<Self>,
        caller: &PrincipalKey,
        position: OutputPosition,
    ) -> Result<OutputReader, AttachError> {
        let of_readers = self.reader_limiter.try_acquire(caller, MAX_READERS_PER_PRINCIPAL);
        let of_readers = of_readers.map_err(AttachError::TooManyReaders)?;
        let place = self.replay_buffer.add_reader(position);
        let place =
            place.map_err(|PositionBeyondEnd(written)| AttachError::PositionBeyondEnd(written))?;
        Ok(OutputReader { process: Arc::clone(self), cursor: place, _permit: of_readers })
    }

    /// Tells the task that owns it something, and waits until that is done: where it was not executed
    /// yet, until it was. Fails where that cannot be done any more.
    pub(crate) async fn send_control(&self, order: ProcessControl) -> Result<(), ControlError> {
        let (done, is_done) = oneshot::channel();
        self.controls.try_send((order, done)).map_err(|error| match error {
            TrySendError::Full(_) => ControlError::TooManyPending,
            TrySendError::Closed(_) => ControlError::Ended,
        })?;
        is_done.await.map_err(|_| ControlError::Ended)
    }

    /// Lets it go on for a while when its last reader has left: he may come back.
    pub(crate) fn set_detached_timeout(&self, linger: Duration) {
        let _only_once = self.detached_timeout.set(linger);
    }

    /// It has no reader any more.
    fn on_last_reader_left(self: &Arc<Self>) {
        let times = self.times_detached.fetch_add(1, Ordering::Relaxed) + 1;
        if !self.info.ends_with_last_reader {
            return;
        }
        let Some(linger) = self.detached_timeout.get().copied() else {
            self.abandon();
            return;
        };
        let process = Arc::downgrade(self);
        task::spawn("a process without readers", async move {
            tokio::time::sleep(linger).await;
            let left_since = |process: &Arc<Self>| {
                process.times_detached.load(Ordering::Relaxed) == times
                    && process.replay_buffer.reader_count() == 0
            };
            if let Some(process) = process.upgrade().filter(left_since) {
                process.abandon();
            }
        });
    }

    /// What ends it at once.
    pub(crate) fn set_abandon_token(&self, abandon: CancellationToken) {
        let _only_once = self.abandon_token.set(abandon);
    }

    /// Ends it at once.
    pub(crate) fn abandon(&self) {
        if let Some(abandon) = self.abandon_token.get() {
            abandon.cancel();
        }
    }

    /// Says under which paths its whole output can be read.
    pub(crate) fn set_output_paths(&self, stdout: String, stderr: String) {
        let _only_once = self.output_paths.set([stdout, stderr]);
    }

    /// Paths under which its whole standard output and error can be read; empty before it runs.
    pub(crate) fn output_paths(&self) -> [String; 2] {
        self.output_paths.get().cloned().unwrap_or_default()
    }

    /// It was executed.
    pub(super) fn mark_started(&self) {
        let _only_once = self.started_at.set(SystemTime::now());
        self.replay_buffer.mark_started();
    }

    /// Nothing of it is left, or it never was.
    pub(crate) fn mark_ended(&self, result: Result<ProcessExit, Error>) {
        self.input.close();
        self.replay_buffer.mark_ended(Arc::new(result));
        let _only_once = self.ended_at.set(SystemTime::now());
    }

    /// Bytes of memory that are kept of what it wrote.
    pub(super) fn retained_bytes(&self) -> u64 {
        let ending = self.replay_buffer.end_value();
        let texts = ending.as_deref().and_then(|ending| ending.as_ref().ok());
        let texts =
            texts.map_or(0, |exit| exit.result.stdout.text.len() + exit.result.stderr.text.len());
        self.replay_buffer.retained_bytes() + texts as u64
    }

    /// Drops what is kept of what it wrote, for want of memory; how it ended stays.
    pub(super) fn drop_retained_output(&self) {
        self.replay_buffer.drop_retained();
        self.replay_buffer.replace_end_value(|ending| match &**ending {
            Err(_) => Arc::clone(ending),
            Ok(exit) => {
                let mut exit = exit.clone();
                for stream in [&mut exit.result.stdout, &mut exit.result.stderr] {
                    stream.truncated |= !stream.text.is_empty();
                    stream.text = String::new();
                }
                Arc::new(Ok(exit))
            }
        });
    }

    /// When it was executed, if it was.
    pub(crate) fn start_time(&self) -> Option<SystemTime> {
        self.started_at.get().copied()
    }

    /// When nothing of it was left.
    pub(crate) fn end_time(&self) -> Option<SystemTime> {
        self.ended_at.get().copied()
    }

    /// Whether it has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended_at.get().is_some()
    }
}

impl ProcessExit {
    /// Why an artifact is incomplete although it is under its cap; empty when none is.
    pub(crate) fn artifact_error(&self) -> String {
        let streams = [("stdout", &self.result.stdout), ("stderr", &self.result.stderr)];
        let errors: Vec<_> = streams
            .into_iter()
            .filter(|(_, stream)| !stream.artifact_error.is_empty())
            .map(|(name, stream)| format!("{name}: {}", stream.artifact_error))
            .collect();
        errors.join("; ")
    }
}

impl OutputReader {
    /// The command that is read from.
    pub(crate) fn process(&self) -> &Arc<ProcessHandle> {
        &self.process
    }

    /// Waits for what comes next. Answers nothing behind the end. May be cancelled.
    pub(crate) async fn next_event(&mut self) -> Option<OutputEvent<ExitResult>> {
        self.process.replay_buffer.next_event(&mut self.cursor).await
    }
}

impl Drop for OutputReader {
    fn drop(&mut self) {
        let left = self.process.replay_buffer.remove_reader(&self.cursor);
        if left == 0 {
            self.process.on_last_reader_left();
        }
    }
}
