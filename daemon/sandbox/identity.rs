//! Chooses the user that the sandboxes of a workspace run as, from the daemon's privileges and the
//! owner of the workspace.

use std::os::unix::fs::MetadataExt as _;

use caps::{CapSet, Capability, errors::CapsError};
use rustix::process::{getegid, geteuid};

use super::{
    id_map::{self, DirectoryOwner},
    stage::{Stage, StageFailure},
    wire::SandboxIdentity,
};
use crate::daemon::sys::Errno;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeeperPrivileges {
    uid: u32,
    gid: u32,
    /// Whether the keeper is the machine's root, not only root of a container's user namespace.
    is_host_root: bool,
    /// Whether the keeper may change to another user.
    pub(super) can_set_user: bool,
    /// Whether the keeper may also make id-mapped mounts.
    pub(super) can_map_owners: bool,
    /// Whether the daemon may kill processes of another user.
    pub(super) can_kill_others: bool,
}

impl KeeperPrivileges {
    /// Detects the privileges. `sandbox_id` is a user id that a root daemon uses for sandboxes.
    pub(super) fn detect(sandbox_id: u32) -> Result<Self, CapsError> {
        let effective = caps::read(None, CapSet::Effective)?;
        let uid = geteuid();
        let can_set_user = uid.is_root()
            && effective.contains(&Capability::CAP_SETUID)
            && effective.contains(&Capability::CAP_SETGID)
            && id_map::id_exists(sandbox_id);

        Ok(Self {
            uid: uid.as_raw(),
            gid: getegid().as_raw(),
            is_host_root: uid.is_root() && host_root_is_mapped(),
            can_set_user,
            can_map_owners: can_set_user && effective.contains(&Capability::CAP_SYS_ADMIN),
            can_kill_others: effective.contains(&Capability::CAP_KILL),
        })
    }

    pub(super) fn is_user(self, uid: u32) -> bool {
        self.uid == uid
    }
}

/// Whether the machine's root has an id in this process's user namespace. If so, root's files in
/// `/proc` show id 0, else the overflow id. If that cannot be read, returns true.
fn host_root_is_mapped() -> bool {
    std::fs::metadata("/proc/version").map_or(true, |file| file.uid() == 0)
}

/// Chooses the user of a workspace's sandboxes.
///
/// A root daemon uses a separate user if the workspace can be mounted with its owner mapped to that
/// user (`try_mapping` checks this). Otherwise it uses the workspace's owner. An ordinary user can
/// only use itself.
pub(super) fn choose_identity(
    privileges: KeeperPrivileges,
    sandbox_id: u32,
    owner: DirectoryOwner,
    try_mapping: impl FnOnce() -> Result<(), StageFailure>,
) -> Result<SandboxIdentity, StageFailure> {
    if privileges.uid != 0 {
        return Ok(SandboxIdentity::unmapped(privileges.uid, privileges.gid));
    }

    let as_owner = (owner.uid != 0).then(|| SandboxIdentity::unmapped(owner.uid, owner.gid));
    if privileges.can_map_owners {
        return match (try_mapping(), as_owner) {
            (Ok(()), _) => Ok(SandboxIdentity {
                id_mapped: true,
                ..SandboxIdentity::unmapped(sandbox_id, sandbox_id)
            }),
            (Err(_), Some(owner)) => Ok(owner),
            (Err(failure), None) => Err(failure),
        };
    }

    match as_owner {
        Some(owner) if privileges.can_set_user => Ok(owner),
        // Root of a container's user namespace is an ordinary user of the machine. Its commands see
        // another id, so that they do not treat themselves as root.
        _ if !privileges.is_host_root => Ok(SandboxIdentity {
            host_ids: (privileges.uid, privileges.gid),
            ..SandboxIdentity::unmapped(sandbox_id, sandbox_id)
        }),
        _ if privileges.can_set_user => Err(root_owned_failure(sandbox_id)),
        // The commands would be the machine's root.
        _ => Err(StageFailure::from_errno(
            Stage::Identity,
            Errno::PERM,
            format!(
                "the daemon is root and cannot become user {sandbox_id} (it needs CAP_SETUID, CAP_SETGID, CAP_SYS_ADMIN, and that id in its user namespace)"
            ),
        )),
    }
}

