//! Reads the output of a command: head and tail for the response, all of it for an artifact and for
//! attached clients.

use std::{
    io,
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::{
    buffer::spare_capacity,
    io::{ioctl_fionbio, ioctl_fionread},
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    task::{JoinHandle, yield_now},
    time::timeout_at,
};

use super::{handle::ProcessHandle, head_tail_buffer::HeadTailBuffer, result::CapturedOutput};
use crate::daemon::{
    sandbox::pool::command_pipes::CommandPipe,
    store::{artifact_writer::ArtifactWriter, session::StreamName},
    sys::readiness::watch_readable,
    task,
};

/// Bytes per read: the capacity of a pipe.
const MAX_READ_BYTES: usize = 64 * 1024;
/// Bytes of the first read: most commands write less, or nothing.
const MAX_FIRST_READ_BYTES: usize = 4 * 1024;
/// Bytes per write to the artifact.
const ARTIFACT_WRITE_BYTES: usize = 256 * 1024;
/// Upper bound of the bytes that a terminal holds between its two ends; it does not report how many
/// (TTYB_DEFAULT_MEM_LIMIT of drivers/tty/tty_buffer.c and the line discipline's own buffer).
const MAX_TERMINAL_BUFFER_BYTES: u64 = 640 * 1024 + 4096;
/// Reads per poll, before other tasks run.
const MAX_READS_PER_POLL: usize = 4;
/// Time for the disk to take the rest after the command has ended. The caller then gets its response
/// with an incomplete artifact.
const ARTIFACT_WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// The daemon's side of one output stream of a command.
#[derive(Debug)]
pub(crate) struct OutputStream {
    /// The end to read from; none once the other end is closed.
    pipe: Option<AsyncFd<OwnedFd>>,
    is_terminal: bool,
    inline_output: HeadTailBuffer,
    /// Read but not yet handed to the artifact.
    unwritten: Vec<u8>,
    /// A buffer for reads while `unwritten` is being written.
    spare_buffer: Vec<u8>,
    artifact: ArtifactState,
    /// Whether each read is written at once, not in blocks.
    writes_at_once: bool,
    tap: Option<ReplayTap>,
}

/// Copies a stream to the replay buffer of its process.
#[derive(Debug)]
pub(super) struct ReplayTap {
    pub(super) process: Arc<ProcessHandle>,
    pub(super) stream: StreamName,
}

#[derive(Debug)]
enum ArtifactState {
    /// No write in progress.
    Idle(ArtifactWriter),
    /// A thread has the writer and the bytes, and returns both.
    Writing(JoinHandle<(ArtifactWriter, Vec<u8>)>),
    /// The writer was lost with such a thread.
    Failed,
}

/// Whether the runtime has reported that a pipe is readable.
#[derive(Debug, Clone, Copy)]
enum PipeReadiness {
    Reported,
    Unknown,
}

impl OutputStream {
    /// Creates a stream without a pipe. `inline_bytes` limits the text of the response.
    pub(super) fn new(
        inline_bytes: usize,
        artifact: ArtifactWriter,
        tap: Option<ReplayTap>,
    ) -> Self {
        Self {
            pipe: None,
            is_terminal: false,
            inline_output: HeadTailBuffer::new(inline_bytes),
            unwritten: Vec::new(),
            spare_buffer: Vec::new(),
            writes_at_once: artifact.is_followed(),
            artifact: ArtifactState::Idle(artifact),
            tap,
        }
    }

    /// Starts reading from a pipe. Returns the end that the command writes to.
    pub(super) fn read_from(&mut self, pipe: CommandPipe) -> OwnedFd {
        self.pipe = Some(pipe.reader);
        pipe.writer
    }

    /// Starts reading from a terminal. `end` is the daemon's end.
    pub(super) fn read_from_terminal(&mut self, end: OwnedFd) -> io::Result<()> {
        ioctl_fionbio(&end, true)?;
        self.is_terminal = true;
        self.pipe = Some(watch_readable(end)?);
        Ok(())
    }

    /// Returns the bytes read so far.
    pub(super) fn total_bytes(&self) -> u64 {
        self.inline_output.total_bytes
    }

    /// Waits until the stream is readable and reads a bounded amount. Before that, waits for the
    /// disk and for attached clients if they lag behind. Never completes once the stream is closed.
    /// Cancel safe.
    pub(super) async fn read_some(&mut self) {
        if self.unwritten.len() >= ARTIFACT_WRITE_BYTES {
            wait_for_write(&mut self.artifact, &mut self.spare_buffer).await;
            self.flush();
        }

        if self.writes_at_once && !self.unwritten.is_empty() {
            tokio::select! {
                () = wait_for_write(&mut self.artifact, &mut self.spare_buffer) => {
                    self.flush();
                    return;
                }
                () = wait_until_readable(self.pipe.as_ref()) => {}
            }
        }

        wait_until_readable(self.pipe.as_ref()).await;

        if let Some(tap) = &self.tap {
            tap.process.replay_buffer.wait_for_capacity().await;
        }
        for _ in 0..MAX_READS_PER_POLL {
            if !self.read_chunk(PipeReadiness::Reported) {
                return;
            }
            if self.unwritten.len() >= ARTIFACT_WRITE_BYTES && !self.flush() {
                return;
            }
            if let Some(tap) = &self.tap
                && !tap.process.replay_buffer.has_capacity()
            {
                return;
            }
        }
        // There is more to read; other tasks run first.
        yield_now().await;
    }

    /// Reads what the command had written when it ended, and at most little more: another process
    /// may hold the other end and continue to write.
    pub(super) async fn finish(mut self, path: &str) -> CapturedOutput {
        let deadline = Instant::now() + ARTIFACT_WRITE_TIMEOUT;
        let mut remaining = match &self.pipe {
            Some(pipe) if self.is_terminal => {
                let readable = ioctl_fionread(pipe.get_ref()).unwrap_or(0);
                readable.max(MAX_TERMINAL_BUFFER_BYTES)
            }
            Some(pipe) => ioctl_fionread(pipe.get_ref()).unwrap_or(0),
            None => 0,
        };
        while remaining > 0 {
            let before = self.inline_output.total_bytes;
            if !self.read_chunk(PipeReadiness::Unknown) {
                break;
            }
            remaining = remaining.saturating_sub(self.inline_output.total_bytes - before);
        }

        let artifact_error = self.finish_artifact(deadline).await;
        let (text, truncated) = self.inline_output.render(path);
        CapturedOutput {
            text,
            total_bytes: self.inline_output.total_bytes,
            total_lines: self.inline_output.total_lines(),
            truncated,
            artifact_error,
        }
    }

    /// Reads once. Returns whether there may be more.
    fn read_chunk(&mut self, readiness: PipeReadiness) -> bool {
        let Some(pipe) = &self.pipe else {
            return false;
        };

        let before = self.unwritten.len();
        let buffer = &mut self.unwritten;
        let is_first = self.inline_output.total_bytes == 0;
        buffer.reserve(if is_first { MAX_FIRST_READ_BYTES } else { MAX_READ_BYTES });
        let mut read = |pipe: &OwnedFd| Ok(rustix::io::read(pipe, spare_capacity(buffer))?);
        let result = match readiness {
            // Clears the readiness if the pipe is empty, but not one reported during the read.
            PipeReadiness::Reported => pipe.try_io(Interest::READABLE, read),
            // The runtime may not have polled the pipe yet, and would not read.
            PipeReadiness::Unknown => read(pipe.get_ref()),
        };

        match result {
            Ok(0) => {
                self.pipe = None; // all writers have closed it
                false
            }
            Ok(_) => {
                let chunk = self.unwritten.get(before..).unwrap_or_default();
                self.inline_output.push(chunk);
                if let Some(tap) = &self.tap {
                    tap.process.replay_buffer.push(tap.stream, chunk);
                }
                if !self.artifact.accepts_more() {
                    self.unwritten.truncate(before);
                }
                true
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Err(_) => {
                self.pipe = None;
                false
            }
        }
    }

    /// Starts writing the unwritten bytes to the artifact on a blocking thread. Returns false if that
    /// thread is still busy.
    fn flush(&mut self) -> bool {
        match std::mem::replace(&mut self.artifact, ArtifactState::Failed) {
            ArtifactState::Idle(mut writer) => {
                let spare = std::mem::take(&mut self.spare_buffer);
                let mut bytes = std::mem::replace(&mut self.unwritten, spare);
                self.artifact = ArtifactState::Writing(task::spawn_blocking(move || {
                    writer.write(&bytes);
                    bytes.clear();
                    (writer, bytes)
                }));
                true
            }
            writing @ ArtifactState::Writing(_) => {
                self.artifact = writing;
                false
            }
            ArtifactState::Failed => {
                self.unwritten.clear();
                true
            }
        }
    }

    /// Writes the rest to the artifact. Returns why it is incomplete; an empty text if it is not.
    async fn finish_artifact(&mut self, deadline: Instant) -> String {
        let write_rest = async {
            wait_for_write(&mut self.artifact, &mut self.spare_buffer).await;
            let needs_file =
                matches!(&self.artifact, ArtifactState::Idle(writer) if writer.needs_file());
            if !self.unwritten.is_empty() || needs_file {
                self.flush();
                wait_for_write(&mut self.artifact, &mut self.spare_buffer).await;
            }
        };
        let in_time = timeout_at(deadline.into(), write_rest).await.is_ok();

        match &mut self.artifact {
            ArtifactState::Idle(writer) => {
                writer.take_error().map(|error| error.to_string()).unwrap_or_default()
            }
            ArtifactState::Writing(_) if !in_time => {
                let timeout = ARTIFACT_WRITE_TIMEOUT.as_secs();
                format!("the disk did not take the rest within {timeout} s")
            }
            ArtifactState::Writing(_) | ArtifactState::Failed => {
                "the thread that wrote it failed".to_owned()
            }
        }
    }
}

impl ArtifactState {
    /// Whether more bytes should be buffered for the artifact.
    fn accepts_more(&self) -> bool {
        match self {
            Self::Idle(writer) => writer.has_capacity(),
            Self::Writing(_) => true, // unknown; the writer drops what does not fit
            Self::Failed => false,
        }
    }
}

/// Waits until no write is in progress, and takes its buffer back. Cancel safe.
async fn wait_for_write(artifact: &mut ArtifactState, spare: &mut Vec<u8>) {
    if let ArtifactState::Writing(thread) = artifact {
        *artifact = match thread.await {
            Ok((writer, buffer)) => {
                *spare = buffer;
                ArtifactState::Idle(writer)
            }
            Err(_) => ArtifactState::Failed,
        };
    }
}

/// Waits until the pipe is readable; forever if there is none.
async fn wait_until_readable(pipe: Option<&AsyncFd<OwnedFd>>) {
    match pipe {
        Some(pipe) if pipe.readable().await.is_ok() => {}
        Some(_) | None => std::future::pending().await,
    }
}
