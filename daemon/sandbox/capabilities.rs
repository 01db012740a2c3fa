//! Drops capabilities (capabilities(7)) for good, and verifies it.

use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, capabilities,
    capability_is_in_ambient_set, capability_is_in_bounding_set, clear_ambient_capability_set,
    no_new_privs, remove_capability_from_bounding_set, set_capabilities,
    set_capabilities_secure_bits,
};

use crate::daemon::sys::Errno;

/// Ensures that this process and its descendants can never gain a capability, neither by executing
/// a program nor by changing user ids. Irreversible. Capabilities that are permitted now stay
/// usable: making sandboxes needs them.
///
/// Called once per slot, because it makes a system call for each capability. Sandboxes inherit the
/// result. Only a new user namespace could fill the bounding set again, and sandboxes are made
/// without one.
pub(super) fn forbid_privilege_gain() -> Result<(), Errno> {
    // NO_ROOT: executing as uid 0 grants nothing. NO_SETUID_FIXUP and KEEP_CAPS (locked off):
    // changing user ids grants nothing. NO_CAP_AMBIENT_RAISE: nothing persists across execve(2).
    // All are locked.
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

/// Drops the capabilities that [`forbid_privilege_gain`] has left. Allocates nothing.
pub(super) fn drop_all() -> Result<(), Errno> {
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
}

/// Checks that no capability is left and that no_new_privs is on. Allocates nothing.
///
/// Without permitted capabilities there are no ambient ones (capabilities(7)). The slot keeper has
/// checked that the bounding set is empty.
pub(super) fn check_dropped() -> Result<(), Errno> {
    let sets = capabilities(None)?;
    if !(sets.effective | sets.permitted | sets.inheritable).is_empty() || !no_new_privs()? {
        return Err(Errno::PERM);
    }
    Ok(())
}

/// Checks all five sets, capability by capability, and no_new_privs. Allocates nothing.
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

/// The capabilities that the kernel knows: it returns EINVAL for the first number beyond them.
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
