//! Reads lines from a terminal, one at a time.
//!
//! Nothing is read ahead, so that input from before a question can be discarded completely.

use std::{io, thread};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    termios::{QueueSelector, tcflush},
};
use tokio::sync::mpsc;

use crate::cli_error::CliError;

/// Maximum length of a line. A terminal in canonical mode has the same limit.
const MAX_LINE_BYTES: usize = 4096;
const NO_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// Standard input as a terminal.
pub(super) struct TerminalInput {
    /// Asks the thread to poll.
    poll_requests: mpsc::Sender<()>,
    /// Result of each poll: whether input is ready.
    poll_results: mpsc::Receiver<io::Result<bool>>,
    /// Whether the thread is polling.
    is_polling: bool,
    /// Input without its line ending.
    partial_line: Vec<u8>,
}

impl TerminalInput {
    /// Opens standard input. A thread polls it, without reading, and ends with the process.
    pub(super) fn open() -> Self {
        let (poll_requests, mut requests) = mpsc::channel(1);
        let (results, poll_results) = mpsc::channel(1);
        thread::spawn(move || {
            while requests.blocking_recv().is_some() {
                if results.blocking_send(is_readable(None)).is_err() {
                    return;
                }
            }
        });
        Self { poll_requests, poll_results, is_polling: false, partial_line: Vec::new() }
    }

    /// Discards all input so far.
    pub(super) fn discard_typed(&mut self) {
        self.partial_line.clear();
        tcflush(io::stdin(), QueueSelector::IFlush).ok();
    }

    /// Waits for the next line. Returns `None` at the end of input. Cancel-safe.
    pub(super) async fn next_line(&mut self) -> Result<Option<String>, CliError> {
        loop {
            if !self.is_polling {
                // Cannot fail: the thread outlives this sender.
                self.poll_requests.send(()).await.map_err(CliError::system)?;
                self.is_polling = true;
            }

            let is_ready = self.poll_results.recv().await;
            self.is_polling = false;
            // The input may have been discarded since. A read would block.
            if !is_ready.transpose().map_err(CliError::system)?.unwrap_or(false)
                || !is_readable(Some(&NO_WAIT)).map_err(CliError::system)?
            {
                continue;
            }

            let mut bytes = [0; MAX_LINE_BYTES];
            let read = rustix::io::read(io::stdin(), &mut bytes)
                .map_err(|error| CliError::system(io::Error::from(error)))?;
            if read == 0 {
                return Ok(None);
            }

            self.partial_line.extend(bytes.iter().take(read));
            if let Some(end) = self.partial_line.iter().position(|byte| *byte == b'\n') {
                let line =
                    String::from_utf8_lossy(self.partial_line.get(..end).unwrap_or_default());
                let line = line.into_owned();
                self.partial_line.clear();
                return Ok(Some(line));
            }

            // Too long for a typed answer: probably pasted by mistake.
            if self.partial_line.len() > MAX_LINE_BYTES {
                self.partial_line.clear();
            }
        }
    }
}

/// Returns whether a read would not block. Waits for at most `wait`, or without limit.
fn is_readable(wait: Option<&Timespec>) -> io::Result<bool> {
    let stdin = io::stdin();
    let mut polled = [PollFd::new(&stdin, PollFlags::IN)];
    match poll(&mut polled, wait) {
        Ok(count) => Ok(count > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
