//! A handle to a command: attach, send input and signals, while it runs and for a while after.

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
    queue::{self, Limiter, PrincipalName, Saturated, Sharing},
    sandbox::{image::TerminalSize, loopback_connection::PortConnector},
    task,
};

/// Control requests in the channel to the supervisor, which takes them at once.
const MAX_PENDING_CONTROLS: usize = 64;
/// Readers of one command. Each may hold up to 256 KiB on the way to its client.
const MAX_READERS: usize = 128;
/// Leaves some readers for other callers, such as the one that started the command.
const MAX_READERS_PER_PRINCIPAL: usize = 64;
/// Connections to ports of one command.
pub(crate) const MAX_PORT_CONNECTIONS: usize = 128;
/// Leaves some connections for other callers.
pub(crate) const MAX_PORT_CONNECTIONS_PER_PRINCIPAL: usize = 64;

/// How a command ended, or why that is unknown.
pub(crate) type ExitResult = Arc<Result<ProcessExit, Error>>;

/// A command, as seen by attached clients.
#[derive(Debug)]
pub(crate) struct ProcessHandle {
    pub(crate) info: ProcessInfo,
    pub(crate) replay_buffer: ReplayBuffer<ExitResult>,
    pub(crate) input: InputQueue,
    reader_limiter: Arc<Limiter>,
    port_limiter: Arc<Limiter>,
    /// Connects to its ports. Set when it is in its sandbox.
    port_connector: OnceLock<PortConnector>,
    /// Paths of the artifacts of both streams.
    output_paths: OnceLock<[String; 2]>,
    /// When the command was executed.
    started_at: OnceLock<SystemTime>,
    /// When all its processes were gone.
    ended_at: OnceLock<SystemTime>,
    controls: mpsc::Sender<(ProcessControl, oneshot::Sender<()>)>,
    /// Kills the command.
    abandon_token: OnceLock<CancellationToken>,
    /// If the command ends with its last reader: how long it may run without readers.
    detached_timeout: OnceLock<Duration>,
    /// Number of times that the last reader has left.
    times_detached: AtomicU64,
}

#[derive(Debug, Clone)]
pub(crate) struct ProcessInfo {
    /// A ULID, not a process id of the operating system.
    pub(crate) id: String,
    /// The program and its arguments, for people.
    pub(crate) command: String,
    /// Working directory, inside the sandbox.
    pub(crate) cwd: String,
    pub(crate) has_terminal: bool,
    /// Whether it is stopped when its last reader leaves.
    pub(crate) ends_with_last_reader: bool,
}

/// How a command ended, and the artifacts of its output.
#[derive(Debug, Clone)]
pub(crate) struct ProcessExit {
    pub(crate) result: CommandResult,
    pub(crate) stdout_path: String,
    pub(crate) stderr_path: String,
}

/// A request to a running command.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ProcessControl {
    /// Sends a signal.
    Signal(i32),
    /// Resizes its terminal.
    Resize(TerminalSize),
}

/// The supervisor's side of a command.
#[derive(Debug)]
pub(crate) struct SupervisedProcess {
    pub(crate) process: Arc<ProcessHandle>,
    pub(super) controls: ControlReceiver,
}

/// Control requests, each with a sender that confirms it.
pub(super) type ControlReceiver = mpsc::Receiver<(ProcessControl, oneshot::Sender<()>)>;

/// Why a control request failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ControlError {
    #[error("the process has ended")]
    Ended,
    #[error("{MAX_PENDING_CONTROLS} signals and resizes of this process are pending already")]
    TooManyPending,
}

/// A reader of the output. Dropping the last reader stops the command, unless the command may run
/// detached.
#[derive(Debug)]
pub(crate) struct OutputReader {
    process: Arc<ProcessHandle>,
    cursor: replay_buffer::ReaderCursor,
    _permit: queue::Permit,
}

/// Why a client cannot attach.
#[derive(Debug, Clone, Copy)]
pub(crate) enum AttachError {
    /// The position is after this one, the end of the output.
    PositionBeyondEnd(OutputPosition),
    TooManyReaders(Saturated),
}

impl ProcessHandle {
    /// Creates a command that is about to run.
    pub(crate) fn prepare(
        info: ProcessInfo,
        input: InputQueue,
        max_replay_bytes: usize,
    ) -> SupervisedProcess {
        let (sender, controls) = mpsc::channel(MAX_PENDING_CONTROLS);
        let process = Arc::new(Self {
            // A command that ends with its last reader waits for it, as for a terminal.
            replay_buffer: ReplayBuffer::new(
                max_replay_bytes,
                (!info.ends_with_last_reader).then_some(READER_STALL_TIMEOUT),
            ),
            info,
            input,
            reader_limiter: Limiter::new(MAX_READERS, Sharing::KeepHeadroom, 0),
            port_limiter: Limiter::new(MAX_PORT_CONNECTIONS, Sharing::KeepHeadroom, 0),
            port_connector: OnceLock::new(),
            output_paths: OnceLock::new(),
            started_at: OnceLock::new(),
            ended_at: OnceLock::new(),
            controls: sender,
            abandon_token: OnceLock::new(),
            detached_timeout: OnceLock::new(),
            times_detached: AtomicU64::new(0),
        });
        SupervisedProcess { process, controls }
    }

    /// Adds a reader that starts after `position`.
    pub(crate) fn attach(
        self: &Arc<Self>,
        principal: &PrincipalName,
        position: OutputPosition,
    ) -> Result<OutputReader, AttachError> {
        let permit = self
            .reader_limiter
            .try_acquire(principal, MAX_READERS_PER_PRINCIPAL)
            .map_err(AttachError::TooManyReaders)?;
        let cursor = self
            .replay_buffer
            .add_reader(position)
            .map_err(|PositionBeyondEnd(written)| AttachError::PositionBeyondEnd(written))?;
        Ok(OutputReader { process: Arc::clone(self), cursor, _permit: permit })
    }

