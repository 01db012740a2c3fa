//! Opening beneath a directory: no path leads out of it, and none passes through a symbolic link.
//!
//! openat2(2) resolves a whole path under these rules in one call. Kernels and sandboxes without it
//! (gVisor before 2026, old seccomp profiles) get a walk that opens one component at a time and
//! looks at each. Which way it is, is found out once per directory.

use std::{
    ffi::OsStr,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

use rustix::{
    fs::{FileType, Mode, OFlags, ResolveFlags, fstat, open, openat, openat2},
    io::retry_on_intr,
};

use crate::daemon::sys::Errno;

/// Most attempts while directories on the way are renamed: each fails only when another rename was
/// in between.
const MAX_OPEN_ATTEMPTS: usize = 128;
/// Most bytes of a path in one system call: less than PATH_MAX with its final NUL. Longer paths are
/// opened in several steps.
const MAX_OPEN_PATH_BYTES: usize = 4000;
/// Where a descriptor only names a place and gives no access to it.
const HANDLE_FLAGS: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);
/// Reading a directory. Nothing but a directory is opened, so no FIFO waits and no device wakes up.
const READ_DIRECTORY_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A directory beneath which paths are opened.
#[derive(Debug)]
pub(super) struct Root {
    directory: OwnedFd,
    method: ResolveMethod,
    symlinks: SymlinkPolicy,
}

/// What becomes of symbolic links on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SymlinkPolicy {
    /// They are refused.
    Refuse,
    /// Those that stay beneath the directory are followed.
    Within,
}

/// How paths are resolved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ResolveMethod {
    /// By the kernel.
    Openat2,
    /// Component by component.
    Components,
}

impl SymlinkPolicy {
    /// The rules by which the kernel resolves a path.
    fn resolve_flags(self) -> ResolveFlags {
        let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        match self {
            Self::Refuse => beneath | ResolveFlags::NO_SYMLINKS,
            Self::Within => beneath,
        }
    }
}

impl Root {
    /// Opens the directory at a path of the operator's, whose symbolic links are followed.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let directory = open(path, HANDLE_FLAGS | OFlags::DIRECTORY, Mode::empty())?;
        let links = SymlinkPolicy::Refuse;
        let way = match open_by_openat2(directory.as_fd(), b".", HANDLE_FLAGS, links) {
            Ok(_) => ResolveMethod::Openat2,
            Err(Errno::NOSYS | Errno::PERM) => ResolveMethod::Components,
            Err(errno) => return Err(errno.into()),
        };
        Ok(Self { directory, method: way, symlinks: links })
    }

    /// Follows symbolic links that stay beneath the directory. Only the kernel can do that without
    /// being deceived.
    pub(super) fn follow_links(&mut self) -> io::Result<()> {
        if self.method == ResolveMethod::Components {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "this kernel has no openat2(2), without which symlinks = \"within\" is not safe",
            ));
        }
        self.symlinks = SymlinkPolicy::Within;
        Ok(())
    }

    /// Whether symbolic links that stay beneath the directory are followed.
    pub(super) fn follows_links(&self) -> bool {
        self.symlinks == SymlinkPolicy::Within
    }

    /// Opens whatever is at `path` without access to it.
    pub(super) fn open_path(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        self.open_with(path, HANDLE_FLAGS)
    }

    /// Whether symbolic links on `path` lead out of the directory, as absolute ones do. Nothing outside is looked
    /// at: the kernel stops there. False where the kernel cannot tell.
    pub(super) fn leads_out(&self, path: &[u8]) -> bool {
        self.method == ResolveMethod::Openat2
            && open_by_openat2(self.as_fd(), path, HANDLE_FLAGS, SymlinkPolicy::Within)
                .is_err_and(|e| e == Errno::XDEV)
    }

    /// Opens whatever is at `path` without access to it, if the kernel has all that it takes in
    /// memory: then nothing is waited for.
    pub(super) fn open_path_cached(&self, path: &[u8]) -> Option<OwnedFd> {
        if self.method == ResolveMethod::Components
            || path.is_empty()
            || path.len() > MAX_OPEN_PATH_BYTES
        {
            return None;
        }
        let resolve = self.symlinks.resolve_flags() | ResolveFlags::CACHED;
        let path = OsStr::from_bytes(path);
        openat2(&self.directory, path, HANDLE_FLAGS, Mode::empty(), resolve).ok()
    }

    /// Opens the directory at `path` for reading.
    pub(super) fn open_directory(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        self.open_with(path, READ_DIRECTORY_FLAGS)
    }

    /// Opens the directory at `path` as a place to work in, without access to its list.
    pub(super) fn open_directory_handle(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        let place = self.open_with(path, HANDLE_FLAGS.union(OFlags::DIRECTORY))?;
        Ok(place)
    }

    fn open_with(&self, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
        if self.method == ResolveMethod::Components {
            return open_by_components(self.directory.as_fd(), path, flags);
        }
        let mut rest = path;
        let mut base: Option<OwnedFd> = None;
        while rest.len() > MAX_OPEN_PATH_BYTES {
            // A component longer than a step is no name of any file system.
            let slash =
                memchr::memrchr(b'/', &rest[..MAX_OPEN_PATH_BYTES]).ok_or(Errno::NAMETOOLONG)?;
            let from = base.as_ref().map_or(self.directory.as_fd(), AsFd::as_fd);
            let flags = HANDLE_FLAGS | OFlags::DIRECTORY;
            base = Some(open_by_openat2(from, &rest[..slash], flags, self.symlinks)?);
            rest = &rest[slash + 1..];
        }
        let from = base.as_ref().map_or(self.directory.as_fd(), AsFd::as_fd);
        let rest = if rest.is_empty() { b"." } else { rest };
        open_by_openat2(from, rest, flags, self.symlinks)
    }
}

