//! The directory of an L1 run for temporary files and `HOME`, in place of the file systems of the
//! higher levels.

use std::{
    ffi::{CStr, CString, OsStr},
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

/// Prefix of the directory's name.
const SCRATCH_PREFIX: &str = "jig-run-";
/// Source of the name's random part.
const RANDOM_UUID_PATH: &str = "/proc/sys/kernel/random/uuid";
/// Minimum age of a leftover: a younger directory may not be locked yet.
const MIN_LEFTOVER_AGE: Duration = Duration::from_secs(60);
/// Names that are held in memory at a time during removal: a run can create as many as the disk
/// holds.
const MAX_NAMES_PER_PASS: usize = 4096;
const SCRATCH_SUBDIRECTORIES: [&str; 2] = ["home", "tmp"];
/// Variables that are set, unless one of that name is (git-config(1)).
const GIT_VARIABLES: [(&[u8], &[&CStr]); 2] = [
    (b"GIT_CONFIG_NOSYSTEM=", &[c"GIT_CONFIG_NOSYSTEM=1"]),
    (
        b"GIT_CONFIG_COUNT=",
        &[c"GIT_CONFIG_COUNT=1", c"GIT_CONFIG_KEY_0=safe.directory", c"GIT_CONFIG_VALUE_0=*"],
    ),
];

/// An unused path for a scratch directory in `directory`.
pub(super) fn new_path(directory: &Path) -> io::Result<PathBuf> {
    let random = fs::read_to_string(RANDOM_UUID_PATH)?;
    Ok(directory.join(format!("{SCRATCH_PREFIX}{}", random.trim())))
}

/// Creates the directory. Fails if the path exists. While the returned lock is open, the directory
/// does not count as left over.
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

/// Removes old directories in `directory` of runs whose L1 init and slot were killed.
pub(super) fn remove_leftovers(directory: &Path) -> io::Result<()> {
    let own_uid = geteuid().as_raw();
    for entry in fs::read_dir(directory)? {
        let (name, path) = entry.map(|entry| (entry.file_name(), entry.path()))?;
        let metadata = fs::symlink_metadata(&path);
        let is_old = metadata.is_ok_and(|metadata| {
            let age = metadata.modified().ok().and_then(|time| time.elapsed().ok());
            metadata.is_dir()
                && metadata.uid() == own_uid
                && age.is_some_and(|age| age > MIN_LEFTOVER_AGE)
        });
        if is_old && name.as_bytes().starts_with(SCRATCH_PREFIX.as_bytes()) {
            let lock = open_directory(CWD, &path)?;
            if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
                remove_scratch(&path)?;
            }
        }
    }
    Ok(())
}

/// Makes a command use the directory at `path`: sets `HOME` and `TMPDIR`, unless the request
/// changed them from the defaults of every command.
///
/// Git fails if it cannot read its settings in `/etc`, so a variable makes it ignore them. Others
/// replace the `gitconfig` of higher levels.
pub(in super::super) fn redirect_to_scratch(command: &ExecRequest, path: &OsStr) -> ExecRequest {
    let mut redirected = command.clone();
    for variable in &mut redirected.envp {
        let (name, subdirectory) = match variable.to_bytes() {
            bytes if bytes.strip_prefix(b"HOME=") == Some(SANDBOX_HOME.as_bytes()) => {
                ("HOME=", "home")
            }
            b"TMPDIR=/tmp" => ("TMPDIR=", "tmp"),
            _ => continue,
        };
        let value = [name.as_bytes(), path.as_bytes(), b"/", subdirectory.as_bytes()].concat();
        if let Ok(value) = CString::new(value) {
            *variable = value;
        }
    }

    for (name, variables) in GIT_VARIABLES {
        if !redirected.envp.iter().any(|variable| variable.to_bytes().starts_with(name)) {
            redirected.envp.extend(variables.iter().map(|variable| (*variable).to_owned()));
        }
    }
    redirected
}

/// Removes the directory with all its contents. Called when its commands are gone.
///
/// At most two directories are open at a time, however deep the tree is: the contents of a
/// subdirectory are moved up before it is removed. At most [`MAX_NAMES_PER_PASS`] names are held.
/// Symbolic links are not followed.
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
                for entry in names {
                    if !unlink_file(&below, &entry)? {
                        move_to_top(&below, &entry, &top, &mut count)?;
                    }
                }
            }
            unlinkat(&top, name.as_c_str(), AtFlags::REMOVEDIR)?;
        }
    }
    fs::remove_dir(path)
}

/// Moves a directory to a new name in `top`.
fn move_to_top(
    below: &OwnedFd,
    entry: &CString,
    top: &OwnedFd,
    count: &mut u64,
) -> Result<(), Errno> {
    // Moving a directory needs write access to it, because its `..` changes.
    let _made_writable = open_directory(below, entry.as_c_str())?;
    loop {
        *count += 1;
        // If a name is taken, the next is tried.
        let name = format!(".{count}");
        match mkdirat(top, name.as_str(), Mode::RWXU) {
            Ok(()) => return renameat(below, entry.as_c_str(), top, name.as_str()),
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Opens a directory, and gives its owner all permissions first if needed.
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

    // The run's processes are gone, so the entry cannot be replaced in between.
    chmodat(&at, name, Mode::RWXU, AtFlags::empty())?;
    openat(&at, name, flags, Mode::empty())
}

fn full_access() -> rustix::fs::Access {
    rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK
}

/// The first [`MAX_NAMES_PER_PASS`] names in a directory.
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

/// Removes an entry that is no directory. Returns false for a directory.
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
    fn old_unlocked_directories_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let make_old = |path: &std::path::Path| {
            let hour = std::time::Duration::from_secs(3600);
            let time = std::time::SystemTime::now() - hour;
            fs::File::open(path).unwrap().set_modified(time).unwrap();
        };

        let [locked, left_over, fresh] = [0; 3].map(|_| new_path(directory.path()).unwrap());
        let other = directory.path().join("other");
        let _lock = create_scratch(&locked).unwrap();
        drop((create_scratch(&left_over).unwrap(), create_scratch(&fresh).unwrap()));
        fs::create_dir(&other).unwrap();
        for path in [&locked, &left_over, &other] {
            make_old(path);
        }

        remove_leftovers(directory.path()).unwrap();
        assert!(!left_over.exists());
        assert!(locked.exists() && fresh.exists() && other.exists());
    }

    #[test]
    fn all_contents_are_removed_and_nothing_else() {
        let directory = tempfile::tempdir().unwrap();
        let outside = directory.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("file"), "kept").unwrap();
        let path = new_path(directory.path()).unwrap();
        create_scratch(&path).unwrap();
        assert!(create_scratch(&path).is_err(), "an existing directory is not taken over");

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
