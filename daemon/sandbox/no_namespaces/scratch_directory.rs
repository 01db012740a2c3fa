//! The directory that one run has for temporary files and as its home, in place of the file systems
//! that it has at the higher levels.

use std::{
    ffi::{CString, OsStr},
    fs::{self, DirBuilder},
    io,
    os::{
        fd::OwnedFd,
        unix::{
            ffi::OsStrExt as _,
            fs::{DirBuilderExt as _, MetadataExt as _},
        },
    },
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    fs::{
        AtFlags, CWD, Dir, FlockOperation, Mode, OFlags, chmodat, flock, mkdirat, openat, renameat,
        unlinkat,
    },
    io::Errno,
    process::geteuid,
};

use super::super::{image::ExecRequest, plan::SANDBOX_HOME};

/// Beginning of its name.
const SCRATCH_PREFIX: &str = "jig-run-";
/// Source of the rest.
const RANDOM_UUID_PATH: &str = "/proc/sys/kernel/random/uuid";
/// What is younger may be about to be locked.
const MIN_LEFTOVER_AGE: Duration = Duration::from_secs(60);
/// Names that are held at a time while it is removed: a run can make as many as the disk takes.
const MAX_NAMES_PER_PASS: usize = 4096;
/// Directories in it.
const SCRATCH_SUBDIRECTORIES: [&str; 2] = ["home", "tmp"];

/// A name for a directory that is not there yet, in `folder`.
pub(super) fn new_path(folder: &Path) -> io::Result<PathBuf> {
    let random = fs::read_to_string(RANDOM_UUID_PATH)?;
    Ok(folder.join(format!("{SCRATCH_PREFIX}{}", random.trim())))
}

/// Makes it. Fails where something is there already. While what is answered is open, nobody takes it
/// for one that was left behind.
pub(super) fn create_scratch(path: &Path) -> io::Result<OwnedFd> {
    let mut private = DirBuilder::new();
    private.mode(0o700).create(path)?;
    let lock = open_directory(CWD, path)?;
    flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    for part in SCRATCH_SUBDIRECTORIES {
        private.create(path.join(part))?;
    }
    Ok(lock)
}

/// Removes what runs have left in `folder` whose supervisors were killed together with all that would
/// have cleaned up after them.
pub(super) fn remove_leftovers(folder: &Path) -> io::Result<()> {
    let own = geteuid().as_raw();
    for entry in fs::read_dir(folder)? {
        let (name, path) = entry.map(|entry| (entry.file_name(), entry.path()))?;
        let metadata = fs::symlink_metadata(&path);
        let old = metadata.is_ok_and(|found| {
            let age = found.modified().ok().and_then(|time| time.elapsed().ok());
            found.is_dir() && found.uid() == own && age.is_some_and(|age| age > MIN_LEFTOVER_AGE)
        });
        if old && name.as_bytes().starts_with(SCRATCH_PREFIX.as_bytes()) {
            let lock = open_directory(CWD, &path)?;
            if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
                remove_scratch(&path)?;
            }
        }
    }
    Ok(())
}

/// Has a command use the directory at `path`: `HOME` and `TMPDIR` name it, unless the request has
/// given them other values than the ones that every command gets. Git does nothing where it is refused
/// its settings in `/etc`, so it is told to do without.
pub(in super::super) fn redirect_to_scratch(command: &ExecRequest, path: &OsStr) -> ExecRequest {
    let mut settled = command.clone();
    for variable in &mut settled.envp {
        let part = match variable.to_bytes() {
            bytes if bytes.strip_prefix(b"HOME=") == Some(SANDBOX_HOME.as_bytes()) => "home",
            b"TMPDIR=/tmp" => "tmp",
            _ => continue,
        };
        let name = if part == "home" { "HOME=" } else { "TMPDIR=" };
        let value = [name.as_bytes(), path.as_bytes(), b"/", part.as_bytes()].concat();
        if let Ok(value) = CString::new(value) {
            *variable = value;
        }
    }
    let variable = c"GIT_CONFIG_NOSYSTEM=1";
    let name = b"GIT_CONFIG_NOSYSTEM=";
    let is_given = |given: &CString| given.to_bytes().starts_with(name);
    if !settled.envp.iter().any(is_given) {
        settled.envp.push(variable.to_owned());
    }
    settled
}

/// Removes it, whatever commands have put there. To be called when they are gone.
///
/// However deep it goes, no more than two directories are open: what lies in a directory in it is
/// moved up before that is removed. However many names there are, few are held. Nothing is followed.
pub(super) fn remove_scratch(path: &Path) -> io::Result<()> {
    let top = open_directory(CWD, path)?;
    let mut count = 0_u64;
    loop {
        let names = list_names(&top)?;
        if names.is_empty() {
            break;
        }
        for name in names {
            if unlink_file(&top, &name)? {
                continue;
            }
            let below = open_directory(&top, name.as_c_str())?;
            loop {
                let names = list_names(&below)?;
                if names.is_empty() {
                    break;
                }
                for inner in names {
                    if !unlink_file(&below, &inner)? {
                        move_to_top(&below, &inner, &top, &mut count)?;
                    }
                }
            }
            unlinkat(&top, name.as_c_str(), AtFlags::REMOVEDIR)?;
        }
    }
    fs::remove_dir(path)
}