/// As [`choose_identity`], for commands in the daemon's own namespaces (L1), where ids cannot be
/// mapped.
pub(super) fn choose_identity_without_namespaces(
    privileges: KeeperPrivileges,
    sandbox_id: u32,
    owner: DirectoryOwner,
) -> Result<SandboxIdentity, StageFailure> {
    match (privileges.uid, owner.uid) {
        (0, _) if !(privileges.can_set_user && privileges.can_kill_others) => {
            Err(StageFailure::from_errno(
                Stage::Identity,
                Errno::PERM,
                "the daemon is root and cannot become another user (it needs CAP_SETUID, CAP_SETGID and CAP_KILL)",
            ))
        }
        (0, 0) => Err(root_owned_failure(sandbox_id)),
        (0, _) => Ok(SandboxIdentity::unmapped(owner.uid, owner.gid)),
        (uid, _) => Ok(SandboxIdentity::unmapped(uid, privileges.gid)),
    }
}

/// The failure when the workspace belongs to root and its owner cannot be mapped to another user.
fn root_owned_failure(sandbox_id: u32) -> StageFailure {
    StageFailure::other(
        Stage::WorkspaceOwner,
        format!(
            "the workspace belongs to root, commands never run as root, and user {sandbox_id} could not write to it"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::{
        DirectoryOwner, KeeperPrivileges, SandboxIdentity, Stage, StageFailure, choose_identity,
        choose_identity_without_namespaces,
    };

    const ORDINARY: KeeperPrivileges = KeeperPrivileges {
        uid: 1000,
        gid: 1001,
        is_host_root: false,
        can_set_user: false,
        can_map_owners: false,
        can_kill_others: false,
    };
    const CONTAINER_ROOT: KeeperPrivileges = KeeperPrivileges { uid: 0, gid: 0, ..ORDINARY };
    const BARE_ROOT: KeeperPrivileges = KeeperPrivileges { is_host_root: true, ..CONTAINER_ROOT };
    const DEFAULT_ROOT: KeeperPrivileges =
        KeeperPrivileges { can_set_user: true, can_kill_others: true, ..BARE_ROOT };
    const FULL_ROOT: KeeperPrivileges = KeeperPrivileges { can_map_owners: true, ..DEFAULT_ROOT };

    #[test]
    fn commands_are_never_root() {
        let sandbox_user = SandboxIdentity::unmapped(61_000, 61_000);
        let mapped = SandboxIdentity { id_mapped: true, ..sandbox_user };
        let unmapped_root = SandboxIdentity { host_ids: (0, 0), ..sandbox_user };
        let root = DirectoryOwner { uid: 0, gid: 0 };
        let other = DirectoryOwner { uid: 5, gid: 6 };
        let daemon_user = SandboxIdentity::unmapped(1000, 1001);
        let as_other = SandboxIdentity::unmapped(5, 6);

        for (privileges, owner, can_map, expected, without_namespaces) in [
            (ORDINARY, root, true, Some(daemon_user), Some(daemon_user)),
            (FULL_ROOT, root, true, Some(mapped), None),
            (FULL_ROOT, root, false, None, None),
            (FULL_ROOT, other, false, Some(as_other), Some(as_other)),
            (DEFAULT_ROOT, other, true, Some(as_other), Some(as_other)),
            (DEFAULT_ROOT, root, true, None, None),
            (BARE_ROOT, other, true, None, None),
            (CONTAINER_ROOT, root, true, Some(unmapped_root), None),
            (CONTAINER_ROOT, other, true, Some(unmapped_root), None),
        ] {
            let mapping =
                || can_map.then_some(()).ok_or_else(|| StageFailure::other(Stage::MapOwner, ""));
            let chosen = choose_identity(privileges, 61_000, owner, mapping).ok();
            assert_eq!(chosen, expected, "{privileges:?} {owner:?} {can_map}");

            let chosen = choose_identity_without_namespaces(privileges, 61_000, owner).ok();
            assert_eq!(chosen, without_namespaces, "{privileges:?} {owner:?}");
        }
    }
}
