//! What the daemon itself gives up once the keeper, which needs it, has been started.

use std::{ffi::CString, io, os::unix::ffi::OsStrExt as _, path::Path, time::Duration};

use rustix::{
    process::{DumpableBehavior, Resource, Rlimit, getrlimit, set_dumpable_behavior, setrlimit},
    thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs},
};

use super::{
    config::{Config, exposure::symlink_chain, listen::ListenAddr},
    sandbox::landlock::{LandlockRules, PathAccess, ScopeReach},
    sys::{landlock, schedule},
};

/// What the daemon reads beside its own files: names and addresses, and the libraries that look
/// them up.
const READABLE_PATHS: &[&str] = &["/etc", "/lib", "/lib64", "/proc", "/run", "/usr"];
/// Landlock below this version refuses to rename from one directory to another.
const MIN_LANDLOCK_ABI: u32 = 2;

/// How long the daemon runs before others have their turn: a call takes about as long. Others run for
/// some milliseconds (Documentation/scheduler/sched-eevdf.rst).
const SCHEDULER_SLICE: Duration = Duration::from_micros(300);

/// Capabilities that a root daemon keeps.
const RETAINED_CAPABILITIES: CapabilitySet = CapabilitySet::KILL // ending sandboxes, which run as another user
    .union(CapabilitySet::DAC_OVERRIDE) // reading and writing a workspace that belongs to another user
    .union(CapabilitySet::CHOWN) // leaving its files to that user
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID);

/// Gives up what serving calls does not need. To be called while the process has one thread:
/// capabilities belong to threads.
pub(super) fn drop_privileges() -> io::Result<()> {
    // Neither other processes of this user nor a core dump may see what the daemon knows.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    set_no_new_privs(true)?;
    let held = capabilities(None)?;
    set_capabilities(
        None,
        CapabilitySets {
            effective: held.effective & RETAINED_CAPABILITIES,
            permitted: held.permitted & RETAINED_CAPABILITIES,
            inheritable: CapabilitySet::empty(),
        },
    )?;
    Ok(())
}

/// Has the kernel let the daemon have its turn soon, however many processes of commands want theirs.
/// To be called while the process has one thread, once the keeper has been started: what commands
/// run in are its children.
pub(super) fn shorten_scheduler_slice() {
    if let Err(error) = schedule::set_time_slice(SCHEDULER_SLICE) {
        tracing::debug!(%error, "the daemon waits for its turn as commands do");
    }
}

/// Takes as many descriptors as it may have, for itself and for the keeper: every run holds a
/// handful, and the kernel lets a process send a descriptor only while its user has fewer in flight
/// than the sender may have open (unix(7), ETOOMANYREFS), so the keeper's processes must be allowed
/// more than a command is. Sandboxes have limits of their own.
pub(super) fn raise_descriptor_limit() -> io::Result<()> {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
    Ok(())
}

/// Confines the daemon to its workspaces, its state, its sockets and the cgroups of its runs, and what
/// it must read, whatever paths it is given. To be called while the process has one thread.
pub(super) fn confine(config: &Config, cgroups: Option<&Path>) -> io::Result<()> {
    let workspaces = config.workspaces.iter();
    let workspaces = workspaces.map(|workspace| (workspace.path.as_path(), PathAccess::Write));
    let state = (config.state_dir.as_path(), PathAccess::Write);
    let sockets = config.listen.iter().filter_map(|address| match address {
        ListenAddr::Unix(path) => parent_dir(path),
        ListenAddr::Tcp(_) => None,
    });
    let sockets = sockets.map(|folder| (folder, PathAccess::Sockets));
    // They are replaced as a whole: what is allowed is to read what lies where they and the links to them
    // do.
    let keys = config.keys.iter().map(|keys| keys.path.as_path());
    let replaced = keys.chain(config.config_path.as_deref());
    let replaced: Vec<_> = replaced.flat_map(symlink_chain).collect();
    let read = replaced.iter().filter_map(|file| Some((parent_dir(file)?, PathAccess::Read)));
    let cgroups = cgroups.map(|cgroups| (cgroups, PathAccess::Write));
    let own: Vec<_> = workspaces.chain(sockets).chain([state]).chain(cgroups).chain(read).collect();
    if !restrict_with_landlock(&own)? {
        tracing::warn!(
            remedy = "use Linux 5.19 or newer with landlock in the boot parameter lsm=",
            "this kernel has no Landlock that could confine the daemon to its files: only its care keeps it from others"
        );
    }
    Ok(())
}

/// Where a file lies.
fn parent_dir(path: &Path) -> Option<&Path> {
    let folder = path.parent()?;
    Some(match folder.as_os_str().is_empty() {
        true => Path::new("."),
        false => folder,
    })
}

/// Confines this thread to `own` and what the daemon must read. Answers whether this kernel can.
/// Signals stay possible: sandboxes, which the daemon ends, are under other rules.
fn restrict_with_landlock(own: &[(&Path, PathAccess)]) -> io::Result<bool> {
    let abi = landlock::abi_version();
    if abi < MIN_LANDLOCK_ABI {
        return Ok(false);
    }
    let read = READABLE_PATHS.iter().map(|path| (Path::new(path), PathAccess::Read));
    let devices = [(Path::new("/dev"), PathAccess::Devices)];
    let mut rules = Vec::new();
    for (path, access) in read.chain(devices).chain(own.iter().copied()) {
        if path.exists() {
            rules.push((CString::new(path.as_os_str().as_bytes())?, access));
        }
    }
    LandlockRules::new(abi, ScopeReach::Unrestricted, rules).apply()?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::{fs, io::ErrorKind, os::unix::net::UnixListener, thread};

    use super::*;

    #[test]
    fn other_files_are_out_of_reach() {
        let [own, sockets, other] = [0, 1, 2].map(|_| tempfile::tempdir().unwrap());
        fs::write(other.path().join("f"), "").unwrap();
        fs::write(sockets.path().join("f"), "").unwrap();
        let [own_path, sockets_path, other_path] =
            [&own, &sockets, &other].map(|folder| folder.path().to_owned());
        // Rules are a thread's own.
        let confined = thread::spawn(move || {
            let rules = [
                (own_path.as_path(), PathAccess::Write),
                (sockets_path.as_path(), PathAccess::Sockets),
            ];
            assert!(restrict_with_landlock(&rules).unwrap(), "this kernel should have Landlock");
            fs::create_dir(own_path.join("d")).unwrap();
            fs::write(own_path.join("f"), "").unwrap();
            fs::rename(own_path.join("f"), own_path.join("d/f")).unwrap();
            fs::remove_dir_all(own_path.join("d")).unwrap();
            fs::read("/etc/hosts").unwrap();
            let listener = UnixListener::bind(sockets_path.join("s")).unwrap();
            drop(listener);
            fs::remove_file(sockets_path.join("s")).unwrap();
            let refused = [
                fs::read(other_path.join("f")).map(drop),
                fs::write(other_path.join("f"), ""),
                fs::remove_file(other_path.join("f")),
                UnixListener::bind(other_path.join("s")).map(drop),
                fs::write("/etc/jig-test", ""),
                fs::read_dir("/root").map(drop),
                fs::read(sockets_path.join("f")).map(drop),
                fs::write(sockets_path.join("f"), ""),
                fs::write(sockets_path.join("new"), ""),
                fs::create_dir(sockets_path.join("d")),
            ];
            refused.map(|result| result.map_err(|error| error.kind()))
        });
        let denied = Err(ErrorKind::PermissionDenied);
        assert_eq!(confined.join().unwrap(), [denied; 10]);
    }
}
