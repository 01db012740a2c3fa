//! Pipes for the output of commands. They are made when a sandbox is ready, so that a call does not
//! wait for it.

use std::{
    io,
    os::fd::OwnedFd,
    sync::{Mutex, MutexGuard, PoisonError},
};

use rustix::{
    fs::{Gid, Uid, fchown},
    io::ioctl_fionbio,
    pipe::{PipeFlags, pipe_with},
};
use tokio::io::unix::AsyncFd;

use crate::daemon::{sandbox::wire::SandboxIdentity, sys::readiness::watch_readable};

/// For standard output and error of two runs.
const STORED_PIPES: usize = 4;

/// A pipe for one output stream of a command.
#[derive(Debug)]
pub(crate) struct OutputPipe {
    /// The daemon's end.
    pub(crate) reader: AsyncFd<OwnedFd>,
    /// The command's end.
    pub(crate) writer: OwnedFd,
}

/// Pipes that no command has used.
#[derive(Debug, Default)]
pub(super) struct OutputPipes(Mutex<Vec<OutputPipe>>);

impl OutputPipes {
    /// Returns a pipe. It belongs to `user`, if that is known.
    pub(super) fn take(&self, user: Option<SandboxIdentity>) -> io::Result<OutputPipe> {
        let stored = self.lock().pop();
        stored.map_or_else(|| make_pipe(user), Ok)
    }

    /// Makes the pipes that are missing. Does without those that cannot be made.
    pub(super) fn store(&self, user: Option<SandboxIdentity>) {
        let missing = STORED_PIPES.saturating_sub(self.lock().len());
        let made: Vec<_> = (0..missing).map_while(|_| make_pipe(user).ok()).collect();
        let mut stored = self.lock();
        stored.extend(made);
        stored.truncate(STORED_PIPES);
    }

    pub(super) fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, Vec<OutputPipe>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn make_pipe(user: Option<SandboxIdentity>) -> io::Result<OutputPipe> {
    let (reader, writer) = pipe_with(PipeFlags::CLOEXEC)?;
    ioctl_fionbio(&reader, true)?;
    if let Some(user) = user {
        chown_pipe(&writer, user);
    }
    Ok(OutputPipe { reader: watch_readable(reader)?, writer })
}

/// Makes a command's user the owner of a pipe. Otherwise the command could not open it by name
/// (`/dev/stderr`), since opening checks the owner even if the process has it open.
pub(super) fn chown_pipe(pipe: &OwnedFd, user: SandboxIdentity) {
    let (uid, gid) = user.host_ids;
    // Fails if the daemon may not change owners; the pipe then belongs to the right user.
    let _chowned = fchown(pipe, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
}
