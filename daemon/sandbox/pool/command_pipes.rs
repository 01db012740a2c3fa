//! Pipes from commands to the daemon. Those for output are made when a sandbox is ready, so that a
//! call does not wait for them.

use std::{
    io,
    os::fd::OwnedFd,
    sync::{Mutex, MutexGuard, PoisonError},
};

use rustix::{
    io::ioctl_fionbio,
    pipe::{PipeFlags, pipe_with},
};
use tokio::io::unix::AsyncFd;

use crate::daemon::sys::readiness::watch_readable;

/// For standard output and error of two runs.
const STORED_PIPES: usize = 4;

/// A pipe that a command writes to and the daemon reads.
#[derive(Debug)]
pub(crate) struct CommandPipe {
    /// The daemon's end.
    pub(crate) reader: AsyncFd<OwnedFd>,
    /// The command's end.
    pub(crate) writer: OwnedFd,
}

/// Pipes that no command has used.
#[derive(Debug, Default)]
pub(super) struct CommandPipes(Mutex<Vec<CommandPipe>>);

impl CommandPipe {
    pub(crate) fn new() -> io::Result<Self> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
        ioctl_fionbio(&reader, true)?;
        Ok(Self { reader: watch_readable(reader)?, writer })
    }
}

impl CommandPipes {
    pub(super) fn take(&self) -> io::Result<CommandPipe> {
        let stored = self.lock().pop();
        stored.map_or_else(CommandPipe::new, Ok)
    }

    /// Makes the pipes that are missing. Does without those that cannot be made.
    pub(super) fn refill(&self) {
        let mut stored = self.lock();
        while stored.len() < STORED_PIPES
            && let Ok(pipe) = CommandPipe::new()
        {
            stored.push(pipe);
        }
    }

    /// Closes the stored pipes.
    pub(super) fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, Vec<CommandPipe>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
