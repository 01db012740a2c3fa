//! The launcher as the keeper holds it.

use std::os::fd::{AsFd as _, OwnedFd};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, pidfd_send_signal, waitid};

use super::{
    id_map,
    stage::{Stage, StageFailure, at_stage},
    wire::{SandboxIdentity, SetupReply, receive},
};

#[derive(Debug)]
pub(super) struct LauncherProcess {
    pub(super) socket: OwnedFd,
    pub(super) pidfd: OwnedFd,
    pub(super) process: Pid,
    /// The user that the sandboxes of each workspace of the plan run as.
    pub(super) identities: Vec<Result<SandboxIdentity, StageFailure>>,
    /// The user for created workspaces. They have ids of their own if it is id-mapped.
    pub(super) created_identity: Option<Result<SandboxIdentity, StageFailure>>,
}

impl LauncherProcess {
    pub(super) fn is_alive(&self) -> bool {
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        matches!(waitid(WaitId::PidFd(self.pidfd.as_fd()), ended), Ok(None))
    }

    /// Waits until the launcher reports that it is ready.
    pub(super) fn receive_reply(&self) -> Result<(), StageFailure> {
        match receive(&self.socket).map_err(at_stage(Stage::Launcher, "receiving a reply"))? {
            Some((SetupReply::Done { .. }, _)) => Ok(()),
            Some((SetupReply::Failed(failure), _)) => Err(failure),
            None => {
                Err(StageFailure::other(Stage::Launcher, "the launcher died before it was ready"))
            }
        }
    }

    /// Writes the launcher's id maps: each id that sandboxes run as, mapped to its id outside.
    /// `created_ids` are those of created workspaces.
    pub(super) fn write_id_maps(&self, created_ids: &[u32]) -> Result<(), StageFailure> {
        let common = self.created_identity.iter().flatten();
        let own_ids = common
            .clone()
            .filter(|common| common.id_mapped)
            .flat_map(|_| created_ids.iter().map(|id| SandboxIdentity::unmapped(*id, *id)));
        let identities: Vec<_> =
            self.identities.iter().flatten().chain(common).copied().chain(own_ids).collect();
        let mut users: Vec<_> = identities.iter().map(|id| (id.uid, id.host_ids.0)).collect();
        let mut groups: Vec<_> = identities.iter().map(|id| (id.gid, id.host_ids.1)).collect();
        for ids in [&mut users, &mut groups] {
            ids.sort_unstable();
            ids.dedup();
        }

        let process = self.process.as_raw_nonzero();
        for (file, text) in [
            ("setgroups", "deny".to_owned()),
            ("uid_map", id_map::format_id_map(&users)),
            ("gid_map", id_map::format_id_map(&groups)),
        ] {
            id_map::write_proc_file(&format!("/proc/{process}/{file}"), &text)?;
        }
        Ok(())
    }
}

impl Drop for LauncherProcess {
    fn drop(&mut self) {
        // It may be dead already. The kernel reaps it.
        let _dead = pidfd_send_signal(&self.pidfd, Signal::KILL);
    }
}