impl AsFd for Root {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

/// Opens the directory `name` in `parent` for reading. A name, one component, cannot lead
/// elsewhere.
pub(super) fn open_child_directory(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    retry_on_intr(|| openat(parent, OsStr::from_bytes(name), READ_DIRECTORY_FLAGS, Mode::empty()))
}

/// Opens whatever is called `name` in `parent` without access to it; a symbolic link is opened
/// itself.
pub(super) fn open_entry(parent: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd, Errno> {
    retry_on_intr(|| {
        openat(parent, OsStr::from_bytes(name), HANDLE_FLAGS | OFlags::NOFOLLOW, Mode::empty())
    })
}

/// Opens the directory `name` in `parent` as a place to work in. A symbolic link is refused.
pub(super) fn open_child_handle(parent: &OwnedFd, name: &str) -> Result<OwnedFd, Errno> {
    let place = open_entry(parent.as_fd(), name.as_bytes())?;
    let kind = FileType::from_raw_mode(fstat(&place)?.st_mode);
    if kind == FileType::Directory {
        Ok(place)
    } else if kind == FileType::Symlink {
        Err(Errno::LOOP)
    } else {
        Err(Errno::NOTDIR)
    }
}

fn open_by_openat2(
    base: BorrowedFd<'_>,
    path: &[u8],
    flags: OFlags,
    links: SymlinkPolicy,
) -> Result<OwnedFd, Errno> {
    let mut attempt = 1;
    loop {
        let opened = openat2(
            base,
            OsStr::from_bytes(path),
            // With O_PATH it would open a link at the end instead of refusing it.
            flags.difference(OFlags::NOFOLLOW),
            Mode::empty(),
            links.resolve_flags(),
        );
        match opened {
            Err(Errno::AGAIN | Errno::INTR) if attempt < MAX_OPEN_ATTEMPTS => attempt += 1,
            result => return result,
        }
    }
}

fn open_by_components(base: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut place = open_entry(base, b".")?;
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        let next = open_entry(place.as_fd(), name)?;
        if FileType::from_raw_mode(fstat(&next)?.st_mode) == FileType::Symlink {
            return Err(Errno::LOOP);
        }
        place = next;
    }
    if flags.contains(OFlags::DIRECTORY) {
        return open_child_directory(place.as_fd(), b".");
    }
    Ok(place)
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn both_ways_open_the_same_and_refuse_the_same() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("root");
        fs::create_dir_all(path.join("a/b")).unwrap();
        fs::write(path.join("a/file"), "").unwrap();
        fs::write(directory.path().join("outside"), "").unwrap();
        symlink("a", path.join("link")).unwrap();
        symlink("../outside", path.join("out")).unwrap();
        symlink("nowhere", path.join("dangling")).unwrap();
        symlink("/", path.join("a/everything")).unwrap();
        let long = "n".repeat(256);
        let longer = "n".repeat(5000);
        for way in [ResolveMethod::Openat2, ResolveMethod::Components] {
            let mut root = Root::open(&path).unwrap();
            assert_eq!(root.method, ResolveMethod::Openat2, "this kernel should have openat2");
            root.method = way;
            for (path, place, listing) in [
                ("", None, None),
                ("a", None, None),
                ("a/b", None, None),
                ("a/file", None, Some(Errno::NOTDIR)),
                ("a/file/x", Some(Errno::NOTDIR), Some(Errno::NOTDIR)),
                ("none", Some(Errno::NOENT), Some(Errno::NOENT)),
                ("none/x", Some(Errno::NOENT), Some(Errno::NOENT)),
                ("link", Some(Errno::LOOP), Some(Errno::LOOP)),
                ("link/b", Some(Errno::LOOP), Some(Errno::LOOP)),
                ("out", Some(Errno::LOOP), Some(Errno::LOOP)),
                ("dangling", Some(Errno::LOOP), Some(Errno::LOOP)),
                ("a/everything/etc", Some(Errno::LOOP), Some(Errno::LOOP)),
                (&long, Some(Errno::NAMETOOLONG), Some(Errno::NAMETOOLONG)),
                (&longer, Some(Errno::NAMETOOLONG), Some(Errno::NAMETOOLONG)),
            ] {
                let opened = root.open_path(path.as_bytes());
                assert_eq!(opened.err(), place, "{way:?} {path:?}");
                let opened = root.open_directory(path.as_bytes());
                assert_eq!(opened.err(), listing, "{way:?} {path:?}");
            }
        }
    }