    /// Sends a control request and waits until it is done, which is not before the command is
    /// executed.
    pub(crate) async fn send_control(&self, control: ProcessControl) -> Result<(), ControlError> {
        let (done_sender, done) = oneshot::channel();
        self.controls.try_send((control, done_sender)).map_err(|error| match error {
            TrySendError::Full(_) => ControlError::TooManyPending,
            TrySendError::Closed(_) => ControlError::Ended,
        })?;
        done.await.map_err(|_| ControlError::Ended)
    }

    /// Acquires a permit for a connection to a port, without waiting.
    pub(crate) fn acquire_port_permit(
        &self,
        principal: &PrincipalName,
    ) -> Result<queue::Permit, Saturated> {
        self.port_limiter.try_acquire(principal, MAX_PORT_CONNECTIONS_PER_PRINCIPAL)
    }

    /// Sets what connects to its ports, before it can be executed.
    pub(super) fn set_port_connector(&self, connector: PortConnector) {
        let _only_once = self.port_connector.set(connector);
    }

    /// Waits until the command has started, and returns what connects to its ports. Returns `None` if
    /// it has ended.
    pub(crate) async fn port_connector(&self) -> Option<PortConnector> {
        self.replay_buffer.wait_until_started().await;
        self.port_connector.get().filter(|connector| !connector.run_ended().is_cancelled()).cloned()
    }

    /// Lets the command run for a while after its last reader has left, so that a client can
    /// reconnect.
    pub(crate) fn set_detached_timeout(&self, timeout: Duration) {
        let _only_once = self.detached_timeout.set(timeout);
    }

    fn on_last_reader_left(self: &Arc<Self>) {
        let times_detached = self.times_detached.fetch_add(1, Ordering::Relaxed) + 1;
        if !self.info.ends_with_last_reader {
            return;
        }
        let Some(timeout) = self.detached_timeout.get().copied() else {
            self.abandon();
            return;
        };

        let process = Arc::downgrade(self);
        task::spawn("a process without readers", async move {
            tokio::time::sleep(timeout).await;
            let still_detached = |process: &Arc<Self>| {
                process.times_detached.load(Ordering::Relaxed) == times_detached
                    && process.replay_buffer.reader_count() == 0
            };
            if let Some(process) = process.upgrade().filter(still_detached) {
                process.abandon();
            }
        });
    }

    /// Sets the token that kills the command at once.
    pub(crate) fn set_abandon_token(&self, token: CancellationToken) {
        let _only_once = self.abandon_token.set(token);
    }

    /// Kills the command at once.
    pub(crate) fn abandon(&self) {
        if let Some(token) = self.abandon_token.get() {
            token.cancel();
        }
    }

    /// Sets the artifact paths of its output.
    pub(crate) fn set_output_paths(&self, stdout: String, stderr: String) {
        let _only_once = self.output_paths.set([stdout, stderr]);
    }

    /// Returns the artifact paths of standard output and error; empty before it runs.
    pub(crate) fn output_paths(&self) -> [String; 2] {
        self.output_paths.get().cloned().unwrap_or_default()
    }

    /// Records that the command was executed.
    pub(super) fn mark_started(&self) {
        let _only_once = self.started_at.set(SystemTime::now());
        self.replay_buffer.mark_started();
    }

    /// Records that all its processes are gone, or that it was not started.
    pub(crate) fn mark_ended(&self, result: Result<ProcessExit, Error>) {
        self.input.close();
        self.replay_buffer.mark_ended(Arc::new(result));
        let _only_once = self.ended_at.set(SystemTime::now());
    }

    /// Returns the bytes of its output held in memory.
    pub(super) fn replay_bytes(&self) -> u64 {
        let end_value = self.replay_buffer.end_value();
        let exit = end_value.as_deref().and_then(|result| result.as_ref().ok());
        let text_bytes =
            exit.map_or(0, |exit| exit.result.stdout.text.len() + exit.result.stderr.text.len());
        self.replay_buffer.replay_bytes() + text_bytes as u64
    }

    /// Drops its output to free memory. How it ended remains known.
    pub(super) fn drop_retained_output(&self) {
        self.replay_buffer.drop_retained();
        self.replay_buffer.replace_end_value(|result| match &**result {
            Err(_) => Arc::clone(result),
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

    /// Returns when it was executed, if it was.
    pub(crate) fn start_time(&self) -> Option<SystemTime> {
        self.started_at.get().copied()
    }

    /// Returns when all its processes were gone.
    pub(crate) fn end_time(&self) -> Option<SystemTime> {
        self.ended_at.get().copied()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended_at.get().is_some()
    }
}

impl ProcessExit {
    /// Returns why artifacts are incomplete below their size limit; empty if none is.
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
    pub(crate) fn process(&self) -> &Arc<ProcessHandle> {
        &self.process
    }

    /// Waits for the next event. Returns `None` after the end. Cancel safe.
    pub(crate) async fn next_event(&mut self) -> Option<OutputEvent<ExitResult>> {
        self.process.replay_buffer.next_event(&mut self.cursor).await
    }
}

impl Drop for OutputReader {
    fn drop(&mut self) {
        let remaining = self.process.replay_buffer.remove_reader(&self.cursor);
        if remaining == 0 {
            self.process.on_last_reader_left();
        }
    }
}
