//! What the process writes, written here: by one thread for both descriptors, so that what came first
//! is written first also where both lead to the same place. A reader who takes his time holds up
//! neither the call nor the signals.

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

/// Pages that wait to be written, beside the one that is being written.
const MAX_QUEUED_PAGES: usize = 1;

/// What writes events.
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
    /// Begins to write.
    pub(super) fn start(as_json: bool) -> Result<Self, CliError> {
        let fails = |error| LocalError::new("the output cannot be written", &error);
        // Not the library's own handles: who is blocked in writing to them holds their locks, and
        // whoever had something to say at the end would wait, too.
        let stdout = io::stdout().as_fd().try_clone_to_owned().map_err(fails)?;
        let stderr = io::stderr().as_fd().try_clone_to_owned().map_err(fails)?;
        let (pages, waiting) = mpsc::channel(MAX_QUEUED_PAGES);
        let (end, ended) = oneshot::channel();
        // Dropped with the process, when nobody reads and the session has ended.
        thread::spawn(move || {
            let result = write_pages(waiting, File::from(stdout), File::from(stderr));
            // Nobody waits any more where the session has ended.
            let _unheard = end.send(result);
        });
        Ok(Self { pages, ended, as_json })
    }

    /// Writes an event behind those before it.
    pub(super) async fn print(&mut self, event: &ProcessEvent) -> Result<(), CliError> {
        let Some(page) = self.to_page(event) else {
            return Ok(());
        };
        match self.pages.send(page).await {
            Ok(()) => Ok(()),
            Err(_ended) => Err(self.wait_for_failure().await),
        }
    }

    /// Waits until what is written here cannot be written any more.
    pub(super) async fn wait_for_failure(&mut self) -> CliError {
        match (&mut self.ended).await {
            Ok(Err(error)) => CliError::Output(error),
            Ok(Ok(())) | Err(_) => {
                CliError::Output(io::Error::other("the thread that writes it is gone"))
            }
        }
    }

    /// Waits until all is written.
    pub(super) async fn finish(self) -> Result<(), CliError> {
        drop(self.pages);
        match self.ended.await {
            // What became of the command does not depend on whether somebody reads to its end.
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
                "output was left out that is not kept any more; it goes on at byte {} of stdout and {} of stderr",
                gap.stdout_offset, gap.stderr_offset
            )))),
            ProcessEvent::Started(_) | ProcessEvent::KeepAlive | ProcessEvent::Exited(_) | _ => {
                None
            }
        }
    }
}

fn write_pages(
    mut waiting: mpsc::Receiver<PrinterPage>,
    mut stdout: File,
    stderr: File,
) -> io::Result<()> {
    let mut stderr = Some(stderr);
    while let Some(page) = waiting.blocking_recv() {
        match page {
            PrinterPage::Stdout(bytes) => stdout.write_all(&bytes)?,
            PrinterPage::Stderr(bytes) => {
                // Nobody wants to read it any more; standard output may still be wanted.
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
