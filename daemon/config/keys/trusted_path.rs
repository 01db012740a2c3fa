//! Where a key file lies: who can replace it, can let in whom he likes. So each directory and link on the way
//! to it is looked at as it is gone through, and what is read is what was found at the end of that way.

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

/// Who may write to a file or folder beside its owner.
pub(super) const GROUP_OTHER_WRITE: u32 = 0o022;
/// With this, what is in a folder can be replaced by its owner only.
const STICKY_BIT: u32 = 0o1000;
/// Links that are followed, as in the kernel (path_resolution(7)).
const MAX_SYMLINKS: usize = 40;

/// The way to a file, as far as it was gone.
struct TrustedPathWalk {
    /// The directory that it has come to, and its path.
    directory: OwnedFd,
    path: PathBuf,
    /// What is still to be gone through, the last one first.
    remaining: Vec<OsString>,
    links_followed: usize,
}

/// Opens the file at `path`, if nobody but the daemon's own user and root can replace it, or what is in it.
pub(super) fn open_trusted(path: &Path) -> Result<File, String> {
    let path = std::path::absolute(path).map_err(|error| explain_open_error(&error))?;
    let mut walk = TrustedPathWalk::new(&path)?;
    while let Some(name) = walk.remaining.pop() {
        if let Some(file) = walk.step(&name)? {
            return Ok(file);
        }
    }
    Err(NOT_A_FILE.to_owned())
}

/// Opens the file at `path`.
pub(super) fn open(path: &Path) -> Result<File, String> {
    open_file_at(&CWD, path.as_os_str(), OFlags::empty())
}

/// Why the key file cannot be read, and what to do.
fn explain_open_error(error: &io::Error) -> String {
    let remedy = if error.kind() == ErrorKind::PermissionDenied {
        "a daemon reads it as its own user and, once it serves, only where it and the links to it were at its start: restart it where that has changed"
    } else {
        "make a key with `jig key new --keys FILE`"
    };
    format!("{error}: {remedy}")
}

const NOT_A_FILE: &str = "is no file";

/// Opens a file for reading; never waits for somebody to write to it.
fn open_file_at(
    folder: &impl std::os::fd::AsFd,
    name: &OsStr,
    flags: OFlags,
) -> Result<File, String> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC | flags;
    let file = openat(folder, name, flags, Mode::empty());
    let file = file.map_err(|errno| explain_open_error(&errno.into()))?;
    let stat = fstat(&file).map_err(|errno| explain_open_error(&errno.into()))?;
    match FileType::from_raw_mode(stat.st_mode).is_file() {
        true => Ok(file.into()),
        false => Err(NOT_A_FILE.to_owned()),
    }
}

impl TrustedPathWalk {
    fn new(path: &Path) -> Result<Self, String> {
        let (at, root) = open_root()?;
        let mut walk = Self { directory: at, path: root, remaining: Vec::new(), links_followed: 0 };
        walk.push_path(path);
        Ok(walk)
    }

    /// Has it go through `path` next.
    fn push_path(&mut self, path: &Path) {
        let names = path.components().filter_map(|component| match component {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some("..".into()),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => None,
        });
        let names: Vec<_> = names.collect();
        self.remaining.extend(names.into_iter().rev());
    }

    /// Goes one step. Answers the file, at the end of the way.
    fn step(&mut self, name: &OsStr) -> Result<Option<File>, String> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = openat(&self.directory, name, flags, Mode::empty());
        let found = found.map_err(|errno| explain_open_error(&errno.into()))?;
        let stat = fstat(&found).map_err(|errno| explain_open_error(&errno.into()))?;
        let path = match name == ".." {
            true => self.path.parent().unwrap_or(&self.path).to_owned(),
            false => self.path.join(name),
        };
        let kind = FileType::from_raw_mode(stat.st_mode);
        if kind.is_symlink() {
            check_owner("a link that leads to it", &path, stat.st_uid)?;
            let target = readlinkat(&found, "", Vec::new());
            let target = target.map_err(|errno| explain_open_error(&errno.into()))?;
            self.follow_link(&PathBuf::from(OsString::from_vec(target.into_bytes())))?;
        } else if kind.is_dir() {
            check_directory(&found, &path)?;
            (self.directory, self.path) = (found, path);
        } else if self.remaining.is_empty() {
            let file = open_file_at(&self.directory, name, OFlags::NOFOLLOW)?;
            let stat = fstat(&file).map_err(|errno| explain_open_error(&errno.into()))?;
            check_owner("it", &path, stat.st_uid)?;
            return Ok(Some(file));
        } else {
            return Err(explain_open_error(&ErrorKind::NotADirectory.into()));
        }
        Ok(None)
    }

    fn follow_link(&mut self, target: &Path) -> Result<(), String> {
        self.links_followed += 1;
        if self.links_followed > MAX_SYMLINKS {
            return Err("too many links lead to it".to_owned());
        }
        if target.is_absolute() {
            (self.directory, self.path) = open_root()?;
        }
        self.push_path(target);
        Ok(())
    }
}

