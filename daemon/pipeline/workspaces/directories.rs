//! The directories of a created workspace.
//!
//! ```text
//! ID              its files
//! ID.persistent/  entered by its owner only
//!   home/         home directory of commands, if it is persistent
//!   tmp/          `/tmp` of commands, if it is persistent
//! ```

use std::{io, os::fd::OwnedFd};

use rustix::{
    fs::{AtFlags, Mode, OFlags, fchmod, fchown, fstat, mkdirat, openat, statat},
    process::{Gid, Uid, geteuid},
};

use crate::daemon::{
    sandbox::plan::{
        PERSISTENT_HOME_NAME, PERSISTENT_TMP_NAME, PersistentDirectories, PersistentIdentities,
        persistent_directory_name,
    },
    sys::project_quota::set_project,
    workspace::{fault_injection, remove_tree},
};

/// Mode of a persistent `/tmp`. Programs check for it. Others than the owner cannot reach it.
const TMP_MODE: u16 = 0o1777;

/// Makes a directory, and gives it to the owner of `parent`, as which commands may have to run.
pub(crate) fn make_directory(parent: &OwnedFd, name: &str) -> io::Result<()> {
    make(parent, name, 0o755)
}

/// Makes the persistent directories of the workspace `name`, unless they exist. Returns what they
/// are, and the directory that has them.
///
/// Their files belong to `project`, if there is one.
pub(crate) fn make_persistent(
    parent: &OwnedFd,
    name: &str,
    wanted: PersistentDirectories,
    project: Option<u32>,
) -> io::Result<(PersistentIdentities, Option<OwnedFd>)> {
    let mut identities = PersistentIdentities::default();
    if wanted == PersistentDirectories::default() {
        return Ok((identities, None));
    }

    let name = persistent_directory_name(name);
    make_if_missing(parent, &name, 0o700, project)?;
    // Only this user can change what is in it.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = openat(parent, name, flags, Mode::empty())?;
    if wanted.home {
        let home = make_if_missing(&directory, PERSISTENT_HOME_NAME, 0o700, project)?;
        identities.home = Some(home);
    }
    if wanted.tmp {
        let tmp = make_if_missing(&directory, PERSISTENT_TMP_NAME, TMP_MODE, project)?;
        identities.tmp = Some(tmp);
    }
    Ok((identities, Some(directory)))
}

/// Removes all directories of the workspace `name` with their content. Succeeds if there are none.
pub(crate) fn remove_directories(parent: &OwnedFd, name: &str) -> io::Result<()> {
    for name in [name, &persistent_directory_name(name)] {
        fault_injection::step();
        remove_tree(parent, name)?;
    }
    fault_injection::step();
    Ok(())
}

/// Gives an existing directory a project, which new files in it inherit.
pub(super) fn assign_project(parent: &OwnedFd, name: &str, project: u32) -> io::Result<()> {
    Ok(set_project(open_directory(parent, name)?, project)?)
}

/// Opens a directory for reading.
pub(super) fn open_directory(parent: &OwnedFd, name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(parent, name, flags, Mode::empty())?)
}

/// Returns device and inode of a directory. Makes it if it is missing.
fn make_if_missing(
    parent: &OwnedFd,
    name: &str,
    mode: u16,
    project: Option<u32>,
) -> io::Result<(u64, u64)> {
    match make(parent, name, mode) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    if let Some(project) = project {
        assign_project(parent, name, project)?;
    }
    let stat = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok((stat.st_dev, stat.st_ino))
}

fn make(parent: &OwnedFd, name: &str, mode: u16) -> io::Result<()> {
    mkdirat(parent, name, Mode::from_raw_mode(mode.into()))?;
    fault_injection::step();
    let directory = open_directory(parent, name)?;
    if mode == TMP_MODE {
        // mkdir(2) applies the umask.
        fchmod(&directory, Mode::from_raw_mode(mode.into()))?;
    }
    let owner = fstat(parent)?;
    if geteuid().is_root() && owner.st_uid != 0 {
        let (uid, gid) = (Uid::from_raw(owner.st_uid), Gid::from_raw(owner.st_gid));
        fchown(&directory, Some(uid), Some(gid))?;
    }
    Ok(())
}
