//! Standard output while more is to come: written by a thread of its own, so that a reader who takes
//! his time holds up neither the call nor the signal that cancels it.

use std::{
    io::{self, Write as _},
    thread,
};

use tokio::sync::{mpsc, oneshot};

use crate::failure::Failure;

/// Pages that wait to be written, beside the one that is being written.
const AHEAD: usize = 1;

/// What writes.
#[derive(Debug)]
pub(crate) struct Writer {
    pages: mpsc::Sender<Vec<u8>>,
    ended: oneshot::Receiver<io::Result<()>>,
}

impl Writer {
    /// Begins to write to standard output.
    pub(crate) fn start() -> Self {
        let (pages, mut waiting) = mpsc::channel::<Vec<u8>>(AHEAD);
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
    pub(crate) async fn write(self, page: Vec<u8>) -> Result<Self, Failure> {
        match self.pages.send(page).await {
            Ok(()) => Ok(self),
            Err(_ended) => Err(self.finish().await.err().unwrap_or_else(panicked)),
        }
    }

    /// Waits until all is written.
    pub(crate) async fn finish(self) -> Result<(), Failure> {
        drop(self.pages);
        match self.ended.await {
            Ok(result) => result.map_err(Failure::Output),
            Err(_dropped) => Err(panicked()),
        }
    }
}

fn panicked() -> Failure {
    Failure::Output(io::Error::other("the thread that writes it is gone"))
}
