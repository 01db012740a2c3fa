//! Standard output while more is to come: written by a thread of its own, so that a reader who takes
//! his time holds up neither the call nor the signal that cancels it.

use std::{
    io::{self, Write as _},
    thread,
};

use tokio::sync::{mpsc, oneshot};

use crate::cli_error::CliError;

/// Pages that wait to be written, beside the one that is being written.
const MAX_QUEUED_PAGES: usize = 1;

/// What writes.
#[derive(Debug)]
pub(crate) struct StdoutWriter {
    pages: mpsc::Sender<Vec<u8>>,
    ended: oneshot::Receiver<io::Result<()>>,
}

impl StdoutWriter {
    /// Begins to write to standard output.
    pub(crate) fn start() -> Self {
        let (pages, mut waiting) = mpsc::channel::<Vec<u8>>(MAX_QUEUED_PAGES);
        let (end, ended) = oneshot::channel();
        // Dropped with the process, when nobody reads and the call was cancelled.
        thread::spawn(move || {
            let mut target = io::stdout();
            let mut write = || {
                while let Some(page) = waiting.blocking_recv() {
                    target.write_all(&page)?;
                    target.flush()?;
                }
                Ok(())
            };
            let result = write();
            // Nobody waits any more where the call was cancelled.
            let _unheard = end.send(result);
        });
        Self { pages, ended }
    }

    /// Writes behind what was written before.
    pub(crate) async fn write(&mut self, page: Vec<u8>) -> Result<(), CliError> {
        if self.pages.send(page).await.is_ok() {
            return Ok(());
        }
        let ended = (&mut self.ended).await;
        let written = ended.unwrap_or_else(|_dropped| Err(thread_panicked_error()));
        Err(CliError::Output(written.err().unwrap_or_else(thread_panicked_error)))
    }

    /// Waits until all is written.
    pub(crate) async fn finish(self) -> Result<(), CliError> {
        drop(self.pages);
        let ended = self.ended.await;
        let written = ended.unwrap_or_else(|_dropped| Err(thread_panicked_error()));
        written.map_err(CliError::Output)
    }
}

fn thread_panicked_error() -> io::Error {
    io::Error::other("the thread that writes it is gone")
}
