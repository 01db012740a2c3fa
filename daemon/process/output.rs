//! What a command writes: its head and its tail for the answer, the whole for an artifact.

use std::{
    io,
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::{
    buffer::spare_capacity,
    io::{ioctl_fionbio, ioctl_fionread},
    pipe::{PipeFlags, pipe_with},
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    task::{JoinHandle, yield_now},
    time::timeout_at,
};

use super::{handle::ProcessHandle, head_tail_buffer::HeadTailBuffer, result::CapturedOutput};
use crate::daemon::{
    store::{artifact_writer::ArtifactWriter, session::StreamName},
    sys::readiness::watch_readable,
    task,
};

/// Bytes read at a time: the capacity of a pipe.
const READ_BYTES: usize = 64 * 1024;
/// Bytes read first: most commands write less, or nothing.
const FIRST_READ_BYTES: usize = 4 * 1024;
/// Bytes gathered before they are written to the artifact.
const ARTIFACT_WRITE_BYTES: usize = 256 * 1024;
/// Most bytes that a terminal holds between its two ends, where it does not tell how many there are
/// (TTYB_DEFAULT_MEM_LIMIT of drivers/tty/tty_buffer.c and the line discipline's own buffer).
const MAX_TERMINAL_BUFFER_BYTES: u64 = 640 * 1024 + 4096;
/// Chunks read before others get a turn.
const MAX_READS_PER_POLL: usize = 4;
/// How long the disk may take for what is left when the command has ended. Its caller gets its
/// answer then, without the whole output.
const ARTIFACT_WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// One output stream of a command, from the daemon's side.
#[derive(Debug)]
pub(crate) struct OutputStream {
    /// The end that is read; none once the other end was closed.
    pipe: Option<AsyncFd<OwnedFd>>,
    is_terminal: bool,
    inline_output: HeadTailBuffer,
    /// Read but not yet given to the artifact.
    unwritten: Vec<u8>,
    /// Memory for what is read while `pending` is being written.
    spare_buffer: Vec<u8>,
    artifact: ArtifactState,
    /// Whether what was read is written at once, and not by the block.
    writes_at_once: bool,
    /// Who else gets all of it.
    tap: Option<ReplayTap>,
}

/// Where a stream's bytes go beside the answer and the artifact.
#[derive(Debug)]
pub(super) struct ReplayTap {
    /// Whose they are.
    pub(super) process: Arc<ProcessHandle>,
    /// Which of its streams.
    pub(super) stream: StreamName,
}

/// Where a stream's artifact is.
#[derive(Debug)]
enum ArtifactState {
    /// Here, to be written to.
    Idle(ArtifactWriter),
    /// On a thread that writes to it, with the bytes.
    Writing(JoinHandle<(ArtifactWriter, Vec<u8>)>),
    /// Lost with such a thread.
    Failed,
}

/// Whether the runtime has said that a pipe can be read.
#[derive(Debug, Clone, Copy)]
enum PipeReadiness {
    Reported,
    Unknown,
}

// === impl Stream ===

impl OutputStream {
    /// A stream that nothing is read from yet.
    pub(super) fn new(inline_bytes: usize, sink: ArtifactWriter, tap: Option<ReplayTap>) -> Self {
        Self {
            pipe: None,
            is_terminal: false,
            inline_output: HeadTailBuffer::new(inline_bytes),
            unwritten: Vec::new(),
            spare_buffer: Vec::new(),
            writes_at_once: sink.is_followed(),
            artifact: ArtifactState::Idle(sink),
            tap,
        }
    }

    /// Makes a pipe to be read; answers the end that the command writes to.
    pub(super) fn open_pipe(&mut self) -> io::Result<OwnedFd> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        self.read_from(reader)?;
        Ok(writer)
    }

    /// Reads from a terminal from now on, of which `end` is the other end.
    pub(super) fn read_from_terminal(&mut self, end: OwnedFd) -> io::Result<()> {
        self.is_terminal = true;
        self.read_from(end)
    }

    fn read_from(&mut self, reader: OwnedFd) -> io::Result<()> {
        ioctl_fionbio(&reader, true)?;
        self.pipe = Some(watch_readable(reader)?);
        Ok(())
    }

    /// All bytes that were read.
    pub(super) fn total_bytes(&self) -> u64 {
        self.inline_output.total_bytes
    }

    /// Waits until there is something to read and reads a bounded amount of it; while the disk, or
    /// whoever taps it, is behind, waits for them. Never ready once the stream was closed. May be
    /// cancelled: nothing that was read is lost.
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
        // There is more: others first.
        yield_now().await;
    }

    /// Reads what the command had written when it ended, and hardly more: somebody else may hold
    /// the other end and write on.
    pub(super) async fn finish(mut self, path: &str) -> CapturedOutput {
        let deadline = Instant::now() + ARTIFACT_WRITE_TIMEOUT;
        let mut left = match &self.pipe {
            Some(pipe) if self.is_terminal => {
                let there = ioctl_fionread(pipe.get_ref()).unwrap_or(0);
                there.max(MAX_TERMINAL_BUFFER_BYTES)
            }
            Some(pipe) => ioctl_fionread(pipe.get_ref()).unwrap_or(0),
            None => 0,
        };
        while left > 0 {
            let before = self.inline_output.total_bytes;
            if !self.read_chunk(PipeReadiness::Unknown) {
                break;
            }
            left = left.saturating_sub(self.inline_output.total_bytes - before);
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

    /// Reads once. Answers whether there may be more.
    fn read_chunk(&mut self, readiness: PipeReadiness) -> bool {
        let Some(pipe) = &self.pipe else {
            return false;
        };
        let before = self.unwritten.len();
        let pending = &mut self.unwritten;
        pending.reserve(match self.inline_output.total_bytes {
            0 => FIRST_READ_BYTES,
            _ => READ_BYTES,
        });
        let mut read = |pipe: &OwnedFd| Ok(rustix::io::read(pipe, spare_capacity(pending))?);
        let read = match readiness {
            // Forgets the readiness when the pipe is empty, without losing one that comes
            // meanwhile.
            PipeReadiness::Reported => pipe.try_io(Interest::READABLE, read),
            // The runtime may not have looked at the pipe yet, and would not read.
            PipeReadiness::Unknown => read(pipe.get_ref()),
        };
        match read {
            Ok(0) => {
                self.pipe = None; // every writer has closed it
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

    /// Has what was gathered written to the artifact, on a thread that may block. Answers whether
    /// it has; not while that thread is still writing.
    fn flush(&mut self) -> bool {
        match std::mem::replace(&mut self.artifact, ArtifactState::Failed) {
            ArtifactState::Idle(mut sink) => {
                let spare = std::mem::take(&mut self.spare_buffer);
                let mut bytes = std::mem::replace(&mut self.unwritten, spare);
                self.artifact = ArtifactState::Writing(task::spawn_blocking(move || {
                    sink.write(&bytes);
                    bytes.clear();
                    (sink, bytes)
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

    /// Writes the rest to the artifact. Answers what is wrong with it; nothing when it is whole.
    async fn finish_artifact(&mut self, deadline: Instant) -> String {
        let all_written = async {
            wait_for_write(&mut self.artifact, &mut self.spare_buffer).await;
            let needs_file =
                matches!(&self.artifact, ArtifactState::Idle(sink) if sink.needs_file());
            if !self.unwritten.is_empty() || needs_file {
                self.flush();
                wait_for_write(&mut self.artifact, &mut self.spare_buffer).await;
            }
        };
        let in_time = timeout_at(deadline.into(), all_written).await.is_ok();
        match &mut self.artifact {
            ArtifactState::Idle(sink) => {
                sink.take_error().map(|error| error.to_string()).unwrap_or_default()
            }
            ArtifactState::Writing(_) if !in_time => {
                let patience = ARTIFACT_WRITE_TIMEOUT.as_secs();
                format!("the disk did not take the rest within {patience} s")
            }
            ArtifactState::Writing(_) | ArtifactState::Failed => {
                "the thread that wrote it failed".to_owned()
            }
        }
    }
}

impl ArtifactState {
    /// Whether what is read is worth keeping for it.
    fn accepts_more(&self) -> bool {
        match self {
            Self::Idle(sink) => sink.has_capacity(),
            Self::Writing(_) => true, // it will leave out what does not fit
            Self::Failed => false,
        }
    }
}

/// Waits until nothing is being written, and takes back the buffer that was. May be cancelled.
async fn wait_for_write(artifact: &mut ArtifactState, spare: &mut Vec<u8>) {
    if let ArtifactState::Writing(thread) = artifact {
        *artifact = match thread.await {
            Ok((sink, buffer)) => {
                *spare = buffer;
                ArtifactState::Idle(sink)
            }
            Err(_) => ArtifactState::Failed,
        };
    }
}

/// Waits until there is something to read; for ever, where there never will be.
async fn wait_until_readable(pipe: Option<&AsyncFd<OwnedFd>>) {
    match pipe {
        Some(pipe) if pipe.readable().await.is_ok() => {}
        Some(_) | None => std::future::pending().await,
    }
}
