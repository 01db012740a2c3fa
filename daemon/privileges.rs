//! What the daemon itself gives up once the keeper, which needs it, has been started.

use std::io;

use rustix::{
    process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit},
    thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs},
};

/// Capabilities that a root daemon keeps.
const KEPT: CapabilitySet = CapabilitySet::KILL // ending sandboxes, which run as another user
    .union(CapabilitySet::DAC_OVERRIDE) // reading and writing a workspace that belongs to another user
    .union(CapabilitySet::CHOWN) // leaving its files to that user
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID);

/// Gives up what serving calls does not need. To be called while the process has one thread:
/// capabilities belong to threads.
pub(super) fn give_up() -> io::Result<()> {
    // Neither other processes of this user nor a core dump may see what the daemon knows.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    set_no_new_privs(true)?;
    let held = capabilities(None)?;
    set_capabilities(
        None,
        CapabilitySets {
            effective: held.effective & KEPT,
            permitted: held.permitted & KEPT,
            inheritable: CapabilitySet::empty(),
        },
    )?;
    Ok(())
}

/// Takes as many descriptors as it may have, for itself and for the keeper: every run holds a
/// handful, and the kernel lets a process send a descriptor only while its user has fewer in flight
/// than the sender may have open (unix(7), ETOOMANYREFS), so the keeper's processes must be allowed
/// more than a command is. Sandboxes have limits of their own.
pub(super) fn raise_descriptor_limit() -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        },
    )?;
    Ok(())
}
