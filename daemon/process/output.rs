//! What a command writes: its head and its tail for the answer, the whole for an artifact, and all
//! of it counted.

use std::{collections::VecDeque, io, os::fd::OwnedFd};

use rustix::{
    io::{ioctl_fionbio, ioctl_fionread},
    pipe::{PipeFlags, pipe_with},
};
use tokio::io::{Interest, unix::AsyncFd};

use crate::daemon::{store::artifact::Sink, sys::readiness::watch, task};

/// Bytes read at a time: the capacity of a pipe.
const CHUNK_BYTES: usize = 64 * 1024;
/// Bytes gathered before they are written to the artifact.
const FLUSH_BYTES: usize = 256 * 1024;
/// Chunks read before others get a turn.
const CHUNKS_PER_TURN: usize = 4;

/// One output stream of a command, from the daemon's side.
#[derive(Debug)]
pub(crate) struct Stream {
    /// The end that is read; none once the other end was closed.
    pipe: Option<AsyncFd<OwnedFd>>,
    capture: Capture,
    /// Read but not yet in the artifact.
    pending: Vec<u8>,
    sink: Option<Sink>,
    chunk: Vec<u8>,
}

/// What a command wrote.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Captured {
    /// Text for the answer.
    pub(crate) text: String,
    /// All bytes that it wrote.
    pub(crate) bytes: u64,
    /// Whether the text leaves some out.
    pub(crate) truncated: bool,
    /// Why the artifact is incomplete though it is under its cap; empty when it is not.
    pub(crate) artifact_error: String,
}

/// Head and tail of a stream, in bounded memory.
#[derive(Debug)]
pub(crate) struct Capture {
    head: Vec<u8>,
    head_at_most: usize,
    tail: VecDeque<u8>,
    tail_at_most: usize,
    bytes: u64,
}

/// Whether the runtime has said that a pipe can be read.
#[derive(Debug, Clone, Copy)]
enum Readiness {
    Known,
    Unknown,
}

// === impl Stream ===

