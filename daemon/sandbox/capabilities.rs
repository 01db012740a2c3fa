//! Giving up capabilities (capabilities(7)), for good and checked.

use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, capabilities,
    capability_is_in_ambient_set, capability_is_in_bounding_set, clear_ambient_capability_set,
    no_new_privs, remove_capability_from_bounding_set, set_capabilities,
    set_capabilities_secure_bits,
};

use crate::daemon::sys::Errno;

/// Capabilities that making sandboxes needs in a slot's user namespace; the rest is dropped there
/// once instead of in each sandbox.
const FOR_BUILDING: CapabilitySet = CapabilitySet::SYS_ADMIN.union(CapabilitySet::SETPCAP);

/// Drops from the bounding set what making sandboxes does not need.
pub(super) fn keep_for_building() -> Result<(), Errno> {
    drop_bounding(|capability| FOR_BUILDING.contains(capability))
}

/// Empties all five sets and locks the rules by which they could grow again. Allocates nothing.
pub(super) fn give_up_all() -> Result<(), Errno> {
    // NOROOT: executing as uid 0 gives nothing. NO_SETUID_FIXUP and KEEP_CAPS (locked off):
    // changing user ids gives nothing. NO_CAP_AMBIENT_RAISE: nothing can be kept across execve. All
    // locked.
    set_capabilities_secure_bits(
        CapabilitiesSecureBits::NO_ROOT
            | CapabilitiesSecureBits::NO_ROOT_LOCKED
            | CapabilitiesSecureBits::NO_SETUID_FIXUP
            | CapabilitiesSecureBits::NO_SETUID_FIXUP_LOCKED
            | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE
            | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED
            | CapabilitiesSecureBits::KEEP_CAPS_LOCKED,
    )?;
    drop_bounding(|_| false)?;
    clear_ambient_capability_set()?;
    let none = CapabilitySet::empty();
    set_capabilities(
        None,
        CapabilitySets {
            effective: none,
            permitted: none,
            inheritable: none,
        },
    )
}

/// Checks that all five sets are empty and no_new_privs is on. Allocates nothing.
pub(super) fn check_none() -> Result<(), Errno> {
    let sets = capabilities(None)?;
    if !(sets.effective | sets.permitted | sets.inheritable).is_empty() || !no_new_privs()? {
        return Err(Errno::PERM);
    }
    for capability in known()? {
        if capability_is_in_bounding_set(capability)? || capability_is_in_ambient_set(capability)? {
            return Err(Errno::PERM);
        }
    }
    Ok(())
}

fn drop_bounding(keep: impl Fn(CapabilitySet) -> bool) -> Result<(), Errno> {
    for capability in known()? {
        if !keep(capability) && capability_is_in_bounding_set(capability)? {
            remove_capability_from_bounding_set(capability)?;
        }
    }
    Ok(())
}

/// The capabilities that the kernel knows: it answers EINVAL for the first number that it does not.
fn known() -> Result<impl Iterator<Item = CapabilitySet>, Errno> {
    let mut count = 0;
    while count < 64 {
        match capability_is_in_bounding_set(CapabilitySet::from_bits_retain(1 << count)) {
            Ok(_) => count += 1,
            Err(Errno::INVAL) => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok((0..count).map(|number| CapabilitySet::from_bits_retain(1 << number)))
}
