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

use super::{capture::Capture, finished::Captured, live::Process};
use crate::daemon::{
    store::{artifact::Sink, session::StreamName},
    sys::readiness::watch,
    task,
};

/// Bytes read at a time: the capacity of a pipe.
const CHUNK_BYTES: usize = 64 * 1024;
/// Bytes read first: most commands write less, or nothing.
const FIRST_CHUNK_BYTES: usize = 4 * 1024;
/// Bytes gathered before they are written to the artifact.
const FLUSH_BYTES: usize = 256 * 1024;
/// Most bytes that a terminal holds between its two ends, where it does not tell how many there are
/// (TTYB_DEFAULT_MEM_LIMIT of drivers/tty/tty_buffer.c and the line discipline's own buffer).
const TERMINAL_HOLDS: u64 = 640 * 1024 + 4096;
/// Chunks read before others get a turn.
const CHUNKS_PER_TURN: usize = 4;
/// How long the disk may take for what is left when the command has ended. Its caller gets its
/// answer then, without the whole output.
const DISK_PATIENCE: Duration = Duration::from_secs(5);

/// One output stream of a command, from the daemon's side.
#[derive(Debug)]
pub(crate) struct Stream {
    /// The end that is read; none once the other end was closed.
    pipe: Option<AsyncFd<OwnedFd>>,
    is_terminal: bool,
    capture: Capture,
    /// Read but not yet given to the artifact.
    pending: Vec<u8>,
    /// Memory for what is read while `pending` is being written.
    spare: Vec<u8>,
    artifact: Artifact,
    /// Whether what was read is written at once, and not by the block.
    is_prompt: bool,
    /// Who else gets all of it.
    tap: Option<Tap>,
}

/// Where a stream's bytes go beside the answer and the artifact.
#[derive(Debug)]
pub(super) struct Tap {
    /// Whose they are.
    pub(super) process: Arc<Process>,
    /// Which of its streams.
    pub(super) stream: StreamName,
}

/// Where a stream's artifact is.
#[derive(Debug)]
enum Artifact {
    /// Here, to be written to.
    Idle(Sink),
    /// On a thread that writes to it, with the bytes.
    Writing(JoinHandle<(Sink, Vec<u8>)>),
    /// Lost with such a thread.
    Lost,
}

/// Whether the runtime has said that a pipe can be read.
#[derive(Debug, Clone, Copy)]
enum Readiness {
    Known,
    Unknown,
}

// === impl Stream ===

impl Stream {
    /// A stream that nothing is read from yet.
    pub(super) fn new(inline_bytes: usize, sink: Sink, tap: Option<Tap>) -> Self {
        Self {
            pipe: None,
            is_terminal: false,
            capture: Capture::new(inline_bytes),
            pending: Vec::new(),
            spare: Vec::new(),
            is_prompt: sink.is_followed(),
            artifact: Artifact::Idle(sink),
            tap,
        }
    }

    /// Makes a pipe to be read; answers the end that the command writes to.
    pub(super) fn pipe(&mut self) -> io::Result<OwnedFd> {
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
        self.pipe = Some(watch(reader)?);
        Ok(())
    }

    /// All bytes that were read.
    pub(super) fn bytes(&self) -> u64 {
        self.capture.bytes
    }

    /// Waits until there is something to read and reads a bounded amount of it; while the disk, or
    /// whoever taps it, is behind, waits for them. Never ready once the stream was closed. May be
    /// cancelled: nothing that was read is lost.
    pub(super) async fn advance(&mut self) {
        if self.pending.len() >= FLUSH_BYTES {
            written(&mut self.artifact, &mut self.spare).await;
            self.flush();
        }
        if self.is_prompt && !self.pending.is_empty() {
            tokio::select! {
                () = written(&mut self.artifact, &mut self.spare) => {
                    self.flush();
                    return;
                }
                () = readable(self.pipe.as_ref()) => {}
            }
        }
        readable(self.pipe.as_ref()).await;
        if let Some(tap) = &self.tap {
            tap.process.transcript.room().await;
        }
        for _ in 0..CHUNKS_PER_TURN {
            if !self.read_chunk(Readiness::Known) {
                return;
            }
            if self.pending.len() >= FLUSH_BYTES && !self.flush() {
                return;
            }
            if let Some(tap) = &self.tap
                && !tap.process.transcript.has_room()
            {
                return;
            }
        }
        // There is more: others first.
        yield_now().await;
    }