/// Moves a directory to a name of its own in `top`.
fn move_to_top(
    below: &OwnedFd,
    inner: &CString,
    top: &OwnedFd,
    count: &mut u64,
) -> Result<(), Errno> {
    // A directory can be moved by who may write in it, for `..` changes.
    let _own = open_directory(below, inner.as_c_str())?;
    loop {
        *count += 1;
        // Where a name is taken, the next is not.
        let up = format!(".{count}");
        match mkdirat(top, up.as_str(), Mode::RWXU) {
            Ok(()) => return renameat(below, inner.as_c_str(), top, up.as_str()),
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Opens a directory, giving its owner all rights to it.
fn open_directory(
    at: impl rustix::fd::AsFd,
    name: impl rustix::path::Arg + Copy,
) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(&at, name, flags, Mode::empty()) {
        Err(Errno::ACCESS) => {}
        Ok(opened) if rustix::fs::accessat(&at, name, full_access(), AtFlags::empty()).is_ok() => {
            return Ok(opened);
        }
        Ok(_) => {}
        Err(errno) => return Err(errno),
    }
    // Only the commands' user is here, and they are gone: nothing is put in its place meanwhile.
    chmodat(&at, name, Mode::RWXU, AtFlags::empty())?;
    openat(&at, name, flags, Mode::empty())
}

fn full_access() -> rustix::fs::Access {
    rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK
}

/// Names in a directory, the first [`NAMES`] of them.
fn list_names(directory: &OwnedFd) -> Result<Vec<CString>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        if names.len() == MAX_NAMES_PER_PASS {
            break;
        }
        let name = entry?.file_name().to_owned();
        if name.as_c_str() != c"." && name.as_c_str() != c".." {
            names.push(name);
        }
    }
    Ok(names)
}

/// Removes what is no directory; answers whether it was none.
fn unlink_file(directory: &OwnedFd, name: &CString) -> Result<bool, Errno> {
    match unlinkat(directory, name.as_c_str(), AtFlags::empty()) {
        Ok(()) => Ok(true),
        Err(Errno::ISDIR | Errno::PERM) => Ok(false),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf};

    use super::{create_scratch, new_path, remove_leftovers, remove_scratch};

    #[test]
    fn what_nobody_holds_is_swept_once_it_is_old() {
        let folder = tempfile::tempdir().unwrap();
        let old = |path: &std::path::Path| {
            let hour = std::time::Duration::from_secs(3600);
            let time = std::time::SystemTime::now() - hour;
            fs::File::open(path).unwrap().set_modified(time).unwrap();
        };
        let [held, left, fresh] = [0; 3].map(|_| new_path(folder.path()).unwrap());
        let other = folder.path().join("other");
        let _lock = create_scratch(&held).unwrap();
        drop((create_scratch(&left).unwrap(), create_scratch(&fresh).unwrap()));
        fs::create_dir(&other).unwrap();
        for path in [&held, &left, &other] {
            old(path);
        }
        remove_leftovers(folder.path()).unwrap();
        assert!(!left.exists());
        assert!(held.exists() && fresh.exists() && other.exists());
    }

    #[test]
    fn whatever_is_in_it_is_removed_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let outside = folder.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("file"), "kept").unwrap();
        let path = new_path(folder.path()).unwrap();
        create_scratch(&path).unwrap();
        assert!(create_scratch(&path).is_err(), "what is there is not taken over");
        let mut deep = path.join("tmp");
        for _ in 0..400 {
            deep.push("deeper");
            fs::create_dir(&deep).unwrap();
            fs::write(deep.join("file"), "").unwrap();
        }
        for number in 0..2 * super::MAX_NAMES_PER_PASS {
            fs::write(path.join(format!("tmp/{number}")), "").unwrap();
        }
        for name in ["home/.1", "home/.2", "tmp/.1"] {
            fs::create_dir_all(path.join(name).join("x")).unwrap();
        }
        std::os::unix::fs::symlink(&outside, path.join("home/link")).unwrap();
        std::os::unix::fs::symlink(&outside, path.join("link")).unwrap();
        let closed: PathBuf = path.join("home/closed");
        fs::create_dir(&closed).unwrap();
        fs::create_dir(closed.join("more")).unwrap();
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o000)).unwrap();
        remove_scratch(&path).unwrap();
        assert!(!path.exists());
        assert_eq!(fs::read_to_string(outside.join("file")).unwrap(), "kept");
    }
}
