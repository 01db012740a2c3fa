//! Drops the daemon's own privileges, once the keeper that needs them has been started.

use std::{ffi::CString, io, os::unix::ffi::OsStrExt as _, path::Path, time::Duration};

use caps::{CapSet, Capability, CapsHashSet, errors::CapsError};
use nix::sys::{
    prctl::{set_dumpable, set_no_new_privs},
    resource::{Resource, getrlimit, setrlimit},
};

use crate::daemon::{
    config::{Config, exposure::symlink_chain, listen::ListenAddr, tls::TlsFiles},
    sandbox::landlock::{LandlockRules, PathAccess, ScopeReach},
    sys::{landlock, schedule},
};

/// System paths that the daemon reads: names and addresses, and the libraries that resolve them.
const READABLE_PATHS: &[&str] = &["/etc", "/lib", "/lib64", "/proc", "/run", "/usr"];
/// Lower versions of Landlock refuse to rename from one directory to another.
const MIN_LANDLOCK_ABI: u32 = 2;

/// Scheduler slice of the daemon: about as long as a call takes. The default slice is some
/// milliseconds (Documentation/scheduler/sched-eevdf.rst).
const SCHEDULER_SLICE: Duration = Duration::from_micros(300);

/// Capabilities that a root daemon keeps.
const RETAINED_CAPABILITIES: [Capability; 5] = [
    Capability::CAP_KILL,         // kill sandboxes, which run as another user
    Capability::CAP_DAC_OVERRIDE, // read and write a workspace that belongs to another user
    Capability::CAP_CHOWN,        // give new files to that user
    Capability::CAP_FOWNER,
    Capability::CAP_FSETID,
];

/// Drops the capabilities that serving calls does not need, and forbids to gain new ones.
///
/// Must be called while the process has a single thread: capabilities belong to threads.
pub(super) fn drop_privileges() -> io::Result<()> {
    // Other processes of this user and core dumps must not expose the daemon's memory.
    set_dumpable(false)?;
    set_no_new_privs()?;
    retain_capabilities(&RETAINED_CAPABILITIES.into()).map_err(io::Error::other)
}

/// Drops all capabilities except `retained`. Gains none.
fn retain_capabilities(retained: &CapsHashSet) -> Result<(), CapsError> {
    caps::clear(None, CapSet::Inheritable)?;
    // The effective set must stay within the permitted one (capabilities(7)).
    for set in [CapSet::Effective, CapSet::Permitted] {
        let held = caps::read(None, set)?;
        caps::set(None, set, &(&held & retained))?;
    }
    Ok(())
}

/// Shortens the daemon's scheduler slice, so that it runs soon however many commands compete for
/// CPU.
///
/// Must be called while the process has a single thread, and after the keeper was started: the
/// keeper is the parent of all commands and must not inherit the slice.
pub(super) fn shorten_scheduler_slice() {
    if let Err(error) = schedule::set_time_slice(SCHEDULER_SLICE) {
        tracing::debug!(%error, "cannot shorten the scheduler slice: the daemon waits for CPU as commands do");
    }
}

/// Raises the soft limit of open descriptors to the hard limit, for the daemon and for the keeper.
///
/// Every run holds several descriptors. A process can send one only while its user has fewer in
/// flight than the process may have open (unix(7), ETOOMANYREFS). So the keeper's processes need a
/// higher limit than a command. Sandboxes have limits of their own.
pub(super) fn raise_descriptor_limit() -> io::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    Ok(())
}

/// Confines the daemon with Landlock to its own files and the system files that it reads.
///
/// Its own files are the workspaces, the state directory, that of the audit log, the sockets, the cgroups of its runs, and
/// the files of the configuration, keys and TLS. Must be called while the process has a single thread.
pub(super) fn confine(config: &Config, cgroups: Option<&Path>) -> io::Result<()> {
    let workspaces = config.workspaces.iter();
    let workspaces = workspaces.map(|workspace| (workspace.path.as_path(), PathAccess::Write));
    let created = config.created_workspaces.iter();
    let created = created.map(|created| (created.directory.as_path(), PathAccess::Write));
    let state = (config.state_dir.as_path(), PathAccess::Write);
    // The audit log is rotated: its directory gets new files.
    let audit = config.telemetry.audit.iter();
    let audit = audit.filter_map(|audit| Some((parent_dir(&audit.path)?, PathAccess::Write)));
    let cgroups = cgroups.map(|cgroups| (cgroups, PathAccess::Write));

    let sockets = config.listeners.iter().filter_map(|listener| match &listener.address {
        ListenAddr::Unix(path) => Some((parent_dir(path)?, PathAccess::Sockets)),
        ListenAddr::Tcp(_) => None,
    });

    // Editors replace these files as a whole, so a rule for the file would not cover the new one.
    // Allow to read the directories of the files and of the links that lead to them.
    let keys = config.keys.iter().map(|keys| keys.path.as_path());
    let tls = config.listeners.iter().filter_map(|listener| listener.tls.as_ref());
    let tls = tls.chain(&config.tls).flat_map(TlsFiles::paths);
    // The signing key of a fleet was read before.
    let fleet = config.fleet.iter().flat_map(|fleet| fleet.servers.connection_files());
    let own_files = keys.chain(config.config_path.as_deref()).chain(tls).chain(fleet);
    let reloaded: Vec<_> = own_files.flat_map(symlink_chain).collect();
    let read = reloaded.iter().filter_map(|file| Some((parent_dir(file)?, PathAccess::Read)));

    let own: Vec<_> = workspaces
        .chain(created)
        .chain(sockets)
        .chain([state])
        .chain(audit)
        .chain(cgroups)
        .chain(read)
        .collect();
    if !restrict_with_landlock(&own)? {
        tracing::warn!(
            remedy = "use Linux 5.19 or newer with landlock in the boot parameter lsm=",
            "this kernel lacks Landlock ABI 2: the daemon itself is not confined to its own files"
        );
    }
    Ok(())
}

/// The directory of a file; `.` for a bare name.
pub(super) fn parent_dir(path: &Path) -> Option<&Path> {
    let directory = path.parent()?;
    Some(if directory.as_os_str().is_empty() { Path::new(".") } else { directory })
}

/// Confines this thread to `own` and the system paths. Returns `false` if this kernel cannot.
///
/// Signals stay possible: the daemon kills sandboxes, which are in other Landlock domains.
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
    fn confined_daemon_cannot_reach_other_files() {
        let [own, sockets, other] = [0, 1, 2].map(|_| tempfile::tempdir().unwrap());
        fs::write(other.path().join("f"), "").unwrap();
        fs::write(sockets.path().join("f"), "").unwrap();
        let [own_path, sockets_path, other_path] =
            [&own, &sockets, &other].map(|directory| directory.path().to_owned());

        // Landlock rules apply to one thread.
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

            let denied = [
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
            denied.map(|result| result.map_err(|error| error.kind()))
        });

        let expected = Err(ErrorKind::PermissionDenied);
        assert_eq!(confined.join().unwrap(), [expected; 10]);
    }
}
