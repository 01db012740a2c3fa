//! As whom the sandboxes of a workspace run, by what the daemon may do and to whom the workspace
//! belongs.

use std::os::unix::fs::MetadataExt as _;

use rustix::{
    process::{getegid, geteuid},
    thread::{CapabilitySet, capabilities},
};

use super::{
    id_map::{self, Owner},
    stage::{Failure, Stage},
    wire::Identity,
};
use crate::daemon::sys::Errno;

/// What the keeper may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rights {
    uid: u32,
    gid: u32,
    /// Whether it is the machine's root, and not only that of a container's user namespace.
    is_the_machines_root: bool,
    /// Whether it may become another user.
    pub(super) become_others: bool,
    /// Whether it may also mount, mapping owners.
    pub(super) map_owners: bool,
    /// Whether the daemon may end processes of another user.
    pub(super) end_others: bool,
}

impl Rights {
    /// Finds out; `sandbox_id` is a user that a root daemon takes for its sandboxes.
    pub(super) fn find(sandbox_id: u32) -> Result<Self, Errno> {
        let held = capabilities(None)?.effective;
        let uid = geteuid();
        let become_others = uid.is_root()
            && held.contains(CapabilitySet::SETUID | CapabilitySet::SETGID)
            && id_map::exists(sandbox_id);
        Ok(Self {
            uid: uid.as_raw(),
            gid: getegid().as_raw(),
            is_the_machines_root: uid.is_root() && the_machines_root_is_mapped(),
            become_others,
            map_owners: become_others && held.contains(CapabilitySet::SYS_ADMIN),
            end_others: held.contains(CapabilitySet::KILL),
        })
    }

    /// Whether this is the user that has them.
    pub(super) fn is(self, uid: u32) -> bool {
        self.uid == uid
    }
}

/// Whether the machine's root has a number in this process's user namespace: what belongs to it in
/// `/proc` shows by that number, else by that of nobody. When it cannot be told, it is taken to.
fn the_machines_root_is_mapped() -> bool {
    std::fs::metadata("/proc/version").map_or(true, |file| file.uid() == 0)
}

/// Chooses: a user of their own where the workspace can be mounted with its owner mapped to it
/// (`try_mapping` sees), else its owner. An ordinary user can only be itself.
pub(super) fn choose(
    rights: Rights,
    sandbox_id: u32,
    owner: Owner,
    try_mapping: impl FnOnce() -> Result<(), Failure>,
) -> Result<Identity, Failure> {
    if rights.uid != 0 {
        return Ok(Identity::same(rights.uid, rights.gid));
    }
    let as_owner = (owner.uid != 0).then(|| Identity::same(owner.uid, owner.gid));
    if rights.map_owners {
        return match (try_mapping(), as_owner) {
            (Ok(()), _) => {
                Ok(Identity { id_mapped: true, ..Identity::same(sandbox_id, sandbox_id) })
            }
            (Err(_), Some(owner)) => Ok(owner),
            (Err(failure), None) => Err(failure),
        };
    }
    match as_owner {
        Some(owner) if rights.become_others => Ok(owner),
        // Root of a container's user namespace is an ordinary user of the machine. Its commands get
        // another number, so that they do not take themselves for root.
        _ if !rights.is_the_machines_root => Ok(Identity {
            outside: (rights.uid, rights.gid),
            ..Identity::same(sandbox_id, sandbox_id)
        }),
        _ if rights.become_others => Err(of_root(sandbox_id)),
        // Its commands would be root of the machine.
        _ => Err(Failure::kernel(
            Stage::Identity,
            Errno::PERM,
            format!(
                "the daemon is root and cannot become user {sandbox_id} (it needs CAP_SETUID, CAP_SETGID, CAP_SYS_ADMIN, and that id in its user namespace)"
            ),
        )),
    }
}

/// As [`choose`], for commands that stay in the daemon's namespaces, where nobody can be mapped.
pub(super) fn choose_in_place(
    rights: Rights,
    sandbox_id: u32,
    owner: Owner,
) -> Result<Identity, Failure> {
    match (rights.uid, owner.uid) {
        (0, _) if !(rights.become_others && rights.end_others) => Err(Failure::kernel(
            Stage::Identity,
            Errno::PERM,
            "the daemon is root and cannot become another user (it needs CAP_SETUID, CAP_SETGID and CAP_KILL)",
        )),
        (0, 0) => Err(of_root(sandbox_id)),
        (0, _) => Ok(Identity::same(owner.uid, owner.gid)),
        (uid, _) => Ok(Identity::same(uid, rights.gid)),
    }
}

/// That the workspace belongs to root, and its owner cannot be mapped to another user.
fn of_root(sandbox_id: u32) -> Failure {
    Failure::other(
        Stage::WorkspaceOwner,
        format!(
            "the workspace belongs to root, commands never run as root, and user {sandbox_id} could not write to it"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::{Failure, Identity, Owner, Rights, Stage, choose, choose_in_place};

    const ORDINARY: Rights = Rights {
        uid: 1000,
        gid: 1001,
        is_the_machines_root: false,
        become_others: false,
        map_owners: false,
        end_others: false,
    };
    const CONTAINERS_ROOT: Rights = Rights { uid: 0, gid: 0, ..ORDINARY };
    const BARE_ROOT: Rights = Rights { is_the_machines_root: true, ..CONTAINERS_ROOT };
    const DEFAULT_ROOT: Rights = Rights { become_others: true, end_others: true, ..BARE_ROOT };
    const FULL_ROOT: Rights = Rights { map_owners: true, ..DEFAULT_ROOT };

    #[test]
    fn commands_are_never_root() {
        let own = Identity::same(61_000, 61_000);
        let mapped = Identity { id_mapped: true, ..own };
        let posing = Identity { outside: (0, 0), ..own };
        let (root, somebody) = (Owner { uid: 0, gid: 0 }, Owner { uid: 5, gid: 6 });
        let (themselves, same) = (Identity::same(1000, 1001), Identity::same(5, 6));
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
                || can_map.then_some(()).ok_or_else(|| Failure::other(Stage::MapOwner, ""));
            let chosen = choose(rights, 61_000, owner, mapping).ok();
            assert_eq!(chosen, expected, "{rights:?} {owner:?} {can_map}");
            let chosen = choose_in_place(rights, 61_000, owner).ok();
            assert_eq!(chosen, in_place, "{rights:?} {owner:?}");
        }
    }
}
