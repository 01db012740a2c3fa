//! As whom the sandboxes of a workspace run, by what the daemon may do and to whom the workspace
//! belongs.

use std::os::unix::fs::MetadataExt as _;

use rustix::{
    process::{getegid, geteuid},
    thread::{CapabilitySet, capabilities},
};

use super::{
    id_map::{self, DirectoryOwner},
    stage::{Stage, StageFailure},
    wire::SandboxIdentity,
};
use crate::daemon::sys::Errno;

/// What the keeper may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeeperPrivileges {
    uid: u32,
    gid: u32,
    /// Whether it is the machine's root, and not only that of a container's user namespace.
    is_host_root: bool,
    /// Whether it may become another user.
    pub(super) can_set_user: bool,
    /// Whether it may also mount, mapping owners.
    pub(super) can_map_owners: bool,
    /// Whether the daemon may end processes of another user.
    pub(super) can_kill_others: bool,
}

impl KeeperPrivileges {
    /// Finds out; `sandbox_id` is a user that a root daemon takes for its sandboxes.
    pub(super) fn detect(sandbox_id: u32) -> Result<Self, Errno> {
        let held = capabilities(None)?.effective;
        let uid = geteuid();
        let become_others = uid.is_root()
            && held.contains(CapabilitySet::SETUID | CapabilitySet::SETGID)
            && id_map::id_exists(sandbox_id);
        Ok(Self {
            uid: uid.as_raw(),
            gid: getegid().as_raw(),
            is_host_root: uid.is_root() && host_root_is_mapped(),
            can_set_user: become_others,
            can_map_owners: become_others && held.contains(CapabilitySet::SYS_ADMIN),
            can_kill_others: held.contains(CapabilitySet::KILL),
        })
    }

    /// Whether this is the user that has them.
    pub(super) fn is_user(self, uid: u32) -> bool {
        self.uid == uid
    }
}

/// Whether the machine's root has a number in this process's user namespace: what belongs to it in
/// `/proc` shows by that number, else by that of nobody. When it cannot be told, it is taken to.
fn host_root_is_mapped() -> bool {
    std::fs::metadata("/proc/version").map_or(true, |file| file.uid() == 0)
}

/// Chooses: a user of their own where the workspace can be mounted with its owner mapped to it
/// (`try_mapping` sees), else its owner. An ordinary user can only be itself.
pub(super) fn choose_identity(
    rights: KeeperPrivileges,
    sandbox_id: u32,
    owner: DirectoryOwner,
    try_mapping: impl FnOnce() -> Result<(), StageFailure>,
) -> Result<SandboxIdentity, StageFailure> {
    if rights.uid != 0 {
        return Ok(SandboxIdentity::unmapped(rights.uid, rights.gid));
    }
    let as_owner = (owner.uid != 0).then(|| SandboxIdentity::unmapped(owner.uid, owner.gid));
    if rights.can_map_owners {
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
        Some(owner) if rights.can_set_user => Ok(owner),
        // Root of a container's user namespace is an ordinary user of the machine. Its commands get
        // another number, so that they do not take themselves for root.
        _ if !rights.is_host_root => Ok(SandboxIdentity {
            host_ids: (rights.uid, rights.gid),
            ..SandboxIdentity::unmapped(sandbox_id, sandbox_id)
        }),
        _ if rights.can_set_user => Err(root_owned_failure(sandbox_id)),
        // Its commands would be root of the machine.
        _ => Err(StageFailure::from_errno(
            Stage::Identity,
            Errno::PERM,
            format!(
                "the daemon is root and cannot become user {sandbox_id} (it needs CAP_SETUID, CAP_SETGID, CAP_SYS_ADMIN, and that id in its user namespace)"
            ),
        )),
    }
}

/// As [`choose`], for commands that stay in the daemon's namespaces, where nobody can be mapped.
pub(super) fn choose_identity_without_namespaces(
    rights: KeeperPrivileges,
    sandbox_id: u32,
    owner: DirectoryOwner,
) -> Result<SandboxIdentity, StageFailure> {
    match (rights.uid, owner.uid) {
        (0, _) if !(rights.can_set_user && rights.can_kill_others) => {
            Err(StageFailure::from_errno(
                Stage::Identity,
                Errno::PERM,
                "the daemon is root and cannot become another user (it needs CAP_SETUID, CAP_SETGID and CAP_KILL)",
            ))
        }
        (0, 0) => Err(root_owned_failure(sandbox_id)),
        (0, _) => Ok(SandboxIdentity::unmapped(owner.uid, owner.gid)),
        (uid, _) => Ok(SandboxIdentity::unmapped(uid, rights.gid)),
    }
}

/// That the workspace belongs to root, and its owner cannot be mapped to another user.
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
    const CONTAINERS_ROOT: KeeperPrivileges = KeeperPrivileges { uid: 0, gid: 0, ..ORDINARY };
    const BARE_ROOT: KeeperPrivileges = KeeperPrivileges { is_host_root: true, ..CONTAINERS_ROOT };
    const DEFAULT_ROOT: KeeperPrivileges =
        KeeperPrivileges { can_set_user: true, can_kill_others: true, ..BARE_ROOT };
    const FULL_ROOT: KeeperPrivileges = KeeperPrivileges { can_map_owners: true, ..DEFAULT_ROOT };

    #[test]
    fn commands_are_never_root() {
        let own = SandboxIdentity::unmapped(61_000, 61_000);
        let mapped = SandboxIdentity { id_mapped: true, ..own };
        let posing = SandboxIdentity { host_ids: (0, 0), ..own };
        let (root, somebody) =
            (DirectoryOwner { uid: 0, gid: 0 }, DirectoryOwner { uid: 5, gid: 6 });
        let (themselves, same) =
            (SandboxIdentity::unmapped(1000, 1001), SandboxIdentity::unmapped(5, 6));
        for (rights, owner, can_map, expected, in_place) in [
            (ORDINARY, root, true, Some(themselves), Some(themselves)),
            (FULL_ROOT, root, true, Some(mapped), None),
            (FULL_ROOT, root, false, None, None),
            (FULL_ROOT, somebody, false, Some(same), Some(same)),
            (DEFAULT_ROOT, somebody, true, Some(same), Some(same)),
            (DEFAULT_ROOT, root, true, None, None),
            (BARE_ROOT, somebody, true, None, None),
            (CONTAINERS_ROOT, root, true, Some(posing), None),
            (CONTAINERS_ROOT, somebody, true, Some(posing), None),
        ] {
            let mapping =
                || can_map.then_some(()).ok_or_else(|| StageFailure::other(Stage::MapOwner, ""));
            let chosen = choose_identity(rights, 61_000, owner, mapping).ok();
            assert_eq!(chosen, expected, "{rights:?} {owner:?} {can_map}");
            let chosen = choose_identity_without_namespaces(rights, 61_000, owner).ok();
            assert_eq!(chosen, in_place, "{rights:?} {owner:?}");
        }
    }
}
