//! The lines that are typed at a terminal, one at a time: nothing is read before somebody waits for a line,
//! so that what was typed before a question can be thrown away whole.

use std::{io, thread};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    termios::{QueueSelector, tcflush},
};
use tokio::sync::mpsc;

use crate::failure::Failure;

/// Most bytes of a line: a terminal lets no more be typed.
const LONGEST: usize = 4096;
/// No time to wait.
const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// The terminal that is standard input.
pub(super) struct Keyboard {
    /// Has the thread look.
    look: mpsc::Sender<()>,
    /// Told by the thread that there is something to read, or why it cannot tell.
    found: mpsc::Receiver<io::Result<bool>>,
    /// Whether the thread looks.
    is_looking: bool,
    /// The beginning of a line.
    typed: Vec<u8>,
}

impl Keyboard {
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
        Self { look, found, is_looking: false, typed: Vec::new() }
    }

    /// Throws away what was typed so far.
    pub(super) fn forget(&mut self) {
        self.typed.clear();
        tcflush(io::stdin(), QueueSelector::IFlush).ok();
    }

    /// The next line; none where nobody types any more. May be cancelled.
    pub(super) async fn line(&mut self) -> Result<Option<String>, Failure> {
        loop {
            if !self.is_looking {
                // The thread ends after this does.
                self.look.send(()).await.map_err(Failure::system)?;
                self.is_looking = true;
            }
            let found = self.found.recv().await;
            self.is_looking = false;
            // What was found may have been thrown away: a read would wait for more.
            if !found.transpose().map_err(Failure::system)?.unwrap_or(false)
                || !is_readable(Some(&AT_ONCE)).map_err(Failure::system)?
            {
                continue;
            }
            let mut bytes = [0; LONGEST];
            let read = rustix::io::read(io::stdin(), &mut bytes);
            let read = read.map_err(|error| Failure::system(io::Error::from(error)))?;
            if read == 0 {
                return Ok(None);
            }
            self.typed.extend(bytes.iter().take(read));
            if let Some(end) = self.typed.iter().position(|byte| *byte == b'\n') {
                let line = String::from_utf8_lossy(self.typed.get(..end).unwrap_or_default());
                let line = line.into_owned();
                self.typed.clear();
                return Ok(Some(line));
            }
            // Nobody types so much: what is pasted here is no answer.
            if self.typed.len() > LONGEST {
                self.typed.clear();
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
