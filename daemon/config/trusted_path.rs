//! Opens credential files through a path that other users cannot change: the key file, and the
//! files of TLS.
//!
//! A user that can replace such a file can give itself access. The walk therefore checks each
//! directory and symbolic link as it opens it, and reads the file that it finds at the end.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, ErrorKind},
    os::{fd::OwnedFd, unix::ffi::OsStringExt as _},
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{CWD, FileType, Mode, OFlags, fstat, openat, readlinkat},
    process::geteuid,
};

/// Symbolic links followed in one path, as in the kernel (path_resolution(7)).
pub(crate) const MAX_SYMLINKS: usize = 40;
/// Write permission of the group and of others.
pub(super) const GROUP_OTHER_WRITE: u32 = 0o022;
/// In a sticky directory, only the owner of an entry can replace it.
const STICKY_BIT: u32 = 0o1000;

/// A walk along a path, component by component.
struct TrustedPathWalk {
    /// The current directory of the walk, and its path.
    directory: OwnedFd,
    path: PathBuf,
    /// Remaining components, in reverse order.
    remaining: Vec<OsString>,
    links_followed: usize,
}

/// Why a file cannot be read, or must not be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum TrustedOpenError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{0}")]
    Untrusted(String),
}

impl TrustedOpenError {
    /// Says what happened and what to do. `if_missing` is the remedy for a missing file.
    pub(super) fn explain(self, if_missing: &str) -> String {
        match self {
            Self::Io(error) if error.kind() == ErrorKind::PermissionDenied => format!(
                "{error}: the daemon reads it as its own user and, after its start, only at the path that it had then: restart the daemon if the path has changed"
            ),
            Self::Io(error) => format!("{error}: {if_missing}"),
            Self::Untrusted(problem) => problem,
        }
    }
}

/// Opens the file at `path` if only the daemon's own user and root can replace it.
///
/// Does not check the mode of the file itself.
pub(super) fn open_trusted(path: &Path) -> Result<File, TrustedOpenError> {
    let path = std::path::absolute(path)?;
    let mut walk = TrustedPathWalk::new(&path)?;
    while let Some(name) = walk.remaining.pop() {
        if let Some(file) = walk.step(&name)? {
            return Ok(file);
        }
    }
    Err(not_a_file())
}

/// Opens the file at `path` without checks of the path.
pub(super) fn open(path: &Path) -> Result<File, TrustedOpenError> {
    open_file_at(&CWD, path.as_os_str(), OFlags::empty())
}

const NOT_A_FILE: &str = "is not a file";

fn not_a_file() -> TrustedOpenError {
    TrustedOpenError::Untrusted(NOT_A_FILE.to_owned())
}

/// Opens a file for reading. Does not wait for the writer of a FIFO.
fn open_file_at(
    directory: &impl std::os::fd::AsFd,
    name: &OsStr,
    flags: OFlags,
) -> Result<File, TrustedOpenError> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC | flags;
    let file = openat(directory, name, flags, Mode::empty());
    let file = file.map_err(io::Error::from)?;
    let stat = fstat(&file).map_err(io::Error::from)?;
    if FileType::from_raw_mode(stat.st_mode).is_file() {
        Ok(file.into())
    } else {
        Err(not_a_file())
    }
}

impl TrustedPathWalk {
    fn new(path: &Path) -> Result<Self, TrustedOpenError> {
        let (directory, root) = open_root()?;
        let mut walk = Self { directory, path: root, remaining: Vec::new(), links_followed: 0 };
        walk.push_path(path);
        Ok(walk)
    }

    /// Puts the components of `path` before the remaining ones.
    fn push_path(&mut self, path: &Path) {
        let names = path.components().filter_map(|component| match component {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
        });
        let names: Vec<_> = names.collect();
        self.remaining.extend(names.into_iter().rev());
    }

    /// Walks one component. Returns the file at the end of the path.
    fn step(&mut self, name: &OsStr) -> Result<Option<File>, TrustedOpenError> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = openat(&self.directory, name, flags, Mode::empty());
        let found = found.map_err(io::Error::from)?;
        let stat = fstat(&found).map_err(io::Error::from)?;
        let path = if name == ".." {
            self.path.parent().unwrap_or(&self.path).to_owned()
        } else {
            self.path.join(name)
        };

        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind.is_symlink() {
            check_owner("a symbolic link on its path", &path, stat.st_uid)?;
            let target = readlinkat(&found, "", Vec::new());
            let target = target.map_err(io::Error::from)?;
            self.follow_link(&PathBuf::from(OsString::from_vec(target.into_bytes())))?;
        } else if kind.is_dir() {
            check_directory(&found, &path)?;
            (self.directory, self.path) = (found, path);
        } else if self.remaining.is_empty() {
            let file = open_file_at(&self.directory, name, OFlags::NOFOLLOW)?;
            let stat = fstat(&file).map_err(io::Error::from)?;
            check_owner("it", &path, stat.st_uid)?;
            return Ok(Some(file));
        } else {
            return Err(io::Error::from(ErrorKind::NotADirectory).into());
        }
        Ok(None)
    }

    fn follow_link(&mut self, target: &Path) -> Result<(), TrustedOpenError> {
        self.links_followed += 1;
        if self.links_followed > MAX_SYMLINKS {
            let problem = "its path has too many symbolic links".to_owned();
            return Err(TrustedOpenError::Untrusted(problem));
        }
        if target.is_absolute() {
            (self.directory, self.path) = open_root()?;
        }
        self.push_path(target);
        Ok(())
    }
}