/// Where every way begins, and its path.
fn open_root() -> Result<(OwnedFd, PathBuf), String> {
    let (path, flags) = (Path::new("/"), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC);
    let root = openat(CWD, path, flags, Mode::empty())
        .map_err(|errno| explain_open_error(&errno.into()))?;
    check_directory(&root, path)?;
    Ok((root, path.to_owned()))
}

fn check_directory(folder: &OwnedFd, path: &Path) -> Result<(), String> {
    let stat = fstat(folder).map_err(|errno| explain_open_error(&errno.into()))?;
    check_owner("a directory above it", path, stat.st_uid)?;
    let mode = stat.st_mode;
    if mode & GROUP_OTHER_WRITE != 0 && mode & STICKY_BIT == 0 {
        return Err(format!(
            "others than its owner may write to the directory {} (mode {:04o}), and so replace it: chmod go-w that",
            path.display(),
            mode & 0o7777
        ));
    }
    Ok(())
}

fn check_owner(what: &str, path: &Path, owner: u32) -> Result<(), String> {
    if owner == 0 || owner == geteuid().as_raw() {
        return Ok(());
    }
    Err(format!(
        "{what} belongs to the user {owner}, who can let in whom he likes: chown {} to the daemon's user or to root",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{PermissionsExt as _, chown, lchown, symlink},
    };

    use super::*;

    #[test]
    fn a_file_that_others_may_replace_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("keys");
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
            let problem = with_mode(mode).unwrap_err();
            assert!(problem.contains("chmod go-w"), "{problem}");
        }
        with_mode(0o755).unwrap();
        // Of whom it is can be changed by root only, as whom the tests run that need it.
        let own = geteuid().as_raw();
        let above = folder.path().to_owned();
        for (changed, told) in [
            (&path, "it belongs"),
            (&place, "a directory above it belongs"),
            (&above, "a directory above it belongs"),
        ] {
            if chown(changed, Some(12_345), None).is_ok() {
                let problem = open_trusted(&path).unwrap_err();
                assert!(problem.contains(told) && problem.contains("12345"), "{problem}");
                chown(changed, Some(own), None).unwrap();
            }
        }
    }

    #[test]
    fn what_links_lead_to_is_read_and_each_of_them_is_looked_at() {
        // As Kubernetes mounts a secret.
        let folder = tempfile::tempdir().unwrap();
        let [volume, first] = ["volume", "volume/..first"].map(|name| folder.path().join(name));
        fs::create_dir_all(&first).unwrap();
        fs::set_permissions(&volume, fs::Permissions::from_mode(0o1777)).unwrap();
        fs::write(first.join("keys.toml"), "first").unwrap();
        symlink("..first", volume.join("..data")).unwrap();
        symlink("..data/keys.toml", volume.join("keys.toml")).unwrap();
        symlink(volume.join("keys.toml"), folder.path().join("link")).unwrap();
        symlink("volume/../volume/./keys.toml", folder.path().join("detour")).unwrap();
        for path in ["volume/keys.toml", "link", "detour"] {
            let file = open_trusted(&folder.path().join(path)).unwrap();
            assert_eq!(io::read_to_string(file).unwrap(), "first", "{path}");
        }
        let own = geteuid().as_raw();
        let link = volume.join("..data");
        if lchown(&link, Some(12_345), None).is_ok() {
            let problem = open_trusted(&volume.join("keys.toml")).unwrap_err();
            assert!(problem.contains("a link that leads to it belongs"), "{problem}");
            lchown(&link, Some(own), None).unwrap();
        }
        // Where a link lies, matters as much.
        let open_to_all = folder.path().join("open");
        fs::create_dir(&open_to_all).unwrap();
        fs::set_permissions(&open_to_all, fs::Permissions::from_mode(0o777)).unwrap();
        symlink(volume.join("keys.toml"), open_to_all.join("keys.toml")).unwrap();
        let problem = open_trusted(&open_to_all.join("keys.toml")).unwrap_err();
        assert!(problem.contains("chmod go-w"), "{problem}");
        symlink("loop", folder.path().join("loop")).unwrap();
        for (path, told) in [
            ("loop", "too many links"),
            ("volume", NOT_A_FILE),
            ("none/keys.toml", "jig key new"),
            ("volume/keys.toml/x", "ot a directory"),
        ] {
            let problem = open_trusted(&folder.path().join(path)).unwrap_err();
            assert!(problem.contains(told), "{path}: {problem}");
        }
    }

    #[test]
    fn what_was_looked_at_is_what_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let [path, other] = ["keys.toml", "other"].map(|name| folder.path().join(name));
        fs::write(&path, "right").unwrap();
        fs::write(&other, "wrong").unwrap();
        let file = open_trusted(&path).unwrap();
        fs::rename(&other, &path).unwrap();
        assert_eq!(io::read_to_string(file).unwrap(), "right");
        // Nobody is waited for who might write.
        let fifo = folder.path().join("fifo");
        rustix::fs::mkfifoat(CWD, &fifo, Mode::RUSR | Mode::WUSR).unwrap();
        assert_eq!(open_trusted(&fifo).unwrap_err(), NOT_A_FILE);
        assert_eq!(open(&fifo).unwrap_err(), NOT_A_FILE);
    }
}