    #[test]
    fn a_link_that_leads_out_is_known_whatever_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("here");
        fs::create_dir_all(path.join("a")).unwrap();
        fs::write(path.join("file"), "").unwrap();
        fs::write(directory.path().join("outside"), "").unwrap();
        let mut root = Root::open(&path).unwrap();
        for (target, leads_out) in [
            ("file", false),
            ("../file", false),
            ("nowhere", false),
            ("link", false),
            ("../../outside", true),
            ("../../nowhere", true),
            ("../../here/file", true),
            ("/etc/passwd", true),
            ("/nowhere", true),
        ] {
            let link = path.join("a/link");
            symlink(target, &link).unwrap();
            root.method = ResolveMethod::Openat2;
            assert_eq!(root.leads_out(b"a/link"), leads_out, "{target}");
            assert_eq!(root.leads_out(b"a/link/x"), leads_out, "{target}");
            root.method = ResolveMethod::Components;
            assert!(!root.leads_out(b"a/link"), "{target}");
            fs::remove_file(link).unwrap();
        }
    }

    #[test]
    fn a_path_longer_than_the_kernel_takes_is_opened_in_steps() {
        let directory = tempfile::tempdir().unwrap();
        let mut root = Root::open(directory.path()).unwrap();
        let name = "n".repeat(250);
        let mut path = String::new();
        let mut place = root.open_path(b"").unwrap();
        for _ in 0..40 {
            rustix::fs::mkdirat(&place, name.as_str(), Mode::RWXU).unwrap();
            place = open_entry(place.as_fd(), name.as_bytes()).unwrap();
            path.push_str(&name);
            path.push('/');
        }
        let bottom = fstat(&place).unwrap().st_ino;
        for way in [ResolveMethod::Openat2, ResolveMethod::Components] {
            root.method = way;
            let opened = root.open_directory(path.trim_end_matches('/').as_bytes());
            assert_eq!(fstat(opened.unwrap()).unwrap().st_ino, bottom);
        }
    }
}
