//! Artifacts: files that hold the whole output of a command, up to a cap.

use std::{
    fs::{File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::PathBuf,
    sync::Arc,
};

use tokio::sync::watch;

use super::session_usage::SessionUsage;
use crate::daemon::fd_exhaustion;

/// Where one stream of one command is written to. The file is made with its first byte: an empty
/// stream needs none.
#[derive(Debug)]
pub(crate) struct ArtifactWriter {
    path: PathBuf,
    file: Option<File>,
    /// Bytes that may still be written.
    remaining_bytes: u64,
    /// Whether there is a file even if nothing is written.
    create_if_empty: bool,
    error: Option<io::Error>,
    written_sender: Option<watch::Sender<()>>,
    usage: Option<Arc<SessionUsage>>,
}

impl ArtifactWriter {
    /// A sink for the file at `path`, which takes at most `cap` bytes.
    pub(crate) fn new(path: PathBuf, cap: u64) -> Self {
        Self {
            path,
            file: None,
            remaining_bytes: cap,
            create_if_empty: false,
            error: None,
            written_sender: None,
            usage: None,
        }
    }

    /// The same, whose bytes are counted with those of all sessions.
    pub(super) fn with_usage(self, fullness: Arc<SessionUsage>) -> Self {
        Self { usage: Some(fullness), ..self }
    }

    /// The same, which tells whenever something was written.
    pub(crate) fn notifying(self, written: Option<watch::Sender<()>>) -> Self {
        Self { written_sender: written, ..self }
    }

    /// The same, whose file exists even if nothing is written to it.
    pub(crate) fn create_if_empty(self) -> Self {
        Self { create_if_empty: true, ..self }
    }

    /// Whether its file is yet to be made, even if there is nothing to write.
    pub(crate) fn needs_file(&self) -> bool {
        self.create_if_empty && self.file.is_none() && self.error.is_none()
    }

    /// Whether somebody waits for each byte.
    pub(crate) fn is_followed(&self) -> bool {
        self.written_sender.is_some()
    }

    /// Another one for the same file, instead of this one that nothing was written to.
    pub(crate) fn fresh_copy(&self) -> Self {
        Self {
            usage: self.usage.clone(),
            create_if_empty: self.create_if_empty,
            ..Self::new(self.path.clone(), self.remaining_bytes)
                .notifying(self.written_sender.clone())
        }
    }

    /// Whether anything more would be kept.
    pub(crate) fn has_capacity(&self) -> bool {
        self.remaining_bytes > 0 && self.error.is_none()
    }

    /// Writes what fits. An error, a full disk for example, is kept for [`Sink::take_error`];
    /// nothing more is written after it. Blocks.
    pub(crate) fn write(&mut self, data: &[u8]) {
        let fits = usize::try_from(self.remaining_bytes).unwrap_or(usize::MAX).min(data.len());
        let data = data.get(..fits).unwrap_or_default();
        if (data.is_empty() && !self.needs_file()) || self.error.is_some() {
            return;
        }
        match self.open().and_then(|file| file.write_all(data)) {
            Ok(()) => {
                self.remaining_bytes -= data.len() as u64;
                if let Some(fullness) = &self.usage {
                    fullness.add_written(data.len() as u64);
                }
                if let Some(written) = &self.written_sender {
                    written.send_replace(());
                }
            }
            Err(error) => self.error = Some(error),
        }
    }

    /// Why the artifact is incomplete though it is under its cap.
    pub(crate) fn take_error(&mut self) -> Option<io::Error> {
        self.error.take()
    }

    fn open(&mut self) -> io::Result<&mut File> {
        match &mut self.file {
            Some(file) => Ok(file),
            empty => {
                let file = fd_exhaustion::retry_blocking(|| {
                    let mut options = OpenOptions::new();
                    let options = options.write(true).create_new(true).mode(0o600);
                    options.open(&self.path)
                })?;
                Ok(empty.insert(file))
            }
        }
    }
}
