//! The file of the audit log: appended to, and rotated by size.

use std::{
    ffi::OsString,
    fmt::Display,
    fs::{self, File},
    io::{self, Write as _},
    os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FlockOperation, OFlags, flock},
    io::Errno,
};

use super::settings::AuditSettings;

/// Open audit file.
#[derive(Debug)]
pub(super) struct AuditFile {
    settings: AuditSettings,
    pub(super) file: File,
    /// Whether the last line of the file was cut.
    is_cut: bool,
    /// Bytes of the current buffer that were written.
    pub(super) progress: usize,
    /// Whether the file was opened while a buffer was half written.
    is_new: bool,
    rotation_fails: bool,
}

impl AuditFile {
    pub(super) fn open(settings: AuditSettings) -> io::Result<Self> {
        let file = open_file(&settings.path)?;
        let is_cut = is_cut(&file)?;
        Ok(Self { settings, file, is_cut, progress: 0, is_new: false, rotation_fails: false })
    }

    /// Opens the path anew. If that fails, the old file stays open.
    pub(super) fn reopen(&mut self) -> io::Result<()> {
        self.replace(open_file(&self.settings.path)?)
    }

    fn replace(&mut self, file: File) -> io::Result<()> {
        self.is_cut = is_cut(&file)?;
        self.file = file;
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

        if self.is_cut {
            self.file.write_all(b"\n")?;
            self.is_cut = false;
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
        self.is_cut |= self.progress > 0;
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
        let path = &self.settings.path;
        if !path.try_exists()? {
            return self.reopen();
        }
        self.file.sync_data()?;
        // Opened before a file is renamed: each failed attempt would remove the oldest file.
        let next_path = with_suffix(path, "next");
        let next = open_file(&next_path)?;

        let max_files = self.settings.max_files;
        if max_files > 0 {
            let exists = |number: &u32| with_suffix(path, number).exists();
            let last = (1..max_files).take_while(exists).last().unwrap_or(0);
            for number in (1..=last).rev() {
                fs::rename(with_suffix(path, number), with_suffix(path, number + 1))?;
            }
            fs::rename(path, with_suffix(path, 1))?;
        }
        fs::rename(&next_path, path)?;
        self.replace(next)
    }
}

/// The path with a suffix: a number for a rotated file, of which 1 is the newest.
fn with_suffix(path: &Path, suffix: impl Display) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(format!(".{suffix}"));
    name.into()
}

/// Opens the file at `path` to append to it.
///
/// Fails for symbolic links, for everything that is no file, and if another daemon writes the file:
/// both would rotate it. Never blocks on a FIFO.
fn open_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = File::options()
        .read(true)
        .append(true)
        .create(true)
        .mode(0o600)
        .custom_flags(i32::try_from(flags.bits()).map_err(io::Error::other)?)
        .open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    // Some file systems have no locks.
    if flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK) {
        let problem = "another daemon writes it: give each daemon a file of its own";
        return Err(io::Error::new(io::ErrorKind::ResourceBusy, problem));
    }
    Ok(file)
}

fn is_cut(file: &File) -> io::Result<bool> {
    let Some(last) = file.metadata()?.len().checked_sub(1) else { return Ok(false) };
    let mut byte = [0];
    file.read_exact_at(&mut byte, last)?;
    Ok(byte != *b"\n")
}
