//! Writes standard output in a thread of its own.
//!
//! A slow reader then blocks neither the call nor the signal that cancels it.

use std::{
    io::{self, Write as _},
    thread,
};

use tokio::sync::{mpsc, oneshot};

use crate::cli_error::CliError;

/// Pages in the queue, in addition to the page that is being written.
const MAX_QUEUED_PAGES: usize = 1;

#[derive(Debug)]
pub(crate) struct StdoutWriter {
    pages: mpsc::Sender<Vec<u8>>,
    ended: oneshot::Receiver<io::Result<()>>,
}

impl StdoutWriter {
    /// Starts the writer thread.
    pub(crate) fn start() -> Self {
        let (pages, mut queue) = mpsc::channel::<Vec<u8>>(MAX_QUEUED_PAGES);
        let (end, ended) = oneshot::channel();
        // Not joined: if the call is cancelled while the reader blocks, the process ends the
        // thread.
        thread::spawn(move || {
            let mut target = io::stdout();
            let mut write = || {
                while let Some(page) = queue.blocking_recv() {
                    target.write_all(&page)?;
                    target.flush()?;
                }
                Ok(())
            };

            let result = write();
            // The receiver is gone if the call was cancelled.
            let _dropped = end.send(result);
        });

        Self { pages, ended }
    }

    /// Queues a page behind the earlier ones.
    pub(crate) async fn write(&mut self, page: Vec<u8>) -> Result<(), CliError> {
        if self.pages.send(page).await.is_ok() {
            return Ok(());
        }

        let ended = (&mut self.ended).await;
        let written = ended.unwrap_or_else(|_dropped| Err(thread_panicked_error()));
        Err(CliError::Output(written.err().unwrap_or_else(thread_panicked_error)))
    }

    /// Waits until all pages are written.
    pub(crate) async fn finish(self) -> Result<(), CliError> {
        drop(self.pages);
        let ended = self.ended.await;
        let written = ended.unwrap_or_else(|_dropped| Err(thread_panicked_error()));
        written.map_err(CliError::Output)
    }
}

fn thread_panicked_error() -> io::Error {
    io::Error::other("the writer thread has ended")
}
