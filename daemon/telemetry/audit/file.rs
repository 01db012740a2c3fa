//! The file of the audit log: appended to, and rotated by size.

use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use rustix::fs::OFlags;

use super::settings::AuditSettings;

/// Open audit file.
#[derive(Debug)]
pub(super) struct AuditFile {
    settings: AuditSettings,
    pub(super) file: File,
    /// Bytes of the current buffer that were written.
    pub(super) progress: usize,
    /// Whether the file was opened while a buffer was half written.
    is_new: bool,
    rotation_fails: bool,
}

impl AuditFile {
    pub(super) fn open(settings: AuditSettings) -> io::Result<Self> {
        let file = open_file(&settings.path)?;
        Ok(Self { settings, file, progress: 0, is_new: false, rotation_fails: false })
    }

    /// Opens the path anew. If that fails, the old file stays open.
    pub(super) fn reopen(&mut self) -> io::Result<()> {
        self.file = open_file(&self.settings.path)?;
        self.is_new = true;
        Ok(())
    }

    /// Appends lines. After an error, a call with the same lines continues where it occurred.
    pub(super) fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        if self.progress == 0 {
            self.prepare(lines.len() as u64)?;
        }
        if std::mem::take(&mut self.is_new) {
            // Another file has the beginning of a line that was cut.
            let written = lines.get(..self.progress).unwrap_or_default();
            self.progress =
                written.iter().rposition(|byte| *byte == b'\n').map_or(0, |newline| newline + 1);
        }

        while let Some(rest) = lines.get(self.progress..).filter(|rest| !rest.is_empty()) {
            match self.file.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(bytes) => self.progress += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        if self.settings.fsync {
            self.file.sync_data()?;
        }
        self.progress = 0;
        Ok(())
    }

    /// Writes all lines through to the disk.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Forgets a buffer that could not be written.
    pub(super) fn discard(&mut self) {
        self.progress = 0;
    }

    /// Replaces a file that was removed, or that `bytes` more would make too large.
    fn prepare(&mut self, bytes: u64) -> io::Result<()> {
        let metadata = self.file.metadata()?;
        if metadata.nlink() == 0 {
            return self.reopen();
        }
        let max_bytes = self.settings.max_bytes;
        if max_bytes == 0 || metadata.len() == 0 || metadata.len() + bytes <= max_bytes {
            return Ok(());
        }

        let rotated = self.rotate();
        match &rotated {
            Ok(()) => self.rotation_fails = false,
            // The old file grows further.
            Err(error) if !std::mem::replace(&mut self.rotation_fails, true) => {
                tracing::error!(%error, "the audit log cannot be rotated");
            }
            Err(_) => {}
        }
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.file.sync_data()?;
        let path = &self.settings.path;
        for number in (1..self.settings.max_files).rev() {
            rename_existing(&rotated_path(path, number), &rotated_path(path, number + 1))?;
        }
        if self.settings.max_files == 0 {
            fs::remove_file(path)?;
        } else {
            rename_existing(path, &rotated_path(path, 1))?;
        }
        self.reopen()
    }
}

/// The path of a rotated file; 1 is the newest.
fn rotated_path(path: &Path, number: u32) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(format!(".{number}"));
    name.into()
}

fn rename_existing(from: &Path, to: &Path) -> io::Result<()> {
    match fs::rename(from, to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Opens the file at `path` to append to it, and ends a line that was cut.
///
/// Fails for symbolic links and for everything that is no file. Never blocks on a FIFO.
fn open_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut file = File::options()
        .read(true)
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(i32::try_from(flags.bits()).map_err(io::Error::other)?)
        .open(path)?;

    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if let Some(last) = metadata.len().checked_sub(1) {
        let mut byte = [0];
        file.read_exact_at(&mut byte, last)?;
        if byte != *b"\n" {
            file.write_all(b"\n")?;
        }
    }
    Ok(file)
}
