//! Starts the keeper: the daemon's only child, started before the daemon has threads.

use std::{
    io,
    os::{
        fd::{BorrowedFd, OwnedFd},
        unix::process::CommandExt as _,
    },
    process::{Child, Stdio},
};

use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::{
    keeper,
    plan::SandboxPlan,
    wire::{self, KeeperRequest},
};

/// The keeper's process and the socket to it, before the runtime starts.
#[derive(Debug)]
pub(crate) struct KeeperProcess {
    pub(super) socket: OwnedFd,
    pub(super) child: Child,
    pub(super) pidfd: OwnedFd,
}

impl KeeperProcess {
    /// Starts the keeper and sends it the plan, with the directories of the workspaces.
    ///
    /// The calling process must have one thread, because the keeper inherits its state.
    pub(crate) fn start(plan: SandboxPlan, directories: &[BorrowedFd<'_>]) -> io::Result<Self> {
        let (daemon, keeper) = wire::seqpacket_pair()?;
        #[expect(
            clippy::disallowed_methods,
            reason = "the only child of the daemon, started before it has threads"
        )]
        let child = std::process::Command::new("/proc/self/exe")
            .arg0(keeper::KEEPER_ARG0)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::from(keeper))
            .stdout(Stdio::null())
            .stderr(Stdio::inherit())
            .spawn()?;

        let pid = i32::try_from(child.id())
            .ok()
            .and_then(Pid::from_raw)
            .ok_or_else(|| io::Error::other("a child has no process id"))?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        wire::send(&daemon, &KeeperRequest::Plan(Box::new(plan)), directories)?;
        Ok(Self { socket: daemon, child, pidfd })
    }
}
