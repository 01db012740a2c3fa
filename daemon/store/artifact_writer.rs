//! Writes artifacts: files with the whole output of a command, up to a size limit.

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

/// Writes one stream of one command to a file. Creates the file with the first byte: an empty
/// stream needs none.
#[derive(Debug)]
pub(crate) struct ArtifactWriter {
    path: PathBuf,
    file: Option<File>,
    /// Bytes until the size limit.
    remaining_bytes: u64,
    /// Whether the file is created even if nothing is written.
    create_if_empty: bool,
    error: Option<io::Error>,
    written_sender: Option<watch::Sender<()>>,
    usage: Option<Arc<SessionUsage>>,
}

impl ArtifactWriter {
    /// Creates a writer for the file at `path`, limited to `max_bytes`.
    pub(crate) fn new(path: PathBuf, max_bytes: u64) -> Self {
        Self {
            path,
            file: None,
            remaining_bytes: max_bytes,
            create_if_empty: false,
            error: None,
            written_sender: None,
            usage: None,
        }
    }

    /// Counts the written bytes in the usage of all sessions.
    pub(super) fn with_usage(self, usage: Arc<SessionUsage>) -> Self {
        Self { usage: Some(usage), ..self }
    }

    /// Notifies `written_sender` after each write.
    pub(crate) fn notifying(self, written_sender: Option<watch::Sender<()>>) -> Self {
        Self { written_sender, ..self }
    }

    /// Creates the file even if nothing is written to it.
    pub(crate) fn create_if_empty(self) -> Self {
        Self { create_if_empty: true, ..self }
    }

    /// Whether [`Self::write`] must create the file even without data.
    pub(crate) fn needs_file(&self) -> bool {
        self.create_if_empty && self.file.is_none() && self.error.is_none()
    }

    /// Whether a reader follows each write.
    pub(crate) fn is_followed(&self) -> bool {
        self.written_sender.is_some()
    }

    /// Returns another writer for the same file, to replace this one before its first write.
    pub(crate) fn fresh_copy(&self) -> Self {
        Self {
            usage: self.usage.clone(),
            create_if_empty: self.create_if_empty,
            ..Self::new(self.path.clone(), self.remaining_bytes)
                .notifying(self.written_sender.clone())
        }
    }

    /// Whether more bytes would be written.
    pub(crate) fn has_capacity(&self) -> bool {
        self.remaining_bytes > 0 && self.error.is_none()
    }

    /// Writes the bytes that fit. After an error, such as a full disk, it writes nothing more;
    /// [`Self::take_error`] returns the error. Blocks.
    pub(crate) fn write(&mut self, data: &[u8]) {
        let fits = usize::try_from(self.remaining_bytes).unwrap_or(usize::MAX).min(data.len());
        let data = data.get(..fits).unwrap_or_default();
        if (data.is_empty() && !self.needs_file()) || self.error.is_some() {
            return;
        }

        match self.open().and_then(|file| file.write_all(data)) {
            Ok(()) => {
                self.remaining_bytes -= data.len() as u64;
                if let Some(usage) = &self.usage {
                    usage.add_written(data.len() as u64);
                }
                if let Some(written) = &self.written_sender {
                    written.send_replace(());
                }
            }
            Err(error) => self.error = Some(error),
        }
    }

    /// Returns why the artifact is incomplete, if it is so below its size limit.
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
