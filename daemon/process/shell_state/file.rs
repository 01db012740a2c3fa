//! The memory file that a named shell writes its state to.

use std::{
    fs::File,
    io::{self, Write as _},
    os::{
        fd::OwnedFd,
        unix::fs::{FileExt as _, MetadataExt as _},
    },
};

use rustix::{
    fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create},
    io::fcntl_dupfd_cloexec,
};

use crate::daemon::sys::STAT_BLOCK_BYTES;

/// Size of the memory file that the epilogue writes to, with its mark, and so the maximum of a state.
pub(super) const MAX_STATE_BYTES: usize = 1 << 20;
/// The beginning of that file. The epilogue writes nothing to a file without it: a command may have
/// replaced the descriptor.
pub(super) const STATE_MARK: &[u8; 8] = b"jigshell";

/// The daemon's end of the file.
#[derive(Debug)]
pub(in super::super) struct StateFile(File);

impl StateFile {
    /// Creates a file of [`MAX_STATE_BYTES`] that no process can resize. Returns it with the end of the
    /// command, which is at its begin.
    pub(in super::super) fn new() -> io::Result<(Self, OwnedFd)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let mut file = File::from(memfd_create(c"jig-shell-state", flags)?);
        ftruncate(&file, MAX_STATE_BYTES as u64)?;
        fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
        file.write_all(STATE_MARK)?;
        io::Seek::rewind(&mut file)?;

        let command_end = fcntl_dupfd_cloexec(&file, 0)?;
        Ok((Self(file), command_end))
    }

    /// Reads the content up to the last block that has any. Every process of the run must be gone.
    pub(in super::super) fn read(self) -> Option<Vec<u8>> {
        let content = self.read_blocks();
        content
            .inspect_err(|error| tracing::error!(%error, "cannot read the state of a shell"))
            .ok()
    }

    fn read_blocks(&self) -> io::Result<Vec<u8>> {
        let bytes = self.0.metadata()?.blocks().saturating_mul(STAT_BLOCK_BYTES);
        let length = usize::try_from(bytes).unwrap_or(usize::MAX).min(MAX_STATE_BYTES);
        let mut content = vec![0; length];
        self.0.read_exact_at(&mut content, 0)?;
        Ok(content)
    }
}