impl Stream {
    /// Makes a stream; answers it with the end that the command writes to.
    pub(crate) fn new(inline_bytes: usize, sink: Sink) -> io::Result<(Self, OwnedFd)> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        ioctl_fionbio(&reader, true)?;
        let stream = Self {
            pipe: Some(watch(reader)?),
            capture: Capture::new(inline_bytes),
            pending: Vec::new(),
            sink: Some(sink),
            chunk: Vec::new(),
        };
        Ok((stream, writer))
    }

    /// Waits until there is something to read. Never ready once the stream was closed. May be
    /// cancelled.
    pub(crate) async fn readable(&self) {
        match &self.pipe {
            Some(pipe) => {
                if pipe.readable().await.is_err() {
                    std::future::pending().await
                }
            }
            None => std::future::pending().await,
        }
    }

    /// Reads what is there, a bounded amount of it. Not to be cancelled.
    pub(crate) async fn read(&mut self) {
        for _ in 0..CHUNKS_PER_TURN {
            if !self.read_chunk(CHUNK_BYTES, Readiness::Known) {
                break;
            }
            if self.pending.len() >= FLUSH_BYTES {
                self.flush().await;
            }
        }
    }

    /// Reads what the command had written when it ended, and no more: somebody else may hold the
    /// pipe and write on.
    pub(crate) async fn finish(mut self, path: &str) -> Captured {
        let mut left = self
            .pipe
            .as_ref()
            .and_then(|pipe| ioctl_fionread(pipe.get_ref()).ok())
            .unwrap_or(0);
        while left > 0 {
            let before = self.capture.bytes;
            let limit = usize::try_from(left).unwrap_or(usize::MAX).min(CHUNK_BYTES);
            if !self.read_chunk(limit, Readiness::Unknown) {
                break;
            }
            left = left.saturating_sub(self.capture.bytes - before);
            if self.pending.len() >= FLUSH_BYTES {
                self.flush().await;
            }
        }
        if !self.pending.is_empty() {
            self.flush().await;
        }
        let artifact_error = self
            .sink
            .as_mut()
            .and_then(Sink::take_error)
            .map(|error| error.to_string())
            .unwrap_or_default();
        let (text, truncated) = self.capture.text(path);
        Captured {
            text,
            bytes: self.capture.bytes,
            truncated,
            artifact_error,
        }
    }

    /// Reads once, at most `limit` bytes. Answers whether there may be more.
    fn read_chunk(&mut self, limit: usize, readiness: Readiness) -> bool {
        let Some(pipe) = &self.pipe else {
            return false;
        };
        if self.chunk.is_empty() {
            self.chunk = vec![0; CHUNK_BYTES];
        }
        let room = self.chunk.get_mut(..limit).unwrap_or_default();
        let mut read = |pipe: &OwnedFd| Ok(rustix::io::read(pipe, &mut *room)?);
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
            Ok(length) => {
                let data = self.chunk.get(..length).unwrap_or_default();
                self.capture.push(data);
                if self.sink.as_ref().is_some_and(Sink::wants_more) {
                    self.pending.extend_from_slice(data);
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

    /// Writes to the artifact what was gathered, on a thread that may block.
    async fn flush(&mut self) {
        let Some(mut sink) = self.sink.take() else {
            return;
        };
        let mut pending = std::mem::take(&mut self.pending);
        let written = task::blocking(move || {
            sink.write(&pending);
            pending.clear();
            (sink, pending)
        });
        if let Ok((sink, pending)) = written.await {
            self.sink = Some(sink);
            self.pending = pending;
        }
    }
}

// === impl Capture ===

impl Capture {
    /// Keeps at most `inline_bytes`: the first half of them, and the last.
    pub(crate) fn new(inline_bytes: usize) -> Self {
        let head_at_most = inline_bytes.div_ceil(2);
        Self {
            head: Vec::new(),
            head_at_most,
            tail: VecDeque::new(),
            tail_at_most: inline_bytes - head_at_most,
            bytes: 0,
        }
    }

    /// Takes what comes next.
    pub(crate) fn push(&mut self, data: &[u8]) {
        self.bytes += data.len() as u64;
        let (head, rest) = data.split_at(data.len().min(self.head_at_most - self.head.len()));
        self.head.extend_from_slice(head);
        let rest = rest
            .get(rest.len().saturating_sub(self.tail_at_most)..)
            .unwrap_or_default();
        let excess = (self.tail.len() + rest.len()).saturating_sub(self.tail_at_most);
        self.tail.drain(..excess);
        self.tail.extend(rest);
    }

    /// What the answer holds, and whether it leaves something out. Bytes that are not UTF-8 become
    /// U+FFFD; a character is never cut by the gap.
    pub(crate) fn text(&self, path: &str) -> (String, bool) {
        let (first, second) = self.tail.as_slices();
        let kept = (self.head.len() + self.tail.len()) as u64;
        if kept == self.bytes {
            let whole = [self.head.as_slice(), first, second].concat();
            return (lossy(whole), false);
        }
        let head = self
            .head
            .get(..whole_characters(&self.head))
            .unwrap_or_default();
        let tail = [first, second].concat();
        let tail = tail.get(continuation_bytes(&tail)..).unwrap_or_default();
        let omitted = self.bytes - (head.len() + tail.len()) as u64;
        let newline = if head.is_empty() || head.ends_with(b"\n") {
            ""
        } else {
            "\n"
        };
        let head = String::from_utf8_lossy(head);
        let tail = String::from_utf8_lossy(tail);
        (
            format!(
                "{head}{newline}[jig: {omitted} bytes left out; the whole output is in {path}]\n{tail}"
            ),
            true,
        )
    }
}

fn lossy(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// Length of `bytes` without the beginning of a character that its end cuts off.
fn whole_characters(bytes: &[u8]) -> usize {
    for back in 1..=bytes.len().min(3) {
        let at = bytes.len() - back;
        let length = match bytes.get(at) {
            Some(0xc2..=0xdf) => 2,
            Some(0xe0..=0xef) => 3,
            Some(0xf0..=0xf4) => 4,
            Some(0x80..=0xbf) => continue,
            _ => return bytes.len(),
        };
        return if length > back { at } else { bytes.len() };
    }
    bytes.len()
}

/// How many bytes at the start of `bytes` belong to a character that began before.
fn continuation_bytes(bytes: &[u8]) -> usize {
    bytes
        .iter()
        .take(3)
        .take_while(|byte| matches!(byte, 0x80..=0xbf))
        .count()
}

#[cfg(test)]
mod tests {
    use super::Capture;

    fn captured(inline: usize, chunks: &[&[u8]]) -> (String, bool, u64) {
        let mut capture = Capture::new(inline);
        chunks.iter().for_each(|chunk| capture.push(chunk));
        let (text, truncated) = capture.text("p");
        (text, truncated, capture.bytes)
    }

    #[test]
    fn what_fits_is_whole() {
        assert_eq!(captured(4, &[b"ab", b"cd"]), ("abcd".to_owned(), false, 4));
        assert_eq!(captured(5, &[b"abcde"]), ("abcde".to_owned(), false, 5));
        assert_eq!(captured(0, &[]), (String::new(), false, 0));
    }

    #[test]
    fn what_does_not_fit_keeps_head_and_tail() {
        let gap = |omitted| format!("[jig: {omitted} bytes left out; the whole output is in p]\n");
        assert_eq!(captured(4, &[b"abcdefgh"]).0, format!("ab\n{}gh", gap(4)));
        assert_eq!(
            captured(4, &[b"a", b"b", b"c", b"d", b"e"]),
            (format!("ab\n{}de", gap(1)), true, 5)
        );
        assert_eq!(captured(0, &[b"abc"]), (gap(3), true, 3));
        assert_eq!(captured(1, &[b"abc"]), (format!("a\n{}", gap(2)), true, 3));
    }

    #[test]
    fn characters_are_not_cut_by_the_gap() {
        // Three bytes each: the head of 4 holds one, the tail of 4 one.
        let (text, truncated, bytes) = captured(8, &["€€€€".as_bytes()]);
        assert_eq!(
            (text, truncated, bytes),
            (
                "€\n[jig: 6 bytes left out; the whole output is in p]\n€".to_owned(),
                true,
                12
            )
        );
    }

    #[test]
    fn bytes_that_are_not_utf8_are_replaced() {
        assert_eq!(captured(9, &[b"a\xff\0b"]).0, "a\u{fffd}\0b");
    }
}