    /// Reads what the command had written when it ended, and hardly more: somebody else may hold
    /// the other end and write on.
    pub(super) async fn finish(mut self, path: &str) -> Captured {
        let deadline = Instant::now() + DISK_PATIENCE;
        let mut left = match &self.pipe {
            Some(pipe) if self.is_terminal => {
                let there = ioctl_fionread(pipe.get_ref()).unwrap_or(0);
                there.max(TERMINAL_HOLDS)
            }
            Some(pipe) => ioctl_fionread(pipe.get_ref()).unwrap_or(0),
            None => 0,
        };
        while left > 0 {
            let before = self.capture.bytes;
            if !self.read_chunk(Readiness::Unknown) {
                break;
            }
            left = left.saturating_sub(self.capture.bytes - before);
        }
        let artifact_error = self.close(deadline).await;
        let (text, truncated) = self.capture.text(path);
        Captured {
            text,
            bytes: self.capture.bytes,
            lines: self.capture.lines(),
            truncated,
            artifact_error,
        }
    }

    /// Reads once. Answers whether there may be more.
    fn read_chunk(&mut self, readiness: Readiness) -> bool {
        let Some(pipe) = &self.pipe else {
            return false;
        };
        let before = self.pending.len();
        let pending = &mut self.pending;
        pending.reserve(match self.capture.bytes {
            0 => FIRST_CHUNK_BYTES,
            _ => CHUNK_BYTES,
        });
        let mut read = |pipe: &OwnedFd| Ok(rustix::io::read(pipe, spare_capacity(pending))?);
        let read = match readiness {
            // Forgets the readiness when the pipe is empty, without losing one that comes
            // meanwhile.
            Readiness::Known => pipe.try_io(Interest::READABLE, read),
            // The runtime may not have looked at the pipe yet, and would not read.
            Readiness::Unknown => read(pipe.get_ref()),
        };
        match read {
            Ok(0) => {
                self.pipe = None; // every writer has closed it
                false
            }
            Ok(_) => {
                let chunk = self.pending.get(before..).unwrap_or_default();
                self.capture.push(chunk);
                if let Some(tap) = &self.tap {
                    tap.process.transcript.push(tap.stream, chunk);
                }
                if !self.artifact.wants_more() {
                    self.pending.truncate(before);
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
        match std::mem::replace(&mut self.artifact, Artifact::Lost) {
            Artifact::Idle(mut sink) => {
                let spare = std::mem::take(&mut self.spare);
                let mut bytes = std::mem::replace(&mut self.pending, spare);
                self.artifact = Artifact::Writing(task::blocking(move || {
                    sink.write(&bytes);
                    bytes.clear();
                    (sink, bytes)
                }));
                true
            }
            writing @ Artifact::Writing(_) => {
                self.artifact = writing;
                false
            }
            Artifact::Lost => {
                self.pending.clear();
                true
            }
        }
    }

    /// Writes the rest to the artifact. Answers what is wrong with it; nothing when it is whole.
    async fn close(&mut self, deadline: Instant) -> String {
        let all_written = async {
            written(&mut self.artifact, &mut self.spare).await;
            let needs_file = matches!(&self.artifact, Artifact::Idle(sink) if sink.needs_file());
            if !self.pending.is_empty() || needs_file {
                self.flush();
                written(&mut self.artifact, &mut self.spare).await;
            }
        };
        let in_time = timeout_at(deadline.into(), all_written).await.is_ok();
        match &mut self.artifact {
            Artifact::Idle(sink) => {
                sink.take_error().map(|error| error.to_string()).unwrap_or_default()
            }
            Artifact::Writing(_) if !in_time => {
                let patience = DISK_PATIENCE.as_secs();
                format!("the disk did not take the rest within {patience} s")
            }
            Artifact::Writing(_) | Artifact::Lost => "the thread that wrote it failed".to_owned(),
        }
    }
}

impl Artifact {
    /// Whether what is read is worth keeping for it.
    fn wants_more(&self) -> bool {
        match self {
            Self::Idle(sink) => sink.wants_more(),
            Self::Writing(_) => true, // it will leave out what does not fit
            Self::Lost => false,
        }
    }
}

/// Waits until nothing is being written, and takes back the buffer that was. May be cancelled.
async fn written(artifact: &mut Artifact, spare: &mut Vec<u8>) {
    if let Artifact::Writing(thread) = artifact {
        *artifact = match thread.await {
            Ok((sink, buffer)) => {
                *spare = buffer;
                Artifact::Idle(sink)
            }
            Err(_) => Artifact::Lost,
        };
    }
}

/// Waits until there is something to read; for ever, where there never will be.
async fn readable(pipe: Option<&AsyncFd<OwnedFd>>) {
    match pipe {
        Some(pipe) if pipe.readable().await.is_ok() => {}
        Some(_) | None => std::future::pending().await,
    }
}
