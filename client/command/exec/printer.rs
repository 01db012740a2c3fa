//! Writes the output of a process to standard output and standard error.
//!
//! One thread writes both, so that output keeps its order even if both lead to the same file. A
//! slow reader blocks neither the call nor the handling of signals.

use std::{
    fs::File,
    io::{self, ErrorKind, Write as _},
    os::fd::AsFd as _,
    thread,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use jig::{api::v1::ProcessOutput, client::ProcessEvent};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use super::notes::format_note;
use crate::{cli_error::CliError, json, local_error::LocalError};

/// Pages in the queue, in addition to the page that is being written.
const MAX_QUEUED_PAGES: usize = 1;

/// Writer of events.
#[derive(Debug)]
pub(super) struct Printer {
    pages: mpsc::Sender<PrinterPage>,
    ended: oneshot::Receiver<io::Result<()>>,
    as_json: bool,
}

#[derive(Debug)]
enum PrinterPage {
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
}

impl Printer {
    /// Starts the writer thread.
    pub(super) fn start(as_json: bool) -> Result<Self, CliError> {
        let to_error = |error| LocalError::new("cannot write the output", &error);

        // Duplicates the descriptors. A blocked write to the library's handles would hold their
        // locks, and notes at the end would block too.
        let stdout = io::stdout().as_fd().try_clone_to_owned().map_err(to_error)?;
        let stderr = io::stderr().as_fd().try_clone_to_owned().map_err(to_error)?;

        let (pages, queue) = mpsc::channel(MAX_QUEUED_PAGES);
        let (end, ended) = oneshot::channel();
        // Not joined: if the session ends while the reader blocks, the process ends the thread.
        thread::spawn(move || {
            let result = write_pages(queue, File::from(stdout), File::from(stderr));
            // The receiver is gone if the session has ended.
            let _dropped = end.send(result);
        });
        Ok(Self { pages, ended, as_json })
    }

    /// Queues an event behind the earlier ones.
    pub(super) async fn print(&mut self, event: &ProcessEvent) -> Result<(), CliError> {
        let Some(page) = self.to_page(event) else {
            return Ok(());
        };
        match self.pages.send(page).await {
            Ok(()) => Ok(()),
            Err(_ended) => Err(self.wait_for_failure().await),
        }
    }

    /// Waits until writing fails.
    pub(super) async fn wait_for_failure(&mut self) -> CliError {
        match (&mut self.ended).await {
            Ok(Err(error)) => CliError::Output(error),
            Ok(Ok(())) | Err(_) => {
                CliError::Output(io::Error::other("the writer thread has ended"))
            }
        }
    }

    /// Waits until everything is written.
    pub(super) async fn finish(self) -> Result<(), CliError> {
        drop(self.pages);
        match self.ended.await {
            // The exit code does not depend on whether the reader takes all output.
            Ok(Err(error)) if error.kind() != ErrorKind::BrokenPipe => Err(CliError::Output(error)),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    fn to_page(&self, event: &ProcessEvent) -> Option<PrinterPage> {
        if self.as_json {
            return to_json(event)
                .map(|value| PrinterPage::Stdout(format!("{value}\n").into_bytes()));
        }
        match event {
            ProcessEvent::Stdout(part) => Some(PrinterPage::Stdout(part.data.to_vec())),
            ProcessEvent::Stderr(part) => Some(PrinterPage::Stderr(part.data.to_vec())),
            ProcessEvent::Gap(gap) => Some(PrinterPage::Stderr(format_note(&format!(
                "earlier output was dropped; continuing at byte {} of stdout and {} of stderr",
                gap.stdout_offset, gap.stderr_offset
            )))),
            ProcessEvent::Started(_) | ProcessEvent::KeepAlive | ProcessEvent::Exited(_) | _ => {
                None
            }
        }
    }
}

fn write_pages(
    mut queue: mpsc::Receiver<PrinterPage>,
    mut stdout: File,
    stderr: File,
) -> io::Result<()> {
    let mut stderr = Some(stderr);
    while let Some(page) = queue.blocking_recv() {
        match page {
            PrinterPage::Stdout(bytes) => stdout.write_all(&bytes)?,
            PrinterPage::Stderr(bytes) => {
                // The reader of standard error has gone; continue with standard output.
                stderr = stderr.filter(|mut stderr| stderr.write_all(&bytes).is_ok());
            }
        }
    }
    Ok(())
}

fn to_json(event: &ProcessEvent) -> Option<Value> {
    let part = |part: &ProcessOutput| {
        json!({
            "sequence": part.sequence,
            "offset": part.offset,
            "data": STANDARD.encode(&part.data),
        })
    };
    Some(match event {
        ProcessEvent::Started(started) => json!({ "started": {
            "process_id": started.process_id,
            "start_time": started.start_time.map(|time| time.to_string()),
            "stdout_path": started.stdout_path,
            "stderr_path": started.stderr_path,
            "isolation": started.isolation,
        }}),
        ProcessEvent::Stdout(output) => json!({ "stdout": part(output) }),
        ProcessEvent::Stderr(output) => json!({ "stderr": part(output) }),
        ProcessEvent::Gap(gap) => json!({ "gap": {
            "next_sequence": gap.next_sequence,
            "stdout_offset": gap.stdout_offset,
            "stderr_offset": gap.stderr_offset,
        }}),
        ProcessEvent::Exited(exited) => json!({ "exited": json::exited(exited) }),
        ProcessEvent::KeepAlive | _ => return None,
    })
}
