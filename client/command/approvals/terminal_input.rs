//! The lines that are typed at a terminal, one at a time: nothing is read before somebody waits for a line,
//! so that what was typed before a question can be thrown away whole.

use std::{io, thread};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    termios::{QueueSelector, tcflush},
};
use tokio::sync::mpsc;

use crate::cli_error::CliError;

/// Most bytes of a line: a terminal lets no more be typed.
const MAX_LINE_BYTES: usize = 4096;
/// No time to wait.
const NO_WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// The terminal that is standard input.
pub(super) struct TerminalInput {
    /// Has the thread look.
    poll_requests: mpsc::Sender<()>,
    /// Told by the thread that there is something to read, or why it cannot tell.
    poll_results: mpsc::Receiver<io::Result<bool>>,
    /// Whether the thread looks.
    is_polling: bool,
    /// The beginning of a line.
    partial_line: Vec<u8>,
}

impl TerminalInput {
    /// That of standard input. A thread of its own, which ends with the process, waits for what is typed,
    /// and reads nothing.
    pub(super) fn open() -> Self {
        let (look, mut asked) = mpsc::channel(1);
        let (tell, found) = mpsc::channel(1);
        thread::spawn(move || {
            while asked.blocking_recv().is_some() {
                if tell.blocking_send(is_readable(None)).is_err() {
                    return;
                }
            }
        });
        Self {
            poll_requests: look,
            poll_results: found,
            is_polling: false,
            partial_line: Vec::new(),
        }
    }

    /// Throws away what was typed so far.
    pub(super) fn discard_typed(&mut self) {
        self.partial_line.clear();
        tcflush(io::stdin(), QueueSelector::IFlush).ok();
    }

    /// The next line; none where nobody types any more. May be cancelled.
    pub(super) async fn next_line(&mut self) -> Result<Option<String>, CliError> {
        loop {
            if !self.is_polling {
                // The thread ends after this does.
                self.poll_requests.send(()).await.map_err(CliError::system)?;
                self.is_polling = true;
            }
            let found = self.poll_results.recv().await;
            self.is_polling = false;
            // What was found may have been thrown away: a read would wait for more.
            if !found.transpose().map_err(CliError::system)?.unwrap_or(false)
                || !is_readable(Some(&NO_WAIT)).map_err(CliError::system)?
            {
                continue;
            }
            let mut bytes = [0; MAX_LINE_BYTES];
            let read = rustix::io::read(io::stdin(), &mut bytes);
            let read = read.map_err(|error| CliError::system(io::Error::from(error)))?;
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
            // Nobody types so much: what is pasted here is no answer.
            if self.partial_line.len() > MAX_LINE_BYTES {
                self.partial_line.clear();
            }
        }
    }
}

/// Whether a read would answer at once. Waits for it so long.
fn is_readable(wait: Option<&Timespec>) -> io::Result<bool> {
    let stdin = io::stdin();
    let mut polled = [PollFd::new(&stdin, PollFlags::IN)];
    match poll(&mut polled, wait) {
        Ok(count) => Ok(count > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