/// Opens the root directory, and returns it with its path.
fn open_root() -> Result<(OwnedFd, PathBuf), TrustedOpenError> {
    let (path, flags) = (Path::new("/"), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC);
    let root = openat(CWD, path, flags, Mode::empty()).map_err(io::Error::from)?;
    check_directory(&root, path)?;
    Ok((root, path.to_owned()))
}

fn check_directory(directory: &OwnedFd, path: &Path) -> Result<(), TrustedOpenError> {
    let stat = fstat(directory).map_err(io::Error::from)?;
    check_owner("a directory above it", path, stat.st_uid)?;
    let mode = stat.st_mode;
    if mode & GROUP_OTHER_WRITE != 0 && mode & STICKY_BIT == 0 {
        return Err(TrustedOpenError::Untrusted(format!(
            "users other than its owner can write to the directory {} (mode {:04o}), and so replace the file: chmod go-w the directory",
            path.display(),
            mode & 0o7777
        )));
    }
    Ok(())
}

fn check_owner(what: &str, path: &Path, owner: u32) -> Result<(), TrustedOpenError> {
    if owner == 0 || owner == geteuid().as_raw() {
        return Ok(());
    }
    Err(TrustedOpenError::Untrusted(format!(
        "{what} belongs to the user {owner}, which could replace the file: chown {} to the daemon's user or to root",
        path.display()
    )))
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{PermissionsExt as _, chown, lchown, symlink},
    };

    use super::*;

    #[test]
    fn a_file_that_other_users_can_replace_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("keys");
        let path = place.join("keys.toml");
        fs::create_dir(&place).unwrap();
        fs::write(&path, "").unwrap();
        let with_mode = |mode: u32| {
            fs::set_permissions(&place, fs::Permissions::from_mode(mode)).unwrap();
            open_trusted(&path)
        };
        for mode in [0o700, 0o755, 0o1777] {
            with_mode(mode).unwrap();
        }
        for mode in [0o770, 0o757, 0o777] {
            let problem = with_mode(mode).unwrap_err().to_string();
            assert!(problem.contains("chmod go-w"), "{problem}");
        }
        with_mode(0o755).unwrap();
        // Only root can change owners; the tests that need it run as root.
        let own = geteuid().as_raw();
        let above = directory.path().to_owned();
        for (changed, expected) in [
            (&path, "it belongs"),
            (&place, "a directory above it belongs"),
            (&above, "a directory above it belongs"),
        ] {
            if chown(changed, Some(12_345), None).is_ok() {
                let problem = open_trusted(&path).unwrap_err().to_string();
                assert!(problem.contains(expected) && problem.contains("12345"), "{problem}");
                chown(changed, Some(own), None).unwrap();
            }
        }
    }

    #[test]
    fn symbolic_links_are_followed_and_each_is_checked() {
        // As Kubernetes mounts a secret.
        let directory = tempfile::tempdir().unwrap();
        let [volume, first] = ["volume", "volume/..first"].map(|name| directory.path().join(name));
        fs::create_dir_all(&first).unwrap();
        fs::set_permissions(&volume, fs::Permissions::from_mode(0o1777)).unwrap();
        fs::write(first.join("keys.toml"), "first").unwrap();
        symlink("..first", volume.join("..data")).unwrap();
        symlink("..data/keys.toml", volume.join("keys.toml")).unwrap();
        symlink(volume.join("keys.toml"), directory.path().join("link")).unwrap();
        symlink("volume/../volume/./keys.toml", directory.path().join("detour")).unwrap();
        for path in ["volume/keys.toml", "link", "detour"] {
            let file = open_trusted(&directory.path().join(path)).unwrap();
            assert_eq!(io::read_to_string(file).unwrap(), "first", "{path}");
        }
        let own = geteuid().as_raw();
        let link = volume.join("..data");
        if lchown(&link, Some(12_345), None).is_ok() {
            let problem = open_trusted(&volume.join("keys.toml")).unwrap_err().to_string();
            assert!(problem.contains("a symbolic link on its path belongs"), "{problem}");
            lchown(&link, Some(own), None).unwrap();
        }
        // The directory of a link is checked too.
        let open_to_all = directory.path().join("open");
        fs::create_dir(&open_to_all).unwrap();
        fs::set_permissions(&open_to_all, fs::Permissions::from_mode(0o777)).unwrap();
        symlink(volume.join("keys.toml"), open_to_all.join("keys.toml")).unwrap();
        let problem = open_trusted(&open_to_all.join("keys.toml")).unwrap_err().to_string();
        assert!(problem.contains("chmod go-w"), "{problem}");
        symlink("loop", directory.path().join("loop")).unwrap();
        for (path, expected) in [
            ("loop", "too many symbolic links"),
            ("volume", NOT_A_FILE),
            ("none/keys.toml", "No such file"),
            ("volume/keys.toml/x", "ot a directory"),
        ] {
            let problem = open_trusted(&directory.path().join(path)).unwrap_err().to_string();
            assert!(problem.contains(expected), "{path}: {problem}");
        }
    }

    #[test]
    fn the_checked_file_is_the_file_that_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let [path, other] = ["keys.toml", "other"].map(|name| directory.path().join(name));
        fs::write(&path, "right").unwrap();
        fs::write(&other, "wrong").unwrap();
        let file = open_trusted(&path).unwrap();
        fs::rename(&other, &path).unwrap();
        assert_eq!(io::read_to_string(file).unwrap(), "right");
        // Opening a FIFO does not wait for a writer.
        let fifo = directory.path().join("fifo");
        rustix::fs::mkfifoat(CWD, &fifo, Mode::RUSR | Mode::WUSR).unwrap();
        assert_eq!(open_trusted(&fifo).unwrap_err().to_string(), NOT_A_FILE);
        assert_eq!(open(&fifo).unwrap_err().to_string(), NOT_A_FILE);
    }
}
