//! Giving up capabilities (capabilities(7)), for good and checked.

use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, capabilities,
    capability_is_in_ambient_set, capability_is_in_bounding_set, clear_ambient_capability_set,
    no_new_privs, remove_capability_from_bounding_set, set_capabilities,
    set_capabilities_secure_bits,
};

use crate::daemon::sys::Errno;

/// Makes what this process still has the last that anything made from it can have: nothing can be
/// gained by executing a program or changing user ids, and none of that can be undone. What is
/// permitted now can be used on, which making sandboxes needs.
///
/// Done once for a slot, because it takes a system call for each capability that there is. Its
/// sandboxes inherit it all; only a new user namespace could fill the bounding set again, and they
/// are made without one.
pub(super) fn forbid_privilege_gain() -> Result<(), Errno> {
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
    for capability in known_capabilities()? {
        if capability_is_in_bounding_set(capability)? {
            remove_capability_from_bounding_set(capability)?;
        }
    }
    clear_ambient_capability_set()?;
    check_no_privilege_gain()
}

/// Gives up what [`forbid_gaining`] has left. Allocates nothing.
pub(super) fn drop_all() -> Result<(), Errno> {
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
}

/// Checks that nothing is left and no_new_privs is on. Without a permitted capability there is no
/// ambient one (capabilities(7)); that the bounding set is empty, the slot has checked. Allocates
/// nothing.
pub(super) fn check_dropped() -> Result<(), Errno> {
    let sets = capabilities(None)?;
    if !(sets.effective | sets.permitted | sets.inheritable).is_empty() || !no_new_privs()? {
        return Err(Errno::PERM);
    }
    Ok(())
}

/// Checks all five sets and no_new_privs, one capability after the other. Allocates nothing.
pub(super) fn check_all_sets_empty() -> Result<(), Errno> {
    check_dropped()?;
    check_no_privilege_gain()
}

fn check_no_privilege_gain() -> Result<(), Errno> {
    for capability in known_capabilities()? {
        if capability_is_in_bounding_set(capability)? || capability_is_in_ambient_set(capability)? {
            return Err(Errno::PERM);
        }
    }
    Ok(())
}

/// The capabilities that the kernel knows: it answers EINVAL for the first number that it does not.
fn known_capabilities() -> Result<impl Iterator<Item = CapabilitySet>, Errno> {
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
